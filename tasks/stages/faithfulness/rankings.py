"""Rankings of what may be masked, made from a clean pass when a layer's replay asks for them (methods.md §1).

All rates and both directions of a ranking come from one sort. What is made of a layer is kept while a replay is in that
layer, so that memory is bounded by one layer of the documents of a batch, however large the grid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from storage.keys import seed_for
from tasks.kernels.entry_scores import entry_scores
from tasks.kernels.layer_scores import Linearised, alti, kobayashi_norms, rollout
from tasks.kernels.masked import MaskedEntries
from tasks.kernels.outputs import HeadOutputs, head_outputs
from tasks.kernels.ranking import entry_ranks, row_ranks, token_ranks, token_scores_of, undefined_scores
from tasks.kernels.visibility import QueryBlock, Visibility
from tasks.kernels.weights import LayerWeights
from tasks.models.intervention_tensors import End, RankedShare
from tasks.models.interventions import Condition, DropKeys, Intervention, MaskEntries
from tasks.stages.faithfulness.masking_grid import HEAD_SCORES, RANDOM, Ranking

if TYPE_CHECKING:
    from storage.tensors import DocumentLayer

_KEPT_BYTES = 128 * 2**20

Ranks = tuple[Tensor, Tensor]
"""Ranks, 0 the highest and −1 no candidate, and how many candidates are ranked together: what `RankedShare` takes."""


@dataclass(frozen=True)
class ScoredModel:
    """What scores need of a model besides a document's tensors."""

    weights: Callable[[int], tuple[Tensor, Tensor | None]]
    """Layer → W_O by head (H, d_v, D) and its bias."""
    attended: Sequence[int]
    """The layers that have attention: `rollout` follows it through those up to its own."""
    visibility: Callable[[int], Visibility]
    norms: Mapping[int, Linearised | None]
    """Layer → the norm that follows attention, where there is one: `alti` goes through it."""
    scale: Mapping[int, float]
    """Layer → what the layer multiplies attention's output by; `alti` adds it to the residual stream."""


class Rankings:
    """Rankings of every document and layer, by what a clean pass gave.

    read(document, layer): attention, value, gate and, for `alti`, residual. length(document): its tokens. seed: what
    random rankings are drawn from, beside document, layer, scope and draw.
    """

    def __init__(
        self,
        model: ScoredModel,
        read: Callable[[int, int], DocumentLayer],
        length: Callable[[int], int],
        n_heads: int,
        seed: int,
    ) -> None:
        self._model, self._read, self._length, self._n_heads, self._seed = model, read, length, n_heads, seed
        self._layer = -1
        self._made: dict[tuple[int, Ranking], Ranks] = {}
        self._outputs: dict[int, tuple[DocumentLayer, HeadOutputs]] = {}
        self._rollouts: dict[int, tuple[int, Tensor]] = {}
        self._weights = _kept(model.weights)
        self._undefined: dict[tuple[int, int, Ranking], int] = {}
        self._masked: dict[tuple[int, int, Ranking], MaskedEntries] = {}

    def of(self, document: int, layer: int, ranking: Ranking) -> Ranks:
        """Ranks of a document's candidates: (H, T, T) of entries and rows, (H, T) of tokens, (T,) of layer_token."""
        if layer != self._layer:
            self._layer = layer
            self._made.clear()
            self._outputs.clear()
        key = document, ranking.canonical()
        if key not in self._made:
            self._made[key] = self._random(*key) if ranking.score == RANDOM else self._scored(*key)
            self._masked[document, layer, key[1]] = self._entries_behind(*self._made[key], key[1].scope)
        return self._made[key]

    @property
    def undefined(self) -> int:
        """Candidates of all rankings since `forget` whose score is 0/0, and which rank as 0."""
        return sum(self._undefined.values())

    def masked(self, document: int, layers: Sequence[int], ranking: Ranking, rate: float, end: End) -> float:
        """The share of visible entries, of the queries that count, whose value goes, over heads and these layers."""
        counts = [self._masked[document, layer, ranking.canonical()] for layer in layers]
        gone = sum(count.gone(rate, highest=end == "highest") for count in counts)
        return gone / max(1, sum(count.entries for count in counts))

    def forget(self) -> None:
        """Begin to count anew: a ranking counts what it is of when it is made."""
        self._made.clear()
        self._undefined.clear()
        self._masked.clear()

    def _entries_behind(self, ranks: Tensor, sizes: Tensor, scope: str) -> MaskedEntries:
        visibility = self._model.visibility(self._layer)
        if scope in ("entry", "row"):
            return MaskedEntries.of_entries(sizes, ranks.shape[-1], visibility)
        return MaskedEntries.of_tokens(ranks.view(-1, ranks.shape[-1]), sizes.view(-1, 1), visibility)

    def _scored(self, document: int, ranking: Ranking) -> Ranks:
        visibility, absolute = self._model.visibility(self._layer), ranking.sign == "absolute"
        by_head = ranking.score in HEAD_SCORES
        scores = self._entries(document, ranking.score) if by_head else self._layer_scores(document, ranking.score)
        n = undefined_scores(scores, visibility, keep_first=ranking.keep_first)
        self._undefined[document, self._layer, ranking] = n
        if n:  # what is written where a head writes nothing is nothing: it must not hide what a key does elsewhere
            scores = scores.nan_to_num(0)
        if ranking.scope in ("entry", "row"):
            rank = entry_ranks if ranking.scope == "entry" else row_ranks
            return rank(scores, visibility, absolute=absolute, keep_first=ranking.keep_first)
        if ranking.scope == "layer_token" and by_head:
            scores = (scores.abs() if absolute else scores).sum(0, keepdim=True)
        by_key = token_scores_of(scores, visibility, reduce=ranking.reduce, absolute=absolute)
        return self._tokens(document, ranking, by_key)

    def _tokens(self, document: int, ranking: Ranking, scores: Tensor) -> Ranks:
        ranks, sizes = token_ranks(scores, self._length(document), keep_first=ranking.keep_first)
        return (ranks[0], sizes[0]) if ranking.scope == "layer_token" else (ranks, sizes)

    def _random(self, document: int, ranking: Ranking) -> Ranks:
        """Random scores in place of the model's, from a seed that names everything that they may depend on."""
        n, visibility = self._length(document), self._model.visibility(self._layer)
        seed = seed_for(self._seed, document, self._layer, ranking.scope, ranking.draw)
        generator = torch.Generator().manual_seed(seed)
        if ranking.scope in ("entry", "row"):
            scores = torch.rand(self._n_heads, n, n, generator=generator)
            rank = entry_ranks if ranking.scope == "entry" else row_ranks
            return rank(scores, visibility, absolute=True, keep_first=ranking.keep_first)
        heads = 1 if ranking.scope == "layer_token" else self._n_heads
        scores = torch.rand(heads, visibility.counted(n), generator=generator)
        return self._tokens(document, ranking, scores)

    def _entries(self, document: int, score: str) -> Tensor:
        """(H, T, T), NaN where undefined."""
        found, outputs = self._of_layer(document)
        assert found.attention is not None
        return entry_scores(found.attention, outputs, score, visibility=self._model.visibility(self._layer))

    def _of_layer(self, document: int) -> tuple[DocumentLayer, HeadOutputs]:
        if document not in self._outputs:
            found, visibility = self._read(document, self._layer), self._model.visibility(self._layer)
            assert found.attention is not None and found.value is not None
            weights = self._weights(self._layer)
            outputs = head_outputs(found.attention, found.value, weights, gate=found.gate, visibility=visibility)
            self._outputs[document] = found, outputs
        return self._outputs[document]

    def _layer_scores(self, document: int, score: str) -> Tensor:
        """(1, T, T), ≥ 0."""
        if score == "rollout":  # what came by layers below may lie outside this one's window
            whole = QueryBlock(0, n := self._length(document), 0, n)
            return (self._rollout(document) * self._model.visibility(self._layer).inside(whole, n))[None]
        found, _ = self._of_layer(document)
        assert found.attention is not None and found.value is not None
        visibility, (projection, bias) = self._model.visibility(self._layer), self._model.weights(self._layer)
        if score == "norm":
            norms = kobayashi_norms(found.attention, found.value, projection, gate=found.gate, visibility=visibility)
            return norms[None]
        assert found.residual is not None
        scale = self._model.scale[self._layer]
        return alti(
            found.attention,
            found.value,
            projection * scale,
            found.residual,
            bias=None if bias is None else bias * scale,
            linear=self._model.norms[self._layer],
            gate=found.gate,
            visibility=visibility,
        )[None]

    def _rollout(self, document: int) -> Tensor:
        """Up to and including this layer, through those that have attention.

        A replay asks from below to above, so as a rule only the last is new.
        """
        done, product = self._rollouts.get(document, (-1, None))
        if done > self._layer:
            done, product = -1, None
        for layer in (at for at in self._model.attended if done < at <= self._layer):
            found = self._of_layer(document)[0] if layer == self._layer else self._read(document, layer)
            assert found.attention is not None
            product = rollout(found.attention, product)
        assert product is not None
        self._rollouts[document] = self._layer, product
        return product


@dataclass(frozen=True)
class Ranked:
    """Ranks, or their sizes, of one layer's ranking, as an intervention is given them."""

    layer: int
    ranking: Ranking
    what: Literal["ranks", "sizes"]
    source: Rankings = field(compare=False, repr=False)

    def of(self, document: int) -> Tensor:
        """The document's ranks or sizes; made now, or while the replay is in this layer."""
        ranks, sizes = self.source.of(document, self.layer, self.ranking)
        return ranks if self.what == "ranks" else sizes

    def block(self, document: int, queries: slice, keys: slice) -> Tensor:
        """Ranks of some queries and keys."""
        return self.of(document)[..., queries, keys]


def masking(ranking: Ranking, layers: tuple[int, ...], rate: float, end: End, source: Rankings) -> Condition:
    """The condition that masks a share of what is ranked in each of these layers."""
    return tuple(_in_layer(ranking.canonical(), layer, repr(rate), end, source) for layer in layers)


def _in_layer(ranking: Ranking, layer: int, rate: str, end: End, source: Rankings) -> Intervention:
    chosen = RankedShare(Ranked(layer, ranking, "ranks", source), Ranked(layer, ranking, "sizes", source), rate, end)
    if ranking.scope in ("entry", "row"):
        return MaskEntries(layer, chosen)
    return DropKeys(layer, chosen, by_head=ranking.scope == "token")


def _kept(projections: Callable[[int], tuple[Tensor, Tensor | None]]) -> Callable[[int], LayerWeights]:
    """Inner products of each layer's projection, kept for as many layers as `_KEPT_BYTES` hold: one batch after the
    other asks for them all, and of a wide model they are larger than its weights."""
    kept: dict[int, LayerWeights] = {}

    def weights(layer: int) -> LayerWeights:
        if layer in kept:
            return kept[layer]
        found = LayerWeights.of(projections(layer)[0])
        if (len(kept) + 1) * found.cross.nbytes <= _KEPT_BYTES:
            kept[layer] = found
        return found

    return weights
