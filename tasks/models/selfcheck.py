"""What must hold of every captured batch, checked while the model runs; a breach stops the shard and says where.

The identity Σ_h α_h v_h W_O[h] + b = output is checked without forming it: both sides are projected on a few fixed
Gaussian directions R (D, k), so that one product of α (T×T) with v_h W_O[h] R (T×k) suffices, O(T²) instead of
O(T² d_v). Two different outputs have the same projection with probability 0 (Freivalds 1979). A column of ones beside
v W_O R gives the row sums in the same pass over α.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NoReturn

import torch
from torch import Tensor

from storage.errors import CaptureCheckError
from tasks.models.anatomy import Anatomy, output_weights

_DIRECTIONS = 4
_SEED = 1979

# Largest departure of a row's sum from 1, and of the projected output from what α, v and W_O give, the latter relative
# to the size of the heads' outputs. Several times what trained models of each dtype show, far below what a defect does.
_ROW_SUM = {torch.float32: 5e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
_OUTPUT = {torch.float32: 2e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


@dataclass(frozen=True)
class Place:
    """Where in a capture something was found."""

    model: str
    layer: int | None = None
    head: int | None = None
    document: int | None = None
    row: int | None = None

    def __str__(self) -> str:
        parts = {"layer": self.layer, "head": self.head, "document": self.document, "row": self.row}
        return ", ".join([f"model {self.model}", *(f"{name} {at}" for name, at in parts.items() if at is not None)])


def breach(expected: str, got: str, place: Place, remedy: str = "") -> NoReturn:
    """Stop the capture."""
    raise CaptureCheckError(expected, got=got, where=str(place), remedy=remedy)


@dataclass(frozen=True)
class OutputProbe:
    """W_O and b of one layer, seen along the fixed directions."""

    directions: Tensor  # (D, k)
    weights: Tensor  # (H, d_v, k): W_O[h] R
    bias: Tensor | float  # (k,): b R
    gains: Tensor  # (H,): about ‖W_O[h]‖_F / √d_v, the gain of a random error in z_h
    mixing: Tensor | None = None  # (H, d_v, k): directions along which Σ α v is seen, where a gate stands before W_O

    @classmethod
    def of(cls, anatomy: Anatomy, layer: int) -> OutputProbe:
        weights, bias = output_weights(anatomy, layer)  # (H, d_v, D)
        directions = _directions(anatomy.d_model, weights.device)
        seen = directions.T @ weights.reshape(-1, anatomy.d_model).T  # (k, H d_v): reads W_O as it lies
        projected = seen.T.reshape(anatomy.n_heads, anatomy.d_value, _DIRECTIONS)
        gains = projected.square().mean(dim=(1, 2)).sqrt()  # E ‖W R‖² = k ‖W‖²
        mixing = None
        if anatomy.gates:
            mixing = _directions(anatomy.n_heads * anatomy.d_value, weights.device).reshape(projected.shape)
        return cls(directions, projected, 0.0 if bias is None else bias @ directions, gains, mixing)

    def columns(self, value: Tensor) -> Tensor:
        """(H_kv, T, d_v) → (H, T, k + 1): v_h W_O[h] R per key, and ones; a key/value head serves H / H_kv heads.

        Where a gate stands between, v_h along directions of its own.
        """
        n_kv, length, _ = value.shape
        weights = self.weights if self.mixing is None else self.mixing
        grouped = weights.reshape(n_kv, -1, *weights.shape[1:])  # (H_kv, G, d_v, k)
        seen = torch.matmul(value.float().unsqueeze(1), grouped).reshape(-1, length, _DIRECTIONS)
        return torch.cat([seen, seen.new_ones(*seen.shape[:2], 1)], dim=-1)


@lru_cache(maxsize=8)
def _directions(d_model: int, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(_SEED)
    return torch.randn(d_model, _DIRECTIONS, generator=generator).to(device)


def check_order(alpha: Tensor, first_row: int, first_key: int, window: int | None, place: Place) -> None:
    """No weight on a later key, nor on one before the window: exactly 0. α (H, q, K); indices within the document.

    Weights are a softmax's, so none is negative and their sum over the forbidden keys is 0 only if each of them is.
    """
    n_rows, n_keys = alpha.shape[-2:]
    ahead = first_row - first_key
    start = min(max(ahead, 0), n_keys)  # keys before the block's first row are past for all its rows
    future = alpha[..., start:]
    if (future * _later_keys(n_rows, n_keys - start, ahead - start, future.device)).sum().item() != 0:
        _order_breach(future.triu(ahead - start + 1), first_row, first_key + start, "no weight on a later key", place)
    stop = 0 if window is None else max(ahead + n_rows - window, 0)  # keys from here on are in every row's window
    if window is not None and stop > 0:
        past = alpha[..., :stop].tril(ahead - window)
        if past.any():
            _order_breach(past, first_row, first_key, f"no weight outside the window of {window} keys", place)


@lru_cache(maxsize=64)
def _later_keys(n_rows: int, n_keys: int, ahead: int, device: torch.device) -> Tensor:
    return torch.ones(n_rows, n_keys, device=device).triu(ahead + 1)


def _order_breach(found: Tensor, first_row: int, first_key: int, expected: str, place: Place) -> NoReturn:
    head, row, key = found.nonzero()[0].tolist()
    at = replace(place, head=head, row=first_row + row)
    weight = found[head, row, key].item()
    if math.isnan(weight):
        breach("finite attention", f"nan on key {first_key + key}", at, _REMEDY_FINITE)
    breach(expected, f"{weight:.3g} on key {first_key + key}", at, _REMEDY_CODE)


def check_row_sums(sums: Tensor, sink: tuple[Tensor, Tensor] | None, dtype: torch.dtype, at: Place) -> None:
    """Σ_j α_ij = 1 less the learned sink's mass. sums (H, T); sink: that mass and how far rounding may move it."""
    tolerance = _ROW_SUM[dtype] if sink is None else _ROW_SUM[dtype] + sink[1]
    expected = torch.ones_like(sums) if sink is None else 1 - sink[0]
    error = (sums - expected).abs() - tolerance
    if not error.max().item() <= 0:  # true for NaN
        head, row = (~(error <= 0)).nonzero()[0].tolist()
        wanted = f"a row of attention that sums to {expected[head, row].item():.6g}"
        breach(wanted, f"{sums[head, row].item():.6g}", replace(at, head=head, row=row), _REMEDY_CODE)


def check_output(seen: Tensor, output: Tensor, heads: Tensor, probe: OutputProbe, at: Place) -> None:
    """Σ_h α_h v_h W_O[h] + b is the attention module's output.

    seen (T, k): Σ_h α_h v_h W_O[h] R; output (T, D): what the module returned; heads (T, H, d_v): what W_O was given.
    The tolerance follows the size of z_h W_O[h] summed over heads in squares, so that heads which cancel each other
    do not raise a false alarm; a row of small outputs is held to the typical row.
    """
    difference = (seen + probe.bias - output.float() @ probe.directions).abs().amax(dim=-1)  # (T,)
    size = (heads.float().norm(dim=-1) * probe.gains).norm(dim=-1)  # (T,)
    _check_rows(difference, size, output.dtype, "Σ α v W_O + b equal to the attention's output", at)


def check_mixed(seen: Tensor, mixed: Tensor, probe: OutputProbe, at: Place) -> None:
    """Σ_j α_h v_h is what attention gave, before a gate: seen (T, k) along directions, mixed (T, H, d_v)."""
    assert probe.mixing is not None
    difference = (seen - torch.einsum("thd,hdk->tk", mixed.float(), probe.mixing)).abs().amax(dim=-1)  # (T,)
    size = mixed.float().flatten(1).norm(dim=-1)
    _check_rows(difference, size, mixed.dtype, "Σ α v equal to what attention gives", at)


def _check_rows(difference: Tensor, size: Tensor, dtype: torch.dtype, expected: str, at: Place) -> None:
    """Each row's difference (T,) within what the dtype allows of its size (T,), or of the typical row's."""
    tolerance = _OUTPUT[dtype] * torch.maximum(size, size.square().mean().sqrt())
    ok = difference <= tolerance
    if not ok.all():
        row = int((~ok).nonzero()[0])
        got = f"a difference of {difference[row].item():.3g} along a random direction"
        breach(f"{expected} within {tolerance[row].item():.3g}", got, replace(at, row=row), _REMEDY_CODE)


def check_gate(gate: Tensor, mixed: Tensor, heads: Tensor, at: Place) -> None:
    """W_O is given gate ⊙ Σ α v, to rounding; each (T, H, d_v)."""
    error = (gate.float() * mixed.float() - heads.float()).abs()
    allowed = 4 * torch.finfo(heads.dtype).eps * mixed.float().abs() + torch.finfo(heads.dtype).tiny
    over = ~(error <= allowed)
    if over.any():
        row, head, width = over.nonzero()[0].tolist()
        expected = f"gate ⊙ Σ α v equal to what the output projection is given within {allowed[row, head, width]:.3g}"
        got = f"a difference of {error[row, head, width].item():.3g}"
        breach(expected, got, replace(at, head=head, row=row), _REMEDY_CODE)


def check_finite(tensor: Tensor, kind: str, at: Place) -> None:
    """No NaN and no infinity in a tensor whose first axis is the document's tokens.

    A sum is finite only if its terms are, and costs a fortieth of asking each; where it overflows each is asked.
    """
    if math.isfinite(tensor.sum(dtype=torch.float32).item()):
        return
    bad = ~torch.isfinite(tensor)
    if bad.any():
        row = int(bad.flatten(1).any(dim=1).nonzero()[0])
        first = tensor[row][bad[row]].flatten()[0].item()
        breach(f"a finite {kind}", f"{first} ({int(bad[row].sum())} entries)", replace(at, row=row), _REMEDY_FINITE)


def learned_sink_mass(
    alpha: Tensor, query: Tensor, key: Tensor, sinks: Tensor, *, scaling: float
) -> tuple[Tensor, Tensor]:
    """Mass on a learned sink, from its logit and not from the row's sum: exp(s_h − score) α at the row's largest key.

    α (H, q, K), query (H, q, d), key (H_kv, K, d), sinks (H,) → mass (H, q), and how far the rounding of scores in
    the model's dtype may move it (H, q). The score of a visible key is q·k × scaling: the family masks by adding 0.
    """
    top, index = alpha.float().max(dim=-1)  # (H, q)
    keys = key.float().repeat_interleave(query.shape[0] // key.shape[0], dim=0)
    chosen = keys.gather(1, index.unsqueeze(-1).expand(-1, -1, keys.shape[-1]))
    scores = (query.float() * chosen).sum(dim=-1) * scaling
    logits = sinks.float().unsqueeze(-1)
    mass = torch.where(top > 0, (logits - scores).exp() * top, torch.ones_like(top))
    rounding = torch.finfo(alpha.dtype).eps * (scores.abs() + logits.abs() + 1)
    return mass, 2 * rounding * mass


_REMEDY_CODE = "Nothing of this shard is kept: the model's code does not compute what its family declares."
_REMEDY_FINITE = "Nothing of this shard is kept: try --dtype float32, and check the model's weights."
