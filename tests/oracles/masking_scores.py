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


def kobayashi_norms(oracle: Oracle) -> np.ndarray:
    """(T, T): ‖Σ_h α ṽ‖."""
    result = np.zeros((oracle.T, oracle.T))
    for i in range(oracle.T):
        for j in oracle.visible(i):
            result[i, j] = np.linalg.norm(term(oracle, i, j))
    return result


def term(oracle: Oracle, i: int, j: int) -> np.ndarray:
    """Σ_h α[h,i,j] ṽ[h,i,j], (D,)."""
    parts = [oracle.attention[h, i, j] * oracle.projected[h, i, j] for h in range(oracle.H)]
    return np.array(sum(parts))


def alti(
    oracle: Oracle,
    residual: np.ndarray,
    bias: np.ndarray | None = None,
    norm: tuple[str, bool, np.ndarray, float] | None = None,
) -> np.ndarray:
    """(T, T); `norm`: output | sum, whether it centres, its weight and eps."""
    result = np.zeros((oracle.T, oracle.T))
    for i in range(oracle.T):
        x = residual[i]
        real = oracle.output[:, i].sum(0) + (0 if bias is None else bias)
        if norm is not None and norm[0] == "sum":
            real = real + x

        def through(part: np.ndarray, real: np.ndarray = real) -> np.ndarray:
            """The norm with its scale held at the real vector's."""
            if norm is None:
                return part
            _, centres, weight, eps = norm
            spread = np.var(real) if centres else np.mean(real**2)
            return np.array(weight * (part - centres * part.mean()) / np.sqrt(spread + eps))

        parts = {}
        for j in oracle.visible(i):
            own = x if i == j else np.zeros_like(x)
            if norm is not None and norm[0] == "sum":
                parts[j] = through(term(oracle, i, j) + own)
            else:
                parts[j] = through(term(oracle, i, j)) + own
        y = np.array(sum(parts.values()))
        closer = {j: max(0.0, np.abs(y).sum() - np.abs(y - part).sum()) for j, part in parts.items()}
        total = sum(closer.values())
        for j, score in closer.items():
            result[i, j] = score / total if total > 0 else np.nan
    return result


def rollout(attentions: list[np.ndarray]) -> np.ndarray:
    """(T, T) of the layers' (H, T, T), the lowest first."""
    n_tokens = attentions[0].shape[1]
    result = np.eye(n_tokens)
    for attention in attentions:
        mixed = 0.5 * attention.mean(0) + 0.5 * np.eye(n_tokens)
        for i in range(n_tokens):
            mixed[i] = mixed[i] / mixed[i].sum()
        result = mixed @ result
    return result
