"""The registry: every stage found by name, from the declarations in the folders beside this file.

A folder of tasks/stages with a module `declaration` that has `STAGES` is a family of stages. Nothing else lists them.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path

from storage.errors import UnknownName
from storage.table_checks import Check, completeness_check, table_checks
from storage.tables import TableSpec
from tasks.capture.tables import CAPTURE_TABLES, STAGES
from tasks.stages.contract import Stage

_FAMILIES = ("contributions", "faithfulness", "heads", "perturbation", "probes", "multiscale")
"""The order in which a full run takes them; a folder that is not named here comes after these."""


@cache
def stages() -> dict[str, Stage]:
    """Every stage by name, in the order in which a full run takes them."""
    found = sorted(path.parent.name for path in Path(__file__).parent.glob("*/declaration.py"))
    families = sorted(found, key=lambda name: _FAMILIES.index(name) if name in _FAMILIES else len(_FAMILIES))
    declared = (import_module(f"{__package__}.{family}.declaration").STAGES for family in families)
    return {stage.name: stage for of_family in declared for stage in of_family}


def stage(name: str) -> Stage:
    """The stage of that name. Raises UnknownName with the nearest one."""
    known = stages()
    if name not in known:
        raise UnknownName.among("stage", name, known)
    return known[name]


def default_stages() -> tuple[str, ...]:
    """The stages of a run that names none, in order: those that take about as long as the capture."""
    return tuple(name for name, declared in stages().items() if not declared.on_request)


@cache
def tables() -> dict[str, TableSpec]:
    """Every table of the warehouse by name."""
    specs = [*CAPTURE_TABLES, STAGES, *(t for s in stages().values() for t in s.tables)]
    return {t.name: t for t in specs}


@cache
def declared_checks() -> tuple[Check, ...]:
    """The checks that follow from the declarations: completeness of finished runs, then those of each table."""
    complete = (completeness_check(s.name, each) for s in stages().values() for each in s.completeness)
    return (*complete, *table_checks(tables()))
