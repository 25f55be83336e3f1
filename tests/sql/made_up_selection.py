"""Made-up rows of the stages `selection` and `taxonomy`, worked out by the oracle from the made-up attention."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from tests.oracles.selection import Oracle, Row
from tests.sql.made_up import DOCS, HEADS, LAYERS, TOKENS, Columns, attention_rows

SIZES = (1, 2, 4)
RULES = ("plurality", "majority", "final_query")
CLASSES = {"sink": "mixer", "self": "retriever", "other": "reset"}
_FIGURES = ("precision", "recall", "f_score", "inversions", "margin", "mass")


def oracle(doc: int, layer: int) -> Oracle:
    return Oracle(attention_rows(doc, layer)[0], attention_rows(doc, layer)[1].transpose(1, 0, 2))


@cache
def _selection(doc: int, layer: int) -> Columns:
    rows: list[dict[str, Any]] = []
    made = oracle(doc, layer)
    for head in range(HEADS):
        for query in range(TOKENS):
            for sink in ("included", "excluded"):
                row = made.row(head, query, sink)
                for n in (n for n in SIZES if n < len(row.keys)):
                    place = {"head": head, "query": query, "sink": sink, "n": n}
                    rows += [{**place, **figures} for figures in _figures(row, n, drawn=query % 2 == 1)]
    return {name: _column([row[name] for row in rows]) for name in rows[0]}


def _figures(row: Row, n: int, *, drawn: bool) -> list[dict[str, Any]]:
    """The rows of both rankings and distances."""
    found = []
    for ranking in ("attention", "contribution"):
        order = row.order(ranking)
        for distance in ("euclidean", "cosine"):
            figures = row.select(order, n, distance)
            certified = row.certified(order, n) if distance == "euclidean" else (np.nan, np.nan)
            random = row.select(order[::-1], n, distance)["f_score"] if drawn else np.nan
            named = {"certified_precision": certified[0], "certified_recall": certified[1]}
            named |= {"random_f_mean": random, "random_f_sd": 0.1 if drawn else np.nan}
            found.append({"ranking": ranking, "distance": distance, **{f: figures[f] for f in _FIGURES}, **named})
    return found


def _column(values: list[Any]) -> np.ndarray:
    return np.asarray(values, dtype=object if isinstance(values[0], str) else None)


def selection_columns(doc: int, layer: int) -> Columns:
    """A copy, since a test may change it."""
    return {name: column.copy() for name, column in _selection(doc, layer).items()}


def statistics_columns(doc: int, layer: int) -> Columns:
    rows = [oracle(doc, layer).sink_statistics(head) for head in range(HEADS)]
    return {"head": np.arange(HEADS), **{name: np.asarray([row[name] for row in rows]) for name in rows[0]}}


SELECTION_PER_LAYER = {"selection": selection_columns, "sink_statistics": statistics_columns}


@cache
def winner_counts(layer: int, head: int, rule: str) -> dict[str, int]:
    """How often each kind of key wins, over all documents."""
    queries = [TOKENS - 1] if rule == "final_query" else range(1, TOKENS)
    won = [oracle(doc, layer).winner(head, i) for doc in range(DOCS) for i in queries]
    return {winner: won.count(winner) for winner in CLASSES}


def taxonomy_columns() -> dict[str, Columns]:
    rows: list[dict[str, Any]] = []
    for layer in range(LAYERS):
        for head in range(HEADS):
            for rule in RULES:
                counts = winner_counts(layer, head, rule)
                n, ordered = sum(counts.values()), sorted(counts.values())
                best = CLASSES[max(counts, key=lambda winner: counts[winner])]
                shares = {f"share_{winner}": count / n for winner, count in counts.items()}
                found = {"class": "reset" if rule == "majority" and 2 * ordered[2] <= n else best, **shares, "n": n}
                found |= {"margin": (ordered[2] - ordered[1]) / n, "agreement_halves": 0.5 + head / 8}
                rows.append({"layer": layer, "head": head, "rule": rule, **found})
    return {"taxonomy": {name: _column([row[name] for row in rows]) for name in rows[0]}}
