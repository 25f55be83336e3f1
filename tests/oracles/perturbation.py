"""Perturbation by plain loops over tokens, from the formulas of methods.md §3."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

Vectors = np.ndarray


def exact(h: Vectors, delta: float, arm: str, drawn: Vectors) -> Vectors:
    """Every token longer than δ moved by δ."""
    rows = []
    for t in range(len(h)):
        norm = math.sqrt(sum(x * x for x in h[t]))
        if norm <= delta:
            rows.append(h[t])
        elif arm == "magnitude":
            rows.append((1 + drawn[t] * delta / norm) * h[t])
        else:
            unit = h[t] / norm
            across = drawn[t] - np.dot(drawn[t], unit) * unit
            across = across / math.sqrt(np.dot(across, across))
            theta = 2 * math.asin(delta / (2 * norm))
            rows.append(norm * (math.cos(theta) * unit + math.sin(theta) * across))
    return np.array(rows)


def turned(h: Vectors, m: float, z: Vectors) -> Vectors:
    """normalise(ĥ + m ẑ)·‖h‖ of every token."""
    rows = []
    for t in range(len(h)):
        norm = math.sqrt(np.dot(h[t], h[t]))
        mixed = h[t] / norm + m * z[t] / math.sqrt(np.dot(z[t], z[t]))
        rows.append(norm * mixed / math.sqrt(np.dot(mixed, mixed)))
    return np.array(rows)


def mean_displacement(h: Vectors, moved: Vectors) -> float:
    return float(np.mean([math.sqrt(np.dot(a - b, a - b)) for a, b in zip(moved, h, strict=True)]))


def bisected(h: Vectors, delta: float, z: Vectors) -> float:
    """m in [0, 2] after 20 halvings, by moving the vectors themselves each time."""
    low, high = 0.0, 2.0
    if mean_displacement(h, turned(h, 2.0, z)) < delta:
        return 2.0
    for _ in range(20):
        middle = (low + high) / 2
        if mean_displacement(h, turned(h, middle, z)) < delta:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def published(h: Vectors, delta: float, arm: str, drawn: Vectors) -> Vectors:
    """What the authors' notebook does to one sequence at one layer."""
    if arm == "magnitude":
        return np.array([(1 + drawn[t] * delta / math.sqrt(np.dot(h[t], h[t]))) * h[t] for t in range(len(h))])
    return turned(h, bisected(h, delta, drawn), drawn)


def moved(h: Vectors, delta: float, protocol: str, arm: str, drawn: Vectors, *, first_token: bool) -> Vectors:
    """One sequence, its first token included or not."""
    rule, first = {"exact": exact, "published": published}[protocol], 0 if first_token else 1
    return np.concatenate([h[:first], rule(h[first:], delta, arm, drawn[first:])])


def median_norm(documents: Sequence[Vectors]) -> float:
    """Of all tokens of all documents."""
    norms = sorted(math.sqrt(np.dot(row, row)) for h in documents for row in h.astype(np.float64))
    n = len(norms)
    return norms[n // 2] if n % 2 else (norms[n // 2 - 1] + norms[n // 2]) / 2
