"""The lower triangle of a causal attention matrix as a row: what a query may see, and nothing else.

Entry i(i+1)/2 + j of a packed row is attention[i, j], j ≤ i: row-major, so a query's weights lie side by side.
Copying row by row is as fast as a gather with a cached index and needs no index (8 bytes an entry).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np
import torch

from storage.numbers import spans


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


def pack_rows(block: torch.Tensor, first: int, length: int, out: torch.Tensor | None = None) -> torch.Tensor:
    """Rows `first`… of a T×T matrix, (…, q, K) with K ≥ first + q keys, as their entries (…, n).

    The blocks of a document, packed one after the other and joined along the last axis, are its packed triangle.
    Written into `out` (…, n) if it is given, and cast to its dtype.
    """
    n_rows, n_keys = block.shape[-2:]
    last = first + n_rows
    if first < 0 or last > length or n_keys < last:
        raise ValueError(
            f"expected rows within {length} that see themselves, got rows {first} to {last} with {n_keys} keys"
        )
    start = entries(first)
    if out is None:
        out = block.new_empty(*block.shape[:-2], entries(last) - start)
    if block.device.type != "cpu":
        flat = block.flatten(-2)
        out.copy_(flat.index_select(-1, _row_index(first, n_rows, n_keys, block.device)))
        return out
    source, packed = _as_numpy(block.to(out.dtype)), _as_numpy(out)
    for i in range(first, last):
        offset = entries(i) - start
        packed[..., offset : offset + i + 1] = source[..., i - first, : i + 1]  # (…, i+1)
    return out


@lru_cache(maxsize=16)
def _row_index(first: int, n_rows: int, n_keys: int, device: torch.device) -> torch.Tensor:
    """Where the entries of a block's rows lie in the flattened block: an accelerator gathers, it has no cheap rows."""
    visible = torch.ones(n_rows, n_keys, dtype=torch.bool, device=device).tril(first)
    return visible.flatten().nonzero().flatten()


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """(…, T(T+1)/2) → (…, T, T) of the same dtype, zeros above the diagonal. ValueError for any other length."""
    length = side(packed.shape[-1])
    source = _as_numpy(packed)
    full = np.zeros((*source.shape[:-1], length, length), source.dtype)
    for i in range(length):
        full[..., i, : i + 1] = source[..., entries(i) : entries(i + 1)]
    return _as_torch(full, packed.dtype)


def pack_chosen(block: torch.Tensor, rows: Sequence[int], out: torch.Tensor) -> None:
    """Some rows of a triangle, block (…, R, K) with K > each of `rows`, as their entries, row i's i + 1, in out (…, n).

    `rows` are the rows' own numbers, in order. What is written is cast to out's dtype.
    """
    for at, (row, start) in enumerate(zip(rows, row_starts(rows), strict=False)):
        out[..., start : start + row + 1] = block[..., at, : row + 1]  # (…, i+1)


def unpack_chosen(packed: torch.Tensor, rows: Sequence[int], length: int) -> torch.Tensor:
    """What `pack_chosen` made, (…, n), as (…, R, T) of the same dtype, zeros on later keys."""
    starts = row_starts(rows)
    if packed.shape[-1] != starts[-1]:
        raise ValueError(f"expected {starts[-1]} entries of rows {spans(rows)}, got {packed.shape[-1]}")
    full = packed.new_zeros(*packed.shape[:-1], len(rows), length)
    for at, row in enumerate(rows):
        full[..., at, : row + 1] = packed[..., starts[at] : starts[at + 1]]
    return full


def row_starts(rows: Sequence[int]) -> list[int]:
    """Where each of these rows begins when they are packed one after the other, and where the last ends."""
    return [0, *accumulate(row + 1 for row in rows)]


def _as_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The same memory as numpy; bfloat16, which numpy lacks, as its bits."""
    tensor = tensor.detach()
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _as_torch(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if dtype == torch.bfloat16 else tensor
