"""Scalograms, spectra and coherencies by plain sums in float64, straight from the formulas of methods.md §4."""

from __future__ import annotations

import cmath
import math
from collections.abc import Sequence

import numpy as np


def morlet(t: float, a: float, omega0: float = 5.0) -> complex:
    return math.pi**-0.25 / math.sqrt(a) * cmath.exp(1j * omega0 * t / a) * math.exp(-t * t / (2 * a * a))


def transform(signal: Sequence[float], a: float, b: float, omega0: float = 5.0) -> complex:
    """W(a, b) of one signal."""
    return sum(s * morlet(t - b, a, omega0).conjugate() for t, s in enumerate(signal))


def row_signal(field: np.ndarray, i: int) -> list[float]:
    """A[i, i − τ], τ = 0 … i."""
    return [float(field[i, i - tau]) for tau in range(i + 1)]


def energy(fields: Sequence[np.ndarray], a: float, omega0: float = 5.0) -> float:
    """|W|²/a, mean over positions inside the cone of influence, rows i ≥ T/4, and the ensemble."""
    n_tokens, margin, of_fields = len(fields[0]), math.sqrt(2) * a, []
    for field in fields:
        of_rows = []
        for i in range(n_tokens):
            inside = [b for b in range(i + 1) if b >= margin and i - b >= margin]
            if i < n_tokens / 4 or not inside:
                continue
            signal = row_signal(field, i)
            of_rows.append(sum(abs(transform(signal, a, b, omega0)) ** 2 / a for b in inside) / len(inside))
        of_fields.append(sum(of_rows) / len(of_rows))
    return sum(of_fields) / len(of_fields)


def published_energy(field: np.ndarray, a: float, omega0: float = 5.0) -> float:
    """Mean |W|² of A[b, min(b + s, T − 1)] over all b and s, by the discrete Fourier transform of length 2T."""
    n_tokens, total = len(field), 0.0
    frequency = np.fft.fftfreq(2 * n_tokens)
    wave = math.sqrt(2 * math.pi * a) * np.exp(-((2 * math.pi * frequency * a - omega0) ** 2) / 2) * (frequency > 0)
    for b in range(n_tokens):
        signal = [field[b, min(b + s, n_tokens - 1)] for s in range(n_tokens)]
        total += float((np.abs(np.fft.ifft(np.fft.fft(signal, 2 * n_tokens) * wave)[:n_tokens]) ** 2).mean())
    return total / n_tokens


def spectrum(fields: np.ndarray, weight: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and modes (as rows, T×T flattened) by a singular value decomposition of the whole fields."""
    flat = (fields * (1.0 if weight is None else weight)).reshape(len(fields), -1)
    _, singular, modes = np.linalg.svd(flat - flat.mean(0), full_matrices=False)
    return singular**2 / len(fields), modes


def effective_rank(eigenvalues: Sequence[float], epsilon: float) -> int:
    total = sum(eigenvalues)
    return next(n for n in range(1, len(eigenvalues) + 1) if sum(eigenvalues[n:]) / total <= epsilon)


def gamma(fields: np.ndarray, a: float, i: int, j: int, omega0: float = 5.0) -> float:
    """Cross-coherency of rows i and j of the fluctuations at scale a and lag ⌈√2·a⌉."""
    fluctuations, lag = fields - fields.mean(0), math.ceil(math.sqrt(2) * a)
    left, right = ([transform(row_signal(u, row), a, lag, omega0) for u in fluctuations] for row in (i, j))
    cross = abs(sum(x * y.conjugate() for x, y in zip(left, right, strict=True)))
    return cross / math.sqrt(sum(abs(x) ** 2 for x in left) * sum(abs(y) ** 2 for y in right))


def random_fields(n: int, n_tokens: int, seed: int = 0, rank: int | None = None) -> np.ndarray:
    """Causal attention of n documents, (n, T, T): softmax of random logits, of few patterns if `rank` says so."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(n, n_tokens, n_tokens))
    if rank is not None:
        logits = np.einsum("nk,kij->nij", random.normal(size=(n, rank)), random.normal(size=(rank, n_tokens, n_tokens)))
    logits[:, ~np.tril(np.ones((n_tokens, n_tokens), bool))] = -np.inf
    weights = np.exp(logits)
    return weights / weights.sum(-1, keepdims=True)
