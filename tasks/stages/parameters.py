"""The parameters of a stage: how they are declared, checked, and read from text.

A stage's parameters are a frozen dataclass that inherits `Parameters`; each field is a `parameter` with its default,
one line of help, and what it may hold. From these come the refusals, `--set`, the sections of presets/everything.toml
and the tables of the docs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from storage.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from tasks.stages.contract import Stage

_DECLARED = "declared"


@dataclass(frozen=True)
class Declared:
    """What is declared of one parameter beside its type and default."""

    help: str
    """One line: what it is, in which unit, and what its special values mean."""
    words: tuple[str, ...] = ()
    """The words that it may hold; none where it holds no words."""
    least: float | None = None
    most: float | None = None
    above: float | None = None
    """It is larger than this."""
    below: float | None = None
    """It is smaller than this."""
    empty: bool = False
    """Whether a list may be empty."""
    repeats: bool = False
    """Whether a list may hold a value twice."""
    example: Any = None
    """A value to show in place of a default that cannot run."""
    in_order: bool = False
    """Whether a list of words is put into the order of `words`, so that the order given does not matter."""

    def range(self) -> str:
        """The range in words, such as `from 1 to 1,000` or `in (0, 1]`; empty where there is none."""
        if self.above is not None or self.below is not None:
            top = f"{self.below:g})" if self.below is not None else f"{self.most:g}]" if self.most is not None else "∞)"
            low = (
                f"({self.above:g}"
                if self.above is not None
                else f"[{self.least:g}"
                if self.least is not None
                else "(−∞"
            )
            return f"in {low}, {top}"
        if self.least is not None and self.most is not None:
            return f"from {self.least:,} to {self.most:,}"
        if self.least is not None:
            return f"of at least {self.least:,}"
        return f"of at most {self.most:,}" if self.most is not None else ""

    def holds(self, value: Any) -> bool:
        """Whether a number lies in the range; NaN lies in none."""
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )


def parameter(default: Any, help: str, /, **more: Any) -> Any:
    """A field of a stage's parameters; `more` as the fields of `Declared`."""
    return field(default=default, metadata={_DECLARED: Declared(help, **more)})


@dataclass(frozen=True)
class Parameters:
    """What the parameters of all stages inherit: they are checked against their declaration when they are made."""

    stage: ClassVar[str] = "a stage"
    """The stage's name."""

    def __post_init__(self) -> None:
        for each, declared in declared_parameters(type(self)):
            object.__setattr__(self, each.name, _checked(getattr(self, each.name), declared, each.name, self.stage))


@dataclass(frozen=True)
class NoParameters(Parameters):
    """The parameters of a stage that has none."""

    def __post_init__(self) -> None:
        """Nothing to check."""


def declared_parameters(parameters: type) -> Iterator[tuple[Field[Any], Declared]]:
    """The fields of a stage's parameters, each with its declaration."""
    return ((each, each.metadata[_DECLARED]) for each in fields(parameters))


def _checked(value: Any, declared: Declared, name: str, stage: str) -> Any:
    """The value, in the order of the declaration where it says so. Raises UnknownName or UsageError."""
    where = f"{stage}.{name}"
    values: Sequence[Any] = value if isinstance(value, tuple) else (value,)
    for one in values if declared.words else ():
        if one not in declared.words:
            raise UnknownName.among(_singular(name), str(one), declared.words, where=where)
    if isinstance(value, tuple):
        _check_list(value, declared, where)
    for one in values if declared.range() else ():
        if not declared.holds(one):
            expected, remedy = f"{name.replace('_', ' ')} {declared.range()}", f"It is {declared.help}."
            raise UsageError(expected, got=str(one), where=where, remedy=remedy)
    if declared.in_order:
        return tuple(word for word in declared.words if word in values)
    return value


def _check_list(values: tuple[Any, ...], declared: Declared, where: str) -> None:
    expected = f"some of {', '.join(declared.words)}, each once" if declared.words else "values, each once"
    if not values and not declared.empty:
        raise UsageError(expected, got="none", where=where)
    if not declared.repeats and len(set(values)) < len(values):
        got = f"{', '.join(map(str, values))}, of which some are twice"
        raise UsageError(expected, got=got, where=where)


def _singular(name: str) -> str:
    return {"strategies": "strategy"}.get(name, name.removesuffix("s")).replace("_", " ")


def stage_parameters(stage: Stage, overrides: Mapping[str, Any]) -> Any:
    """The stage's parameters with these values in place of defaults; text is read as the parameter's type.

    A list may be given as text with commas. Raises UnknownName with the nearest parameter, or UsageError with the
    value that is not accepted.
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
