"""`--set stage.parameter=value` and the tables of a configuration file, made into a stage's parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from storage.errors import UnknownName, UsageError
from tasks.stages.registry import Stage


def stage_parameters(stage: Stage, overrides: Mapping[str, Any]) -> Any:
    """The stage's parameters with these values in place of defaults; text is read as the parameter's type.

    A list may be given as text with commas. Raises UnknownName with the nearest parameter, or UsageError with the
    value that does not fit.
    """
    hints = get_type_hints(stage.parameters)
    for name in overrides:
        if name not in stage.parameter_names():
            raise UnknownName.among("parameter", name, stage.parameter_names(), where=f"stage {stage.name}")
        if isinstance(overrides[name], bool) and hints[name] in (int, float):  # pydantic would take it for 1 or 0
            raise UsageError("a number", got=repr(overrides[name]), where=f"{stage.name}.{name}")
    values = {name: _split(value, hints[name]) for name, value in overrides.items()}
    try:
        return TypeAdapter(stage.parameters).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        if isinstance(own := first.get("ctx", {}).get("error"), UsageError):
            raise own from error
        name = ".".join([stage.name, *(str(part) for part in first["loc"])])
        expected = first["msg"].removeprefix("Input should be ")
        raise UsageError(expected, got=repr(first["input"]), where=name) from error


def _split(value: Any, hint: Any) -> Any:
    if isinstance(value, str) and get_origin(hint) in (tuple, list):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value
