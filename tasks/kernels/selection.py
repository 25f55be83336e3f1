"""Geometric token selection: do the N keys that a query attends to most lie apart from the rest in value space?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64, Int64
from torch import Tensor

from tasks.kernels.aggregates import MASS, aggregates
from tasks.kernels.candidates import ranked, shuffled
from tasks.kernels.certificate import certificate
from tasks.kernels.scratch import Scratch
from tasks.kernels.separation import f_score, precision_recall, separations
from tasks.kernels.values import Coherence, Values
from tasks.kernels.visibility import CAUSAL, Visibility

RANKINGS = ("attention", "contribution")
DISTANCES = ("euclidean", "cosine")
SINKS = ("included", "excluded")
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_ENTRIES = 1 << 18
"""Products (N, row, key) made at once: in float64 they stay in a core's second-level cache."""
_QUERIES = 16
"""Queries of a block at most."""
_CONTROL = 64
"""The same of the control, whose random numbers are drawn by block: of other blocks they would be others."""


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

    queries: Int64[np.ndarray, " q"]
    first: Int64[np.ndarray, " M"]
    """The first candidate of each row, counted from the block's first key."""
    last: Int64[np.ndarray, " M"]
    """One more than its last."""
    alpha: Float32[np.ndarray, "G M K"]
    norm: Float64[np.ndarray, "G Mn K"]
    vector: Float64[np.ndarray, "G K d_v"]
    weight: Float64[np.ndarray, "G Mw d_v"]
    """The square of the gate, where heads have one: inner products of gated values are those of values under it."""
    has_sink: Bool[np.ndarray, " M"]
    """Rows of which key 0 is a candidate."""
    bounds: Float64[np.ndarray, "G 3 M"]
    """κ, χ_lo and χ_hi of each row; 0 where they are not known."""


@dataclass(frozen=True)
class _Counted:
    """What was counted of a block's rows, at the sizes that some row has the candidates for."""

    counts: Int64[np.ndarray, "2 3 N G M"]
    """By distance: others inside, own inside, inversions."""
    margin: Float64[np.ndarray, "2 N G M"]
    mass: Float64[np.ndarray, "N G M"]
    certified: Int64[np.ndarray, "2 N G M"]


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
        self.attention, self.values, self.visibility = attention.float(), values, visibility
        self.n_heads, self.n_tokens = attention.shape[:2]
        self.group, self.sizes, self.distances = self.n_heads // n_groups, tuple(sizes), tuple(distances)
        self.square_gate = None if gate is None else gate.double().square_().transpose(0, 1)
        self.coherence = coherence if gate is None and "euclidean" in distances else None
        self._scratch, self._bounds = Scratch(), np.zeros((n_groups, 3, self.n_tokens))
        if self.coherence is not None:
            known = (self.coherence.pairs, self.coherence.sink_low, self.coherence.sink_high)
            self._bounds = torch.stack(known, 1).numpy()
        self._first, self._last = (x(self.n_tokens).numpy() for x in (visibility.first_keys, visibility.last_keys))

    def select(self, queries: Int64[Tensor, " Q"], ranking: str, sink: str) -> Selection:
        """Selections of these queries by attention α or by contribution α‖v‖, with key 0 a candidate or without."""
        table = _Table(self, len(queries))
        for place, block in self._blocks(queries.numpy(), sink, 1):
            counted = self._counted(block, block.alpha, block.norm if ranking == "contribution" else None)
            table.put(place, (block.last - block.first)[: len(block.queries)], counted)
        return table.selection(has_certificate=self.coherence is not None)

    def random_f(
        self, queries: Int64[Tensor, " Q"], sink: str, draws: int, random: np.random.Generator
    ) -> Mapping[str, Float64[np.ndarray, "draws H Q N"]]:
        """F of `draws` random rankings of each query's candidates, all sizes nested, each around its own aggregate."""
        shape = (draws, self.n_heads, len(queries), len(self.sizes))
        found = {name: np.zeros(shape) for name in self.distances}
        for place, block in self._blocks(queries.numpy(), sink, draws):
            counts = self._counted(block, shuffled(block.alpha.shape, random), None, control=True).counts
            n_sizes = counts.shape[2]
            sizes = np.array(self.sizes[:n_sizes], np.float64)[:, None, None]
            for name in self.distances:
                others, own, _ = counts[DISTANCES.index(name)]
                # A row without more than N candidates counts none of either, and F is 0.
                score = f_score(*precision_recall(sizes, others, own))
                by_row = score.reshape(n_sizes, len(block.alpha), draws, self.group, len(block.queries))
                by_head = by_row.transpose(2, 1, 3, 4, 0).reshape(draws, self.n_heads, len(block.queries), n_sizes)
                found[name][:, :, place, :n_sizes] = by_head
        return found

    def _blocks(self, queries: np.ndarray, sink: str, draws: int) -> Iterator[tuple[slice, _Block]]:
        most = _QUERIES if draws == 1 else _CONTROL
        size = max(1, min(most, _ENTRIES // (draws * self.n_heads * self.n_tokens)))
        for start in range(0, len(queries), size):
            part = queries[start : start + size]
            yield slice(start, start + len(part)), self._block(part, sink, draws)

    def _block(self, queries: np.ndarray, sink: str, draws: int) -> _Block:
        first, last = self._first[queries], self._last[queries]
        keys = slice(int(first.min()), int(last.max()))
        candidates = np.maximum(first, 1) if sink == "excluded" else first
        n_groups, repeats = len(self.values.vector), draws * self.group
        vector, norm = self.values.vector[:, keys], self.values.norm[:, None, keys]
        weight = vector.new_empty(n_groups, 0, vector.shape[2])
        if self.square_gate is not None:
            grouped = self.square_gate[:, queries].unflatten(0, (n_groups, self.group))
            weight = grouped.repeat(1, draws, 1, 1).flatten(1, 2)
            norm = torch.bmm(weight, vector.square().transpose(1, 2)).sqrt_()
        start, stop, has_sink = (
            np.tile(x, repeats)
            for x in (candidates - keys.start, last - keys.start, (first == 0) & (sink == "included"))
        )
        return _Block(
            queries,
            start,
            stop,
            self._alpha(queries, keys, draws),
            norm.numpy(),
            vector.numpy(),
            weight.numpy(),
            has_sink,
            np.tile(self._bounds[..., queries], repeats),
        )

    def _alpha(self, queries: np.ndarray, keys: slice, draws: int) -> Float32[np.ndarray, "G M K"]:
        """Attention by key/value head and row, once for every draw."""
        n_groups, n_keys = len(self.values.vector), keys.stop - keys.start
        alpha = self._scratch.take("alpha", (n_groups, draws, self.group, len(queries), n_keys), np.float32)
        taken = self.attention.numpy()[:, queries, keys]
        alpha[:] = taken.reshape(n_groups, 1, self.group, len(queries), n_keys)
        return alpha.reshape(n_groups, -1, n_keys)

    def _counted(
        self, block: _Block, score: np.ndarray, factor: np.ndarray | None, *, control: bool = False
    ) -> _Counted:
        """All sizes of a block's rows, ranked by score · factor; of a control no inversions and no certificate."""
        most = int((block.last - block.first).max())
        sizes = np.array([n for n in self.sizes if n < most], np.int64)
        n_groups, n_rows, n_keys = block.alpha.shape
        shape = (len(sizes), n_groups, n_rows)
        found = _Counted(
            np.zeros((2, 3, *shape), np.int64),
            np.zeros((2, *shape)),
            np.zeros(shape),
            np.zeros((2, *shape), np.int64),
        )
        step = max(1, _ENTRIES // max(1, len(sizes) * n_keys))
        for g in range(n_groups if len(sizes) else 0):
            for start in range(0, n_rows, step):
                self._count_rows(found, block, (score, factor), g, slice(start, start + step), sizes, control)
        return found

    def _count_rows(
        self,
        found: _Counted,
        block: _Block,
        ranking: tuple[np.ndarray, np.ndarray | None],
        g: int,
        rows: slice,
        sizes: np.ndarray,
        control: bool,
    ) -> None:
        """Some rows of one key/value head."""
        n, alpha = (block.last - block.first)[rows], block.alpha[g, rows]
        norm = block.norm[g, rows] if block.norm.shape[1] > 1 else block.norm[g]
        score, factor = ranking[0][g, rows], norm if ranking[1] is not None else norm[:0]
        order = ranked(score, factor, block.first[rows], block.last[rows], self._scratch)
        shape = (len(sizes), len(alpha))
        total, figures = (
            self._scratch.take(name, dims)
            for name, dims in (("total", (*shape, block.vector.shape[2])), ("figures", (3, *shape)))
        )
        aggregates(order, n, alpha, norm, block.vector[g], block.weight[g, rows], sizes, total, figures)
        product = self._scratch.take("product", (*shape, alpha.shape[1]))
        by_key = torch.from_numpy(block.vector[g]).T
        torch.mm(torch.from_numpy(total).flatten(0, 1), by_key, out=torch.from_numpy(product).flatten(0, 1))
        wanted = ("euclidean" in self.distances, "cosine" in self.distances)
        given = (order, n, alpha, norm, product, figures, sizes)
        counts, margin, slack = separations(*given, wanted, not control, self._scratch)
        found.counts[..., g, rows], found.margin[..., g, rows] = counts, margin
        found.mass[:, g, rows] = figures[MASS]
        if self.coherence is not None and not control:
            certified = np.zeros((2, *slack.shape), np.int64)
            bounds = block.bounds[g][:, rows]
            certificate(order, n, alpha, norm, figures, slack, bounds, block.has_sink[rows], sizes, certified)
            found.certified[..., g, rows] = certified


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

    def put(self, place: slice, n_candidates: Int64[np.ndarray, " q"], found: _Counted) -> None:
        """Enter the rows of one block of queries."""
        here = slice(found.mass.shape[0])
        self.defined[here, place] = n_candidates > self._sizes[here, 0]
        self.mass[here, :, place] = self._by_head(found.mass)
        for name, counts in self.counts.items():
            counts[:, here, :, place] = self._by_head(found.counts[DISTANCES.index(name)])
            self.margin[name][here, :, place] = self._by_head(found.margin[DISTANCES.index(name)])
        self.certified[:, here, :, place] = self._by_head(found.certified)

    def _by_head(self, rows: np.ndarray) -> np.ndarray:
        """(…, G, M) as (…, H, q)."""
        n_queries = rows.shape[-2] * rows.shape[-1] // self._n_heads
        return rows.reshape(*rows.shape[:-2], self._n_heads, n_queries)

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
