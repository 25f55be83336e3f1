"""The protocol `published`: what the printed numbers of Zeris (2026, arXiv 2606.06573) measure, to set beside ours."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float64
from scipy import fft

from tasks.kernels.wavelet import OMEGA0

LEAST_BETA = 0.01
FALLBACK_BETA = 1.0
_N_DOMINANT = 4


class PublishedEnergy:
    """Mean |W|² over all rows b and positions s of the signal A[b, min(b + s, T−1)], which looks ahead.

    Under a causal mask nothing stands there but A[b, b] at s = 0, and in the last row A[T−1, T−1] at every s: so the
    energy at a scale is that of one spike, times the mean square of the diagonal. ψ̂_a(f) = √(2πa)·exp(−(2πfa − ω0)²/2)
    for f > 0, by a Fourier transform of length 2T; the wavelet has one energy at every scale.
    """

    def __init__(self, n_tokens: int, scales: Float64[np.ndarray, " S"], omega0: float = OMEGA0) -> None:
        frequency = fft.fftfreq(2 * n_tokens)
        a = np.asarray(scales, np.float64)[:, None]
        waves = np.sqrt(2 * np.pi * a) * np.exp(-0.5 * (2 * np.pi * frequency * a - omega0) ** 2) * (frequency > 0)
        spike, constant = np.zeros((2, 2 * n_tokens))
        spike[0], constant[:n_tokens] = 1, 1
        self._of_spike, self._of_constant = (
            np.square(np.abs(fft.ifft(fft.fft(signal) * waves, axis=-1, workers=1)[:, :n_tokens])).mean(1)
            for signal in (spike, constant)
        )

    def of_diagonal(self, diagonal: Float64[np.ndarray, " T"]) -> Float64[np.ndarray, " S"]:
        """Of one field, from what its queries give to themselves."""
        square = diagonal**2
        return (square[:-1].sum() * self._of_spike + square[-1] * self._of_constant) / len(diagonal)


def published_dominant(energy: Float64[np.ndarray, " S"]) -> Bool[np.ndarray, " S"]:
    """The four scales of largest energy, local maxima or not; ties go to the finer."""
    chosen = np.zeros(len(energy), bool)
    if energy.max(initial=0.0) > 0:
        chosen[np.argsort(-energy, kind="stable")[:_N_DOMINANT]] = True
    return chosen


def published_filter(lags: np.ndarray, scale: float) -> np.ndarray:
    """exp(−τ²/2a²): a low-pass centred at lag 0, whatever the scale."""
    return np.exp(-0.5 * (lags / scale) ** 2)


def published_beta(beta: float) -> float:
    """1 where β cannot be fitted, and at least 0.01: so T_spec = 1 says that there was nothing to fit."""
    return FALLBACK_BETA if np.isnan(beta) else max(beta, LEAST_BETA)
