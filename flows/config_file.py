"""From a TOML file (or a preset's name) and the command line's options to one checked configuration."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flows.config import Config
from storage.errors import CorpusError, UnknownName, UsageError
from tasks.capture.kept import offered_by
from tasks.capture.settings import CaptureSettings, usage_error
from tasks.stages.parameters import stage_parameters
from tasks.stages.registry import default_stages, stage, stages
from tasks.stages.requirements import require_kinds

DEFAULT = "default"
"""The preset of `theodolite run` with no arguments."""

ALL_STAGES = "all"
"""In place of stages' names: every one that is about such a corpus, those too that run the model again."""


def configure(source: str | None, options: Mapping[str, Mapping[str, Any]], changes: Sequence[str]) -> Config:
    """The configuration of a run.

    `source` is a TOML file or the name of a preset, None for the preset `default`. `options` are the command line's
    values by section: None leaves the file's, and 0 for `max_documents` lifts its cap. `changes` are its
    `--set stage.parameter=value`. Raises UnknownName with the nearest name, or UsageError with the value, for whatever
    does not fit.
    """
    where, content = _read(source)
    merged: dict[str, Any] = {name: _section(name, value, where) for name, value in content.items()}
    for name, values in merged.get("stages", {}).items():
        merged["stages"][name] = _section(f"stages.{name}", values, where)
    for section, values in options.items():
        merged[section] = {**merged.get(section, {}), **{k: v for k, v in values.items() if v is not None}}
    if source is None:
        _forget_the_sample(merged["capture"], options["capture"])
    cap = merged.get("capture", {}).get("max_documents")
    if cap == 0 and type(cap) is int:
        del merged["capture"]["max_documents"]
    for name, values in stage_changes(changes).items():
        merged.setdefault("stages", {})
        merged["stages"][name] = {**merged["stages"].get(name, {}), **values}
    config = _validated(merged, where)
    check_stages(config, where)
    return config


def _section(name: str, value: Any, where: str) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    if "." not in name and name not in Config.model_fields:
        raise UnknownName.among("section", name, Config.model_fields, where=where)
    raise UsageError(f"a section [{name}] with settings", got=f"{name} = {value!r}", where=where)


def _forget_the_sample(capture: dict[str, Any], options: Mapping[str, Any]) -> None:
    """The default preset's window suits its own model: with another model, the window is that model's."""
    if options.get("model") is not None and options.get("window") is None:
        capture.pop("window", None)


def preset_names() -> list[str]:
    """The configurations that come with Theodolite."""
    return sorted(p.name.removesuffix(".toml") for p in files("presets").iterdir() if p.name.endswith(".toml"))


def _read(source: str | None) -> tuple[str, dict[str, Any]]:
    name = source or DEFAULT
    path = Path(name)
    if source and path.is_file():
        return source, _parse(path.read_bytes(), source)
    if name in preset_names():
        return f"preset {name}", _parse(files("presets").joinpath(f"{name}.toml").read_bytes(), name)
    if path.suffix == ".toml" or "/" in name:
        raise UsageError("a configuration in TOML", got="no such file", where=name, remedy="See docs/running.md.")
    raise UnknownName.among("preset", name, preset_names(), where="theodolite run")


def _parse(data: bytes, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError("a configuration in TOML", got=str(error), where=where) from error


def stage_changes(changes: Iterable[str]) -> dict[str, dict[str, str]]:
    """`stage.parameter=value`, each, as values by stage and parameter."""
    found: dict[str, dict[str, str]] = {}
    for change in changes:
        target, equals, value = change.partition("=")
        name, dot, parameter = target.strip().partition(".")
        if not (equals and dot and name and parameter):
            raise UsageError("stage.parameter=value", got=f"'{change}'", where="--set", remedy=_full_name(change))
        found.setdefault(name, {})[parameter] = value.strip()
    return found


def _full_name(change: str) -> str:
    """What a change that names no stage was likely meant to be."""
    parameter, _, value = change.partition("=")
    having = [known.name for known in stages().values() if parameter.strip() in known.parameter_names()]
    meant = " or ".join(f"--set {name}.{parameter.strip()}={value or 'VALUE'}" for name in having[:3])
    return f"Did you mean {meant}?" if meant else "Such as --set contributions.edges=16; docs/running.md lists them."


def chosen_stages(config: Config) -> tuple[str, ...]:
    """The stages that the run does, in the order given; by default those that are quick; `all`: all, but those about
    another kind of corpus."""
    if config.run.stages == (ALL_STAGES,):
        return tuple(name for name in stages() if _about(name, config.capture.corpus))
    return config.run.stages if config.run.stages is not None else default_stages()


def _about(name: str, corpus: Sequence[str]) -> bool:
    """Whether a stage is about a corpus of that kind."""
    require = stage(name).require_corpus
    try:
        if require is not None:
            require(corpus)
    except CorpusError:
        return False
    return True


def check_stages(config: Config, where: str) -> None:
    """Every named stage exists, every parameter and file fits, and none is set for a stage that does not run."""
    chosen = chosen_stages(config)
    for name in chosen:
        stage(name).check_files(stage_parameters(stage(name), config.stages.get(name, {})))
    for name, values in config.stages.items():
        stage_parameters(stage(name), values)
        if name not in chosen:
            raise UsageError(
                f"parameters of stages that run ({', '.join(chosen) or 'none'})",
                got=f"parameters of {name}",
                where=where,
                remedy=f"Add {name} to --stages, or leave its parameters out.",
            )


def require_kept(capture: CaptureSettings, names: Iterable[str]) -> None:
    """UsageError unless a capture of this configuration keeps what these stages read, CorpusError unless its corpus is
    what they are about: it must not run in vain."""
    offered = offered_by(capture.model_dump())
    for name in names:
        require_kinds(stage(name), offered, "this capture")
        if (require := stage(name).require_corpus) is not None:
            require(capture.corpus)


def _validated(content: Mapping[str, Any], where: str) -> Config:
    try:
        return Config.model_validate(content)
    except ValidationError as error:
        raise _readable(error, where) from error


def _readable(error: ValidationError, where: str) -> UsageError:
    """The first thing that does not fit, as a message that names the setting."""
    first = error.errors()[0]
    if (own := usage_error(error)) is not None:
        return own
    *outer, name = [str(part) for part in first["loc"]]
    section = ".".join(outer)
    if first["type"] == "extra_forbidden":
        known = _known(outer)
        kind = "setting" if section else "section"
        return UnknownName.among(kind, name, known, where=f"{where} [{section}]" if section else where)
    expected = first["msg"].removeprefix("Input should be ").lower()
    return UsageError(expected, got=repr(first["input"]), where=f"{where}: {'.'.join([*outer, name])}")


def _known(path: Sequence[str]) -> list[str]:
    model: Any = Config
    for part in path:
        model = model.model_fields[part].annotation
    return list(model.model_fields)
