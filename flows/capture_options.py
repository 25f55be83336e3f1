"""The options of a capture on the command line, made from their one declaration (`CaptureSettings`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Annotated, Any, get_args

import typer
from pydantic.fields import FieldInfo

from tasks.capture.settings import CaptureSettings, Option, options

CaptureOptions = Mapping[str, Any]
"""The value of each option by its name; None for one that was not given."""

PANEL = "The capture"


def flag(name: str) -> str:
    """What an option is called on the command line."""
    return f"--{name.replace('_', '-')}"


def flags(name: str) -> tuple[str, ...]:
    """Every form of an option on the command line: of a yes or no both."""
    field = CaptureSettings.model_fields[name]
    return (flag(name), flag(f"no_{name}")) if _value_type(field) is bool else (flag(name),)


def repeats(name: str) -> bool:
    """Whether an option may be given several times."""
    return isinstance(CaptureSettings.model_fields[name].default, tuple)


def with_capture_options(required: Sequence[str] = ()) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that gives a command's body, as its parameter `options`, the options of a capture.

    required: those without which the command is refused.
    """

    def decorate(body: Callable[..., Any]) -> Callable[..., Any]:
        own = inspect.signature(body, eval_str=True)
        generated = list(_parameters(required))

        @wraps(body)
        def command(**values: Any) -> Any:
            chosen = {p.name: values.pop(p.name) for p in generated}
            options = {name: value or None if repeats(name) else value for name, value in chosen.items()}
            return body(**values, options=options)

        parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in own.parameters.values()]
        at = [p.name for p in parameters].index("options")
        parameters[at : at + 1] = generated
        command.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        return command

    return decorate


def _parameters(required: Sequence[str]) -> Iterator[inspect.Parameter]:
    for name, option in options():
        if not option.on_command_line:
            continue
        field = CaptureSettings.model_fields[name]
        value_type: Any = list[str] if repeats(name) else _value_type(field)
        needed = name in required
        annotation: Any = Annotated[
            value_type if needed else value_type | None,
            typer.Option(
                "/".join(flags(name)),
                help=_help(name, field, option, needed=needed),
                rich_help_panel=None if needed else PANEL,
                show_default=False,
            ),
        ]
        default = inspect.Parameter.empty if needed else None
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _help(name: str, field: FieldInfo, option: Option, *, needed: bool) -> str:
    """One line: the description and what holds where the option is left out, without Markdown's marks."""
    text = str(field.description) + (". Repeatable" if repeats(name) else "")
    return plain(text if needed else f"{text}. Default: {default_in_words(name)}") + "."


def default_in_words(name: str) -> str:
    """What holds where an option is left out, in Markdown."""
    default = CaptureSettings.model_fields[name].default
    if isinstance(default, tuple):
        return ", ".join(f"`{item}`" for item in default)
    if isinstance(default, bool):
        return "yes" if default else "no"
    unset = next(option.unset for known, option in options() if known == name)
    return unset if default is None else f"`{default}`"


def plain(markdown: str) -> str:
    """A line of Markdown without the marks of code."""
    return markdown.replace("`", "")


def _value_type(field: FieldInfo) -> type:
    """The type of an option's value: bool, int or str."""
    found = {*_types(field.annotation)}
    return next(kind for kind in (bool, int, str) if kind in found)


def _types(annotation: Any) -> Iterator[Any]:
    yield annotation
    for argument in get_args(annotation):
        yield from _types(argument)
