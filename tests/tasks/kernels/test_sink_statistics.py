"""Sink statistics against plain loops, and where they are not defined."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tasks.kernels.sink_statistics import SinkStatistics, sink_statistics
from tasks.kernels.values import Values
from tests.oracles.selection import Oracle

FIELDS = ("norm_ratio", "mean_cosine", "norm_cv", "coherence_max", "coherence_mean")


def compared(value: torch.Tensor) -> SinkStatistics:
    """The kernel's figures, after they were held against the oracle's."""
    found = sink_statistics(Values.of(value))
    n_tokens, n_groups, _ = value.shape
    expected = Oracle(np.zeros((n_groups, n_tokens, n_tokens)), value.numpy())
    for h in range(n_groups):
        for name, figure in expected.sink_statistics(h).items():
            assert getattr(found, name)[h].item() == pytest.approx(figure, rel=1e-9, abs=1e-12, nan_ok=True), name
    return found


@pytest.mark.parametrize("n_tokens", [2, 3, 70, 130])
def test_statistics_equal_plain_loops(n_tokens: int) -> None:
    value = torch.randn(n_tokens, 3, 5, generator=torch.Generator().manual_seed(n_tokens))
    value[0] *= 0.1
    value[-1, 1] = 0
    compared(value)


def test_a_short_sink_against_equal_values() -> None:
    value = torch.tensor([[-0.5, 0.0], [2, 0], [2, 0], [2, 0]])[:, None]
    found = compared(value)
    assert [getattr(found, name).item() for name in FIELDS] == [0.25, -1, 0, 1, 1]


def test_one_token_has_no_statistics_and_two_no_pair() -> None:
    alone, pair = compared(torch.ones(1, 1, 2)), compared(torch.ones(2, 1, 2))
    assert all(getattr(alone, name).isnan().all() for name in FIELDS)
    assert pair.norm_ratio.item() == 1 and pair.coherence_max.isnan().all() and pair.coherence_mean.isnan().all()


def test_values_of_length_zero_have_no_angle() -> None:
    found = compared(torch.zeros(4, 1, 2))
    assert all(getattr(found, name).isnan().all() for name in FIELDS)
