"""The strongest keys of each row, against a plain sort."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.kernels import edges
from tasks.kernels.edges import candidates, rank_candidates


def strongest_keys(strength: np.ndarray, k: int) -> np.ndarray:
    """The two steps together: keys of the k strongest entries of each row, −1 where fewer."""
    found = candidates(torch.from_numpy(strength), k)
    row, key = np.divmod(found, strength.shape[-1])
    place = rank_candidates(row, strength.reshape(-1)[found], strength[..., 0].size, k)
    return np.where(place >= 0, np.append(key, -1)[place], -1).reshape(*strength.shape[:2], k)


def by_sorting(strength: np.ndarray, k: int) -> np.ndarray:
    """For each row the k largest entries that are not negative, ties to the smaller key, padded by −1."""
    result = np.full((*strength.shape[:2], k), -1)
    for at in np.ndindex(*strength.shape[:2]):
        order = sorted((-value, key) for key, value in enumerate(strength[at]) if value >= 0)
        result[at][: len(order)] = [key for _, key in order[:k]]
    return result


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 300)),
    k=st.integers(1, 20),
    levels=st.sampled_from([1, 3, 50, 10**7]),
    hidden=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_equal_to_sorting(seed: int, shape: tuple[int, int, int], k: int, levels: int, hidden: float) -> None:
    """Few levels make many ties; hidden keys are negative; rows may have fewer than k keys, or none."""
    random = np.random.default_rng(seed)
    strength = (random.integers(0, levels, shape) / levels).astype(np.float32)
    strength[random.random(shape) < hidden] = -1
    assert (strongest_keys(strength, k) == by_sorting(strength, k)).all()


def test_neighbouring_keys_do_not_share_a_pile() -> None:
    """A strong run of eight neighbours, as in heads that look back a few tokens, adds no candidates."""
    strength = torch.rand(1, 50, 512, generator=torch.Generator().manual_seed(0))
    strength[..., 100:108] += 5
    assert len(candidates(strength, 8)) == 50 * 8


def test_few_candidates_beside_the_chosen() -> None:
    strength = torch.rand(2, 64, 512, generator=torch.Generator().manual_seed(0))
    assert len(candidates(strength, 8)) < 2 * 64 * 10


def test_keys_that_do_not_fit_an_integer_are_ranked_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    row, strength = np.sort(random.integers(0, 20, 200)), (random.integers(0, 9, 200) / 9).astype(np.float32)
    expected = edges.rank_candidates(row, strength, 20, 5)
    monkeypatch.setattr(edges, "_KEY_BITS", 40)
    assert (edges.rank_candidates(row, strength, 20, 5) == expected).all()
