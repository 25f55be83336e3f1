"""What the stages that perturb the residual stream found: a few lines, from the named queries."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from duckdb import DuckDBPyConnection

from storage.warehouse import query

_CONDITION = ("protocol", "first_token", "layers", "delta_kind")
_REPAIRED = (*_CONDITION, "delta", "arm")
_ABSOLUTE, _MOVED, _SAME_VECTOR = "absolute", "include", "published"
_DAMAGE = 0.01
"""Nats a token below which damage is too small to be divided by."""
_MOST_TOLD = 3
"""Protocols and sets of layers in the summary."""


def perturbation_lines(connection: DuckDBPyConnection, capture: str) -> Iterator[str]:
    """What lengthening and turning do to the loss by protocol, at the least and the largest δ that tell something."""
    rows = query(connection, "dissociation", {"capture": capture}).to_pylist()
    several = {row["layers"] for row in rows if not row["layers"].isdecimal()}
    rows = [row for row in rows if row["nll_change_angle"] is not None and row["nll_change_magnitude"] is not None]
    rows = [row for row in rows if not several or row["layers"] in several]  # each layer alone is for queries to tell
    ways = sorted({(row["layers"], row["protocol"]) for row in rows}, key=lambda way: (way[0] != "all", way))
    for layers, protocol in ways[:_MOST_TOLD]:
        yield _way([row for row in rows if (row["layers"], row["protocol"]) == (layers, protocol)])
    if len(ways) > _MOST_TOLD:
        yield f"{len(ways) - _MOST_TOLD} more ways of moving are in the query dissociation."


def _way(rows: list[dict[str, Any]]) -> str:
    """One protocol in one set of layers: some δ, then what the first token and the shared vector have to do with it."""
    absolute = [row for row in rows if row["delta_kind"] == _ABSOLUTE] or rows
    moved = [row for row in absolute if row["first_token"] == _MOVED]
    told = _telling(moved or absolute)
    of, first = told[-1], "" if moved else ", first token left alone"
    share = "" if of["delta_kind"] == _ABSOLUTE else " as a share of the median norm"
    line = f"Moved by δ{share} ({of['protocol']}, layers {of['layers']}{first}): {'; '.join(map(_step, told))}"
    alone = [row for row in absolute if moved and row["first_token"] != _MOVED and row["delta"] == of["delta"]]
    if alone and of["ratio"] is not None and alone[0]["ratio"] is not None:
        line += f"; the first token left alone, at δ {of['delta']:.4g} {alone[0]['ratio']:.3g} times"
    if of["protocol"] == _SAME_VECTOR and not of["layers"].isdecimal():
        line += "; angle's vector is the same in all layers, so that its steps add up"
    return f"{line}."


def _telling(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The least and the largest δ that move all tokens and do damage, of those with a published figure if there are."""
    clear = [row for row in rows if not row["flagged_share"] and row["nll_change_magnitude"] >= _DAMAGE] or rows
    found = sorted([row for row in clear if row["ratio_published"] is not None] or clear, key=lambda row: row["delta"])
    return found[:1] + found[1:][-1:]


def _step(row: dict[str, Any]) -> str:
    ratio = "no ratio, as lengthening does no damage"
    if row["ratio"] is not None:
        beside = [] if row["ratio_lo"] is None else [f"95 % interval {row['ratio_lo']:.3g} to {row['ratio_hi']:.3g}"]
        if row["ratio_published"] is not None:
            beside.append(f"published {row['ratio_published']:g} of {row['model_published']}")
        ratio = f"{row['ratio']:.3g} times" + (f" ({'; '.join(beside)})" if beside else "")
    flagged = ", some of it on tokens too short to be moved" if row["flagged_share"] else ""
    return (
        f"δ {row['delta']:.4g} lengthened {row['nll_change_magnitude']:+.3f} and turned {row['nll_change_angle']:+.3f} "
        f"nats a token, {ratio}{flagged}"
    )


def repair_lines(connection: DuckDBPyConnection, capture: str) -> Iterator[str]:
    """How much of each arm's damage goes by each target put back in all perturbed layers."""
    rows = query(connection, "repair_recovery", {"capture": capture}).to_pylist()
    whole = [r for r in rows if r["repaired_layers"] == r["layers"] and r["nll_change"] is not None]
    whole.sort(key=lambda row: tuple(row[name] for name in _REPAIRED))
    for condition, group in groupby(whole, key=lambda row: tuple(row[name] for name in _REPAIRED)):
        of, targets = dict(zip(_REPAIRED, condition, strict=True)), list(group)
        first = "" if of["first_token"] == _MOVED else ", first token left alone"
        damage = (
            f"the damage of {of['arm']} (δ {of['delta']:.4g} {of['delta_kind']}, {of['protocol']}, layers "
            f"{of['layers']}{first})"
        )
        if all(row["recovery_percent"] is None for row in targets):
            small = targets[0]["nll_change"]
            yield f"How much of {damage} goes is undefined: it is {small:+.4f} nats a token, below {_DAMAGE:g}."
        else:
            told = ", ".join(f"{row['target'].replace('_', ' ')} {_recovered(row)}" for row in targets)
            yield f"Of {damage} goes, with clean values put back in all of these layers: {told}."


def _recovered(row: dict[str, Any]) -> str:
    return "undefined" if row["recovery_percent"] is None else f"{row['recovery_percent']:.0f} %"


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
