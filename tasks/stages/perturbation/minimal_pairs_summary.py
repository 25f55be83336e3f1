"""What the stage `minimal_pairs` found, in a few lines, from its named query."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from duckdb import DuckDBPyConnection

from storage.warehouse import query

_MOVED = ("protocol", "layers", "first_token", "pair_noise", "delta_kind")
_MOST_LINES = 4
"""Ways of perturbing minimal pairs that have a line."""


def minimal_pairs_lines(connection: DuckDBPyConnection, capture: str) -> Iterator[str]:
    """Accuracy on minimal pairs, clean and at each δ by arm, and how far apart the arms are."""
    rows = query(connection, "pair_accuracy", {"capture": capture}).to_pylist()
    told = [row for row in rows if row["arm"] == "none"]
    for row in told:
        first = "" if row["first_scored"] else ", without the first token, which nothing predicts"
        yield (
            f"Minimal pairs: {row['accuracy']:.0%} of {row['n_pairs']} right (95 % interval "
            f"{row['accuracy_lo']:.0%} to {row['accuracy_hi']:.0%}; chance 50%){first}."
        )
    moved = [row for row in rows if row["arm"] != "none"]
    groups = [(key, list(group)) for key, group in groupby(moved, key=lambda row: tuple(row[n] for n in _MOVED))]
    for condition, group in groups[:_MOST_LINES]:
        yield _moved(dict(zip(_MOVED, condition, strict=True)), group)
    if len(groups) > _MOST_LINES:
        yield f"{len(groups) - _MOST_LINES} more ways of moving are in the query pair_accuracy."


def _moved(condition: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    by_delta: dict[float, dict[str, Any]] = {}
    for row in rows:
        by_delta.setdefault(row["delta"], {})[row["arm"]] = row
    arms = "; ".join(f"δ {delta:g} {_arms(of_arms)}" for delta, of_arms in by_delta.items())
    kept = "" if condition["first_token"] == "include" else ", first token left alone"
    way = f"{condition['protocol']}, {condition['pair_noise']} noise{kept}"
    what = f"in layers {condition['layers']} by {condition['delta_kind']} δ ({way})"
    return f"Moved {what}, magnitude / angle: {arms}."


def _arms(of_arms: dict[str, dict[str, Any]]) -> str:
    told = " / ".join(f"{of_arms[arm]['accuracy']:.0%}" if arm in of_arms else "–" for arm in ("magnitude", "angle"))
    apart = of_arms.get("magnitude", {})
    if apart.get("angle_less_magnitude_lo") is None:
        return told
    less, low, high = (100 * apart[f"angle_less_magnitude{end}"] for end in ("", "_lo", "_hi"))
    return f"{told} (angle less magnitude {less:+.0f} points, 95 % interval {low:+.0f} to {high:+.0f})"
