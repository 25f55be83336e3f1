"""Both protocols against plain loops, on vectors of which one is huge; what each arm keeps; what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tasks.kernels.perturbation import (
    ARMS,
    PROTOCOLS,
    displaced,
    mean_matched,
    movable,
    noise,
    random_signs,
    random_vectors,
)
from tests.oracles import perturbation as oracle

WIDTH = 24


def vectors(n: int = 12, *, huge: float = 24_000.0) -> Tensor:
    """Tokens of norm 141 or so, the first of them huge, as in SmolLM2."""
    drawn = np.random.default_rng(5).standard_normal((n, WIDTH))
    norms = np.linspace(60, 240, n)
    norms[0] = huge
    return torch.from_numpy(drawn / np.linalg.norm(drawn, axis=1, keepdims=True) * norms[:, None])


def displacement(moved: Tensor, hidden: Tensor) -> Tensor:
    return (moved - hidden).norm(dim=-1)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("first_token", [True, False])
@pytest.mark.parametrize("delta", [0.5, 20.0, 100.0, 5_000.0])
def test_against_plain_loops(protocol: str, arm: str, first_token: bool, delta: float) -> None:
    hidden, drawn = vectors(), noise(arm, 12, WIDTH, 3)
    got = displaced(hidden, delta, drawn, protocol=protocol, arm=arm, first_token=first_token)
    want = oracle.moved(hidden.numpy(), delta, protocol, arm, drawn.numpy(), first_token=first_token)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-9, atol=1e-7)
    assert torch.equal(got[0], hidden[0]) != first_token


@pytest.mark.parametrize("delta", [1e-3, 1.0, 20.0])
def test_exact_moves_every_token_by_delta_in_both_arms(delta: float) -> None:
    hidden = vectors()
    for arm in ARMS:
        moved = displaced(hidden, delta, noise(arm, 12, WIDTH, 0), arm=arm)
        assert ((displacement(moved, hidden) - delta).abs() <= 1e-6 * delta).all()
        if arm == "angle":
            torch.testing.assert_close(moved.norm(dim=-1), hidden.norm(dim=-1), rtol=1e-13, atol=0)
        else:
            cosines = torch.nn.functional.cosine_similarity(moved, hidden)
            torch.testing.assert_close(cosines, torch.ones(12, dtype=torch.float64), rtol=1e-13, atol=0)


def test_exact_leaves_the_same_tokens_alone_in_both_arms() -> None:
    """δ = 100: the tokens of norm 100 or less, in float32 to the last bit."""
    hidden = vectors().float()
    still = hidden.double().norm(dim=-1) <= 100
    assert 0 < int(still.sum()) < 12
    assert torch.equal(movable(hidden, 100.0), ~still)
    for arm in ARMS:
        moved = displaced(hidden, 100.0, noise(arm, 12, WIDTH, 0), arm=arm).float()
        assert torch.equal((moved == hidden).all(-1), still)


def test_published_spares_none_and_turns_short_tokens_round() -> None:
    hidden = vectors()
    assert movable(hidden, 1e9, protocol="published").all()
    signs = -torch.ones(12, dtype=torch.float64)
    moved = displaced(hidden, 100.0, signs, protocol="published", arm="magnitude")
    assert torch.equal((moved * hidden).sum(-1) < 0, hidden.norm(dim=-1) < 100)


def test_one_huge_token_takes_the_published_budget() -> None:
    """Mean δ = 20 over 32 tokens: 640 in all, of which the first takes more than five sixths, as norms go."""
    hidden, drawn = vectors(32), random_vectors(32, WIDTH, 1)
    at = displacement(displaced(hidden, 20.0, drawn, protocol="published", arm="angle"), hidden)
    assert float(at.mean()) == pytest.approx(20.0, rel=1e-4)
    assert float(at[0] / at.sum()) > 5 / 6 and float(at[1:].mean()) < 4
    norms, m = hidden.norm(dim=-1), oracle.bisected(hidden.numpy(), 20.0, drawn.numpy())
    assert 0 < m < 0.1
    cosines = torch.nn.functional.cosine_similarity(hidden, drawn)
    assert mean_matched(norms, cosines, 20.0) == pytest.approx(m, rel=1e-5)
    without = displaced(hidden, 20.0, drawn, protocol="published", arm="angle", first_token=False)
    assert float(displacement(without, hidden)[1:].mean()) == pytest.approx(20.0, rel=1e-4)


def test_a_mean_that_cannot_be_reached_takes_the_largest_m() -> None:
    hidden, drawn = vectors(huge=100.0), random_vectors(12, WIDTH, 1)
    moved = displaced(hidden, 1e6, drawn, protocol="published", arm="angle")
    np.testing.assert_allclose(moved.numpy(), oracle.turned(hidden.numpy(), 2.0, drawn.numpy()), rtol=1e-12)


def test_noise_of_a_longer_sequence_begins_with_that_of_a_shorter() -> None:
    assert torch.equal(random_vectors(40, WIDTH, 9)[:7], random_vectors(7, WIDTH, 9))
    assert torch.equal(random_signs(40, 9)[:7], random_signs(7, 9))
    assert not torch.equal(random_vectors(7, WIDTH, 9), random_vectors(7, WIDTH, 10))
    signs = random_signs(4_000, 2)
    assert set(signs.tolist()) == {-1.0, 1.0} and abs(float(signs.mean())) < 0.1


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("arm", ARMS)
def test_a_zero_vector_stays(protocol: str, arm: str) -> None:
    hidden = vectors()
    hidden[4] = 0
    moved = displaced(hidden, 5.0, noise(arm, 12, WIDTH, 0), protocol=protocol, arm=arm)
    assert torch.equal(moved[4], hidden[4]) and moved.isfinite().all()
    assert movable(hidden, 5.0, protocol=protocol).tolist() == [t != 4 for t in range(12)]


def test_a_sequence_of_the_first_token_alone_stays_without_it() -> None:
    hidden = vectors(1)
    for protocol in PROTOCOLS:
        drawn = noise("angle", 1, WIDTH, 0)
        assert torch.equal(displaced(hidden, 1.0, drawn, protocol=protocol, arm="angle", first_token=False), hidden)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"protocol": "paper"}, "expected protocol exact or published, got 'paper'"),
        ({"arm": "phase"}, "expected arm magnitude or angle, got 'phase'"),
        ({"delta": 0.0}, "expected a δ above 0, got 0.0"),
        ({"delta": float("nan")}, "expected a δ above 0, got nan"),
        ({"arm": "magnitude"}, r"expected noise of shape \(12,\) for the magnitude arm, got \(12, 24\)"),
    ],
)
def test_what_is_refused(change: dict[str, object], told: str) -> None:
    given: dict[str, Any] = {"delta": 1.0, "protocol": "exact", "arm": "angle", **change}
    with pytest.raises(ValueError, match=told):
        displaced(vectors(), drawn=random_vectors(12, WIDTH, 0), **given)


def test_one_dimension_has_no_angle() -> None:
    one = torch.ones(3, 1, dtype=torch.float64)
    with pytest.raises(ValueError, match="at least 2 dimensions"):
        displaced(one, 0.5, one, arm="angle")


def test_no_token_has_no_mean() -> None:
    none = torch.empty(0, dtype=torch.float64)
    with pytest.raises(ValueError, match="at least one token"):
        mean_matched(none, none, 1.0)
