"""Cross-coherency of query rows: do two rows of attention fluctuate together over documents, at one scale and lag?"""

from __future__ import annotations

from math import ceil, sqrt

import numpy as np
from jaxtyping import Complex128, Float64, Int64

from tasks.kernels.wavelet import OMEGA0, cone, morlet


def queries(n_tokens: int, scale: float, most: int) -> Int64[np.ndarray, " R"]:
    """At most so many query positions i ≥ 2√2·a, evenly spaced from the first to the last of the window."""
    first = ceil(2 * sqrt(2.0) * scale)
    return (
        np.unique(np.linspace(first, n_tokens - 1, most).round().astype(np.int64))
        if first < n_tokens
        else np.empty(0, np.int64)
    )


def row_wavelet(lags: Int64[np.ndarray, " n"], scale: float, omega0: float = OMEGA0) -> Complex128[np.ndarray, " n"]:
    """What a row's entries at these lags are multiplied with: Σ_t u(t) conj ψ_a(t − τ) is its W at τ = ⌈√2·a⌉."""
    return morlet(lags - cone(scale), scale, omega0).conj()


def coherency(left: Complex128[np.ndarray, "N R"], right: Complex128[np.ndarray, "N R"]) -> Float64[np.ndarray, "R R"]:
    """γ_ij = |⟨W_i conj W_j⟩| / √(⟨|W_i|²⟩⟨|W_j|²⟩), ⟨·⟩ over N documents, W_i of `left` and W_j of `right`.

    In 0 … 1; 1 for W_i = W_j, and for any two of one document; about 0.89/√N for independent ones of random phase; NaN
    where a row does not fluctuate. Reference: Zeris 2026, arXiv 2606.06573.
    """
    power = [np.square(np.abs(w)).sum(0) for w in (left, right)]
    whole = np.sqrt(power[0][:, None] * power[1])
    return np.minimum(np.abs(left.T @ right.conj()) / np.where(whole > 0, whole, np.nan), 1.0)


def shuffled(waves: Complex128[np.ndarray, "N R"], random: np.random.Generator) -> Complex128[np.ndarray, "N R"]:
    """The documents of each row permuted by themselves: what two rows have in common is gone."""
    return random.permuted(waves, axis=0)
