"""Proper orthogonal decomposition by snapshots: eigenvalues and modes of an ensemble of fluctuations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from scipy.linalg import eigh, eigvalsh
from scipy.linalg.blas import dsymm, dsyrk

_COLUMNS = 4096
"""Entries weighted at a time, so that no weighted copy of a block is made."""
_SQUARE = 256
"""Columns of a symmetric matrix worked on at a time."""
SMALLEST = 1e-12
"""Eigenvalues below this share of the largest are rounding: they make no mode and enter no fit."""


def products(
    left: Float64[np.ndarray, "a n"],
    right: Float64[np.ndarray, "b n"] | None = None,
    weights: Float64[np.ndarray, " n"] | None = None,
) -> Float64[np.ndarray, "a b"]:
    """Inner products Σ_e w_e² left_se right_te of snapshots; of those of `left` with each other without `right`.

    Symmetric products by a rank-k update in float64, half the work of a general one: float32 could not tell an
    eigenvalue of 1e-12 λ_1 from rounding. Entries of weight 0 are passed over.
    """
    if weights is None:
        return mirror(dsyrk(1.0, left.T, trans=1)) if right is None else left @ right.T
    columns = np.flatnonzero(weights)
    found = np.zeros((len(left), len(left if right is None else right)), order="F")
    for start in range(0, len(columns), _COLUMNS):
        part = columns[start : start + _COLUMNS]
        scaled = left[:, part] * weights[part]
        if right is None:
            found = dsyrk(1.0, scaled.T, beta=1.0, c=found, trans=1, overwrite_c=1)
        else:
            found += scaled @ (right[:, part] * weights[part]).T
    return mirror(found) if right is None else found


def entry_products(snapshots: Float64[np.ndarray, "a n"]) -> Float64[np.ndarray, "n n"]:
    """Σ_s u_s u_sᵀ over entries, where there are fewer of them than snapshots."""
    return mirror(dsyrk(1.0, snapshots.T, trans=0))


def mirror(upper: Float64[np.ndarray, "m m"]) -> Float64[np.ndarray, "m m"]:
    """Copy the upper triangle to the lower one, in place."""
    for start in range(0, len(upper), _SQUARE):
        stop = start + _SQUARE
        square = upper[start:stop, start:stop]
        square[:] = np.triu(square) + np.triu(square, 1).T
        upper[stop:, start:stop] = upper[start:stop, stop:].T
    return upper


def centre(products: Float64[np.ndarray, "N N"]) -> Float64[np.ndarray, "N N"]:
    """The inner products of the same snapshots less their mean, in place.

    What of a subsample's mean is left when the whole ensemble's was taken away: of the size of a fluctuation over √N,
    so nothing large cancels.
    """
    rows = products.mean(1)
    products -= rows[:, None]
    products -= rows[None, :] - rows.mean()
    return products


@dataclass(frozen=True)
class Decomposition:
    """Eigenvalues λ_k, descending and none below 0, with eigenvectors as columns."""

    eigenvalues: Float64[np.ndarray, " K"]
    vectors: Float64[np.ndarray, "m K"]
    captured: Float64[np.ndarray, " K"]
    """v_kᵀ C v_k: how much of the ensemble's energy lies along mode k, measured and not read off the eigenvalues."""
    total: float
    """Trace of C: mean square of a fluctuation."""

    def reconstruction_error(self, n_modes: int) -> float:
        """Mean square of what the first n_modes modes leave of a fluctuation. Theorem 1: Σ_{k > n_modes} λ_k."""
        return max(0.0, self.total - float(self.captured[:n_modes].sum()))


def decompose(covariance: Float64[np.ndarray, "m m"]) -> Decomposition:
    """All of a symmetric C, which is used up: the snapshots' inner products over N, or the covariance of entries.

    The lower triangle is given to LAPACK (relatively robust representations), which leaves the upper one as it was: so
    beside C no more than the eigenvectors is in memory. ValueError for NaN or infinity.
    """
    _require_finite(covariance)
    covariance = np.asfortranarray(covariance)
    diagonal = np.diagonal(covariance).copy()
    values, vectors = eigh(covariance, driver="evr", lower=True, overwrite_a=True, check_finite=False)
    np.fill_diagonal(covariance, diagonal)
    captured = np.empty(len(values))
    for start in range(0, len(values), _SQUARE):
        part = vectors[:, start : start + _SQUARE]
        captured[start : start + _SQUARE] = np.einsum("ik,ik->k", part, dsymm(1.0, covariance, part, lower=0))
    return Decomposition(np.maximum(values[::-1], 0.0), vectors[:, ::-1], captured[::-1], float(diagonal.sum()))


def eigenvalues(covariance: Float64[np.ndarray, "m m"]) -> Float64[np.ndarray, " m"]:
    """Those of C alone, descending and none below 0, as rounding leaves some; C is used up."""
    _require_finite(covariance)
    return np.maximum(eigvalsh(covariance, overwrite_a=True, check_finite=False)[::-1], 0.0)


def _require_finite(covariance: np.ndarray) -> None:
    """ValueError where a snapshot had NaN or infinity, which then stands on the diagonal: LAPACK would not say."""
    if not np.isfinite(np.diagonal(covariance)).all():
        raise ValueError("expected finite fluctuations, got NaN or infinity")


def n_modes(eigenvalues: Float64[np.ndarray, " K"], most: int) -> int:
    """How many modes there are, at most `most`: of eigenvalues above 1e-12 λ_1."""
    if not len(eigenvalues) or eigenvalues[0] <= 0:
        return 0
    return min(most, int((eigenvalues > SMALLEST * eigenvalues[0]).sum()))


def signs(modes: Float64[np.ndarray, "K n"]) -> Float64[np.ndarray, " K"]:
    """±1 that make the entry of largest size of each mode positive, the first where several are."""
    largest = np.abs(modes).argmax(1)
    return np.where(modes[np.arange(len(modes)), largest] < 0, -1.0, 1.0)
