"""What the stages that select tokens, class heads and zero them found: a few lines, from the named queries."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from duckdb import DuckDBPyConnection

from storage.warehouse import query

_RULE, _RANKING, _DISTANCE = "plurality", "contribution", "euclidean"
_SINKS = {"included": "the first token among them", "excluded": "without the first token"}
_CLASSES = {"retriever": "its own token", "mixer": "the first token", "reset": "others"}
_HALF = 0.5
_NAMED = 3


def selection_lines(connection: DuckDBPyConnection, capture: str) -> Iterator[str]:
    """How far apart the keys of the largest contributions lie, with the first token and without it, beside random."""
    rows = query(connection, "separability", {"capture": capture}).to_pylist()
    of_kind = [row for row in rows if (row["ranking"], row["distance"]) == (_RANKING, _DISTANCE)]
    told = []
    for sink, group in groupby(of_kind, key=lambda row: row["sink"]):
        best = max(group, key=lambda row: row["f_mean"])
        told.append(f"{_SINKS[sink]} {best['f_mean']:.2f} at N = {best['n']}{_random(best)}")
    if told:
        yield (
            "F of the N keys of largest contribution (1: wholly apart from the rest), at the N where it is largest: "
            f"{', '.join(told)} (published: above random, N 1 to 4)."
        )


def _random(best: dict[str, Any]) -> str:
    """What random keys have, over the queries of which they were drawn."""
    if best["random_f_mean"] is None:
        return ""
    overall, drawn, random = (f"{best[name]:.2f}" for name in ("f_mean", "f_mean_drawn", "random_f_mean"))
    same = "" if drawn == overall else f" where it is {drawn}"
    return f" (random keys {random}{same})"


def taxonomy_lines(connection: DuckDBPyConnection, capture: str) -> Iterator[str]:
    """Shares of the classes of heads, by the rule of the plurality."""
    rows = query(connection, "head_classes", {"capture": capture}).to_pylist()
    shares = {row["class"]: row["share"] for row in rows if row["rule"] == _RULE}
    if shares:
        told = ", ".join(f"{name.capitalize()} ({_CLASSES[name]}) {share:.0%}" for name, share in shares.items())
        yield f"Heads by where their heaviest contribution stands (plurality): {told}."


def head_ablation_lines(connection: DuckDBPyConnection, capture: str) -> Iterator[str]:
    """The heads whose zeroing costs most, and how many stand out among the heads of their class."""
    rows = query(connection, "critical_heads", {"capture": capture, "every_head": True}).to_pylist()
    worst = [row for row in rows if row["nll_change"] is not None][:_NAMED]
    if worst:
        critical = sum(row["critical"] for row in rows)
        yield (
            f"Zeroing one head costs most in {', '.join(map(_head, worst))} nats a token; {critical} of {len(rows)} "
            f"heads stand out {_among({row['class'] for row in rows})} (published: one alone in Gemma-7B)."
        )


def _among(classes: set[str | None]) -> str:
    """Whom a head is compared with: its class says nothing more than all heads where it is the only one."""
    if classes == {None}:
        return "among all heads, without their classes, which the stage taxonomy gives"
    if len(classes) == 1:
        return f"in their class, which is all heads: each is a {str(*classes).capitalize()}"
    return "in their class"


def _head(row: dict[str, Any]) -> str:
    return f"layer {row['layer']} head {row['head']}, {row['nll_change']:+.3f}"


def pruning_lines(connection: DuckDBPyConnection, capture: str) -> Iterator[str]:
    """The strategies that cost least and most at the retention nearest to a half, beside random heads."""
    rows = [row for row in query(connection, "pruning_curve", {"capture": capture}).to_pylist() if _defined(row)]
    if not rows:
        return
    retention = min((row["retention"] for row in rows), key=lambda share: (abs(share - _HALF), share))
    there = sorted((row for row in rows if row["retention"] == retention), key=lambda row: row["nll_change"])
    told = [f"least by {there[0]['strategy']}, {there[0]['nll_change']:+.3f} nats a token"]
    if len(there) > 1:
        told.append(f"most by {there[-1]['strategy']}, {there[-1]['nll_change']:+.3f}")
    told += [f"random heads {row['nll_change']:+.3f}" for row in there[1:-1] if row["strategy"] == "random"]
    yield f"With {retention:.0%} of the heads kept, pruning costs {'; '.join(told)}."
    alone = _only_class(connection, capture)
    if alone and any(row["strategy"].startswith("taxonomy") for row in there):
        yield (
            f"All heads are {alone.capitalize()}s, so taxonomy orders them by output norm alone. Norms grow with depth "
            "in many models: such an order takes the early layers' heads first, where random ones are spread over "
            "layers, and beside them it tells of that too."
        )


def _only_class(connection: DuckDBPyConnection, capture: str) -> str | None:
    """The class of all heads, if there is one."""
    rows = query(connection, "head_classes", {"capture": capture}).to_pylist()
    return next((row["class"] for row in rows if row["rule"] == _RULE and row["share"] == 1), None)


def _defined(row: dict[str, Any]) -> bool:
    return row["nll_change"] is not None
