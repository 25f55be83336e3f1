"""The passes behind a choice: clean ones over its context, and over context and choice, and the masked ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor, nn

from storage.store_reader import DocumentLayer
from storage.triangles import unpack
from tasks.capture.batches import group_by_tokens
from tasks.capture.model import captured_model
from tasks.corpora.continuations import Item
from tasks.kernels.visibility import Visibility
from tasks.models.after_attention import norms_after, output_scale
from tasks.models.anatomy import output_weights
from tasks.models.interventions import Condition
from tasks.models.packing import Packing
from tasks.models.replay import Start
from tasks.models.run import TapSettings, capture_batch
from tasks.replay import CapturedReplay
from tasks.stages.faithfulness.masking_grid import Cell, Ranking
from tasks.stages.faithfulness.rankings import Rankings, Ranks, ScoredModel, masking


@dataclass(frozen=True)
class MaskedCell:
    """One condition, of one set of layers."""

    cell: Cell
    layers: tuple[int, ...]


class ContextRankings(Rankings):
    """Rankings of an item's contexts; a document is a choice, whose own tokens are no candidates.

    So one mask serves all choices that continue the same context.
    """

    def __init__(
        self, model: ScoredModel, read: Callable[[int, int], DocumentLayer], item: Item, n_heads: int, seed: int
    ) -> None:
        """read(context, layer): what `Rankings` reads of a document."""
        super().__init__(model, read, lambda context: len(item.contexts[context]), n_heads, seed)
        self._choices = item.choices

    def of(self, document: int, layer: int, ranking: Ranking) -> Ranks:
        """Ranks of a choice's document: those of its context, −1 behind."""
        choice = self._choices[document]
        ranks, sizes = super().of(choice.context, layer, ranking)
        more, by_entry = len(choice.token_ids), ranks.ndim == 3
        ranks = nn.functional.pad(ranks, (0, more, 0, more) if by_entry else (0, more), value=-1)
        if ranking.scope == "row":
            sizes = nn.functional.pad(sizes, (0, 0, 0, more))
        return ranks, sizes


class ChoicePasses:
    """Runs the captured model on items; holds no tensor of an item that is done."""

    def __init__(self, replay: CapturedReplay, cells: Sequence[MaskedCell]) -> None:
        self._replay, self._cells = replay, cells
        self._loaded = captured_model(replay.prepared)
        self._anatomy = self._loaded.anatomy

    @property
    def n_cells(self) -> int:
        return len(self._cells)

    def log_probabilities(self, item: Item, seed: int, advance: Callable[[float], None]) -> tuple[np.ndarray, int]:
        """Log-probability of each choice, in nats summed over its tokens: (choices, 1 + cells) float64, clean first.

        And how many candidates had no defined score. seed: of the item's random rankings. advance: told shares of 1.
        """
        residuals, clean = self._clean(item.documents)
        found = np.full((len(item.choices), 1 + self.n_cells), np.nan)
        found[:, 0] = [_scored(item, choice, nll) for choice, nll in enumerate(clean)]
        if not self._cells:
            advance(1.0)
            return found, 0
        rankings = self.rankings(item, seed)
        for layer, cells in self._by_start.items():
            conditions: dict[Condition, list[int]] = {}  # cells that mask the same are one
            for number in cells:
                one, layers = self._cells[number].cell, self._cells[number].layers
                masked = masking(one.ranking, layers, one.rate, one.end, rankings)
                conditions.setdefault(masked, []).append(1 + number)
            share = len(cells) / self.n_cells / (len(conditions) * len(item.choices))
            starts = [Start(d, ids, residuals[d, layer]) for d, ids in enumerate(item.documents)]
            for replayed in self._replay.replayer.run(layer, starts, list(conditions)):
                of_cells = list(conditions.values())[replayed.condition]
                found[replayed.document, of_cells] = _scored(item, replayed.document, replayed.nll)
                advance(share)
        return found, rankings.undefined

    @cached_property
    def _by_start(self) -> dict[int, list[int]]:
        """Layer that a replay begins at → cells: what lies below the first masked layer is as in the clean pass."""
        found: dict[int, list[int]] = {}
        for number, one in enumerate(self._cells):
            found.setdefault(one.layers[0], []).append(number)
        return found

    def _clean(self, documents: Sequence[np.ndarray]) -> tuple[dict[tuple[int, int], Tensor], list[np.ndarray]]:
        """(document, layer) → the residual stream (T, D) where a replay begins; and each document's loss per token."""
        residuals: dict[tuple[int, int], Tensor] = {}
        losses: list[np.ndarray] = []
        for batch in group_by_tokens([len(ids) for ids in documents], self._replay.batch_tokens, padded=True):
            ids = [documents[d] for d in batch]

            def emit(
                layer: int, kind: str, tensor: Tensor, batch: list[int] = batch, ids: list[np.ndarray] = ids
            ) -> None:
                if layer in self._by_start:
                    of_documents = tensor.split([len(one) for one in ids])
                    residuals.update({(d, layer): own for d, own in zip(batch, of_documents, strict=True)})

            losses += self._captured(ids, frozenset({"residual"}), emit)
        return residuals, losses

    def _captured(
        self, ids: Sequence[np.ndarray], kinds: frozenset[str], emit: Callable[[int, str, Tensor], None]
    ) -> list[np.ndarray]:
        settings = TapSettings(query_block=self._replay.query_block, kept=Packing(kinds))
        return capture_batch(self._loaded, ids, settings, emit, range(len(ids)))

    def rankings(self, item: Item, seed: int) -> ContextRankings:
        """Rankings of an item's contexts, by a clean pass over each of them alone, whose tensors they hold."""
        held: dict[tuple[int, int], dict[str, Tensor]] = {}
        kinds = frozenset({"attention", "value", "gate", *(["residual"] if self._reads_alti else [])})
        for number, ids in enumerate(item.contexts):

            def emit(layer: int, kind: str, tensor: Tensor, number: int = number) -> None:
                held.setdefault((number, layer), {})[kind] = tensor

            self._captured([ids], kinds, emit)

        def read(context: int, layer: int) -> DocumentLayer:
            found = DocumentLayer(context, layer, len(item.contexts[context]))
            for kind, tensor in held[context, layer].items():
                setattr(found, kind, unpack(tensor) if kind == "attention" else tensor.float())
            return found

        return ContextRankings(self._model, read, item, self._anatomy.n_heads, seed)

    @property
    def _reads_alti(self) -> bool:
        return any(one.cell.ranking.score == "alti" for one in self._cells)

    @cached_property
    def _model(self) -> ScoredModel:
        anatomy, alti = self._anatomy, self._reads_alti

        def weights(layer: int) -> tuple[Tensor, Tensor | None]:
            weight, bias = output_weights(anatomy, layer)
            return weight.cpu(), None if bias is None else bias.cpu()

        return ScoredModel(
            weights=weights,
            visibility=lambda layer: Visibility(anatomy.windows[layer], anatomy.causal),
            norms=norms_after(anatomy) if alti else {},
            scale={layer: output_scale(anatomy, layer) for layer in anatomy.attended} if alti else {},
            attended=anatomy.attended,
        )


def _scored(item: Item, choice: int, nll: np.ndarray) -> float:
    """Log-probability of a choice, in nats, from the loss of each token of its document."""
    return -float(nll[-len(item.choices[choice].token_ids) :].sum(dtype=np.float64))
