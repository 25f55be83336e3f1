"""Geometric token selection: do the N keys that a query attends to most lie apart from the rest in value space?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64, Int64
from torch import Tensor

from tasks.kernels.candidates import Ranked, ranked, shuffled
from tasks.kernels.certificate import Certificate
from tasks.kernels.separation import (
    Spread,
    cosine_spread,
    enough,
    euclidean_spread,
    f_score,
    inside,
    inversions,
    precision_recall,
)
from tasks.kernels.values import Coherence, Values
from tasks.kernels.visibility import CAUSAL, Visibility

RANKINGS = ("attention", "contribution")
DISTANCES = ("euclidean", "cosine")
SINKS = ("included", "excluded")
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_ENTRIES = 1 << 18
"""Entries (head, query, key) of a block: its arrays of float64 stay near a core's second-level cache."""
_QUERIES = 64
_GATHERED = 4
"""Up to this N the selected values are taken out one by one; beyond it a product with zeros between is quicker."""
_CANCELLED = 1e-9
"""An aggregate shorter than this share of what it is the sum of is 0: it has no direction."""


@dataclass(frozen=True)
class Separation:
    """P, R, F, GInv and margin of one distance, by head, query and N; to be read where `Selection.defined`."""

    precision: Float32[np.ndarray, "H Q N"]
    recall: Float32[np.ndarray, "H Q N"]
    f_score: Float32[np.ndarray, "H Q N"]
    inversions: Int64[np.ndarray, "H Q N"]
    margin: Float32[np.ndarray, "H Q N"]


@dataclass(frozen=True)
class Selection:
    """The selections of one ranking, with the sink or without it."""

    defined: Bool[np.ndarray, "Q N"]
    """True where a query has more than N candidates."""
    mass: Float32[np.ndarray, "H Q N"]
    """Σ_{j∈S} α."""
    by_distance: Mapping[str, Separation]
    certified_precision: Float32[np.ndarray, "H Q N"]
    """What lengths alone guarantee of the Euclidean P and R; NaN without that distance, or where a gate makes a value
    another vector for every query."""
    certified_recall: Float32[np.ndarray, "H Q N"]


@dataclass(frozen=True)
class _Block:
    """Rows of a block of queries: (key/value head, row = draw · head of the group · query)."""

    queries: Int64[Tensor, " q"]
    keys: slice
    candidate: Bool[Tensor, "M K"]
    alpha: Float64[Tensor, "G M K"]
    norm: Float64[Tensor, "G Mn K"]
    vector: Float64[Tensor, "G K d_v"]
    weight: Float64[Tensor, "G M d_v"] | None
    """The square of the gate, where heads have one: inner products of gated values are those of values under it."""
    sink: Bool[Tensor, " M"]
    """Rows of which key 0 is a candidate."""


class Selections:
    """One document and layer, made ready for every ranking, distance and size.

    With y_j = α_j v_j and s the sum of the N best by score, D_j = ‖y_j − s‖ (euclidean) or 1 − cos(v_j, s) (cosine).
    Values are those before W_O. attention ≥ 0 is zero at keys that `visibility` hides; learned sinks are no candidates.
    Everything is float64 from here on, in blocks of queries. Raises ValueError where query heads do not divide evenly.
    Reference: Mudarisov et al. 2026, arXiv 2602.01893.
    """

    def __init__(
        self,
        attention: Float[Tensor, "H T T"],
        values: Values,
        *,
        gate: Float[Tensor, "T H d_v"] | None = None,
        visibility: Visibility = CAUSAL,
        sizes: Sequence[int] = SIZES,
        distances: Sequence[str] = DISTANCES,
        coherence: Coherence | None = None,
    ) -> None:
        n_groups = len(values.vector)
        if len(attention) % n_groups:
            raise ValueError(f"expected query heads in equal groups, got {len(attention)} over {n_groups}")
        self.attention, self.values, self.visibility = attention, values, visibility
        self.n_heads, self.n_tokens = attention.shape[:2]
        self.group, self.sizes, self.distances = self.n_heads // n_groups, tuple(sizes), tuple(distances)
        self.square_gate = None if gate is None else gate.double().square_().transpose(0, 1)
        self.coherence = coherence if gate is None and "euclidean" in distances else None
        self._first, self._last = visibility.first_keys(self.n_tokens), visibility.last_keys(self.n_tokens)

    def select(self, queries: Int64[Tensor, " Q"], ranking: str, sink: str) -> Selection:
        """Selections of these queries by attention α or by contribution α‖v‖, with key 0 a candidate or without."""
        table = _Table(self, len(queries))
        for place, block in self._blocks(queries, sink, 1):
            score = block.alpha if ranking == "attention" else block.alpha * block.norm
            order = ranked(score.float(), block.candidate, block.alpha, block.norm)
            for at, n, part in self._sizes(block, order, certify=self.coherence is not None):
                table.defined[at, place] = enough(order, n)[: len(block.queries)]
                table.mass[at, :, place] = table.by_head(order.alpha[..., :n].sum(-1))
                for name, (others, own, pairs, margin) in part.counts.items():
                    for row, counted in zip(table.counts[name], (others, own, pairs), strict=True):
                        row[at, :, place] = table.by_head(counted)
                    table.margin[name][at, :, place] = table.by_head(margin)
                for row, counted in zip(table.certified, part.certified, strict=False):
                    row[at, :, place] = table.by_head(counted)
        return table.selection(has_certificate=self.coherence is not None)

    def random_f(
        self, queries: Int64[Tensor, " Q"], sink: str, draws: int, random: np.random.Generator
    ) -> Mapping[str, Float64[np.ndarray, "draws H Q N"]]:
        """F of `draws` random rankings of each query's candidates, all sizes nested, each around its own aggregate."""
        shape = (draws, self.n_heads, len(queries), len(self.sizes))
        found = {name: np.zeros(shape) for name in self.distances}
        for place, block in self._blocks(queries, sink, draws):
            order = ranked(shuffled(tuple(block.alpha.shape), random), block.candidate, block.alpha, block.norm)
            for at, n, part in self._sizes(block, order, certify=False, count_inversions=False):
                for name, (others, own) in part.counts.items():
                    score = f_score(*precision_recall(n, others.numpy(), own.numpy()))
                    by_row = score.reshape(len(score), draws, self.group, -1).swapaxes(0, 1)
                    found[name][:, :, place, at] = by_row.reshape(draws, self.n_heads, -1)
        return found

    def _blocks(self, queries: Tensor, sink: str, draws: int) -> Iterator[tuple[slice, _Block]]:
        size = max(1, min(_QUERIES, _ENTRIES // (draws * self.n_heads * self.n_tokens)))
        for start in range(0, len(queries), size):
            part = queries[start : start + size]
            yield slice(start, start + len(part)), self._block(part, sink, draws)

    def _block(self, queries: Tensor, sink: str, draws: int) -> _Block:
        first, last = self._first[queries], self._last[queries]
        keys = slice(int(first.min()), int(last.max()))
        key = torch.arange(keys.start, keys.stop)
        candidate = (key >= first[:, None]) & (key < last[:, None])
        if sink == "excluded":
            candidate &= key > 0
        n_groups, repeats = len(self.values.vector), draws * self.group
        alpha = self.attention[:, queries, keys].double().view(n_groups, self.group, len(queries), -1)
        alpha = alpha.repeat(1, draws, 1, 1).flatten(1, 2)
        vector, norm, weight = self.values.vector[:, keys], self.values.norm[:, None, keys], None
        if self.square_gate is not None:
            weight = self.square_gate[:, queries].reshape(n_groups, self.group, len(queries), -1)
            weight = weight.repeat(1, draws, 1, 1).flatten(1, 2)
            norm = torch.bmm(weight, vector.square().transpose(1, 2)).sqrt_()
        has_sink = (first == 0) & (sink == "included")
        candidate, has_sink = candidate.repeat(repeats, 1), has_sink.repeat(repeats)
        return _Block(queries, keys, candidate, alpha, norm, vector, weight, has_sink)

    def _certificate(self, block: _Block, order: Ranked, length: Tensor) -> Certificate:
        assert self.coherence is not None
        c = self.coherence
        pairs, low, high = (x[:, block.queries].repeat(1, self.group) for x in (c.pairs, c.sink_low, c.sink_high))
        return Certificate.of(order, length, (pairs, low, high), block.sink)

    def _sizes(
        self, block: _Block, order: Ranked, *, certify: bool, count_inversions: bool = True
    ) -> Iterator[tuple[int, int, _Part]]:
        """What is counted at each N that some row of the block has the candidates for."""
        sizes = [n for n in self.sizes if n < order.key.shape[2]]
        if not sizes:
            return
        length = order.alpha * order.norm
        square, inverse = length.square(), torch.where(order.norm > 0, -1 / order.norm, 0)
        longest = square.amax(-1)
        lengths = length[..., : max(self.sizes)].cumsum(-1)
        by_key, product, out = torch.empty_like(block.alpha), torch.empty_like(length), torch.empty_like(length)
        certificate = self._certificate(block, order, length) if certify else None
        for at, (n, total) in enumerate(zip(sizes, _aggregates(block, order, sizes), strict=True)):
            weighted = total if block.weight is None else total * block.weight
            own = (total * weighted).sum(-1).sqrt_()
            cancelled = own <= _CANCELLED * lengths[..., n - 1]
            weighted, own = weighted.masked_fill(cancelled[..., None], 0), own.masked_fill(cancelled, 0)
            torch.bmm(weighted, block.vector.transpose(1, 2), out=by_key)
            torch.gather(by_key, 2, order.key, out=product)
            part = _Part({})
            for name in self.distances:
                spread = (
                    euclidean_spread(order, square, product, longest, own.square(), n, out)
                    if name == "euclidean"
                    else cosine_spread(order, inverse, product, own, n, out)
                )
                slack = spread.slack
                spread.margin.masked_fill_(~enough(order, n), 0)
                part.counts[name] = _counted(spread, n, count_inversions)
                if certificate is not None and name == "euclidean":
                    part.certified = certificate.counts(order, length, lengths[..., n - 1], n, slack, out)
            yield at, n, part


@dataclass
class _Part:
    """What was counted at one N: by distance, and by the certificate."""

    counts: dict[str, tuple[Tensor, ...]]
    certified: tuple[Tensor, ...] = ()


def _counted(spread: Spread, n: int, count_inversions: bool) -> tuple[Tensor, ...]:
    """Others inside, own inside; then inversions and margin if they are asked for."""
    if not count_inversions:
        return inside(spread, n)
    pairs, others, own = inversions(spread, n)
    return others, own, pairs, spread.margin


def _aggregates(block: _Block, order: Ranked, sizes: Sequence[int]) -> Iterator[Float64[Tensor, "G M d_v"]]:
    """s_N = Σ α_j v_j over the first N, for each N in turn."""
    few = max((n for n in sizes if n <= _GATHERED), default=0)
    n_groups, n_keys, d_value = block.vector.shape
    if few:
        at = order.key[..., :few] + n_keys * torch.arange(n_groups)[:, None, None]
        picked = block.vector.reshape(-1, d_value)[at.flatten()].view(*at.shape, d_value)
        sums = picked.mul_(order.alpha[..., :few, None]).cumsum_(2)
        yield from (sums[:, :, n - 1] for n in sizes if n <= few)
    dense, done = torch.zeros_like(block.alpha), 0
    for n in (n for n in sizes if n > few):
        dense.scatter_add_(2, order.key[..., done:n], order.alpha[..., done:n])
        done = n
        yield torch.bmm(dense, block.vector)


class _Table:
    """A `Selection` under way: counts by (N, head, query), made into scores at the end."""

    def __init__(self, of: Selections, n_queries: int) -> None:
        shape = (len(of.sizes), of.n_heads, n_queries)
        self._sizes, self._n_heads = np.array(of.sizes, np.float64)[:, None, None], of.n_heads
        self.defined = np.zeros((shape[0], n_queries), bool)
        self.mass = np.zeros(shape, np.float32)
        self.counts = {name: np.zeros((3, *shape), np.int64) for name in of.distances}
        """Others inside, own inside, inversions."""
        self.margin = {name: np.zeros(shape, np.float32) for name in of.distances}
        self.certified = np.zeros((2, *shape), np.int64)
        """Others inside at most, own inside at least."""

    def by_head(self, rows: Tensor) -> np.ndarray:
        """(G, M) as (H, q)."""
        return rows.reshape(self._n_heads, -1).numpy()

    def selection(self, *, has_certificate: bool) -> Selection:
        certified = np.full(self.certified.shape, np.nan)
        if has_certificate:
            certified[:] = precision_recall(self._sizes, *self.certified)
        separations = {name: self._separation(name) for name in self.counts}
        return Selection(self.defined.T, _last(self.mass), separations, *(_last(x) for x in certified))

    def _separation(self, name: str) -> Separation:
        others, own, pairs = self.counts[name]
        precision, recall = precision_recall(self._sizes, others, own)
        return Separation(
            _last(precision),
            _last(recall),
            _last(f_score(precision, recall)),
            np.moveaxis(pairs, 0, 2),
            _last(self.margin[name]),
        )


def _last(values: np.ndarray) -> Float32[np.ndarray, "H Q N"]:
    """(N, H, Q) as (H, Q, N) in float32."""
    return np.ascontiguousarray(np.moveaxis(values, 0, 2), np.float32)
