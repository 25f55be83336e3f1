"""The strongest keys of each row, against a plain sort."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.kernels import edges
from tasks.kernels.edges import strongest_keys


def by_sorting(entry: np.ndarray, visible: np.ndarray, k: int) -> np.ndarray:
    """For each row the k visible keys of largest |entry|, ties to the smaller key, padded by −1."""
    result = np.full((*entry.shape[:2], k), -1)
    for h, i in np.ndindex(*entry.shape[:2]):
        order = sorted((-abs(entry[h, i, j]), j) for j in np.flatnonzero(visible[i]))[:k]
        result[h, i, : len(order)] = [j for _, j in order]
    return result


def found(entry: np.ndarray, visible: np.ndarray, k: int) -> np.ndarray:
    return strongest_keys(torch.from_numpy(entry), ~visible, k).numpy()


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 300)),
    k=st.integers(1, 20),
    levels=st.sampled_from([1, 3, 50, 10**7]),
    hidden=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_equal_to_sorting(seed: int, shape: tuple[int, int, int], k: int, levels: int, hidden: float) -> None:
    """Few levels make many ties and zeros; rows may have fewer than k visible keys, or none."""
    random = np.random.default_rng(seed)
    entry = (random.integers(-levels, levels, shape, endpoint=True) / levels).astype(np.float32)
    visible = random.random(shape[1:]) >= hidden
    assert (found(entry, visible, k) == by_sorting(entry, visible, k)).all()


@pytest.mark.parametrize("spread", [1e-7, 1e-5, 1e-3])
def test_strengths_that_differ_in_their_last_bits_only(spread: float) -> None:
    random = np.random.default_rng(0)
    entry = (1 + spread * random.random((2, 9, 500))).astype(np.float32)
    visible = np.ones((9, 500), bool)
    assert (found(entry, visible, 8) == by_sorting(entry, visible, 8)).all()


def test_few_rows_are_sorted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ordinary numbers the exact sort sees a few rows in a thousand, so it may be slow."""
    rows: list[int] = []
    exact = edges._exact
    monkeypatch.setattr(edges, "_exact", lambda *given: rows.append(len(given[0])) or exact(*given))
    entry = np.random.default_rng(1).normal(size=(9, 512, 512)).astype(np.float32)
    found(entry, np.ones((512, 512), bool), 8)
    assert 0 < sum(rows) < 0.01 * 9 * 512


def test_only_the_last_keys_may_be_hidden() -> None:
    entry = torch.tensor([[[3.0, -2.0, 9.0], [1.0, 8.0, 9.0]]])
    hidden = np.array([[False, True], [True, False]])
    assert strongest_keys(entry, hidden, 2).tolist() == [[[0, 1], [2, 0]]]


def test_the_entries_are_left_as_they_were() -> None:
    entry = torch.randn(1, 4, 40, generator=torch.Generator().manual_seed(0))
    before = entry.clone()
    strongest_keys(entry, np.zeros((4, 40), bool), 3)
    assert torch.equal(entry, before)


def test_no_edges_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one edge a row, got 0"):
        strongest_keys(torch.zeros(1, 1, 1), np.zeros((1, 1), bool), 0)
