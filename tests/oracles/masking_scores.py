"""What masking ranks by, and the ranks, by the definitions: plain loops in float64."""

from __future__ import annotations

import numpy as np

from tests.oracles.contributions import Oracle


def visible(n_tokens: int, window: int | None, causal: bool, i: int) -> range:
    if not causal:
        return range(n_tokens)
    return range(0 if window is None else max(0, i - window + 1), i + 1)


def entry_scores(oracle: Oracle, score: str) -> np.ndarray:
    """(H, T, T): 0 where the key is not visible."""
    result = np.zeros((oracle.H, oracle.T, oracle.T))
    for h in range(oracle.H):
        for i in range(oracle.T):
            for j in oracle.visible(i):
                result[h, i, j] = oracle.scores(h, i, j)[score]
    return result


def candidates(n_tokens: int, window: int | None, causal: bool, keep_first: bool) -> list[tuple[int, int]]:
    rows = range(n_tokens - 1 if causal else n_tokens)
    return [(i, j) for i in rows for j in visible(n_tokens, window, causal, i) if j > 0 or not keep_first]


def ranks(scores: np.ndarray, groups: list[list[tuple[int, ...]]], absolute: bool) -> np.ndarray:
    """Ranks of the places of one head's scores, group by group; −1 for places in none."""
    result = np.full(scores.shape, -1)
    for group in groups:
        size = {place: 0.0 if np.isnan(scores[place]) else float(scores[place]) for place in group}
        if absolute:
            size = {place: abs(value) for place, value in size.items()}
        for rank, place in enumerate(sorted(group, key=lambda place: (-size[place], place))):
            result[place] = rank
    return result


def token_scores(scores: np.ndarray, window: int | None, causal: bool, reduce: str, absolute: bool) -> np.ndarray:
    """(n,) of one head's (T, T)."""
    n_tokens = len(scores)
    rows = range(n_tokens - 1 if causal else n_tokens)
    result = []
    for j in rows:
        seen = [float(scores[i, j]) for i in rows if j in visible(n_tokens, window, causal, i)]
        total = sum(abs(s) for s in seen) if absolute else sum(seen)
        result.append(total / len(seen) if reduce == "mean" else total)
    return np.array(result)
