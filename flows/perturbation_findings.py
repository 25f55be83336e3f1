"""What the stages that perturb the residual stream found: a few lines, from the named queries."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from duckdb import DuckDBPyConnection

from storage.warehouse import query

_CONDITION = ("protocol", "first_token", "layers", "delta_kind")
_REPAIRED = (*_CONDITION, "delta", "arm")
_ABSOLUTE = "absolute"


def perturbation_lines(connection: DuckDBPyConnection, capture: str) -> Iterator[str]:
    """What turning and lengthening do to the loss at each δ, by protocol, with the first token moved and left alone."""
    rows = query(connection, "dissociation", {"capture": capture}).to_pylist()
    several = {row["layers"] for row in rows if not row["layers"].isdecimal()}
    told = [row for row in rows if not several or row["layers"] in several]  # each layer alone is for queries to tell
    for condition, group in groupby(told, key=lambda row: tuple(row[name] for name in _CONDITION)):
        both = [r for r in group if r["nll_change_angle"] is not None and r["nll_change_magnitude"] is not None]
        if both:
            steps = "; ".join(_step(row) for row in both)
            yield f"{_where(dict(zip(_CONDITION, condition, strict=True)))}: {steps} nats a token."


def _where(condition: dict[str, Any]) -> str:
    first = "moved too" if condition["first_token"] == "include" else "left alone"
    of_norm = "" if condition["delta_kind"] == _ABSOLUTE else " as a share of the median norm"
    return (
        f"Turned against lengthened by δ{of_norm} ({condition['protocol']}, layers {condition['layers']}, "
        f"first token {first})"
    )


def _step(row: dict[str, Any]) -> str:
    angle, magnitude = (
        f"{row[f'nll_change_{arm}']:+.3f}{_interval(row, f'nll_change_{arm}')}" for arm in ("angle", "magnitude")
    )
    flagged = ", some of it on tokens too short to be moved" if row["flagged_share"] else ""
    return f"δ {row['delta']:.4g} {angle} against {magnitude}{flagged}"


def _interval(row: dict[str, Any], name: str) -> str:
    low, high = row[f"{name}_lo"], row[f"{name}_hi"]
    return "" if low is None else f" ({low:+.3f} to {high:+.3f})"


def repair_lines(connection: DuckDBPyConnection, capture: str) -> Iterator[str]:
    """How much of each arm's damage goes by each target put back in all perturbed layers."""
    rows = query(connection, "repair_recovery", {"capture": capture}).to_pylist()
    whole = [r for r in rows if r["repaired_layers"] == r["layers"] and r["recovery_percent"] is not None]
    whole.sort(key=lambda row: tuple(row[name] for name in _REPAIRED))
    for condition, group in groupby(whole, key=lambda row: tuple(row[name] for name in _REPAIRED)):
        of = dict(zip(_REPAIRED, condition, strict=True))
        told = ", ".join(f"{row['target'].replace('_', ' ')} {row['recovery_percent']:.0f} %" for row in group)
        first = "" if of["first_token"] == "include" else ", first token left alone"
        yield (
            f"Of the damage of {of['arm']} (δ {of['delta']:.4g} {of['delta_kind']}, {of['protocol']}, layers "
            f"{of['layers']}{first}) goes, with clean values put back in all of these layers: {told}."
        )


def propagation_lines(connection: DuckDBPyConnection, capture: str) -> Iterator[str]:
    """How far apart the arms come to lie at the last layer."""
    rows = query(connection, "propagation_ratio", {"capture": capture}).to_pylist()
    defined = [row for row in rows if row["ratio"] is not None]
    last = max((row["layer"] for row in defined), default=None)
    for row in defined:
        if row["layer"] == last and row["layers"] != str(last) and row["first_token"] == "include":
            yield (
                f"Turned by δ {row['delta']:.4g} ({row['delta_kind']}, {row['protocol']}, layers {row['layers']}) the "
                f"residual stream lies {row['distance_angle']:.4g} from the clean run's after the last layer, "
                f"lengthened {row['distance_magnitude']:.4g}."
            )
