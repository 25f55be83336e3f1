"""Packed triangles: nothing that a query sees is lost, blocks make the whole, and the order is the documented one."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from storage.triangles import _row_index, entries, pack, pack_rows, side, unpack

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


def matrices(n_heads: int, length: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(n_heads, length, length, generator=torch.Generator().manual_seed(seed)).to(dtype)


@given(st.integers(1, 4), st.integers(1, 40), st.sampled_from(DTYPES), st.integers(0, 1000))
def test_unpacking_gives_the_lower_triangle_back(n_heads: int, length: int, dtype: torch.dtype, seed: int) -> None:
    full = matrices(n_heads, length, dtype, seed)
    packed = pack(full)
    assert packed.dtype == dtype
    assert packed.shape == (n_heads, entries(length))
    assert torch.equal(unpack(packed), full.tril())


@given(st.integers(1, 40), st.data())
def test_packed_blocks_make_the_packed_whole(length: int, data: st.DataObject) -> None:
    full = matrices(2, length)
    cuts = sorted({0, length, *data.draw(st.lists(st.integers(0, length), max_size=4))})
    blocks = [pack_rows(full[:, a:b], a, length) for a, b in pairwise(cuts)]
    short = [pack_rows(full[:, a:b, :b], a, length) for a, b in pairwise(cuts)]
    assert torch.equal(torch.cat(blocks, -1), pack(full))
    assert torch.equal(torch.cat(short, -1), pack(full))


def test_the_order_is_row_by_row() -> None:
    full = torch.arange(9.0).reshape(1, 3, 3)
    assert pack(full).tolist() == [[0.0, 3.0, 4.0, 6.0, 7.0, 8.0]]
    for i in range(3):
        for j in range(i + 1):
            assert pack(full)[0, entries(i) + j] == full[0, i, j]


def test_any_number_of_axes_goes_before_the_matrix() -> None:
    full = torch.randn(2, 3, 4, 4)
    assert pack(full).shape == (2, 3, 10)
    assert torch.equal(unpack(pack(full)), full.tril())
    assert torch.equal(pack(full[0, 0]), pack(full)[0, 0])


def test_views_with_gaps_are_packed_by_value() -> None:
    full = torch.randn(4, 6, 6)
    assert torch.equal(pack(full[::2, :5, :5]), pack(full[::2, :5, :5].contiguous()))
    packed = torch.randn(2, 20)[:, 5:15]
    assert torch.equal(unpack(packed), unpack(packed.contiguous()))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_written_in_place_and_cast(dtype: torch.dtype) -> None:
    block = matrices(3, 9)[:, 4:7, :8]  # rows 4 to 6, one key more than they see
    out = torch.full((3, 40), 7.0, dtype=dtype)
    pack_rows(block, 4, 9, out=out[:, 5:23])
    assert torch.equal(out[:, 5:23], pack_rows(block, 4, 9).to(dtype))
    assert (out[:, :5] == 7).all() and (out[:, 23:] == 7).all()


def test_an_accelerators_gather_reads_the_same_entries() -> None:
    block = matrices(3, 9)[:, 4:7, :8]
    index = _row_index(4, 3, 8, torch.device("cpu"))
    assert torch.equal(block.flatten(-2).index_select(-1, index), pack_rows(block, 4, 9))


@given(st.integers(1, 10**9))
def test_only_whole_triangles_have_a_side(length: int) -> None:
    assert side(entries(length)) == length
    if length > 1:
        with pytest.raises(ValueError, match="for a whole T"):
            side(entries(length) - 1)


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"square matrices to pack, got shape \(2, 3, 4\)"):
        pack(torch.zeros(2, 3, 4))
    with pytest.raises(ValueError, match="for a whole T, got 5"):
        unpack(torch.zeros(2, 5))
    with pytest.raises(ValueError, match="rows 3 to 6 with 4 keys"):
        pack_rows(torch.zeros(2, 3, 4), 3, 6)
    with pytest.raises(ValueError, match="rows within 4"):
        pack_rows(torch.zeros(2, 3, 9), 3, 4)
