"""Orders of heads against sorting by tuples, and how many stay."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import numpy as np
import pytest

from tasks.kernels.head_order import ascending, n_kept, shuffled


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
