"""What the store refuses to keep: values that are not finite, or beyond the stored dtype; said with the place."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NoReturn

import torch

from storage.errors import StoreError


def fits(tensor: torch.Tensor, dtype: str) -> bool:
    """Whether every value is finite, and stays so in the stored dtype.

    The extremes decide (they carry NaN), since rounding keeps order: one pass over the tensor, nothing allocated.
    """
    if not tensor.numel():
        return True
    extremes = torch.stack(torch.aminmax(tensor.detach()))
    return bool(extremes.to(getattr(torch, dtype)).isfinite().all())


def raise_unfit(
    tensor: torch.Tensor, dtype: str, kind: str, layer: int, *, steps: Sequence[int], documents: Sequence[int]
) -> NoReturn:
    """Raise StoreError that names the first value of a layer that does not fit.

    `steps`: how far each of `documents` reaches along the tensor's ragged axis (the last of attention, else the first).
    """
    target = getattr(torch, dtype)
    finite = tensor.isfinite()
    bad = ~tensor.to(target).isfinite()
    index = [int(i) for i in bad.nonzero()[0]]
    where = f"{kind} of layer {layer}{_place(kind, index, steps, documents)}"
    value = f"{tensor[tuple(index)].item():.6g}"
    if not bool(finite[tuple(index)]):
        raise StoreError(
            f"finite numbers in {where}",
            got=value,
            remedy="The model is unstable on this text or in this dtype: compute in float32, or leave it out.",
        )
    raise StoreError(
        f"values within {dtype}'s range (±{torch.finfo(target).max:.6g}) in {where}",
        got=value,
        remedy=f"Store {kind} as float32 or bfloat16.",
    )


def _place(kind: str, index: list[int], steps: Sequence[int], documents: Sequence[int]) -> str:
    """Which document, and which token or entry of it, an index falls into."""
    if not documents:
        return f" at {index}"
    at = index[-1] if kind == "attention" else index[0]
    ends = list(accumulate(steps))
    k = next(i for i, end in enumerate(ends) if at < end)
    offset = at - (ends[k] - steps[k])
    unit = f"head {index[0]}, entry" if kind == "attention" else "token"
    return f", document {documents[k]}, {unit} {offset}"
