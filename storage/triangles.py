"""The lower triangle of a causal attention matrix as a row: what a query may see, and nothing else.

Entry i(i+1)/2 + j of a packed row is attention[i, j], j ≤ i: row-major, so a query's weights lie side by side.
Copying row by row is as fast as a gather with a cached index and needs no index (8 bytes an entry).
"""

from __future__ import annotations

import math

import numpy as np
import torch


def entries(length: int) -> int:
    """Entries on and below the diagonal of a matrix of that many rows."""
    return length * (length + 1) // 2


def side(n_entries: int) -> int:
    """T of a packed T×T triangle, from its entries; ValueError if they make no whole triangle."""
    length = (math.isqrt(8 * n_entries + 1) - 1) // 2
    if entries(length) != n_entries:
        raise ValueError(f"expected T(T+1)/2 entries for a whole T, got {n_entries}")
    return length


def pack(attention: torch.Tensor) -> torch.Tensor:
    """(…, T, T) → (…, T(T+1)/2) of the same dtype; what lies above the diagonal is dropped."""
    if attention.ndim < 2 or attention.shape[-1] != attention.shape[-2]:
        raise ValueError(f"expected square matrices to pack, got shape {tuple(attention.shape)}")
    return pack_rows(attention, 0, attention.shape[-1])


def pack_rows(block: torch.Tensor, first: int, length: int) -> torch.Tensor:
    """Rows `first`… of a T×T matrix, (…, q, K) with K ≥ first + q keys, as their entries (…, n).

    The blocks of a document, packed one after the other and joined along the last axis, are its packed triangle.
    """
    n_rows, n_keys = block.shape[-2:]
    last = first + n_rows
    if first < 0 or last > length or n_keys < last:
        raise ValueError(
            f"expected rows within {length} that see themselves, got rows {first} to {last} with {n_keys} keys"
        )
    source = _as_numpy(block)
    start = entries(first)
    packed = np.empty((*source.shape[:-2], entries(last) - start), source.dtype)
    for i in range(first, last):
        offset = entries(i) - start
        packed[..., offset : offset + i + 1] = source[..., i - first, : i + 1]  # (…, i+1)
    return _as_torch(packed, block.dtype)


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """(…, T(T+1)/2) → (…, T, T) of the same dtype, zeros above the diagonal. ValueError for any other length."""
    length = side(packed.shape[-1])
    source = _as_numpy(packed)
    full = np.zeros((*source.shape[:-1], length, length), source.dtype)
    for i in range(length):
        full[..., i, : i + 1] = source[..., entries(i) : entries(i + 1)]
    return _as_torch(full, packed.dtype)


def _as_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The same memory as numpy; bfloat16, which numpy lacks, as its bits."""
    tensor = tensor.detach()
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _as_torch(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if dtype == torch.bfloat16 else tensor
