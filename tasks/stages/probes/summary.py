"""What the stage `probes` found, in a few lines, from its named query."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from duckdb import DuckDBPyConnection

from storage.warehouse import query


def probes_lines(connection: DuckDBPyConnection, capture: str) -> Iterator[str]:
    """What is read off best, and at which layer, from a hidden state's direction and from its magnitude.

    The layer with the best test score: of several layers that are alike one is the best by chance.
    """
    rows = [r for r in query(connection, "probe_scores", {"capture": capture}).to_pylist() if r["score"] is not None]
    for target, name in (("pos", "Parts of speech"), ("depth", "Depths in the tree")):
        best = {}
        for feature in ("direction", "magnitude"):
            own = [row for row in rows if (row["target"], row["feature"]) == (target, feature)]
            if own:
                best[feature] = max(own, key=lambda row: row["score"])
        if best:
            told = "; ".join(f"from the {feature} {_probed(row)}" for feature, row in best.items())
            base = next(iter(best.values()))
            chosen = "layers chosen by these same test scores, so the best of many is a little high"
            yield f"{name}: {told}; always the same answer {_figure(base, 'score_majority')} ({chosen})."


def _probed(row: dict[str, Any]) -> str:
    said = f"{_figure(row, 'score')} at layer {row['layer']}"
    if row["score_lo"] is not None:
        said += f" (95 % interval {_figure(row, 'score_lo')} to {_figure(row, 'score_hi')}"
        said += ")" if row["score_published"] is None else f"; published {row['score_published']:.1%})"
    return said


def _figure(row: dict[str, Any], name: str) -> str:
    return f"{row[name]:.1%}" if row["metric"] == "accuracy" else f"R² {row[name]:.2f}"
