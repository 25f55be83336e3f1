"""What the stage `contributions` found, in a few lines, from the named queries."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import fmean
from typing import Any

from duckdb import DuckDBPyConnection

from storage.warehouse import query

_GROUPS = {"sink": "the first token", "self": "the token itself", "tail": "the tokens between"}
_ENOUGH = 1000
"""Entries below which shares of variance are noise, and can leave 0 to 1 by far."""
_WEAK_SINK = 0.1
_FACTORS = {"share_alpha": "attention", "share_norm": "norm", "share_cosine": "direction"}


def contribution_lines(connection: DuckDBPyConnection, capture: str) -> Iterator[str]:
    asked = {"capture": capture}
    sinks = [r for r in query(connection, "sink_suppression", asked).to_pylist() if _defined(r, "sink_rate_mean")]
    if sinks:
        yield _strongest(sinks)
        opposed = sum(r["cosine_sink_tail_mean"] < 0 for r in sinks)
        inside = sum(0 < r["a_star_median"] < 1 for r in sinks if _defined(r, "a_star_median"))
        yield (
            f"The first token's value points against the rest in {opposed} of {len(sinks)} heads (published: it does); "
            f"the output is shortest at a sink rate between 0 and 1 in {inside} (published: it is)."
        )
    fits = [r for r in query(connection, "convexity", asked).to_pylist() if _defined(r, "curvature")]
    if fits:
        convex = sum(bool(r["convex"]) for r in fits)
        yield (
            f"The output norm is convex in the sink rate, its 95 % interval above 0, in {convex} of {len(fits)} heads "
            "(published: convex)."
        )
    for row in query(connection, "factor_shares", asked).to_pylist():
        if row["n_entries"] >= _ENOUGH and all(_defined(row, name) for name in _FACTORS):
            shares = ", ".join(f"{word} {row[name]:.0%}" for name, word in _FACTORS.items())
            yield f"The weight of {_GROUPS[row['token_group']]} is decided by {shares}."


def _defined(row: dict[str, Any], name: str) -> bool:
    return row[name] is not None and math.isfinite(row[name])


def _strongest(sinks: list[dict[str, Any]]) -> str:
    top = sorted(sinks, key=lambda r: -r["sink_rate_mean"])[:3]
    heads = ", ".join(f"layer {r['layer']} head {r['head']} ({r['sink_rate_mean']:.0%})" for r in top)
    mean = fmean(r["sink_rate_mean"] for r in sinks)
    weak = "" if mean >= _WEAK_SINK else " This is hardly a sink: what follows about it says little."
    return f"Attention on the first token: {mean:.0%} on average, most in {heads}.{weak}"
