"""The reference of settings that is generated from their declarations: `python -m flows.reference` rewrites it.

Each section is a function of its own, which returns the text that stands in a file between two lines.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flows.capture_options import default_in_words, flags, plain, repeats
from tasks.capture.settings import CaptureSettings, options

ROOT = Path(__file__).parents[1]
_COMMENT_AT = 29


def capture_table() -> str:
    """The table of a capture's options in docs/running.md."""
    rows = ["| option | meaning | default |", "|---|---|---|"]
    for name, option in options():
        if option.on_command_line:
            text = str(CaptureSettings.model_fields[name].description)
            meaning = text[0].lower() + text[1:] + ("; repeatable" if repeats(name) else "")
            names = ", ".join(f"`{each}`" for each in flags(name))
            rows.append(f"| {names} | {meaning} | {default_in_words(name)} |")
    return "\n".join(rows) + "\n"


def capture_section() -> str:
    """The section [capture] of presets/everything.toml: every setting with its default, or commented out."""
    lines = ["[capture]"]
    for name, option in options():
        field = CaptureSettings.model_fields[name]
        description = str(field.description)
        if field.default is None:
            lines.append(_toml_line(f"# {name} = {_toml(option.example)}", f"{description}; by default {option.unset}"))
        else:
            lines.append(_toml_line(f"{name} = {_toml(field.default)}", description))
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """A value as TOML writes it; for text, numbers, yes or no and lists of text JSON writes the same."""
    return json.dumps(value)


def _toml_line(setting: str, comment: str) -> str:
    comment = plain(comment)
    return f"{setting.ljust(_COMMENT_AT - 1)} # {comment[0].lower() + comment[1:]}"


SECTIONS: tuple[tuple[str, str, str, Callable[[], str]], ...] = (
    (
        "docs/running.md",
        "<!-- written by python -m flows.reference: capture options -->\n",
        "<!-- end -->\n",
        capture_table,
    ),
    (
        "presets/everything.toml",
        "# Every setting, with its default. Copy it, and keep the lines that you change.\n",
        "\n[stages.contributions]\n",
        capture_section,
    ),
)
"""Each generated section: its file, the line before it, the line after it, and what writes it."""


def generated(text: str, before: str, after: str, section: str) -> str:
    """A file's text with one section written anew."""
    start = text.index(before) + len(before)
    return text[:start] + section + text[text.index(after, start) :]


def main() -> None:
    """Rewrite every generated section in its file."""
    for name, before, after, write in SECTIONS:
        path = ROOT / name
        path.write_text(generated(path.read_text(encoding="utf-8"), before, after, write()), encoding="utf-8")


if __name__ == "__main__":
    main()
