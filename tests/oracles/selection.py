"""Geometric token selection of one query, sink statistics and the taxonomy's winners, by the definitions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

EQUAL = 1e-6


def cosine(x: np.ndarray, y: np.ndarray) -> float:
    length = np.linalg.norm(x) * np.linalg.norm(y)
    return float(x @ y / length) if length > 0 else 0.0


@dataclass
class Row:
    """One query: attention (K,) and values (K, d_v) of its candidates, whose keys are `keys`, in order."""

    alpha: np.ndarray
    value: np.ndarray
    keys: list[int]

    def __post_init__(self) -> None:
        self.alpha, self.value = np.asarray(self.alpha, np.float64), np.asarray(self.value, np.float64)
        self.y = self.alpha[:, None] * self.value

    def order(self, ranking: str) -> list[int]:
        """Places in the order of the score, which is a float32 as attention is; ties to the smaller key."""
        norm = np.linalg.norm(self.value, axis=1)
        score = np.float32(self.alpha if ranking == "attention" else self.alpha * norm)
        return sorted(range(len(score)), key=lambda j: (-score[j], self.keys[j]))

    def distances(self, chosen: list[int], distance: str) -> tuple[np.ndarray, float]:
        """D of every candidate, and within how much two of them are equal."""
        total = self.y[chosen].sum(0)
        lengths = np.linalg.norm(self.y, axis=1)
        if np.linalg.norm(total) <= 1e-9 * lengths[chosen].sum():
            total = np.zeros_like(total)
        if distance == "euclidean":
            D = np.linalg.norm(self.y - total, axis=1)
            return D, max(EQUAL * D.max(), 1e-7 * np.hypot(lengths.max(), np.linalg.norm(total)))
        D = np.array([1 - cosine(v, total) for v in self.value])
        return D, max(EQUAL * D.max(), 1e-12)

    def select(self, order: list[int], n: int, distance: str) -> dict[str, float]:
        chosen, others = order[:n], order[n:]
        D, equal = self.distances(chosen, distance)
        far, near = max(D[i] for i in chosen), min(D[j] for j in others)
        precision = n / (n + sum(D[j] <= far + equal for j in others))
        recall = sum(D[i] + equal < near for i in chosen) / n
        margin = near - far
        return {
            "precision": precision,
            "recall": recall,
            "f_score": 2 * precision * recall / (precision + recall),
            "inversions": sum(D[j] <= D[i] + equal for i in chosen for j in others),
            "margin": 0.0 if abs(margin) <= equal else margin,
            "mass": self.alpha[chosen].sum(),
        }

    def certified(self, order: list[int], n: int) -> tuple[float, float]:
        """P and R that the certificate guarantees (methods.md §2), bound by bound."""
        length = np.linalg.norm(self.y, axis=1)
        sink = self.keys.index(0) if 0 in self.keys else None
        rest = [j for j in range(len(self.keys)) if j != sink]
        kappa = max((abs(cosine(self.value[a], self.value[b])) for a in rest for b in rest if a < b), default=0.0)
        chi = [cosine(self.value[sink], self.value[j]) for j in rest] if sink is not None else [0.0]
        low, high = min(chi, default=0.0), max(chi, default=0.0)
        chosen, others = order[:n], order[n:]
        Y = sum(length[k] for k in chosen if k != sink)
        own = length[sink] if sink in chosen else 0.0
        D, equal = self.distances(chosen, "euclidean")
        slack = 2 * equal * D.max() + equal**2

        def upper(i: int) -> float:
            if i == sink:
                return -(length[i] ** 2) - 2 * length[i] * Y * low
            return -(length[i] ** 2) + 2 * kappa * length[i] * (Y - length[i]) - 2 * own * length[i] * low

        def lower(j: int) -> float:
            if j == sink:
                return length[j] ** 2 - 2 * length[j] * Y * high
            return length[j] ** 2 - 2 * kappa * length[j] * Y - 2 * own * length[j] * high

        highest, lowest = max(map(upper, chosen)), min(map(lower, others))
        inside = sum(lower(j) <= highest + slack for j in others)
        return n / (n + inside), sum(upper(i) < lowest - slack for i in chosen) / n


@dataclass
class Oracle:
    """attention (H, T, T), value (T, H_kv, d_v), and what a query sees."""

    attention: np.ndarray
    value: np.ndarray
    window: int | None = None
    causal: bool = True
    gate: np.ndarray | None = None

    def __post_init__(self) -> None:
        self.attention, self.value = np.asarray(self.attention, np.float64), np.asarray(self.value, np.float64)
        self.H, self.T, _ = self.attention.shape
        self.group = self.H // self.value.shape[1]

    def visible(self, i: int) -> list[int]:
        if not self.causal:
            return list(range(self.T))
        return list(range(0 if self.window is None else max(0, i - self.window + 1), i + 1))

    def row(self, h: int, i: int, sink: str = "included") -> Row:
        keys = [j for j in self.visible(i) if j > 0 or sink == "included"]
        value = self.value[keys, h // self.group]
        if self.gate is not None:
            value = value * np.asarray(self.gate, np.float64)[i, h]
        return Row(self.attention[h, i, keys], value, keys)

    def winner(self, h: int, i: int) -> str | None:
        """Where the largest α‖v‖ stands, compared as float32, ties to the smaller key; None where all are 0."""
        row = self.row(h, i)
        score = np.float32(row.alpha * np.linalg.norm(row.value, axis=1))
        if not score.any():
            return None
        j = row.keys[int(np.argmax(score))]
        return "self" if j == i else "sink" if j == 0 else "other"

    def sink_statistics(self, h: int) -> dict[str, float]:
        value = self.value[:, h // self.group]
        norm = np.linalg.norm(value, axis=1)
        rest = norm[1:]
        real = [j for j in range(1, self.T) if norm[j] > 0]
        pairs = [cosine(value[a], value[b]) for a in real for b in real if a < b]
        with_sink = [cosine(value[0], value[j]) for j in real] if norm[0] > 0 else []
        there = len(rest) > 0 and rest.mean() > 0
        return {
            "norm_ratio": norm[0] / rest.mean() if there else np.nan,
            "mean_cosine": float(np.mean(with_sink)) if with_sink else np.nan,
            "norm_cv": rest.std() / rest.mean() if there else np.nan,
            "coherence_max": max(map(abs, pairs)) if pairs else np.nan,
            "coherence_mean": float(np.mean(pairs)) if pairs else np.nan,
        }
