"""Options and parameters come from their declarations: the command line, and the generated reference."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
import typer.main

from flows.capture_options import flag
from flows.cli import app
from flows.reference import ROOT, capture_section, generated, sections
from tasks.capture.settings import CaptureSettings, option, options
from tasks.stages.registry import stages


@pytest.mark.parametrize("section", tuple(sections()), ids=lambda section: section[1].strip(" <>!-\n"))
def test_the_committed_text_is_the_generated_one(section: tuple[Any, ...]) -> None:
    name, before, after, write = section
    text = (ROOT / name).read_text(encoding="utf-8")
    assert generated(text, before, after, write()) == text, "run python -m flows.reference"


def test_every_example_of_the_preset_is_a_setting_that_is_allowed() -> None:
    text = capture_section().replace("\n# ", "\n")
    values = tomllib.loads(text)["capture"]
    assert list(values) == list(CaptureSettings.model_fields)
    assert CaptureSettings(**values).model_dump() == {**values, "corpus": ("python-topics",)}


def test_every_stage_with_parameters_has_its_table_in_the_docs_once() -> None:
    marked = [before.split()[-2] for _, before, _, _ in sections() if "parameters of" in before]
    assert sorted(marked) == sorted(name for name, stage in stages().items() if stage.parameter_names())


@pytest.mark.parametrize("command", ["run", "plan", "capture"])
def test_every_option_is_on_the_command_line_or_declared_as_the_file_s_alone(command: str) -> None:
    known = {each for parameter in typer.main.get_command(app).commands[command].params for each in parameter.opts}
    for name, declared in options():
        assert (flag(name) in known) == declared.on_command_line, name


def test_every_option_is_described_and_says_what_leaving_it_out_means() -> None:
    for name, field in CaptureSettings.model_fields.items():
        assert field.description and not field.description.endswith("."), name
        assert (field.default is None) == bool(option(name).unset) == (option(name).example is not None), name
