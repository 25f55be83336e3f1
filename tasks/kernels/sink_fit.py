"""Convexity: a quadratic fit of output length on sink rate, with the bootstrap interval of its curvature."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64

from tasks.kernels.bootstrap import percentile_interval, resample_counts

STATISTICS = 9
"""Per document and head: n, mean a, mean y; Σ of a², a³, a⁴, a y, a² y, y² about those means."""
_SINGULAR = 1e-10
"""Share of the spread of a² that a line leaves unexplained; below it the sink rates lie on at most two points."""
_NARROW, _NARROW_BEND = 1e-6, 1e-12
"""Variances of a and of a² off the line, in units of all documents' own, that a resample's sums cannot resolve."""
_ROUNDING_A, _ROUNDING_Y = 1e-12, 1e-7
"""Deviations of a and y, as shares of their means, that float64 means and float32 lengths cannot tell from none."""
_A_POWER = np.array([0, 1, 2, 3, 4, 0, 1, 2, 0])
_Y_POWER = np.array([0, 0, 0, 0, 0, 1, 1, 1, 2])


@dataclass(frozen=True)
class CurvatureFit:
    """y ≈ β0 + β1 a + β2 a² by least squares over all queries, per head; NaN for fewer than three distinct a."""

    n: Float64[np.ndarray, "*cells"]
    curvature: Float64[np.ndarray, "*cells"]
    """Second derivative 2 β2, in units of the residual stream: positive where the length has a minimum."""
    low: Float64[np.ndarray, "*cells"]
    """Ends of the 95 % interval of the curvature; NaN for fewer than two documents."""
    high: Float64[np.ndarray, "*cells"]
    a_min: Float64[np.ndarray, "*cells"]
    """Sink rate of the fitted minimum −β1/(2 β2), not bounded to [0, 1]; NaN where the curvature is not positive."""
    r2: Float64[np.ndarray, "*cells"]
    """Share of the variance of y that the fit explains, in [0, 1]; NaN where y does not vary."""


def fit_statistics(
    sink_rate: Float[np.ndarray, "H n"], output_norm: Float[np.ndarray, "H n"]
) -> Float64[np.ndarray, "H 9"]:
    """What a quadratic fit of ‖o‖ on a needs of one document: `STATISTICS`, about the document's own means."""
    n = sink_rate.shape[1]
    if n == 0:
        return np.zeros((len(sink_rate), STATISTICS))
    a, y = sink_rate.astype(np.float64), output_norm.astype(np.float64)
    mean_a, mean_y = a.mean(-1), y.mean(-1)
    a, y = a - mean_a[:, None], y - mean_y[:, None]
    sums = [np.einsum("hn,hn->h", *pair) for pair in ((a, a), (a * a, a), (a * a, a * a), (a, y), (a * a, y), (y, y))]
    return np.stack([np.full(len(a), float(n)), mean_a, mean_y, *sums], -1)


def fit_curvature(statistics: Float64[np.ndarray, "N *cells 9"], n_resamples: int, seed: int) -> CurvatureFit:
    """The fit over all documents, and the percentiles 2.5 and 97.5 of its curvature over resamples of documents.

    `statistics` is `fit_statistics` of every document; one set of resamples serves all cells, so that heads can be
    compared. Sums are taken about the mean over all documents and in units of the deviation, in float64.
    """
    n_documents, *cells, _ = statistics.shape
    flat = statistics.reshape(n_documents, -1, STATISTICS)
    n = flat[..., 0]
    total = np.maximum(n.sum(0), 1)
    centre_a, centre_y = (n * flat[..., 1]).sum(0) / total, (n * flat[..., 2]).sum(0) / total
    sums = _about(flat, centre_a, centre_y)  # (N, cells, 9)
    whole = sums.sum(0)
    unit_a, unit_y = np.sqrt(whole[:, 2] / total), np.sqrt(whole[:, 8] / total)
    spread, varies = unit_a > _ROUNDING_A * np.abs(centre_a), unit_y > _ROUNDING_Y * np.abs(centre_y)
    unit_a, unit_y = np.where(spread, unit_a, np.nan), np.where(varies, unit_y, 1)
    unit = unit_a[:, None] ** _A_POWER * unit_y[:, None] ** _Y_POWER
    curvature, lowest, r2 = _solve(whole / unit)
    back = unit_y / unit_a**2
    if n_documents < 2:
        low = high = np.full_like(curvature, np.nan)
    else:
        scaled = (sums / unit).reshape(n_documents, -1)
        drawn = [
            _solve((counts @ scaled).reshape(len(counts), -1, STATISTICS))[0]
            for counts in resample_counts(n_documents, n_resamples, seed)
        ]
        low, high = percentile_interval(np.concatenate(drawn))
    results = (
        n.sum(0), curvature * back, low * back, high * back, centre_a + unit_a * lowest, np.where(varies, r2, np.nan)
    )  # fmt: skip
    return CurvatureFit(*(x.reshape(cells) for x in results))


def _about(
    statistics: Float64[np.ndarray, "N C 9"], a: Float64[np.ndarray, " C"], y: Float64[np.ndarray, " C"]
) -> Float64[np.ndarray, "N C 9"]:
    """Σ of 1, x, x², x³, x⁴, z, x z, x² z, z² with x, z the sink rate and the length less the centres given."""
    n, mean_a, mean_y, a2, a3, a4, ay, aay, yy = np.moveaxis(statistics, -1, 0)
    d, e = mean_a - a, mean_y - y
    sums = (
        n,
        n * d,
        a2 + n * d**2,
        a3 + 3 * d * a2 + n * d**3,
        a4 + 4 * d * a3 + 6 * d**2 * a2 + n * d**4,
        n * e,
        ay + n * d * e,
        aay + 2 * d * ay + e * a2 + n * d**2 * e,
        yy + n * e**2,
    )
    return np.stack(sums, -1)


def _solve(sums: Float64[np.ndarray, "*cells 9"]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Curvature, place of the minimum and r², in the units of `sums`, by polynomials orthogonal over the data."""
    s0, s1, s2, s3, s4, t0, t1, t2, yy = np.moveaxis(sums, -1, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        x, z = s1 / s0, t0 / s0
        m2 = s2 / s0 - x**2  # central moments of x
        m3 = s3 / s0 - 3 * x * s2 / s0 + 2 * x**3
        m4 = s4 / s0 - 4 * x * s3 / s0 + 6 * x**2 * s2 / s0 - 3 * x**4
        line = t1 / s0 - x * z  # Cov(x, z)
        bend = t2 / s0 - 2 * x * t1 / s0 + x**2 * z - m2 * z  # Cov((x − x̄)², z)
        free = m4 - m2**2 - m3**2 / m2  # variance of (x − x̄)² that no line explains
        beta = (bend - m3 / m2 * line) / free
        lowest = x + m3 / (2 * m2) - line / (2 * m2 * beta)
        explained = (line**2 / m2 + beta**2 * free) / (yy / s0 - z**2)
        exists = (s0 > 2) & (m2 > _NARROW) & (free > np.maximum(_SINGULAR * m4, _NARROW_BEND))
    return (
        np.where(exists, 2 * beta, np.nan),
        np.where(exists & (beta > 0), lowest, np.nan),
        np.where(exists, np.clip(explained, 0, 1), np.nan),
    )
