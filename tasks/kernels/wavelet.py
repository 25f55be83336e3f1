"""The Morlet wavelet transform of signals along the causal lag, and how much energy they have at each scale."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log2, sqrt

import numpy as np
from jaxtyping import Bool, Complex128, Float64
from scipy import fft

OMEGA0 = 5.0
"""The wavelet's frequency at scale 1, in radians: a sinusoid of period p peaks at a = p·ω0/2π."""
N_SCALES = 20
LEAST_TOKENS = 16
"""Windows shorter than this have no scales to tell apart."""
BANDS = (7.0, 20.0)
"""Fine scales are at most the first, coarse ones at least the second."""
_MOST_DOMINANT = 4


def default_scales(n_tokens: int) -> Float64[np.ndarray, " S"]:
    """20 scales from 2 to min(64, T/4), evenly spaced in their logarithm; T at least 16."""
    if n_tokens < LEAST_TOKENS:
        raise ValueError(f"expected a window of at least {LEAST_TOKENS} tokens, got {n_tokens}")
    return 2.0 ** np.linspace(1.0, min(6.0, log2(n_tokens / 4)), N_SCALES)


def morlet(times: np.ndarray, scale: float, omega0: float = OMEGA0) -> np.ndarray:
    """ψ_a(t) = π^{-1/4} a^{-1/2} exp(iω0 t/a) exp(−t²/2a²), sampled in time."""
    envelope = np.exp(-0.5 * (times / scale) ** 2)
    return np.pi**-0.25 / sqrt(scale) * envelope * np.exp(1j * omega0 * times / scale)


def cone(scale: float) -> int:
    """How many positions from either end of a signal its transform at this scale is taken to feel the end: ⌈√2·a⌉."""
    return ceil(sqrt(2.0) * scale)


class MorletBank:
    """Wavelets of some scales, ready for signals of up to T lags.

    n_tokens: T. scales: in lags, ascending, each of which has a position inside the cone of influence of the longest
    row, 2⌈√2·a⌉ ≤ T − 1; ValueError for any other.
    """

    def __init__(self, n_tokens: int, scales: Float64[np.ndarray, " S"], omega0: float = OMEGA0) -> None:
        self.n_tokens, self.scales, self.omega0 = n_tokens, np.asarray(scales, np.float64), omega0
        beyond = [float(a) for a in self.scales if a <= 0 or 2 * cone(a) > n_tokens - 1]
        if beyond or not len(self.scales):
            largest = (n_tokens - 1) // 2 / sqrt(2.0)
            raise ValueError(f"expected scales above 0 and at most {largest:.1f} of {n_tokens} tokens, got {beyond}")
        self._length = fft.next_fast_len(2 * n_tokens)
        times = np.arange(self._length)
        times = np.where(times < self._length // 2, times, times - self._length)
        self._waves = np.stack([fft.fft(morlet(times, a, omega0)).conj() for a in self.scales])
        self._squares = np.stack([fft.fft(np.abs(morlet(times, a, omega0)) ** 2).conj() for a in self.scales])

    def spectrum(self, signals: Float64[np.ndarray, "*s T"]) -> Complex128[np.ndarray, "*s L"]:
        """The signals' Fourier transform, long enough that nothing wraps around."""
        return fft.fft(signals, self._length, axis=-1, workers=1)

    def transform(self, spectrum: Complex128[np.ndarray, "*s L"], at: int) -> Complex128[np.ndarray, "*s T"]:
        """W(a, b) = Σ_t s(t) conj ψ_a(t − b) at scale number `at`, b = 0 … T−1."""
        return fft.ifft(spectrum * self._waves[at], axis=-1, workers=1, overwrite_x=True)[..., : self.n_tokens]

    def spread(self, spectrum: Complex128[np.ndarray, "*s L"], at: int) -> Float64[np.ndarray, "*s T"]:
        """Σ_t v(t) |ψ_a(t − b)|²: the mean of |W|² where the signal is noise of variance v(t), independent over t."""
        convolved = fft.ifft(spectrum * self._squares[at], axis=-1, workers=1, overwrite_x=True)
        return convolved.real[..., : self.n_tokens]


class RowEnergy:
    """Mean energy of a field's rows by scale: |W|²/a, over positions inside the cone of influence, then over rows.

    Rows i ≥ T/4, whose signal is A[i, i − τ], τ = 0 … i; a row without a position inside is skipped at that scale.
    Divided by a, sinusoids of one amplitude peak equally high at every scale.
    Reference: Zeris 2026, arXiv 2606.06573; Torrence & Compo 1998 for the cone (e-folding √2·a).
    """

    def __init__(self, bank: MorletBank) -> None:
        self.bank = bank
        n_tokens = bank.n_tokens
        self._first = [max(ceil(n_tokens / 4), 2 * cone(a)) for a in bank.scales]
        self._weights = [self._inside(first, cone(a)) for first, a in zip(self._first, bank.scales, strict=True)]

    def _inside(self, first: int, margin: int) -> Float64[np.ndarray, "R P"]:
        """Of each row from `first` on, what the positions from `margin` on count for: 1/n of the row's n inside."""
        rows = np.arange(first, self.bank.n_tokens)[:, None]
        inside = np.arange(margin, self.bank.n_tokens - margin) <= rows - margin
        return inside / inside.sum(1, keepdims=True)

    def of_signals(self, signals: Float64[np.ndarray, "T T"]) -> Float64[np.ndarray, " S"]:
        """Of one field, as its lag signals."""
        spectrum = self.bank.spectrum(signals)
        return self._mean(spectrum, lambda part, at: np.square(np.abs(self.bank.transform(part, at))))

    def of_noise(self, variance: Float64[np.ndarray, "T T"]) -> Float64[np.ndarray, " S"]:
        """The mean over fields of independent entries with mean 0 and this variance, laid out as lag signals."""
        return self._mean(self.bank.spectrum(variance), self.bank.spread)

    def _mean(
        self, spectrum: Complex128[np.ndarray, "T L"], energy: Callable[[np.ndarray, " int"], np.ndarray]
    ) -> Float64[np.ndarray, " S"]:
        found = np.empty(len(self.bank.scales))
        for at, (scale, first, weights) in enumerate(zip(self.bank.scales, self._first, self._weights, strict=True)):
            margin = cone(scale)
            inside = energy(spectrum[first:], at)[:, margin : self.bank.n_tokens - margin]
            found[at] = np.vdot(weights, inside) / (scale * len(weights))
        return found


def dominant(energy: Float64[np.ndarray, " S"]) -> Bool[np.ndarray, " S"]:
    """Which scales stand out: interior local maxima, at most 4 by energy; without any, the one of largest energy.

    A run of equal energies counts as its first. NaN, and energies that are all 0, have none.
    """
    chosen = np.zeros(len(energy), bool)
    if not np.isfinite(energy).all() or not energy.max(initial=0.0) > 0:
        return chosen
    inner = np.flatnonzero((energy[1:-1] > energy[:-2]) & (energy[1:-1] >= energy[2:])) + 1
    best = inner[np.argsort(-energy[inner], kind="stable")][:_MOST_DOMINANT]
    chosen[best if len(best) else energy.argmax()] = True
    return chosen


def shares(energy: Float64[np.ndarray, " S"]) -> Float64[np.ndarray, " S"]:
    """Of all scales' energy; NaN where there is none."""
    total = energy.sum()
    return energy / total if total > 0 else np.full(len(energy), np.nan)
