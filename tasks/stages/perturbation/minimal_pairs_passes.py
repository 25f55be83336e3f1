"""The passes behind a minimal pair: a clean one over both sentences, and the perturbed ones, many in a batch.

Sentences are not in the store: a clean pass leaves the residual stream where the perturbed ones begin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from torch import Tensor

from storage.keys import seed_for
from tasks.capture.batches import group_by_tokens
from tasks.capture.model import captured_model
from tasks.corpora.pairs import EncodedPair
from tasks.models.interventions import Condition
from tasks.models.observation import Observables
from tasks.models.packing import Packing
from tasks.models.replay import Start
from tasks.models.run import TapSettings, capture_batch
from tasks.replay import CapturedReplay
from tasks.stages.perturbation.minimal_pairs_parameters import PUBLISHED, PairCell

_WATCH = Observables(displaced=True)


@dataclass
class Answers:
    """What pairs got: of each sentence (pairs, 2, conditions), the clean one first."""

    logp: np.ndarray
    """Log-probability in nats, summed over the scored tokens."""
    n_tokens: np.ndarray = field(init=False)
    """Tokens of all perturbed layers that were to be moved."""
    unmoved: np.ndarray = field(init=False)
    """Those that were left alone."""

    def __post_init__(self) -> None:
        self.n_tokens, self.unmoved = (np.zeros(self.logp.shape, np.int64) for _ in range(2))


class PairPasses:
    """Runs the captured model on pairs; holds no tensor of a pair that is done."""

    def __init__(
        self, replay: CapturedReplay, cells: Sequence[PairCell], medians: Mapping[int, float], seed: int
    ) -> None:
        """medians: layer → what a relative δ is relative to; seed: the run's."""
        self._replay, self._cells, self._medians, self._seed = replay, cells, medians, seed
        self._loaded = captured_model(replay.prepared)

    @property
    def n_conditions(self) -> int:
        """The clean model's among them."""
        return 1 + len(self._cells)

    def answers(self, pairs: Sequence[EncodedPair], advance: Callable[[float], None]) -> Answers:
        """Every pair under every condition. advance: told pairs, and shares of them."""
        starts, clean = self._clean(pairs)
        found = Answers(np.full((len(pairs), 2, self.n_conditions), np.nan))
        found.logp[:, :, 0] = clean
        advance(len(pairs) / self.n_conditions)
        for (layer, equal), conditions in self._conditions(pairs).items():
            numbers = list(conditions.values())
            of_pairs = [at for at, pair in enumerate(pairs) if equal is None or equal == _equal(pair)]
            documents = {_document(pairs[at], side): (at, side) for at in of_pairs for side in (0, 1)}
            given = [Start(d, pairs[at].sentences[s], starts[at, s][layer]) for d, (at, s) in documents.items()]
            for one in self._replay.replayer.run(layer, given, list(conditions), _WATCH):
                (at, side), of_cells = documents[one.document], numbers[one.condition]
                found.logp[at, side, of_cells] = -one.nll_sum
                for moved in one.seen.displacements.values() if one.seen else ():
                    found.n_tokens[at, side, of_cells] += len(moved.norm) - moved.first
                    found.unmoved[at, side, of_cells] += len(moved.norm) - moved.first - int(moved.moved.sum())
                advance(len(of_cells) / 2 / self.n_conditions)
        return found

    def _conditions(self, pairs: Sequence[EncodedPair]) -> dict[tuple[int, bool | None], dict[Condition, list[int]]]:
        """(layer that a replay begins at, of which pairs) → condition → the cells that it is.

        Of all pairs (None), or apart of those whose sentences have as many tokens each, where these differ in noise.
        """
        groups: tuple[bool | None, ...] = (None,)
        if any(one.pair_noise == PUBLISHED for one in self._cells):
            groups = tuple(sorted({_equal(pair) for pair in pairs}))
        found: dict[tuple[int, bool | None], dict[Condition, list[int]]] = {}
        for equal in groups:
            for number, one in enumerate(self._cells):
                condition = one.condition(self._medians, self._seed, equal=bool(equal))
                of_start = found.setdefault((one.cell.layers[0] + 1, equal), {})
                of_start.setdefault(condition, []).append(1 + number)
        return found

    @cached_property
    def _begins(self) -> frozenset[int]:
        """Where replays begin: behind the first layer that is perturbed, whose output may be changed."""
        return frozenset(one.cell.layers[0] + 1 for one in self._cells)

    def _clean(self, pairs: Sequence[EncodedPair]) -> tuple[dict[tuple[int, int], dict[int, Tensor]], np.ndarray]:
        """(pair, sentence) → layer → the residual stream (T, D) before it; and log-probabilities (pairs, 2)."""
        places = [(at, side) for at in range(len(pairs)) for side in (0, 1)]
        ids = [pairs[at].sentences[side] for at, side in places]
        residuals: dict[tuple[int, int], dict[int, Tensor]] = {place: {} for place in places}
        found = np.full((len(pairs), 2), np.nan)
        for batch in group_by_tokens([len(one) for one in ids], self._replay.batch_tokens, padded=True):
            of_batch = [ids[d] for d in batch]

            def emit(
                layer: int, kind: str, tensor: Tensor, batch: list[int] = batch, of_batch: list[np.ndarray] = of_batch
            ) -> None:
                if layer in self._begins:
                    for d, own in zip(batch, tensor.split([len(one) for one in of_batch]), strict=True):
                        residuals[places[d]][layer] = own

            settings = TapSettings(query_block=self._replay.query_block, kept=Packing(frozenset({"residual"})))
            losses = capture_batch(self._loaded, of_batch, settings, emit, range(len(of_batch)))
            for d, nll in zip(batch, losses, strict=True):
                found[places[d]] = -float(nll[1:].sum(dtype=np.float64))
        return residuals, found


def _equal(pair: EncodedPair) -> bool:
    return len(pair.good) == len(pair.bad)


def _document(pair: EncodedPair, side: int) -> int:
    """A number that stands for a sentence in its noise: 2k of the good one and 2k + 1 of the bad one of a pair,
    whatever other pairs there are."""
    return 2 * (seed_for("minimal_pairs", pair.task, pair.item) >> 16) + side
