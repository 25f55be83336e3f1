"""The curve of output length over sink rate, its quadratic fit, and the bootstrap of its curvature."""

from __future__ import annotations

import numpy as np
import pytest

from tasks.kernels.bootstrap import percentile_interval, resample_counts
from tasks.kernels.moments import Moments
from tasks.kernels.sink_curve import bin_moments
from tasks.kernels.sink_fit import CurvatureFit, fit_curvature, fit_statistics


def documents(
    seed: int, n: int = 12, heads: int = 3, noise: float = 0.1, centre: float = 0.5, width: float = 0.2
) -> list:
    """(a, ‖o‖) of n documents: a parabola with its minimum at 0.6, and noise that differs per document."""
    random = np.random.default_rng(seed)
    result = []
    for _ in range(n):
        a = np.clip(centre + width * random.normal(size=(heads, 40)), 0, 1)
        y = 3 + 4 * (a - 0.6) ** 2 + noise * (random.normal() + random.normal(size=a.shape))
        result.append((a.astype(np.float32), y.astype(np.float32)))
    return result


def fitted(docs: list, n_resamples: int = 200, seed: int = 1) -> CurvatureFit:
    return fit_curvature(np.stack([fit_statistics(a, y) for a, y in docs]), n_resamples, seed)


def by_polyfit(docs: list, h: int) -> tuple[float, float, float]:
    a, y = (np.concatenate([d[at][h] for d in docs]).astype(np.float64) for at in (0, 1))
    beta2, beta1, _ = coefficients = np.polyfit(a, y, 2)
    r2 = 1 - ((y - np.polyval(coefficients, a)) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    return 2 * beta2, -beta1 / (2 * beta2), r2


@pytest.mark.parametrize(("centre", "width"), [(0.5, 0.2), (0.97, 0.004), (0.02, 0.01)])
def test_fit_equals_least_squares(centre: float, width: float) -> None:
    """Also where nearly all attention goes to the sink, and raw moments of a would lose every digit."""
    docs = documents(0, centre=centre, width=width)
    fit = fitted(docs)
    for h in range(3):
        curvature, a_min, r2 = by_polyfit(docs, h)
        assert fit.curvature[h] == pytest.approx(curvature, rel=1e-6)
        assert fit.a_min[h] == (pytest.approx(a_min, rel=1e-6) if curvature > 0 else pytest.approx(np.nan, nan_ok=True))
        assert fit.r2[h] == pytest.approx(r2, abs=1e-6)
        assert fit.n[h] == 12 * 40


def test_an_exact_parabola() -> None:
    """y = 3 + 4 (a − 0.6)²: second derivative 8, minimum at 0.6, everything explained, an interval without width."""
    fit = fitted(documents(1, noise=0))
    for values, expected in ((fit.curvature, 8), (fit.low, 8), (fit.high, 8), (fit.a_min, 0.6), (fit.r2, 1)):
        assert np.allclose(values, expected, rtol=1e-4)


def test_the_interval_equals_refitting_the_resampled_documents() -> None:
    docs = documents(2)
    fit = fitted(docs, n_resamples=100, seed=7)
    counts = np.concatenate(list(resample_counts(len(docs), 100, 7))).astype(int)
    for h in range(3):
        refits = [by_polyfit([d for d, c in zip(docs, row, strict=True) for _ in range(c)], h)[0] for row in counts]
        assert (fit.low[h], fit.high[h]) == pytest.approx(tuple(np.percentile(refits, [2.5, 97.5])), rel=1e-6)
    assert (fit.low < fit.curvature).all() and (fit.curvature < fit.high).all()


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    covered = [(f.low <= 8) & (f.high >= 8) for f in (fitted(documents(s, n=30), 300) for s in range(20))]
    assert 0.8 < np.mean(covered) < 1


def test_the_seed_decides_the_interval() -> None:
    docs = documents(3)
    assert np.array_equal(fitted(docs, seed=5).low, fitted(docs, seed=5).low)
    assert not np.array_equal(fitted(docs, seed=5).low, fitted(docs, seed=6).low)


def test_a_peak_has_no_minimum() -> None:
    docs = [(a, 10 - y) for a, y in documents(4, noise=0)]
    fit = fitted(docs)
    assert (fit.curvature < 0).all() and np.isnan(fit.a_min).all()


@pytest.mark.parametrize("rates", [[0.3], [0.3, 0.7], [0.1, 0.1 + 1e-7]])
def test_fewer_than_three_sink_rates_have_no_fit(rates: list[float]) -> None:
    random = np.random.default_rng(5)
    a = [random.choice(rates, (1, 50)).astype(np.float32) for _ in range(6)]
    fit = fitted([(x, random.normal(size=x.shape).astype(np.float32)) for x in a])
    for values in (fit.curvature, fit.low, fit.high, fit.a_min, fit.r2):
        assert np.isnan(values).all()


def test_one_document_has_a_fit_and_no_interval() -> None:
    fit = fitted(documents(6, n=1))
    assert not np.isnan(fit.curvature).any() and np.isnan(fit.low).all() and np.isnan(fit.high).all()


def test_equal_lengths_are_flat_and_leave_nothing_to_explain() -> None:
    fit = fitted([(a, np.full_like(y, 2)) for a, y in documents(7)])
    assert np.allclose(fit.curvature, 0, atol=1e-9) and np.isnan(fit.r2).all()


def test_documents_without_queries_weigh_nothing() -> None:
    docs = documents(8)
    none = (np.zeros((3, 0), np.float32), np.zeros((3, 0), np.float32))
    assert np.allclose(fitted([*docs, none]).curvature, fitted(docs).curvature, rtol=1e-12)


def test_bins_equal_plain_means() -> None:
    docs = documents(9)
    moments = Moments.zeros((3, 20), 2, 1)
    for a, y in docs:
        moments = moments.merge(bin_moments(a, y, 20))
    for h in range(3):
        a, y = (np.concatenate([d[at][h] for d in docs]).astype(np.float64) for at in (0, 1))
        for b in range(20):
            inside = (a >= b / 20) & ((a < (b + 1) / 20) | (b == 19))
            assert moments.n[h, b] == inside.sum()
            if inside.sum() > 1:
                assert moments.mean[h, b].tolist() == pytest.approx([y[inside].mean(), a[inside].mean()])
                assert moments.variance()[h, b, 0] == pytest.approx(y[inside].var(ddof=1))
            else:
                assert np.isnan(moments.variance()[h, b, 0])


def test_bins_at_their_edges() -> None:
    a = np.array([[0.0, 0.5, 1.0, 1.0000001]], np.float32)
    assert bin_moments(a, np.ones_like(a), 4).n[0].tolist() == [1, 0, 1, 2]


def test_resamples_draw_as_many_documents_as_there_are() -> None:
    counts = np.concatenate(list(resample_counts(7, 3000, 0)))
    assert counts.shape == (3000, 7) and (counts.sum(1) == 7).all()
    assert np.allclose(counts.mean(0), 1, atol=0.1) and counts.var() == pytest.approx(6 / 7, abs=0.05)


def test_resamples_in_pieces_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.kernels.bootstrap._DRAWS_AT_ONCE", 70)
    pieces = list(resample_counts(7, 25, 0))
    assert [len(p) for p in pieces] == [10, 10, 5] and all((p.sum(1) == 7).all() for p in pieces)


def test_percentiles_leave_undefined_estimates_aside() -> None:
    estimates = np.random.default_rng(0).normal(size=(101, 3))
    estimates[:40, 1], estimates[:60, 2] = np.nan, np.nan
    low, high = percentile_interval(estimates)
    assert (low[0], high[0]) == pytest.approx(tuple(np.percentile(estimates[:, 0], [2.5, 97.5])))
    assert (low[1], high[1]) == pytest.approx(tuple(np.nanpercentile(estimates[:, 1], [2.5, 97.5])))
    assert np.isnan(low[2]) and np.isnan(high[2])
