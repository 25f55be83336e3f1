"""Interventions as one forward pass applies them: what each row of the batch, a document under a condition, asks for.

Attention is changed inside the tap (attention_changes.py); all else where a module's output leaves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from tasks.models import selfcheck
from tasks.models.anatomy import Anatomy
from tasks.models.attention_changes import AttentionChanges
from tasks.models.displacement import displaced_residual
from tasks.models.interventions import (
    Displace,
    Intervention,
    Part,
    Perturb,
    Restore,
    Row,
    ScaleHeads,
    in_residual,
    restores_weights,
)
from tasks.models.observation import Observer
from tasks.models.query_blocks import QueryBlocks
from tasks.models.selfcheck import Place

Wanted = Mapping[Part, frozenset[int]]
"""Part → the layers of which it is kept."""


@dataclass
class InterventionPass:
    """One forward pass from layer `start`, as the tap's listener (`Listener` in tap.py) and the copy's modules ask."""

    anatomy: Anatomy
    rows: Sequence[Row]
    start: int
    hidden: Tensor
    """(B, T, D): the residual stream before layer `start`, padded on the right."""
    model_name: str
    query_block: int
    wanted: Wanted = field(default_factory=dict)
    observer: Observer | None = None
    layer: int = -1
    """The one that runs."""
    parts: dict[tuple[Part, int], list[dict[int, Tensor]]] = field(default_factory=dict)
    """What is wanted, per row: of which module of several, or from which query, → the result."""

    def __post_init__(self) -> None:
        self._blocks = QueryBlocks(self.query_block)
        self._asked: dict[int, list[tuple[int, Intervention]]] = {}
        for b, row in enumerate(self.rows):
            for intervention in row.condition:
                self._asked.setdefault(intervention.layer, []).append((b, intervention))
        for layer, asked in self._asked.items():  # weights are restored before entries of them are masked
            self._asked[layer] = sorted(asked, key=lambda each: not restores_weights(each[1]))
        self._due = {(b, id(i)) for b, row in enumerate(self.rows) for i in row.condition}
        self._attention_changes = AttentionChanges(self)

    @property
    def changes(self) -> AttentionChanges | None:
        """None in a layer whose weights and values are neither changed nor wanted."""
        return self._attention_changes if self._attention_changes.needed() else None

    def layer_of(self, module: nn.Module) -> int | None:
        return self.layer if self.anatomy.attentions.get(self.layer) is module else None

    def blocks(self, n_queries: int, n_keys: int, mask: Tensor | None) -> list[tuple[int, int, int, int]]:
        """(first query, end, first key, end) of each block."""
        return self._blocks.of(n_queries, n_keys, mask)

    def attention_begins(self, layer: int, value: Tensor, call: Any = None) -> None:
        """Nothing is recorded."""

    def attention_rows(self, start: int, first: int, weights: Tensor, *, q: Tensor, k: Tensor, scaling: float) -> None:
        """A block's weights (B, H, q, K), as they are used."""
        if self.observer is not None:
            self.observer.attention(self.layer, start, weights)

    def heads_mixed(self, mixed: Tensor) -> None:
        """Nothing is recorded."""

    def here(self) -> list[tuple[int, Intervention]]:
        """What is asked of the layer that runs, each with its row."""
        return self._asked.get(self.layer, [])

    def applied(self, b: int, intervention: Intervention) -> None:
        """An intervention found its place."""
        self._due.discard((b, id(intervention)))

    def heads(self, mixed: Tensor) -> Tensor:
        """What the output projection is given, (…, H d_v), with heads scaled."""
        scales = [(b, i) for b, i in self.here() if isinstance(i, ScaleHeads)]
        if not scales:
            return mixed
        changed = mixed.clone()
        by_row = changed.view(len(self.rows), -1, self.anatomy.n_heads, self.anatomy.d_value)
        for b, scale in scales:
            self.applied(b, scale)
            by_row[b][:, list(scale.heads)] *= scale.factor
        return changed

    def output(self, part: Part, output: Tensor, at: int | None = None) -> Tensor:
        """What leaves a module, (B, T, D) or (B T, D), restored and kept; `at`: of a part of several, which."""

        def changed(b: int, own: Tensor, intervention: Intervention) -> Tensor:
            assert isinstance(intervention, Restore)
            clean = intervention.clean.of(self.rows[b].document)
            return clean if at is None else clean[at, :, : own.shape[-1]]

        by_row = output.reshape(len(self.rows), -1, output.shape[-1])
        asked = [(b, i) for b, i in self.here() if isinstance(i, Restore) and i.part == part]
        return self._leaving(part, by_row, asked, changed, (self.layer, at or 0)).view_as(output)

    def residual(self, layer: int, hidden: Tensor) -> Tensor:
        """What leaves a layer, (B, T, D): perturbed, displaced and restored, in the order of each condition."""

        def changed(b: int, own: Tensor, intervention: Intervention) -> Tensor:
            document = self.rows[b].document
            if isinstance(intervention, Displace):
                after = displaced_residual(intervention, document, own)
                if self.observer is not None:
                    self.observer.displaced(b, intervention, own, after)
                return after
            if isinstance(intervention, Perturb):
                return own + intervention.delta.of(document).to(own.device, own.dtype)
            assert isinstance(intervention, Restore)
            return intervention.clean.of(document)

        asked = [(b, i) for b, i in self._asked.get(layer, ()) if in_residual(i)]
        left = self._leaving("residual", hidden, asked, changed, (layer, 0))
        if self.observer is not None:
            self.observer.leaves(layer, left)
        return left

    def _leaving(
        self,
        part: Part,
        by_row: Tensor,
        asked: Iterable[tuple[int, Intervention]],
        changed: Callable[[int, Tensor, Intervention], Tensor],
        place: tuple[int, int],
    ) -> Tensor:
        """(B, T, D) with what is asked of each row's own tokens; kept where wanted, after that."""
        copied = False
        for b, intervention in asked:
            self.applied(b, intervention)
            by_row, copied = (by_row if copied else by_row.clone()), True
            own = by_row[b, : self.rows[b].length]
            own.copy_(changed(b, own, intervention))
        if self.wants(part, place[0]):
            for b, row in enumerate(self.rows):
                self.keep(part, b, by_row[b, : row.length].clone(), place)
        return by_row

    def wants(self, part: Part, layer: int) -> bool:
        """Whether a layer's part is to be kept."""
        return layer in self.wanted.get(part, ())

    def keep(self, part: Part, b: int, tensor: Tensor, place: tuple[int, int]) -> None:
        """Keep the result of row `b`; place: the layer, and which module of several or which block's first query."""
        layer, at = place
        self.parts.setdefault((part, layer), [{} for _ in self.rows])[b][at] = tensor

    def finish(self) -> None:
        """After the forward pass: every intervention must have found its place, else CaptureCheckError."""
        for b, row in enumerate(self.rows):
            for intervention in row.condition:
                if (b, id(intervention)) in self._due:
                    selfcheck.breach(
                        f"{type(intervention).__name__} to find the place that it changes",
                        "a forward pass in which it did not",
                        Place(self.model_name, intervention.layer, document=row.document),
                        "The model's code must be that of its family in transformers.",
                    )
