"""Statistics that order heads, and the orders, by plain loops in float64 over what a store holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import product

import numpy as np

from storage.tensors import ActivationStore
from tests.oracles.selection import Oracle

Head = tuple[int, int]
CLASS = {"sink": "mixer", "self": "retriever", "other": "reset"}


class HeadOracle:
    """Every head (layer, head) of the layers that the store keeps, over all its documents."""

    def __init__(self, store: ActivationStore) -> None:
        self.store, self.layers = store, store.shape.kept_layers
        self.heads: list[Head] = list(product(self.layers, range(store.shape.n_heads)))
        kinds = ("attention", "value", *(("gate",) if store.shape.gated else ()))
        self.documents = {
            layer: [
                Oracle(x.attention, x.value, store.shape.windows[layer], gate=x.gate)
                for shard in store.shards
                for x in store.shard(shard).layer(layer, kinds)
            ]
            for layer in self.layers
        }
        self.projection = {layer: store.weights(layer)[0].double().numpy() for layer in self.layers}

    def written(self, document: Oracle, layer: int, h: int, i: int) -> np.ndarray:
        """o[h,i]."""
        row = document.row(h, i)
        return np.asarray((row.alpha[:, None] * row.value).sum(0) @ self.projection[layer][h])

    def rows(self, layer: int) -> list[tuple[Oracle, int]]:
        """All queries of all documents."""
        return [(document, i) for document in self.documents[layer] for i in range(document.T)]

    def output_norm(self, layer: int, h: int) -> float:
        return float(np.mean([np.linalg.norm(self.written(d, layer, h, i)) for d, i in self.rows(layer)]))

    def contribution(self, layer: int, h: int) -> float:
        found = []
        for d, i in self.rows(layer):
            parts = [self.written(d, layer, k, i) for k in range(d.H)]
            total = sum(parts)
            if np.linalg.norm(total) > 0:
                found.append(abs(parts[h] @ total / (total @ total)))
        return float(np.mean(found)) if found else math.nan

    def entropy(self, layer: int, h: int) -> float:
        alphas = [d.row(h, i).alpha for d, i in self.rows(layer)]
        return float(np.mean([-sum(a * math.log(a) for a in alpha if a > 0) for alpha in alphas]))

    def f_score(self, layer: int, h: int) -> float:
        rows = [d.row(h, i) for d, i in self.rows(layer)]
        found = [row.select(row.order("attention"), 8, "euclidean")["f_score"] for row in rows if len(row.keys) > 8]
        return float(np.mean(found)) if found else math.nan

    def weight_magnitude(self, layer: int, h: int) -> float:
        of_value = self.store.value_norm(layer)
        group = self.store.shape.n_heads // len(of_value)
        return float(of_value[h // group]) * float(np.linalg.norm(self.projection[layer][h]))

    def head_class(self, layer: int, h: int) -> str | None:
        won = [d.winner(h, i) for d, i in self.rows(layer) if i]
        counts = {winner: won.count(winner) for winner in CLASS}
        return CLASS[max(counts, key=lambda w: counts[w])] if sum(counts.values()) else None

    def order(self, strategy: str) -> list[Head]:
        """The heads in the order in which they go; what is undefined goes first, ties by layer and head."""
        kind, _, classes = strategy.partition("_") if strategy.startswith("taxonomy") else ("", "", "")
        if kind:
            places = classes.split("_") if classes else ["reset", "mixer", "retriever"]

            def key(head: Head) -> tuple[float, ...]:
                found = self.head_class(*head)
                return (-1.0 if found is None else places.index(found), self.output_norm(*head), *head)

            return sorted(self.heads, key=key)
        measure = {"entropy_high": lambda l, h: -self.entropy(l, h), "entropy_low": self.entropy}.get(
            strategy, getattr(self, strategy, None)
        )
        scores = {head: measure(*head) for head in self.heads}
        return sorted(self.heads, key=lambda head: (-math.inf if math.isnan(s := scores[head]) else s, *head))

    def kept(self, retention: str) -> int:
        return math.ceil(Fraction(retention) * len(self.heads))

    def gone(self, order: Sequence[Head], retention: str) -> list[Head]:
        return list(order[: len(self.heads) - self.kept(retention)])
