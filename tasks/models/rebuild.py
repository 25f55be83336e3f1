"""Attention kept as query and key: what a model adds to q·k, as the tap hears it, and the proof on every shard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from storage.errors import ModelError
from storage.rebuild import LayerTerms, Rebuild, rebuilt_rows, rounding_bound
from tasks.models import selfcheck
from tasks.models.selfcheck import Place

if TYPE_CHECKING:
    from tasks.models.anatomy import Anatomy

SAMPLED = 4
"""Queries of each document and layer whose attention is rebuilt while it is captured: the last, and some drawn."""

_TOLERANCE = 1e-5
"""How far rebuilt attention may be from the tapped where the model computes, and the store keeps, float32."""


@dataclass(frozen=True)
class AttentionCall:
    """What one layer's attention function was called with."""

    n_heads: int
    n_key_heads: int
    d_qk: int
    scaling: float
    softcap: float | None

    @classmethod
    def of(cls, query: Tensor, key: Tensor, options: Mapping[str, Any]) -> AttentionCall:
        """query (B, H, T, d), key (B, H_kv, T, d) and the call's options; a scaling left out is 1/√d."""
        scaling, softcap = options.get("scaling"), options.get("softcap")
        width = query.shape[-1]
        given = width**-0.5 if scaling is None else float(scaling)
        return cls(query.shape[1], key.shape[1], width, given, None if softcap is None else float(softcap))


def rebuild_of(anatomy: Anatomy, calls: Mapping[int, AttentionCall], dtype: str, where: str) -> Rebuild:
    """How attention is rebuilt, from what each layer was called with; ModelError where their sizes differ."""
    sizes = {(layer.n_heads, layer.n_key_heads, layer.d_qk) for layer in calls.values()}
    if len(sizes) != 1 or next(iter(sizes))[0] != anatomy.n_heads:
        raise ModelError(
            "queries and keys of one size in every layer, to rebuild attention from",
            got=", ".join(map(str, sorted(sizes))),
            where=where,
            remedy="Use --attention stored.",
        )
    one = next(iter(calls.values()))
    return Rebuild(
        d_qk=one.d_qk,
        n_key_heads=one.n_key_heads,
        scaling=tuple(calls[layer].scaling if layer in calls else 0.0 for layer in range(anatomy.n_layers)),
        softcap=tuple(calls[layer].softcap if layer in calls else None for layer in range(anatomy.n_layers)),
        sinks=anatomy.kind.sinks is not None,
        dtype=dtype,
    )


def sink_logits(anatomy: Anatomy, layer: int) -> Tensor | None:
    """The learned sink logits of a layer's heads, (H,) float32 on the CPU; None where the family has none."""
    if anatomy.kind.sinks is None:
        return None
    return anatomy.attentions[layer].get_parameter(str(anatomy.kind.sinks)).detach().float().cpu()


class RebuildSample:
    """Rows of one document's attention in one layer, kept as tapped until query and key are cast to be stored."""

    def __init__(self, document: int, layer: int, length: int, n_heads: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(1_000_003 * document + layer)
        drawn = torch.randint(length, (SAMPLED - 1,), generator=generator).tolist()
        self.rows = sorted({length - 1, *drawn})
        self._tapped = torch.zeros(n_heads, len(self.rows), length, device=device)

    def take(self, alpha: Tensor, first_row: int, first_key: int) -> None:
        """One block as tapped, (H, q, K): its sampled rows are kept."""
        stop, last = first_row + alpha.shape[1], first_key + alpha.shape[2]
        for at, row in enumerate(self.rows):
            if first_row <= row < stop:
                self._tapped[:, at, first_key:last] = alpha[:, row - first_row].float()

    def check(self, query: Tensor, key: Tensor, terms: LayerTerms, place: Place) -> None:
        """Stop the shard unless rows rebuilt from query (T, H, d) and key (T, H_kv, d), as stored, are as tapped."""
        rows = torch.tensor(self.rows, device=query.device)
        error = (rebuilt_rows(query[rows], key, rows, terms) - self._tapped).abs()
        heads = torch.arange(key.shape[1]).repeat_interleave(query.shape[1] // key.shape[1])
        allowed = _TOLERANCE + rounding_bound(query[rows], key[:, heads], terms, (query.dtype, key.dtype))
        over = ~(error <= allowed[..., None])  # true for NaN
        if over.any():
            head, at, index = over.nonzero()[0].tolist()
            selfcheck.breach(
                f"attention rebuilt from query and key within {allowed[head, at].item():.3g} of the model's",
                f"a difference of {error[head, at, index].item():.3g} on key {index}",
                replace(place, head=head, row=self.rows[at]),
                "Capture with --attention stored: this model adds to its scores what query and key do not hold.",
            )
