"""Fits of a probe: a multinomial logistic regression of classes, a ridge regression of numbers, by scikit-learn.

Features are standardised by the training part; the penalty is chosen between folds of it; the test part
is touched once.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import spearmanr
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge

from tasks.kernels.bootstrap import percentile_interval, resample_counts

Folds = Sequence[np.ndarray]
"""Of the training part, which rows each fold holds out."""

C = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Inverse penalties of the logistic regression, from the strongest: each fit begins where the one before it ended."""
ALPHA = (1e4, 1e3, 1e2, 1e1, 1.0)
"""Penalties of the ridge regression, from the strongest."""
TOLERANCE, MOST_STEPS = 1e-3, 1_000
"""Of the gradient of the mean loss: ten times tighter takes three times as long and moves accuracies by 0.001."""


@dataclass(frozen=True)
class Fitted:
    """What a probe answers on the test part."""

    predicted: np.ndarray
    """(test,)"""
    penalty: float
    """The C of a logistic regression, the α of a ridge."""
    converged: bool
    """Whether every fit behind it reached the solver's tolerance."""


def standardised(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Features (n, D) less the training part's mean, over its deviation; a feature that never varies stays 0."""
    mean, deviation = train.mean(0), train.std(0)
    scale = np.where(deviation > 0, deviation, 1.0)
    return (train - mean) / scale, (test - mean) / scale


def logistic(x: np.ndarray, y: np.ndarray, test: np.ndarray, folds: Folds, penalties: Sequence[float] = C) -> Fitted:
    """Classes of the test part; C is the one of most right answers between folds, the smaller where several are.

    x (n, D) and test (m, D) standardised, y (n,) integers, at least two different. One penalty needs no folds.
    """
    warnings.filterwarnings("ignore", category=ConvergenceWarning)  # told by `converged`, in any thread
    right, converged = np.zeros(len(penalties)), True
    for held in folds if len(penalties) > 1 else ():
        kept = np.delete(np.arange(len(y)), held)
        if len(np.unique(y[kept])) < 2:
            continue
        model = _logistic()
        for at, penalty in enumerate(penalties):
            model.set_params(C=penalty).fit(x[kept], y[kept])
            right[at] += (model.predict(x[held]) == y[held]).sum()
            converged &= _reached(model)
    chosen, model = penalties[int(right.argmax())], _logistic()
    model.set_params(C=chosen).fit(x, y)
    return Fitted(model.predict(test), chosen, converged and _reached(model))


def _logistic() -> LogisticRegression:
    return LogisticRegression(tol=TOLERANCE, max_iter=MOST_STEPS, warm_start=True)


def _reached(model: LogisticRegression) -> bool:
    return int(np.max(model.n_iter_)) < model.max_iter


def ridge(x: np.ndarray, y: np.ndarray, test: np.ndarray, folds: Folds, penalties: Sequence[float] = ALPHA) -> Fitted:
    """Numbers of the test part; α is the one of the smallest squared error between folds, the larger where several are.

    x (n, D) and test (m, D) standardised, y (n,). One penalty needs no folds.
    """
    error = np.zeros(len(penalties))
    for held in folds if len(penalties) > 1 else ():
        kept = np.delete(np.arange(len(y)), held)
        for at, penalty in enumerate(penalties):
            predicted = Ridge(alpha=penalty).fit(x[kept], y[kept]).predict(x[held])
            error[at] += ((predicted - y[held]) ** 2).sum()
    chosen = penalties[int(error.argmin())]
    return Fitted(Ridge(alpha=chosen).fit(x, y).predict(test), chosen, True)


@dataclass(frozen=True)
class Part:
    """Words of one part of the split."""

    features: np.ndarray
    """(n, D)"""
    labels: np.ndarray
    """(n,) integers."""
    sentences: np.ndarray
    """(n,)"""


def probe(
    target: str, train: Part, test: Part, folds: Folds, shuffle: np.ndarray, resamples: int, seed: int
) -> dict[str, Any]:
    """The columns of one probe: its score on the test part with the interval over sentences, and those of baselines.

    Baselines: the commonest class of the training part, or its mean; and the same fit, with the penalty that was
    chosen, on labels in the order `shuffle`. All NaN where a fit cannot be: fewer than two classes or different
    numbers, two folds, or two words to test.
    """
    fit, score = (logistic, Accuracy) if target == "pos" else (ridge, Determination)
    n_different = len(np.unique(train.labels))
    counts: dict[str, Any] = {"n_train": len(train.labels), "n_test": len(test.labels)}
    counts["n_classes"] = n_different if target == "pos" else None
    if n_different < 2 or len(folds) < 2 or len(test.labels) < 2:
        return {**counts, **dict.fromkeys(_FIGURES, math.nan), "converged": True}
    x, tested = standardised(train.features, test.features)
    fitted = fit(x, train.labels, tested, folds)
    control = fit(x, train.labels[shuffle], tested, (), (fitted.penalty,))
    summed = score.sums(fitted.predicted, test.labels, test.sentences)
    low, high = interval(score, summed, resamples, seed)

    def whole(predicted: np.ndarray) -> float:
        return float(score.figure(score.sums(predicted, test.labels, test.sentences).sum(0)))

    figures = {"score": whole(fitted.predicted), "score_lo": low, "score_hi": high}
    figures |= {"score_majority": whole(np.full(len(test.labels), score.constant(train.labels)))}
    figures |= {"score_shuffled": whole(control.predicted), "penalty": fitted.penalty}
    figures |= {"spearman": _spearman(fitted.predicted, test.labels) if target == "depth" else math.nan}
    return {**counts, **figures, "converged": fitted.converged and control.converged}


_FIGURES = ("score", "score_lo", "score_hi", "score_majority", "score_shuffled", "spearman", "penalty")


class Accuracy:
    """The share of right answers, in [0, 1]."""

    @staticmethod
    def sums(predicted: np.ndarray, labels: np.ndarray, sentences: np.ndarray) -> np.ndarray:
        """(S, 2): right answers and answers of each sentence."""
        return by_sentence(sentences, predicted == labels, np.ones(len(labels)))

    @staticmethod
    def figure(sums: np.ndarray) -> np.ndarray:
        """Of sums (…, 2)."""
        return sums[..., 0] / sums[..., 1]

    @staticmethod
    def constant(labels: np.ndarray) -> float:
        """The commonest label, the smallest where several are."""
        values, times = np.unique(labels, return_counts=True)
        return float(values[times.argmax()])


class Determination:
    """R² = 1 − Σ(y − ŷ)² / Σ(y − ȳ)², at most 1; 0 is what the test part's own mean gets. NaN where y never varies."""

    @staticmethod
    def sums(predicted: np.ndarray, labels: np.ndarray, sentences: np.ndarray) -> np.ndarray:
        """(S, 4): Σ(y − ŷ)², Σ(y − c)², Σ(y − c) and n of each sentence, about c, the mean, so that nothing cancels."""
        centred = labels - labels.mean()
        return by_sentence(sentences, (labels - predicted) ** 2, centred**2, centred, np.ones(len(labels)))

    @staticmethod
    def figure(sums: np.ndarray) -> np.ndarray:
        """Of sums (…, 4)."""
        varied = sums[..., 1] - sums[..., 2] ** 2 / sums[..., 3]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(varied > 0, 1 - sums[..., 0] / varied, np.nan)

    @staticmethod
    def constant(labels: np.ndarray) -> float:
        """The mean."""
        return float(labels.mean())


Score = type[Accuracy] | type[Determination]


def by_sentence(sentences: np.ndarray, *values: np.ndarray) -> np.ndarray:
    """(S, k): each value summed over each sentence."""
    _, at = np.unique(sentences, return_inverse=True)
    return np.stack([np.bincount(at, weights=value) for value in values], 1)


def interval(score: Score, sums: np.ndarray, resamples: int, seed: int) -> tuple[float, float]:
    """The 95 % interval of a score over bootstrap resamples of sentences; sums (S, k). NaN of a single sentence."""
    if len(sums) < 2:
        return math.nan, math.nan
    drawn = [score.figure(counts @ sums) for counts in resample_counts(len(sums), resamples, seed)]
    low, high = percentile_interval(np.concatenate(drawn))
    return float(low), float(high)


def _spearman(predicted: np.ndarray, labels: np.ndarray) -> float:
    """Rank correlation; NaN where either never varies."""
    if np.ptp(predicted) == 0 or np.ptp(labels) == 0:
        return math.nan
    return float(spearmanr(predicted, labels).statistic)
