"""Orders of heads against sorting by tuples, and how many stay."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import numpy as np
import pytest

from tasks.kernels.head_order import ascending, in_proportion, n_kept, shuffled


def test_ties_go_by_the_next_score_then_layer_then_head() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        first, second = random.integers(0, 3, (2, 3, 4)).astype(float)
        second[random.random((3, 4)) < 0.2] = np.nan
        expected = sorted(
            range(12), key=lambda i: (first.flat[i], -np.inf if np.isnan(second.flat[i]) else second.flat[i], i)
        )
        assert ascending(first, second).tolist() == expected


def test_what_is_undefined_goes_first() -> None:
    assert ascending(np.array([[1.0, np.nan], [-5.0, np.nan]])).tolist() == [1, 3, 2, 0]


def test_an_order_that_is_drawn() -> None:
    orders = [shuffled(9, seed).tolist() for seed in (1, 1, 2)]
    assert sorted(orders[0]) == list(range(9)) and orders[0] == orders[1] != orders[2]


@pytest.mark.parametrize("n", [1, 7, 12, 30, 48, 270])
def test_how_many_stay_is_worked_out_on_decimals(n: int) -> None:
    for text in ("0.9", "0.8", "0.7", "0.6", "0.5", "0.4", "0.3", "0.2", "0.05", "1.0", "1e-05"):
        assert n_kept(float(text), n) == ceil(Fraction(text) * n)
    assert n_kept(0.55, 100) == 55 < ceil(0.55 * 100)


def test_heads_stay_in_proportion_to_the_layers_weights() -> None:
    """Any number of heads: each layer within one of its quota, its best heads first, as one seat after the other."""
    random = np.random.default_rng(1)
    weight, score = np.array([30.0, 20.0, 25.0, 25.0]), random.random((4, 8))
    order = ascending(in_proportion(weight, score))
    for stay in range(1, 26):
        kept = np.zeros((4, 8), bool)
        kept.flat[order[32 - stay :]] = True
        assert (np.abs(kept.sum(1) - stay * weight / weight.sum()) < 1).all()
        for layer in range(4):
            n = kept[layer].sum()
            assert sorted(np.flatnonzero(kept[layer])) == sorted(np.argsort(-score[layer])[:n])


def test_what_has_no_weight_or_score_goes_first() -> None:
    score = np.array([[0.1, np.nan, 0.3], [0.2, 0.5, 0.1], [1.0, 2.0, 3.0]])
    found = in_proportion(np.array([4.0, np.nan, 0.0]), score)
    np.testing.assert_allclose(found[0], [4 / 1.5, 4 / 2.5, 4 / 0.5])
    assert np.isnan(found[1:]).all()
    assert ascending(found)[:6].tolist() == [3, 4, 5, 6, 7, 8] and ascending(found)[-1] == 2
