"""Coherency of query rows: against plain sums, at its bounds, and of independent rows."""

from __future__ import annotations

import numpy as np
import pytest

from tasks.kernels.coherency import coherency, queries, row_wavelet, shuffled
from tasks.kernels.lag_field import lag_signals
from tests.oracles import multiscale as oracle


def test_as_plain_sums() -> None:
    fields = oracle.random_fields(9, 20)
    signals = lag_signals(fields - fields.mean(0))
    rows = queries(20, 2.5, 4)
    assert rows[0] >= 2 * np.sqrt(2) * 2.5 > rows[0] - 1 and rows[-1] == 19
    waves = signals[:, rows] @ row_wavelet(np.arange(20), 2.5, 6.0)
    found = coherency(waves, waves)
    for at, i in enumerate(rows):
        for other, j in enumerate(rows):
            assert found[at, other] == pytest.approx(oracle.gamma(fields, 2.5, i, j, 6.0), rel=1e-9)
    np.testing.assert_allclose(np.diagonal(found), 1)


def test_bounds_and_what_it_must_not_see() -> None:
    """A row turned by a constant phase and length is fully coherent; noise is as independent phases are."""
    random = np.random.default_rng(0)
    waves = random.normal(size=(400, 30)) + 1j * random.normal(size=(400, 30))
    turned = waves * (3 * np.exp(0.7j))
    np.testing.assert_allclose(np.diagonal(coherency(waves, turned)), 1)
    off = coherency(waves, waves)[np.triu_indices(30, 1)]
    assert off.mean() == pytest.approx(0.886 / 20, rel=0.1)
    common = waves[:, :1] + 0.1 * waves
    assert coherency(common, common)[1, 2] > 0.9
    assert coherency(shuffled(common, random), common)[1, 2] < 0.3
    assert sorted(np.abs(shuffled(waves, random)[:, 3])) == pytest.approx(sorted(np.abs(waves[:, 3])))


def test_a_row_that_does_not_fluctuate_has_none_and_a_large_scale_no_rows() -> None:
    waves = np.ones((5, 2), complex)
    waves[:, 1] = 0
    found = coherency(waves, waves)
    assert found[0, 0] == pytest.approx(1) and np.isnan(found[0, 1]) and np.isnan(found[1, 1])
    assert queries(16, 6.0, 4).tolist() == [] and queries(16, 5.0, 9).tolist() == [15]
