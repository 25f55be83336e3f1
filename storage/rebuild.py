"""Attention from the query and key that a model attended with: softmax(q·k × scaling, capped, masked), row by row.

Pure mathematics on arrays. The scores are rounded where the model rounded them, to its own dtype; the softmax is in
float32. A learned sink's logit enters the denominator, so a row sums to 1 less the sink's mass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

_BLOCK_ENTRIES = 1 << 22
"""Most scores of one block of queries, over all heads: 16 MiB in float32, which stays near the cores."""


@dataclass(frozen=True)
class Rebuild:
    """What a model adds to q·k, a value per layer, and the sizes of its queries and keys."""

    d_qk: int
    """Width of one head's query and key."""
    n_key_heads: int
    """Heads of the key: each serves n_heads / n_key_heads heads of the query, side by side."""
    scaling: tuple[float, ...]
    """0 for a layer without attention."""
    softcap: tuple[float | None, ...]
    """c of tanh(score / c) × c; None for none."""
    sinks: bool
    """Whether each head has a learned sink logit; the logits lie in the model's part of the store."""
    dtype: str = "float32"
    """What the model computed its scores in."""


@dataclass(frozen=True)
class LayerTerms:
    """The terms of one layer."""

    scaling: float
    softcap: float | None = None
    window: int | None = None
    """A query sees itself and the window − 1 keys before it; None: all keys."""
    causal: bool = True
    sinks: Tensor | None = None
    """(H,) logits."""
    dtype: torch.dtype = torch.float32

    @classmethod
    def of(cls, rebuild: Rebuild, layer: int, *, window: int | None, causal: bool, sinks: Tensor | None) -> LayerTerms:
        dtype: torch.dtype = getattr(torch, rebuild.dtype)
        return cls(rebuild.scaling[layer], rebuild.softcap[layer], window, causal, sinks, dtype)

    def of_heads(self, heads: Sequence[int]) -> LayerTerms:
        """The terms of some of the layer's heads, in that order."""
        return self if self.sinks is None else replace(self, sinks=self.sinks[list(heads)])


def rounding_bound(query: Tensor, key: Tensor, terms: LayerTerms, dtypes: Sequence[torch.dtype]) -> Tensor:
    """(H, R): how far attention may be off where query (R, H, d) or key (T, H, d) were rounded to these dtypes.

    0 in float32, where the rows differ by less than 1e-5. Else what rounding may do to a softmax of scores up to
    scaling × ‖q‖ ‖k‖: a score that moves by s moves no weight by more than s / 2.
    """
    rounding = max(torch.finfo(dtype).eps for dtype in (*dtypes, terms.dtype))
    norms = query.float().norm(dim=-1).T * key.float().norm(dim=-1).amax(dim=0).unsqueeze(-1)
    if rounding <= torch.finfo(torch.float32).eps:
        return torch.zeros_like(norms)
    return rounding / 2 * (1 + terms.scaling * norms)


def rebuilt_attention(query: Tensor, key: Tensor, terms: LayerTerms, rows: Sequence[int] | None = None) -> Tensor:
    """query (R, H, d) and key (T, H_kv, d) of one document → attention (H, R, T) float32, 0 where nothing is seen.

    The queries are those at the positions `rows`, in order; None: at all of them, R = T. In blocks of queries, over the
    keys that a block may see.
    """
    length, (n_rows, n_heads) = key.shape[0], query.shape[:2]
    at = torch.arange(length) if rows is None else torch.tensor(rows, dtype=torch.long)
    out = torch.zeros(n_heads, n_rows, length)
    size = max(1, min(length, _BLOCK_ENTRIES // (n_heads * length)))
    for start in range(0, n_rows, size):
        stop = min(start + size, n_rows)
        first = max(0, int(at[start]) - terms.window + 1) if terms.causal and terms.window else 0
        last = int(at[stop - 1]) + 1 if terms.causal else length
        out[:, start:stop, first:last] = rebuilt_rows(query[start:stop], key[first:last], at[start:stop], terms, first)
    return out


def rebuilt_rows(query: Tensor, key: Tensor, rows: Tensor, terms: LayerTerms, first: int = 0) -> Tensor:
    """Attention (H, q, K) float32 of some queries (q, H, d), which are `rows` (q,) of the document, over its keys.

    key (K, H_kv, d): the keys from `first` on; those before it are taken to be out of every row's sight.
    """
    n_queries, n_heads, width = query.shape
    n_keys, n_key_heads, _ = key.shape
    grouped = query.float().transpose(0, 1).reshape(n_key_heads, -1, width)  # (H_kv, G q, d)
    scores = torch.matmul(grouped, key.float().permute(1, 2, 0)).reshape(n_heads, n_queries, n_keys)
    scores = scores.to(terms.dtype) * terms.scaling
    if terms.softcap is not None:
        scores = torch.tanh(scores / terms.softcap) * terms.softcap
    hidden = _hidden(rows.to(query.device), first, n_keys, terms)
    scores = scores.float().masked_fill_(hidden, -torch.inf)
    return _softmax(scores, terms.sinks).to(terms.dtype).float()


def _hidden(rows: Tensor, first: int, n_keys: int, terms: LayerTerms) -> Tensor:
    """(q, K): the keys that a row does not see."""
    keys = torch.arange(first, first + n_keys, device=rows.device)
    later = keys > rows[:, None] if terms.causal else torch.zeros_like(keys, dtype=torch.bool).expand(len(rows), -1)
    return later | (keys <= rows[:, None] - terms.window) if terms.window else later


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Over the last axis of (H, q, K), a sink's logit (H,) beside the scores where there is one."""
    if sinks is None:
        return torch.softmax(scores, dim=-1)
    logits = sinks.float().to(scores.device)[:, None, None]
    top = torch.maximum(scores.amax(dim=-1, keepdim=True), logits)
    weights = torch.exp(scores - top)
    return weights / (weights.sum(dim=-1, keepdim=True) + torch.exp(logits - top))
