"""A state is its magnitude times its direction."""

from __future__ import annotations

import numpy as np
import pytest

from tasks.kernels.direction import direction_and_magnitude


def test_together_they_are_the_state() -> None:
    states = np.random.default_rng(0).normal(size=(20, 7)) * 100
    direction, magnitude = direction_and_magnitude(states)
    for state, unit, length in zip(states, direction, magnitude, strict=True):
        assert length[0] == pytest.approx(sum(x * x for x in state) ** 0.5)
        assert length[0] * unit == pytest.approx(state)
        assert unit @ unit == pytest.approx(1)


def test_scaling_moves_the_magnitude_alone_and_turning_the_direction_alone() -> None:
    random = np.random.default_rng(1)
    states, factors = random.normal(size=(9, 5)), random.uniform(0.1, 10, (9, 1))
    rotation = np.linalg.qr(random.normal(size=(5, 5)))[0]
    direction, magnitude = direction_and_magnitude(states)
    scaled, turned = direction_and_magnitude(states * factors), direction_and_magnitude(states @ rotation)
    np.testing.assert_allclose(scaled[0], direction, rtol=1e-12)
    np.testing.assert_allclose(scaled[1], magnitude * factors, rtol=1e-12)
    np.testing.assert_allclose(turned[1], magnitude, rtol=1e-12)
    assert np.abs(turned[0] - direction).max() > 0.1


def test_no_state_has_no_direction() -> None:
    direction, magnitude = direction_and_magnitude(np.array([[0.0, 0.0], [3.0, 4.0]]))
    assert np.isnan(direction[0]).all()
    assert magnitude[:, 0].tolist() == [0, 5]
    assert direction[1] == pytest.approx([0.6, 0.8])
