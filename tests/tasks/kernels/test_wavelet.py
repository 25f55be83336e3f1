"""The wavelet transform along the causal lag: against plain sums, and on signals whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from tasks.kernels.lag_field import LagField, lag_signals
from tasks.kernels.published_pod import PublishedEnergy, published_dominant
from tasks.kernels.wavelet import MorletBank, RowEnergy, cone, default_scales, dominant, morlet, shares
from tests.oracles import multiscale as oracle

T = 256
SCALES = default_scales(T)


@pytest.fixture(scope="module")
def rows() -> RowEnergy:
    return RowEnergy(MorletBank(T, SCALES))


def pattern(of_lag: np.ndarray) -> np.ndarray:
    """Lag signals in which every row looks back in the same way."""
    return np.tril(np.ones((T, T))) * of_lag


def test_lag_signals_and_packed_entries_are_the_field_s() -> None:
    field = oracle.random_fields(1, 11)[0]
    for i, row in enumerate(lag_signals(field)):
        assert row[: i + 1].tolist() == oracle.row_signal(field, i) and not row[i + 1 :].any()
    for window in (None, 4):
        lags, seen = LagField(11, window), np.tril(np.ones((11, 11), bool))
        if window:
            seen &= np.subtract.outer(np.arange(11), np.arange(11)) < window
        packed = lags.pack(field)
        np.testing.assert_array_equal(lags.select(field[np.tril_indices(11)]), packed)
        assert len(lags) == seen.sum()
        np.testing.assert_array_equal(lags.unpack(packed), np.where(seen, field, 0))
        assert [(i, i - tau) for i, tau in zip(lags.row, lags.lag, strict=True)] == list(
            zip(*np.nonzero(seen), strict=True)
        )
        assert lags.starts[-1] == len(lags) and lags.row[lags.starts[5]] == 5
        means = [np.mean([field[i, i - tau] for i in range(tau, 11)]) for tau in range(window or 11)]
        np.testing.assert_allclose(lags.profile(packed)[: window or 11], means)
        assert not lags.profile(packed)[window or 11 :].any()


@pytest.mark.parametrize("scales", [None, (1.5, 3.0)])
def test_energy_is_the_plain_sum_s(scales: tuple[float, ...] | None) -> None:
    fields = oracle.random_fields(2, 24)
    chosen = default_scales(24)[::6] if scales is None else np.array(scales)
    found = RowEnergy(MorletBank(24, chosen, 6.0))
    mean = np.mean([found.of_signals(lag_signals(field)) for field in fields], axis=0)
    for scale, energy in zip(chosen, mean, strict=True):
        assert energy == pytest.approx(oracle.energy(fields, scale, 6.0), rel=1e-10)


def test_parseval_of_a_signal_that_fades_before_its_ends() -> None:
    """Over all positions the energy at a scale is that of the spectrum under the wavelet's."""
    signal = np.zeros(T)
    signal[96:160] = np.random.default_rng(0).normal(size=64) * np.hanning(64)
    bank = MorletBank(T, np.array([4.0]))
    inside = np.square(np.abs(bank.transform(bank.spectrum(signal), 0))).sum()
    wave = np.fft.fft(np.roll(morlet(np.arange(T) - 128, 4.0), -128))
    outside = np.square(np.abs(np.fft.fft(signal) * wave)).sum() / T
    assert inside == pytest.approx(outside, rel=1e-9)


@pytest.mark.parametrize("period", [4, 8, 16, 32])
def test_a_period_peaks_at_its_scale(rows: RowEnergy, period: int) -> None:
    energy = rows.of_signals(pattern(1 + np.cos(2 * np.pi * np.arange(T) / period)))
    expected = period * 5 / (2 * np.pi)
    assert SCALES[energy.argmax()] == pytest.approx(expected, rel=0.15)
    assert energy.argmax() in np.flatnonzero(dominant(energy))


def test_sinusoids_of_one_amplitude_peak_equally_high(rows: RowEnergy) -> None:
    """Of periods whose scale is on the grid, so that the peak itself is seen."""
    periods = SCALES[[4, 8, 12]] * 2 * np.pi / 5
    peaks = [rows.of_signals(pattern(np.cos(2 * np.pi * np.arange(T) / p))).max() for p in periods]
    assert max(peaks) == pytest.approx(min(peaks), rel=0.05)


def test_a_scale_is_no_lag(rows: RowEnergy) -> None:
    """One token 40 back has its energy at the smallest scale; near tokens, or all alike, at coarse ones."""
    spike = rows.of_signals(pattern(np.arange(T) == 40))
    assert spike.argmax() == 0
    decay = rows.of_signals(pattern(np.exp(-np.arange(T) / 3)))
    uniform = rows.of_signals(np.tril(np.ones((T, T)) / np.arange(1, T + 1)[:, None]))
    for energy in (decay, uniform):
        share = shares(energy)
        assert share[SCALES >= 20].sum() > 0.5 > share[SCALES <= 7].sum()


def test_noise_s_energy_is_the_mean_of_draws() -> None:
    random, found = np.random.default_rng(1), RowEnergy(MorletBank(32, default_scales(32)))
    deviation = np.tril(random.random((32, 32)))
    draws = [found.of_signals(random.normal(size=(32, 32)) * deviation) for _ in range(600)]
    np.testing.assert_allclose(found.of_noise(deviation**2), np.mean(draws, axis=0), rtol=0.1)


def test_dominant_scales() -> None:
    def chosen(*energy: float) -> list[int]:
        return np.flatnonzero(dominant(np.array(energy, np.float64))).tolist()

    assert chosen(1, 3, 2, 4, 1) == [1, 3]
    assert chosen(5, 3, 2, 1) == [0] and chosen(1, 2, 3) == [2]
    assert chosen(0, 5, 0, 4, 0, 3, 0, 2, 0, 1, 0) == [1, 3, 5, 7]
    assert chosen(1, 2, 2, 1) == [1]
    assert chosen(0, 0, 0) == [] and chosen(1, float("nan"), 1) == []
    assert np.isnan(shares(np.zeros(3))).all()


def test_scales_beyond_the_window_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected scales above 0 and at most 4\.9 of 16 tokens, got \[6\.0\]"):
        MorletBank(16, np.array([2.0, 6.0]))
    with pytest.raises(ValueError, match="a window of at least 16 tokens, got 8"):
        default_scales(8)
    for n_tokens in (16, 17, 100, 256, 1024):
        largest = default_scales(n_tokens)[-1]
        assert largest == pytest.approx(min(64, n_tokens / 4)) and 2 * cone(largest) < n_tokens


def test_the_published_energy_is_the_definition_s_and_nearly_the_same_at_every_scale() -> None:
    field = oracle.random_fields(1, 40)[0]
    scales = default_scales(40)
    found = PublishedEnergy(40, scales).of_diagonal(np.diagonal(field).copy())
    for scale, energy in zip(scales, found, strict=True):
        assert energy == pytest.approx(oracle.published_energy(field, scale), rel=1e-10)
    spike = PublishedEnergy(T, SCALES).of_diagonal(np.append(np.ones(T - 1), 0.0))
    assert spike.max() / spike.min() < 1.5
    assert published_dominant(spike).sum() == 4 and not published_dominant(np.zeros(5)).any()
