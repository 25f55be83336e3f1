"""Contribution weights, sink geometry, drift, cone and factors of one document and layer, by the definitions."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


def cosine(x: np.ndarray, y: np.ndarray) -> float:
    length = np.linalg.norm(x) * np.linalg.norm(y)
    return float(x @ y / length) if length > 0 else np.nan


@dataclass
class Oracle:
    """attention (H, T, T), value (T, H_kv, d_v), projection (H, d_v, D), the layer's window, learned sink (T, H)."""

    attention: np.ndarray
    value: np.ndarray
    projection: np.ndarray
    window: int | None = None
    sink_mass: np.ndarray | None = None
    gate: np.ndarray | None = None
    """What multiplies each head's Σ α v before the projection (T, H, d_v)."""
    causal: bool = True
    """False: every query sees every key, and since none predicts a token, every query counts."""
    projected: np.ndarray = field(init=False)
    """ṽ[h,i,j] (H, T, T, D): the value of key j as query i has it."""
    output: np.ndarray = field(init=False)
    """o[h,i] (H, T, D)."""

    def __post_init__(self) -> None:
        self.attention = np.asarray(self.attention, np.float64)
        self.value, self.projection = np.asarray(self.value, np.float64), np.asarray(self.projection, np.float64)
        self.H, self.T, _ = self.attention.shape
        group = self.H // self.value.shape[1]
        D = self.projection.shape[2]
        self.projected, self.output = np.zeros((self.H, self.T, self.T, D)), np.zeros((self.H, self.T, D))
        for h in range(self.H):
            for i in range(self.T):
                gate = 1.0 if self.gate is None else np.asarray(self.gate, np.float64)[i, h]
                for j in range(self.T):
                    self.projected[h, i, j] = (gate * self.value[j, h // group]) @ self.projection[h]
        for h in range(self.H):
            for i in range(self.T):
                for j in self.visible(i):
                    self.output[h, i] += self.attention[h, i, j] * self.projected[h, i, j]

    def visible(self, i: int) -> range:
        if not self.causal:
            return range(self.T)
        return range(0 if self.window is None else max(0, i - self.window + 1), i + 1)

    def scores(self, h: int, i: int, j: int) -> dict[str, float]:
        """Every score of one entry, and its factors."""
        alpha, v, o, whole = (
            self.attention[h, i, j],
            self.projected[h, i, j],
            self.output[h, i],
            self.output[:, i].sum(0),
        )
        norm, whole_norm = np.linalg.norm(o), np.linalg.norm(whole)
        intra, inter = norm > 0, whole_norm > 0
        return {
            "raw": alpha,
            "vw": alpha * np.linalg.norm(v),
            "vwon": alpha * np.linalg.norm(v) / norm if intra else np.nan,
            "cw_intra": alpha * (v @ o) / norm**2 if intra else np.nan,
            "cw_inter": alpha * (v @ whole) / whole_norm**2 if inter else np.nan,
            "relative_norm": np.linalg.norm(v) / norm if intra else np.nan,
            "cosine": cosine(v, o),
        }

    def token_scores(self, h: int, j: int) -> tuple[int, dict[str, float]]:
        """Sums over the queries that see key j and predict a token (all of an encoder's), and how many they are."""
        queries = range(self.T - 1 if self.causal else self.T)
        entries = [self.scores(h, i, j) for i in queries if j in self.visible(i)]
        sums = {name: sum(e[name] for e in entries) for name in ("raw", "vw", "vwon", "cw_intra", "cw_inter")}
        for name in ("cw_intra", "cw_inter"):
            sums[f"{name}_abs"] = sum(abs(e[name]) for e in entries)
        return len(entries), sums

    def row(self, h: int, i: int) -> dict[str, float]:
        entries = [self.scores(h, i, j) for j in self.visible(i)]
        intra = np.array([e["cw_intra"] for e in entries])
        return {
            "cw_intra": intra.sum(),
            "cw_inter": sum(e["cw_inter"] for e in entries),
            "negative_share": np.abs(intra[intra < 0]).sum() / np.abs(intra).sum()
            if not np.isnan(intra).any()
            else np.nan,
        }

    def edges(self, h: int, i: int, k: int) -> list[tuple[int, dict[str, float]]]:
        """The k entries of largest |cw_intra|; ties to the smaller key."""
        entries = [(j, self.scores(h, i, j)) for j in self.visible(i)]
        if np.isnan(entries[0][1]["cw_intra"]):
            return []
        return sorted(entries, key=lambda e: (-abs(e[1]["cw_intra"]), e[0]))[:k]

    def sink(self, h: int, i: int) -> dict[str, float]:
        """Sink geometry of a query i ≥ 1 that sees key 0."""
        a, s = self.attention[h, i, 0], self.projected[h, i, 0]
        r = sum(self.attention[h, i, j] for j in self.visible(i) if j >= 1)
        r += 0 if self.sink_mass is None else self.sink_mass[i, h]
        tail = sum(
            (self.attention[h, i, j] * self.projected[h, i, j] for j in self.visible(i) if j >= 1), np.zeros_like(s)
        )
        m = tail / r if r > 0 else np.full_like(s, np.nan)
        gap = (s - m) @ (s - m)
        exists = gap > 1e-20
        return {
            "sink_rate": a,
            "output_norm": np.linalg.norm(self.output[h, i]),
            "sink_norm": np.linalg.norm(s),
            "tail_norm": np.linalg.norm(m),
            "cosine_sink_tail": cosine(s, m),
            "a_star": (m @ m - s @ m) / gap if exists else np.nan,
            "min_norm": np.sqrt(max(0.0, (s @ s) * (m @ m) - (s @ m) ** 2) / gap) if exists else np.nan,
        }

    def drift(self, h: int) -> tuple[float, float]:
        norms, cosines = [], []
        for i in range(1, self.T):
            uniform = 1 / (i + 1 if self.causal else self.T)
            weak = [j for j in self.visible(i) if j >= 1 and self.attention[h, i, j] < uniform]
            vector = sum(
                (self.attention[h, i, j] * self.projected[h, i, j] for j in weak), np.zeros(self.projected.shape[3])
            )
            norms.append(np.linalg.norm(vector))
            if norms[-1] > 0:
                cosines.append(cosine(vector, self.projected[h, i, 0]))
        return float(np.mean(norms)), float(np.mean(cosines)) if cosines else np.nan

    def cone(self, h: int) -> dict[tuple[str, str], tuple[int, float]]:
        """(row group, sink) → (rows, mean pairwise cosine)."""
        norm = np.linalg.norm(self.output[h], axis=-1)
        rows = sorted((i for i in range(1, self.T) if norm[i] > 0), key=lambda i: (norm[i], i))
        fifth = len(rows) // 5
        result = {}
        for group, members in (("low_norm", rows[:fifth]), ("rest", rows[fifth:])):
            for sink in ("kept", "zeroed"):
                vectors = [
                    self.output[h, i] - (sink == "zeroed") * self.attention[h, i, 0] * self.projected[h, i, 0]
                    for i in members
                ]
                vectors = [v / np.linalg.norm(v) for v in vectors if np.linalg.norm(v) > 1e-12]
                n = len(vectors)
                pairs = [vectors[a] @ vectors[b] for a in range(n) for b in range(n) if a != b]
                result[group, sink] = (n, float(np.mean(pairs)) if n > 1 else np.nan)
        return result

    def factor_entries(self, h: int, group: str) -> tuple[np.ndarray, int]:
        """Rows (log α, log ‖ṽ‖/‖o‖, log|cos|, α, ‖ṽ‖/‖o‖, cos, cw) of a token group, and how many have no logarithm."""
        rows, left_out = [], 0
        for i in range(self.T):
            for j in self.visible(i):
                if (i, j) == (0, 0) or group != ("sink" if j == 0 else "self" if j == i else "tail"):
                    continue
                e = self.scores(h, i, j)
                if not (e["raw"] > 0 and abs(e["cosine"]) > 0):
                    left_out += 1
                    continue
                factors = (e["raw"], e["relative_norm"], e["cosine"])
                rows.append([*np.log(np.abs(factors)), *factors, e["cw_intra"]])
        return np.array(rows).reshape(-1, 7), left_out
