"""The reference of settings that is generated from their declarations: `python -m flows.reference` rewrites it.

Each section is a function of its own, which returns the text that stands in a file between two lines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import Field
from functools import partial
from pathlib import Path
from typing import Any

from flows.capture_options import default_in_words, flags, plain, repeats
from tasks.capture.settings import CaptureSettings, options
from tasks.stages.contract import Stage
from tasks.stages.parameters import Declared, declared_parameters
from tasks.stages.registry import stages

ROOT = Path(__file__).parents[1]
_COMMENT_AT = 29
_PARAMETERS = re.compile(r"<!-- written by python -m flows\.reference: parameters of (\w+) -->\n")
_END = "<!-- end -->\n"


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


def parameter_table(name: str) -> str:
    """The table of a stage's parameters, for any page of the docs that asks for it."""
    rows = ["| parameter | meaning | values | default |", "|---|---|---|---|"]
    for field, declared in declared_parameters(stages()[name].parameters):
        cells = (declared.help, _values(field, declared), _default(field, declared))
        rows.append(f"| `{name}.{field.name}` | {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
    return "\n".join(rows) + "\n"


def _values(field: Field[Any], declared: Declared) -> str:
    """What a parameter may hold, in words."""
    if declared.words:
        return ", ".join(f"`{word}`" for word in declared.words)
    return declared.range().removeprefix("of ") or ("`true`, `false`" if "bool" in str(field.type) else "")


def _default(field: Field[Any], declared: Declared) -> str:
    """A default as `--set` would be given it; `all` where it is every word, none where the list is empty."""
    if field.default == ():
        return "none"
    if isinstance(field.default, tuple):
        several = len(field.default) > 1 and field.default == declared.words
        return "all" if several else f"`{','.join(map(_set_value, field.default))}`"
    return f"`{_set_value(field.default)}`"


def _set_value(value: Any) -> str:
    """One value as `--set` takes it."""
    return f"{value:g}" if isinstance(value, float) else json.dumps(value).strip('"')


def stage_sections() -> str:
    """The sections [stages.NAME] of presets/everything.toml: the default stages' set, the others commented out."""
    return "\n".join(_stage_section(stage) for stage in stages().values() if stage.parameter_names())


def _stage_section(stage: Stage) -> str:
    mark = "# " if stage.on_request else ""
    heading = f"{mark}[stages.{stage.name}]"
    remark = "runs the model again" if stage.needs_model else ""
    lines = [f"{heading.ljust(_COMMENT_AT - 1)} # {remark}" if remark else heading]
    for field, declared in declared_parameters(stage.parameters):
        limits = declared.range().removeprefix("of ")
        said = f"{declared.help}; {limits}" if limits else declared.help
        shown = field.default if declared.example is None else declared.example
        lines.append(_toml_line(f"{mark}{field.name} = {_toml(shown)}", said))
    return "\n".join(lines) + "\n"


Section = tuple[str, str, str, Callable[[], str]]
"""A generated section: its file, the line before it, the line after it, and what writes it."""

_PRESET = "presets/everything.toml"
_FIXED: tuple[Section, ...] = (
    ("docs/running.md", "<!-- written by python -m flows.reference: capture options -->\n", _END, capture_table),
    (
        _PRESET,
        "# Every setting, with its default. Copy it, and keep the lines that you change.\n",
        "\n# The stages, in the order of a full run",
        capture_section,
    ),
    (_PRESET, "commented out is left out unless run.stages names it.\n", "\n[run]\n", stage_sections),
)


def sections() -> Iterator[Section]:
    """Every generated section, with the tables of parameters wherever a page of the docs has their mark."""
    yield from _FIXED
    for page in sorted((ROOT / "docs").glob("*.md")):
        for mark in _PARAMETERS.finditer(page.read_text(encoding="utf-8")):
            yield f"docs/{page.name}", mark[0], _END, partial(parameter_table, mark[1])


def generated(text: str, before: str, after: str, section: str) -> str:
    """A file's text with one section written anew."""
    start = text.index(before) + len(before)
    return text[:start] + section + text[text.index(after, start) :]


def main() -> None:
    """Rewrite every generated section in its file."""
    for name, before, after, write in sections():
        path = ROOT / name
        path.write_text(generated(path.read_text(encoding="utf-8"), before, after, write()), encoding="utf-8")


if __name__ == "__main__":
    main()
