"""Rows of the table masking by the definitions (methods.md §1): plain passes, plain scores, plain sorts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from tests.oracles import masking_scores
from tests.oracles.contributions import Oracle
from tests.oracles.masking import Attended, PlainModel

_ROUNDING = 3e-6
HEAD_SCORES = ("raw", "vw", "vwon", "cw_intra", "cw_inter")
Row = Mapping[str, Any]
Draw = Callable[[int, str, int, tuple[int, ...]], np.ndarray]
"""Random scores of a layer, scope and draw, in this shape."""
Norm = tuple[str, bool, np.ndarray, float]


@dataclass(frozen=True)
class Anatomy:
    """What the definitions need of a family besides its tensors."""

    windows: Mapping[int, int | None]
    norms: Mapping[int, Norm | None]
    """Of each layer the norm after attention, as `masking_scores.alti` takes it."""
    scale: float = 1.0
    """What attention's output is multiplied by."""


class MaskedDocument:
    """One document, masked as rows say."""

    def __init__(self, plain: PlainModel, ids: np.ndarray, anatomy: Anatomy, draw: Draw) -> None:
        self._plain, self._ids, self._anatomy, self._draw = plain, ids, anatomy, draw
        self._layers = plain.clean(ids)
        self._oracles = {layer: _oracle(seen, anatomy.windows[layer]) for layer, seen in self._layers.items()}
        self._scores: dict[tuple[int, str], np.ndarray] = {}
        self._losses: dict[bytes, float] = {}
        self.close_calls = 0
        """Masks that end between two scores which only rounding to float32 may tell apart."""

    def nll_sum(self, masks: Mapping[int, np.ndarray]) -> float:
        """In nats, with these entries masked: layer → (H, T, T) bool."""
        key = b"".join(str(layer).encode() + masks[layer].tobytes() for layer in sorted(masks))
        if key not in self._losses:
            tensors = {layer: torch.from_numpy(mask) for layer, mask in masks.items()}
            self._losses[key] = float(self._plain.losses(self._ids, tensors).sum())
        return self._losses[key]

    def masks(self, row: Row, layers: Sequence[int]) -> dict[int, np.ndarray]:
        return {layer: self._mask(row, layer) for layer in layers}

    def fraction(self, masks: Mapping[int, np.ndarray]) -> float:
        """Masked entries of the queries that predict a token, of all that they see."""
        gone = there = 0
        for layer, mask in masks.items():
            for i, j in masking_scores.candidates(len(self._ids), self._anatomy.windows[layer], True, False):
                gone += int(mask[:, i, j].sum())
                there += len(mask)
        return gone / there

    def _mask(self, row: Row, layer: int) -> np.ndarray:
        n_tokens, n_heads = len(self._ids), self._oracles[layer].H
        mask = np.zeros((n_heads, n_tokens, n_tokens), bool)
        if row["scope"] in ("entry", "row"):
            scores = self._entry_scores(row, layer)
            for h in range(n_heads):
                for group in self._groups(row, layer):
                    for place in self._chosen(row, scores[h], group):
                        mask[h][place] = True
            return mask
        keys = [(j,) for j in range(n_tokens - 1) if j > 0 or not row["keep_first"]]
        for h, scores in enumerate(self._token_scores(row, layer)):
            heads = [h] if row["scope"] == "token" else list(range(n_heads))
            for (j,) in self._chosen({**row, "sign": "signed"}, scores, keys):
                mask[heads, :, j] = True
        return mask

    def _groups(self, row: Row, layer: int) -> list[list[tuple[int, ...]]]:
        there = masking_scores.candidates(len(self._ids), self._anatomy.windows[layer], True, row["keep_first"])
        if row["scope"] == "entry":
            return [there]
        return [[place for place in there if place[0] == i] for i in range(len(self._ids))]

    def _chosen(self, row: Row, scores: np.ndarray, group: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        ranks = masking_scores.ranks(scores, [group], row["sign"] == "absolute")
        k = len(group) * Fraction(str(round(row["rate"], 6))) // 1  # the table holds the nearest float32
        first = k if row["direction"] == "comprehensiveness" else len(group) - k
        in_order = sorted(group, key=lambda place: ranks[place])
        if 0 < first < len(group):
            last_of, first_of = (abs(float(scores[place])) for place in in_order[first - 1 : first + 1])
            self.close_calls += 0 < abs(last_of - first_of) < _ROUNDING * max(last_of, first_of)
        return in_order[:first] if row["direction"] == "comprehensiveness" else in_order[first:]

    def _entry_scores(self, row: Row, layer: int) -> np.ndarray:
        """(H, T, T)"""
        if row["score"] == "random":
            shape = self._oracles[layer].attention.shape
            return self._draw(layer, row["scope"], row["draw"], shape)
        if (layer, row["score"]) not in self._scores:
            self._score_entries(layer)
        return self._scores[layer, row["score"]]

    def _score_entries(self, layer: int) -> None:
        """All scores of a layer's entries, (H, T, T) each; 0 where the key is not visible."""
        oracle = self._oracles[layer]
        found = {score: np.zeros(oracle.attention.shape) for score in HEAD_SCORES}
        for h in range(oracle.H):
            for i in range(oracle.T):
                for j in oracle.visible(i):
                    scores = oracle.scores(h, i, j)
                    for score, values in found.items():
                        values[h, i, j] = scores[score]
        self._scores.update({(layer, score): values for score, values in found.items()})

    def _token_scores(self, row: Row, layer: int) -> list[np.ndarray]:
        """By head, (T − 1,); one where the heads are taken together."""
        if row["score"] == "random":
            heads = self._oracles[layer].H if row["scope"] == "token" else 1
            return list(self._draw(layer, row["scope"], row["draw"], (heads, len(self._ids) - 1)))
        absolute, window = row["sign"] == "absolute", self._anatomy.windows[layer]
        if row["score"] in HEAD_SCORES:
            scores = np.nan_to_num(self._entry_scores(row, layer))
            if row["scope"] == "layer_token":
                scores = np.array([sum(np.abs(s) if absolute else s for s in scores)])
        else:
            scores = self._layer_scores(row["score"], layer)[None]
        return [masking_scores.token_scores(s, window, True, row["reduce"], absolute) for s in scores]

    def _layer_scores(self, score: str, layer: int) -> np.ndarray:
        """(T, T)"""
        if (layer, score) not in self._scores:
            self._scores[layer, score] = self._layer_score(score, layer)
        return self._scores[layer, score]

    def _layer_score(self, score: str, layer: int) -> np.ndarray:
        if score == "rollout":
            return masking_scores.rollout([seen.attention.numpy() for at, seen in self._layers.items() if at <= layer])
        if score == "norm":
            return masking_scores.kobayashi_norms(self._oracles[layer])
        seen, scale = self._layers[layer], self._anatomy.scale
        scaled = _oracle(seen, self._anatomy.windows[layer], scale)
        bias = None if seen.bias is None else seen.bias.numpy() * scale
        return np.nan_to_num(masking_scores.alti(scaled, seen.residual.numpy(), bias, self._anatomy.norms[layer]))


def _oracle(seen: Attended, window: int | None, scale: float = 1.0) -> Oracle:
    return Oracle(
        seen.attention.numpy(),
        seen.value.numpy(),
        seen.projection.numpy() * scale,
        window,
        gate=None if seen.gate is None else seen.gate.numpy(),
    )
