"""Running a model again from any layer, out of the residual stream of a clean run, under interventions.

The layers below are passed over and the first that runs is given the residual stream: nothing but that, the token ids,
the weights and the layer decides what is computed. The loss is scored by the code that captures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from storage.errors import ModelError, UsageError
from tasks.models import tap
from tasks.models.anatomy import Anatomy
from tasks.models.intervention_pass import InterventionPass, Wanted
from tasks.models.intervention_tensors import HeldTensors
from tasks.models.interventions import CLEAN, Condition, DropKeys, Part, Row, check
from tasks.models.layer_record import Span
from tasks.models.loading import LoadedModel
from tasks.models.observation import Observables, Observed, Observer
from tasks.models.partial_model import PartialModel
from tasks.models.run import check_tokens, token_tensors
from tasks.models.scoring import token_nll
from tasks.models.table import FALLBACK


@dataclass(frozen=True)
class Start:
    """A document where a replay begins."""

    document: int
    token_ids: np.ndarray
    """(T,)"""
    residual: Tensor
    """(T, D), before the layer that the replay begins at; layer n_layers is after the last."""


@dataclass(frozen=True)
class Replayed:
    """The loss of one document under one condition."""

    document: int
    condition: int
    """Which of the conditions that were asked for."""
    nll: np.ndarray
    """Of each token given those before it, in nats, float32 (T,); NaN at position 0."""
    seen: Observed | None = None
    """What the replay was watched for."""

    @property
    def n_predicted(self) -> int:
        return len(self.nll) - 1

    @property
    def nll_sum(self) -> float:
        """In nats, over the predicted tokens, summed in float64."""
        return float(self.nll[1:].sum(dtype=np.float64))


class Replayer:
    """A loaded model, ready to run again. The model itself, and captures of it, stay as they are."""

    def __init__(self, loaded: LoadedModel, *, query_block: int = 128, batch_tokens: int = 4096) -> None:
        """query_block: queries of attention at a time; batch_tokens: tokens of a batch, padding included.

        Raises ModelError for a model that predicts no next token.
        """
        if loaded.anatomy.kind.shares_values:
            raise ModelError(
                "layers that compute keys and values of their own, to begin a replay at",
                got=f"{loaded.anatomy.kind.name}, whose later layers reuse those of earlier ones",
                where=loaded.name,
            )
        for name, size in (("query block", query_block), ("batch of tokens", batch_tokens)):
            if size < 1:
                raise UsageError(f"a {name} of at least 1", got=str(size))
        self._loaded, self._partial = loaded, PartialModel(loaded, _blank)
        self._query_block, self._batch_tokens = query_block, batch_tokens

    @property
    def anatomy(self) -> Anatomy:
        return self._loaded.anatomy

    def run(
        self,
        layer: int,
        starts: Iterable[Start],
        conditions: Sequence[Condition] = (CLEAN,),
        observables: Observables | None = None,
    ) -> Iterator[Replayed]:
        """Every document under every condition, documents in order; as many at once as a batch has room for.

        observables: what to observe of each of them.

        Raises UsageError for a layer outside 0…n_layers, a residual stream of another shape, or an intervention that
        asks for what is not there; ModelError for one that the family's code cannot do; CorpusError for token ids
        outside the vocabulary; CaptureCheckError where the model's code passed an intervention by.
        """
        self._check(layer, conditions)
        for rows in self._batches(starts, len(conditions)):
            yield from self._scored(layer, rows, conditions, observables)

    def parts(self, layer: int, starts: Sequence[Start], wanted: Wanted) -> dict[tuple[Part, int], HeldTensors]:
        """What comes out of parts of a clean run from `layer`: (part, layer) → what `Restore` takes of a document.

        Raises UsageError for a layer that does not run, or has no such part.
        """
        self._check(layer, ())
        found: dict[tuple[Part, int], dict[int, Tensor]] = {}
        for rows in self._batches(starts, 1):
            call = self._call(layer, rows, (CLEAN,), wanted)
            self._body(call, rows)
            for key, by_row in call.parts.items():
                for (start, _), pieces in zip(rows, by_row, strict=True):
                    found.setdefault(key, {})[start.document] = _whole(key[0], pieces)
        for part, layers in wanted.items():
            for missing in sorted(at for at in layers if (part, at) not in found):
                raise UsageError(f"a layer from {layer} that has a {part}", got=str(missing), where=self._loaded.name)
        return {key: HeldTensors.of_documents(tensors) for key, tensors in found.items()}

    def layers_with(self, part: Part) -> tuple[int, ...]:
        """The layers that have a part which can be restored, in order."""
        of_part: dict[Part, Callable[[int], Any]] = {
            "mlp_output": self._partial.mlps,
            "norm_output": self._partial.read,
        }
        if part == "attention_weights" and self._loaded.tap_method == FALLBACK:
            return ()
        if part in ("attention_output", "attention_weights"):
            return self.anatomy.attended
        has = of_part.get(part, lambda _layer: True)
        return tuple(layer for layer in range(self.anatomy.n_layers) if has(layer))

    def _check(self, layer: int, conditions: Sequence[Condition]) -> None:
        n_layers, name = self.anatomy.n_layers, self._loaded.name
        if not 0 <= layer <= n_layers:
            raise UsageError(f"a layer from 0 to {n_layers} to replay from", got=str(layer), where=name)
        for condition in conditions:
            check(condition, self._partial.anatomy, layer, tap_method=self._loaded.tap_method, where=name)

    def _batches(self, starts: Iterable[Start], n_conditions: int) -> Iterator[list[tuple[Start, int]]]:
        """(document, condition) in order, as many as the batch has room for once padded; one at least."""
        rows: list[tuple[Start, int]] = []
        width = 0
        for start in starts:
            self._check_start(start)
            for condition in range(n_conditions):
                wider = max(width, len(start.token_ids))
                if rows and wider * (len(rows) + 1) > self._batch_tokens:
                    yield rows
                    rows, wider = [], len(start.token_ids)
                rows.append((start, condition))
                width = wider
        if rows:
            yield rows

    def _check_start(self, start: Start) -> None:
        check_tokens(self._loaded, [start.token_ids], [start.document])
        shape = (len(start.token_ids), self.anatomy.d_model)
        if tuple(start.residual.shape) != shape:
            raise UsageError(
                f"a residual stream of shape {shape}",
                got=str(tuple(start.residual.shape)),
                where=f"document {start.document}",
            )

    def _scored(
        self,
        layer: int,
        rows: Sequence[tuple[Start, int]],
        conditions: Sequence[Condition],
        observables: Observables | None,
    ) -> Iterator[Replayed]:
        call = self._call(layer, rows, conditions, {})
        if observables is not None:
            of_rows = [row.document for row in call.rows], [row.length for row in call.rows]
            call.observer = Observer(observables, *of_rows)
        with torch.inference_mode():
            output = self._body(call, rows)
            lengths = [row.length for row in call.rows]
            hidden = torch.cat([output.last_hidden_state[b, :n] for b, n in enumerate(lengths)])
            ids = np.concatenate([start.token_ids for start, _ in rows]).astype(np.int64)
            nll = token_nll(
                self._loaded.model,
                self.anatomy,
                hidden,
                torch.from_numpy(ids).to(self._loaded.device),
                lengths,
                body_output=type(output),
            )
        seen = [None] * len(rows) if call.observer is None else call.observer.seen
        for (start, condition), losses, of_row in zip(rows, nll, seen, strict=True):
            yield Replayed(start.document, condition, losses.numpy(), of_row)

    def _call(
        self, layer: int, rows: Sequence[tuple[Start, int]], conditions: Sequence[Condition], wanted: Wanted
    ) -> InterventionPass:
        of_rows = [Row(start.document, len(start.token_ids), conditions[at]) for start, at in rows]
        for row in of_rows:
            _check_positions(row)
        hidden = torch.nn.utils.rnn.pad_sequence([start.residual for start, _ in rows], batch_first=True)
        weight = next(self._loaded.model.parameters())
        return InterventionPass(
            self._partial.anatomy,
            of_rows,
            layer,
            hidden.to(weight.device, weight.dtype),
            self._loaded.name,
            self._query_block,
            wanted,
        )

    @torch.inference_mode()
    def _body(self, call: InterventionPass, rows: Sequence[tuple[Start, int]]) -> Any:
        """What the body gives, (B, T, D) after the final norm, in the family's own class."""
        if call.start:  # what leaves the layer before may be changed, though it does not run
            call.hidden = call.residual(call.start - 1, call.hidden)
        spans = [Span(row.document, 0, row.length) for row in call.rows]
        inputs = _inputs(self._partial.loaded, [start.token_ids for start, _ in rows], spans, call.hidden.shape[1])
        with tap.active(call):
            output = self._partial.anatomy.body(**inputs)
        call.finish()
        return output


def _inputs(
    loaded: LoadedModel, token_ids: Sequence[np.ndarray], spans: Sequence[Span], width: int
) -> Mapping[str, Any]:
    given = token_tensors(loaded, token_ids, spans, width)
    return {name: value for name, value in given.items() if name != "output_attentions"}


def _blank(loaded: LoadedModel) -> Mapping[str, Any]:
    return _inputs(loaded, [np.zeros(1, np.int64)], [Span(0, 0, 1)], 1)


def _whole(part: Part, pieces: Mapping[int, Tensor]) -> Tensor:
    """The recorded values of a part of one document: blocks of weights joined, modules of several stacked."""
    in_order = [pieces[at].cpu() for at in sorted(pieces)]
    if part == "attention_weights":
        return torch.cat(in_order, dim=1)
    if part not in ("norm_output", "mlp_output"):
        return in_order[0]
    widest = max(piece.shape[-1] for piece in in_order)  # Zamba norms twice the width in one place
    return torch.stack([torch.nn.functional.pad(piece, (0, widest - piece.shape[-1])) for piece in in_order])


def _check_positions(row: Row) -> None:
    for intervention in row.condition:
        if isinstance(intervention, DropKeys) and isinstance(intervention.keys, tuple):
            outside = sorted(key for key in intervention.keys if not 0 <= key < row.length)
            if outside:
                raise UsageError(
                    f"positions from 0 to {row.length - 1}", got=str(outside[0]), where=f"document {row.document}"
                )
