"""Made-up rows of the stages `scalogram`, `pod` and `coherency`, which obey their identities."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from tests.oracles.multiscale import effective_rank
from tests.sql.made_up import LAYERS, TOKENS, Columns

SCALES = (2.0, 5.0, 9.0, 24.0)
SIZES, EPSILONS, DRAWS = (3, 4), (0.1, 0.05, 0.01), 3
NULLS = [(field, draw) for field in ("lag_shuffle", "gaussian") for draw in range(DRAWS)]


def _columns(rows: list[dict[str, Any]]) -> Columns:
    return {name: _column([row[name] for row in rows]) for name in rows[0]}


def _column(values: list[Any]) -> np.ndarray:
    return np.asarray(values, dtype=object if values[0] is None or isinstance(values[0], str) else None)


def scalogram_columns() -> dict[str, Columns]:
    """Of the mean of all heads, and of head 1."""
    rows: list[dict[str, Any]] = []
    masses: list[dict[str, Any]] = []
    for layer in range(LAYERS):
        for head in (None, 1):
            for protocol, fields in (
                ("exact", ("observed", "uniform", "doc_shuffle")),
                ("published", ("observed", "uniform")),
            ):
                for field in fields:
                    random = np.random.default_rng([layer, head or 0, len(protocol), len(field)])
                    energy = random.random(len(SCALES))
                    rows += [
                        {
                            **{"layer": layer, "head": head, "protocol": protocol, "omega0": 5.0, "field": field},
                            **{"scale": scale, "energy": e, "energy_share": e / energy.sum()},
                            "dominant": e == energy.max(),
                        }
                        for scale, e in zip(SCALES, energy, strict=True)
                    ]
            masses += [
                {"layer": layer, "head": head, "lag_lo": lo, "lag_hi": hi, "mass": mass}
                for lo, hi, mass in ((0, 0, 0.25), (1, TOKENS - 1, 0.5 + 0.1 * layer))
            ]
    return {"scalogram": _columns(rows), "lag_mass": _columns(masses)}


@cache
def eigenvalues(layer: int, head: int | None, scale: float | None, field: str, draw: int, size: int) -> np.ndarray:
    """Descending; the last is 0, as the mean leaves it."""
    place = [layer, 9 if head is None else head, int(scale or 0), len(field), draw, size]
    values = np.sort(np.random.default_rng(place).random(size - 1))[::-1]
    return np.append(values * (0.4 if field == "observed" else 1) ** np.arange(size - 1), 0.0)


def _spectra() -> list[dict[str, Any]]:
    """One for each spectrum, of every size."""
    found = []
    for layer in range(LAYERS):
        for head, scale, protocol in (
            (None, None, "exact"),
            (None, 5.0, "exact"),
            (1, None, "exact"),
            (None, None, "published"),
            (None, 2.0, "published"),
        ):
            for field, draw in [("observed", 0), *(NULLS if protocol == "exact" else [])]:
                of_filter = {"layer": layer, "head": head, "protocol": protocol, "scale": scale}
                found.append({**of_filter, "field": field, "draw": draw})
    return found


def _place(spectrum: dict[str, Any]) -> dict[str, Any]:
    scale = spectrum["scale"]
    named = {name: spectrum[name] for name in ("layer", "head", "protocol", "field", "draw")}
    return {**named, "filter_scale": np.nan if scale is None else scale}


def _values(spectrum: dict[str, Any], size: int) -> np.ndarray:
    return eigenvalues(*(spectrum[name] for name in ("layer", "head", "scale", "field", "draw")), size)


def measures(values: np.ndarray, epsilon: float, protocol: str) -> dict[str, Any]:
    """Of one spectrum of N snapshots."""
    rank, used, n = effective_rank(values, epsilon), values[values > 1e-12 * values[0]], len(values)
    beta, published = np.nan, protocol == "published"
    if len(used) > 2:
        beta = -np.polyfit(np.log(np.arange(1, len(used) + 1)), np.log(used), 1)[0]
    elif published:
        beta = 1.0
    return {
        **{"beta": beta, "beta_r2": 0.9, "beta_se": 0.1, "t_spec": 1 / beta, "h_star": rank + published},
        **{"saturated": rank >= 0.9 * (n - 1), "total_energy": values.sum()},
    }


def pod_columns() -> dict[str, Columns]:
    spectra: list[dict[str, Any]] = []
    summaries: list[dict[str, Any]] = []
    modes: list[dict[str, Any]] = []
    for spectrum in _spectra():
        place, whole = _place(spectrum), _values(spectrum, SIZES[-1])
        share = whole / whole.sum()
        spectra += [
            {**place, "k": k + 1, "eigenvalue": x, "energy_share": share[k], "cumulative": share[: k + 1].sum()}
            for k, x in enumerate(whole)
        ]
        for size in SIZES:
            values = _values(spectrum, size)
            for epsilon in EPSILONS:
                row = measures(values, epsilon, spectrum["protocol"])
                left = values[effective_rank(values, epsilon) :].sum()
                observed = size == SIZES[-1] and spectrum["field"] == "observed"
                row["reconstruction_error"] = left if observed else np.nan
                summaries.append({**place, "n_snapshots": size, "epsilon": epsilon, **row})
        if spectrum["field"] == "observed":
            of_mode = {name: place[name] for name in ("layer", "head", "protocol", "filter_scale")}
            modes += [{**of_mode, "mode": 1, "lag": lag, "profile": 0.1 * lag} for lag in range(TOKENS)]
    return {"pod_spectrum": _columns(spectra), "pod_summary": _columns(summaries), "pod_modes": _columns(modes)}


def coherency_columns() -> dict[str, Columns]:
    random = np.random.default_rng(5)
    rows = [
        {
            **{"layer": layer, "scale": 1.5, "lag": 3, "query_i": i, "query_j": j},
            **{"gamma": 1.0 if i == j else random.random(), "gamma_null": random.random()},
        }
        for layer in range(LAYERS)
        for i, j in ((5, 5),)
    ]
    return {"coherency": _columns(rows)}
