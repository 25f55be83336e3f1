"""Spectra and modes: against a whole singular value decomposition, the best basis, and noise whose rank is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.fft import idctn

from tasks.kernels.lag_field import LagField
from tasks.kernels.pod import centre, decompose, eigenvalues, entry_products, n_modes, products, signs
from tasks.kernels.pod_fields import gaussian, scale_filter, shuffle_lags
from tasks.kernels.pod_measures import decay, effective_rank, saturated
from tasks.kernels.published_pod import published_beta, published_filter
from tests.oracles import multiscale as oracle

N, T = 20, 12
FIELDS = oracle.random_fields(N, T)
LAGS = LagField(T)
U = LAGS.pack(FIELDS - FIELDS.mean(0))


def lag_weights(a: float) -> np.ndarray:
    """exp(−(τ − a)²/2(a/2)²) as a matrix."""
    lag = np.subtract.outer(np.arange(T), np.arange(T))
    return np.where(lag >= 0, np.exp(-((lag - a) ** 2) / (2 * (a / 2) ** 2)), 0)


@pytest.mark.parametrize("scale", [None, 2.0, 4.0])
def test_eigenvalues_are_those_of_the_whole_fields(scale: float | None) -> None:
    weights = None if scale is None else scale_filter(LAGS.lag, scale)
    expected, _ = oracle.spectrum(FIELDS, None if scale is None else lag_weights(scale))
    gram = products(U, weights=weights)
    np.testing.assert_allclose(eigenvalues(gram / N), expected, rtol=1e-10, atol=1e-13 * expected[0])
    halves = U[:13], U[13:]
    blocks = [[products(a, None if a is b else b, weights) for b in halves] for a in halves]
    np.testing.assert_allclose(np.block(blocks), gram, atol=1e-15)
    if weights is None:
        entries = eigenvalues(entry_products(U) / N)[:N]
        np.testing.assert_allclose(entries, expected, atol=1e-13 * expected[0])


def test_modes_are_orthonormal_and_rebuild_the_fields() -> None:
    found = decompose(products(U) / N)
    _, modes = oracle.spectrum(FIELDS)
    K = n_modes(found.eigenvalues, N)
    assert K == N - 1
    length = np.sqrt(N * found.eigenvalues[:K])[:, None]
    mine = found.vectors[:, :K].T @ U / length
    np.testing.assert_allclose(mine @ mine.T, np.eye(K), atol=1e-10)
    sign = signs(mine)[:, None]
    full = LAGS.unpack(mine * sign).reshape(K, -1)
    np.testing.assert_allclose(full, modes[:K] * signs(modes[:K])[:, None], atol=1e-8)
    assert (full[np.arange(K), np.abs(full).argmax(1)] > 0).all()
    coefficients = found.vectors[:, :K].T * length
    np.testing.assert_allclose(coefficients.T @ mine, U, atol=1e-12)
    np.testing.assert_allclose(np.square(coefficients).mean(1), found.eigenvalues[:K])


def test_theorem_1_and_no_other_basis_does_better() -> None:
    """What K modes leave is the sum of the other eigenvalues, to 1e-6; random and cosine bases leave more."""
    found = decompose(products(U) / N)
    modes = found.vectors.T @ U / np.sqrt(N * np.maximum(found.eigenvalues, 1e-300))[:, None]
    random = np.linalg.qr(np.random.default_rng(0).normal(size=(T * T, N)))[0].T
    cosines = np.stack([idctn(e.reshape(T, T), norm="ortho").ravel() for e in np.eye(T * T)[:N]])
    whole = LAGS.unpack(U).reshape(N, -1)
    for K in range(1, N - 1):
        left = np.square(U - U @ modes[:K].T @ modes[:K]).sum(1).mean()
        tail = found.eigenvalues[K:].sum()
        assert left == pytest.approx(tail, rel=1e-6)
        assert found.reconstruction_error(K) == pytest.approx(tail, rel=1e-6)
        for basis in (random, cosines):
            assert np.square(whole - whole @ basis[:K].T @ basis[:K]).sum(1).mean() > left


def test_a_subsample_is_taken_about_its_own_mean() -> None:
    part = np.array([1, 4, 5, 11])
    gram = products(U)
    expected, _ = oracle.spectrum(FIELDS[part])
    found = eigenvalues(centre(np.asfortranarray(gram[np.ix_(part, part)])) / len(part))
    np.testing.assert_allclose(found, expected, atol=1e-13)


def test_equal_eigenvalues_and_no_energy() -> None:
    flat = decompose(np.eye(6))
    np.testing.assert_allclose(flat.eigenvalues, 1)
    np.testing.assert_allclose(flat.vectors @ flat.vectors.T, np.eye(6), atol=1e-12)
    assert flat.reconstruction_error(2) == pytest.approx(4)
    fit = decay(np.ones(6))
    assert (fit.beta, fit.t_spec) == (0, np.inf) and np.isnan(fit.r2)
    assert effective_rank(np.ones(10), 0.10) == 9 and effective_rank(np.ones(10), 0.11) == 9
    nothing = eigenvalues(products(U, weights=np.zeros(len(LAGS))))  # a mask under which nothing varies
    assert not nothing.any() and effective_rank(nothing, 0.1) is None
    assert effective_rank(np.zeros(5), 0.1) is None and n_modes(np.zeros(5), 3) == 0
    assert np.isnan(decay(np.zeros(5)).beta) and np.isnan(decay(np.array([1.0, 0.5])).t_spec)


def test_what_must_change_a_spectrum_and_what_must_not() -> None:
    """Not the order of documents or entries, nor a field common to all; twice the fluctuation has four times each."""
    expected, random = eigenvalues(centre(products(U))), np.random.default_rng(0)
    for same in (U[random.permutation(N)], U[:, random.permutation(len(LAGS))], U + random.random(len(LAGS))):
        np.testing.assert_allclose(eigenvalues(centre(products(np.ascontiguousarray(same)))), expected, atol=1e-12)
    np.testing.assert_allclose(eigenvalues(products(2 * U)), 4 * expected, atol=1e-13)
    shuffled = U.copy()
    for row in shuffled:
        shuffle_lags(row, LAGS.starts, random)
    assert np.abs(eigenvalues(centre(products(shuffled))) - expected).max() > 0.01 * expected[0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_is_refused(bad: float) -> None:
    broken = U.copy()
    broken[3, 7] = bad
    for work in (eigenvalues, decompose):
        with pytest.raises(ValueError, match="expected finite fluctuations, got NaN or infinity"):
            work(products(broken))


def test_decay_is_the_slope_and_leaves_rounding_out() -> None:
    k = np.arange(1, 60)
    fit = decay(np.append(k**-1.7, 1e-14))
    assert fit.beta == pytest.approx(1.7) and fit.r2 == pytest.approx(1) and fit.t_spec == pytest.approx(1 / 1.7)
    noisy = np.sort(np.random.default_rng(3).random(12))[::-1]
    slope, covariance = np.polyfit(np.log(np.arange(1, 13)), np.log(noisy), 1, cov=True)
    found = decay(noisy)
    assert found.beta == pytest.approx(-slope[0])
    assert found.se == pytest.approx(np.sqrt(covariance[0, 0]))
    assert found.r2 == pytest.approx(np.corrcoef(np.log(np.arange(1, 13)), np.log(noisy))[0, 1] ** 2)
    assert decay(np.array([1, 0.5, 0.25, 1e-13])).beta == pytest.approx(decay(np.array([1, 0.5, 0.25])).beta)


def test_effective_rank() -> None:
    values = np.array([8.0, 1, 0.5, 0.3, 0.2])
    for epsilon in (0.5, 0.2, 0.1, 0.05, 0.02, 0.01):
        assert effective_rank(values, epsilon) == oracle.effective_rank(values, epsilon)
    assert saturated(9, 11) and not saturated(8, 11)


@pytest.mark.parametrize(("noise", "lowest", "highest"), [("vector", 91, 96), ("field", 132, 133)])
def test_the_published_ranks_are_those_of_noise(noise: str, lowest: int, highest: int) -> None:
    """N = 150: independent noise over a vector of 256 entries, and over a causal field of 256 tokens."""
    n = 256 if noise == "vector" else 256 * 257 // 2
    gram = products(np.random.default_rng(0).normal(size=(150, n)))
    assert lowest <= (effective_rank(eigenvalues(centre(gram)), 0.10) or 0) <= highest


def test_nulls_keep_what_they_say() -> None:
    """Each row of a snapshot keeps its values; Gaussian noise has each entry's variance."""
    random = np.random.default_rng(0)
    shuffled = U[0].copy()
    shuffle_lags(shuffled, LAGS.starts, random)
    assert not np.array_equal(shuffled, U[0])
    for i in range(T):
        row = slice(LAGS.starts[i], LAGS.starts[i + 1])
        assert sorted(shuffled[row]) == sorted(U[0][row])
    deviation = np.abs(U[1])
    drawn = np.stack([gaussian(deviation, random) for _ in range(4000)])
    np.testing.assert_allclose(drawn.std(0), deviation, rtol=0.1)


def test_filters() -> None:
    lag = np.subtract.outer(np.arange(T), np.arange(T))
    np.testing.assert_allclose(LAGS.unpack(scale_filter(LAGS.lag, 3.0)), np.tril(lag_weights(3.0)), atol=1e-9)
    low = LAGS.unpack(published_filter(LAGS.lag, 3.0))
    np.testing.assert_allclose(low, np.where(lag >= 0, np.exp(-(lag**2) / 18), 0))
    assert published_beta(np.nan) == 1 and published_beta(0.0) == 0.01 and published_beta(0.7) == 0.7
