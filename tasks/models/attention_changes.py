"""Interventions inside attention: values without the keys that go, weights without the entries that go.

The family's own function gives the weights of a block; where entries go the values are mixed anew without them, so that
softcaps, sinks and windows keep their meaning, nothing is renormalised, and memory is a block's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from tasks.models.anatomy import Anatomy, values_in
from tasks.models.intervention_tensors import RankedShare
from tasks.models.interventions import (
    DropKeys,
    Intervention,
    MaskEntries,
    Part,
    Restore,
    Row,
    needs_weights,
    shared_keys,
)

Block = tuple[slice, slice]
"""Queries and keys."""


class ForwardPass(Protocol):
    """The forward pass whose attention is changed; InterventionPass in intervention_pass.py."""

    anatomy: Anatomy
    rows: Sequence[Row]
    layer: int
    """The one that runs."""

    def here(self) -> list[tuple[int, Intervention]]:
        """The interventions in the layer that runs, each with its row."""

    def applied(self, b: int, intervention: Intervention) -> None:
        """Report that an intervention found its place."""

    def wants(self, part: Part, layer: int) -> bool:
        """Whether a layer's part is to be kept."""

    def keep(self, part: Part, b: int, tensor: Tensor, place: tuple[int, int]) -> None:
        """Keep a part of row `b`; place: the layer, and the first query of the block."""


class AttentionChanges:
    """What a forward pass under interventions changes of attention; `Changes` in tap.py."""

    def __init__(self, given: ForwardPass) -> None:
        self._given, self._anatomy = given, given.anatomy

    def needed(self) -> bool:
        """Whether the layer that runs has anything to change, or weights to keep."""
        asked = any(isinstance(i, DropKeys) or needs_weights(i, self._anatomy) for _, i in self._given.here())
        return asked or self._given.wants("attention_weights", self._given.layer)

    def outputs_unused(self) -> bool:
        """Whether `mixed` makes every row's output anew, so that what the family's own function gives is not used."""
        return len(self._mixed_anew()) == len(self._given.rows)

    def _mixed_anew(self) -> list[int]:
        """The rows of which anything goes in the layer that runs: asked of documents, never of blocks, so that which
        products make a row's output does not hang on what else is in the batch."""
        asked = ((b, i) for b, i in self._given.here() if needs_weights(i, self._anatomy))
        return sorted({b for b, i in asked if self._changes(b, i)})

    def _changes(self, b: int, intervention: Intervention) -> bool:
        """Whether it changes any weight of the row's document."""
        document = self._given.rows[b].document
        if isinstance(intervention, MaskEntries):
            return intervention.mask.chooses(document)
        if isinstance(intervention, DropKeys):
            keys = intervention.keys
            return bool(keys) if isinstance(keys, tuple) else keys.chooses(document)
        return True

    def values(self, value: Tensor) -> Tensor:
        """(B, H_kv, T, d_v), without those of keys that all heads that share them lose."""
        drops = [(b, i) for b, i in self._given.here() if isinstance(i, DropKeys) and shared_keys(i, self._anatomy)]
        if not drops:
            return value
        value, size = value.clone(), self._anatomy.n_heads // self._anatomy.n_kv_heads
        for b, drop in drops:
            of_group = slice(None) if drop.heads is None else sorted({head // size for head in drop.heads})
            gone = nn.functional.pad(self._dropped(b, drop, value.device), (0, value.shape[2] - self._length(b)))
            value[b, of_group] = value[b, of_group].masked_fill(gone[:, None], 0)
        return value

    def projected_values(self, output: Tensor) -> Tensor:
        """The same for a family that shows its values as the value projection's output (B, T, …) alone."""
        if not any(isinstance(i, DropKeys) for _, i in self._given.here()):
            return output
        channels = values_in(self._anatomy, torch.arange(output.shape[-1], device=output.device))  # (H_kv, d_v)
        values = self.values(output[..., channels].transpose(1, 2))
        changed = output.clone()
        changed[..., channels] = values.transpose(1, 2)
        return changed

    def mixed(self, start: int, first: int, weights: Tensor, value: Tensor, output: Tensor) -> Tensor:
        """(B, q, H, d_v) of a block; its weights (B, H, q, K) are changed in place, since nobody reads them after."""
        self._keep(start, first, weights)
        for b, intervention in self._given.here():
            stop = min(start + weights.shape[2], self._length(b))
            last = min(first + weights.shape[3], self._length(b))
            if start < stop and needs_weights(intervention, self._anatomy):
                alpha = weights[b, :, : stop - start, : last - first]
                self._reweigh(alpha, b, intervention, (slice(start, stop), slice(first, last)))
        changed = self._mixed_anew()
        if len(changed) == len(weights):
            return _mix(weights, value)
        if changed:
            output[changed] = _mix(weights[changed], value[changed])
        return output

    def _reweigh(self, alpha: Tensor, b: int, intervention: Intervention, block: Block) -> None:
        """Change the weights (H, q, K) of one row's own queries and keys in place."""
        self._given.applied(b, intervention)
        document = self._given.rows[b].document
        if isinstance(intervention, Restore):
            alpha.copy_(intervention.clean.block(document, *block))
            return
        if not self._changes(b, intervention):
            return
        if isinstance(intervention, MaskEntries):
            mask = intervention.mask
            if intervention.heads is None and isinstance(mask, RankedShare) and mask.zero(document, alpha, *block):
                return
            gone = mask.block(document, *block).to(alpha.device)
        else:
            assert isinstance(intervention, DropKeys)
            gone = self._dropped(b, intervention, alpha.device)[..., None, block[1]]
        if intervention.heads is None:
            alpha.masked_fill_(gone, 0)
        else:
            at = list(intervention.heads)
            alpha[at] = alpha[at].masked_fill(gone, 0)

    def _dropped(self, b: int, drop: DropKeys, device: torch.device) -> Tensor:
        """Which keys go, (T,) or (H', T) bool, of the document's own."""
        self._given.applied(b, drop)
        if not isinstance(drop.keys, tuple):
            return drop.keys.of(self._given.rows[b].document).to(device)
        gone = torch.zeros(self._length(b), dtype=torch.bool, device=device)
        gone[list(drop.keys)] = True
        return gone

    def _keep(self, start: int, first: int, weights: Tensor) -> None:
        """Keep a block of the weights, (H, q, T) of each row, where they are wanted."""
        if not self._given.wants("attention_weights", self._given.layer):
            return
        for b, row in enumerate(self._given.rows):
            own = weights[b, :, : max(row.length - start, 0), : max(row.length - first, 0)]
            full = own.new_zeros(own.shape[0], own.shape[1], row.length)
            full[..., first : first + own.shape[2]] = own
            self._given.keep("attention_weights", b, full, (self._given.layer, start))

    def _length(self, b: int) -> int:
        return self._given.rows[b].length


def _mix(alpha: Tensor, value: Tensor) -> Tensor:
    """Σ_j α v per head: (n, H, q, K) and (n, H_kv, K, d_v) → (n, q, H, d_v)."""
    n, n_heads, n_rows, n_keys = alpha.shape
    grouped = alpha.reshape(n, value.shape[1], -1, n_keys)
    return (grouped @ value).view(n, n_heads, n_rows, -1).transpose(1, 2)
