"""What the stages over ensembles of attention fields found: a few lines, from the named queries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from duckdb import DuckDBPyConnection

from storage.numbers import spans
from storage.warehouse import query, run_sql

_NOISE = 3.0
"""Standard deviations within which a rank is not told from a null's."""
_DRAWS = 3
"""Draws of a null below which there is no z-score."""
_GROWS = 0.9
"""A rank's growth from N/2 to N documents, as a share of theirs, from which on it is their number that decides."""


def scalogram_lines(connection: DuckDBPyConnection, capture: str) -> Iterator[str]:
    """Energy at fine and coarse scales of the first and the last layer, beside the document-shuffled ensemble."""
    rows = query(connection, "scale_by_layer", {"capture": capture}).to_pylist()
    for row in rows[:1] + rows[1:][-1:]:
        fine, coarse = _energy(row, "fine", "at scales up to 7"), _energy(row, "coarse", "from 20")
        told = " and ".join(filter(None, (fine, coarse)))
        missing = "" if coarse else "; no scale of 20 or more in this window (they end at a quarter of its length)"
        missing += "" if fine else "; no scale up to 7 was asked for"
        yield (
            f"Layer {row['layer']}, energy along the lag: {told or 'at middle scales alone'}{missing}; "
            f"{row['mass_from_20']:.0%} of the attention goes 20 or more back."
        )


def _energy(row: dict[str, Any], name: str, where: str) -> str:
    """A share of the energy beside that of both null fields; nothing where no scale was taken there."""
    if row[f"{name}_share"] is None:
        return ""
    shuffled, uniform = row[f"{name}_share_shuffled"], row[f"{name}_share_uniform"]
    return f"{row[f'{name}_share']:.0%} {where} (documents shuffled {shuffled:.0%}, uniform rows {uniform:.0%})"


def pod_lines(connection: DuckDBPyConnection, capture: str) -> Iterator[str]:
    """Effective ranks of the layers' unfiltered fields, and in which of them they differ from noise."""
    rows = query(connection, "effective_rank", {"capture": capture}).to_pylist()
    plain = [row for row in rows if row["filter_scale"] is None and row["h_star"] is not None]
    n = max((row["n_snapshots"] for row in plain), default=0)
    whole = [row for row in plain if row["n_snapshots"] == n]
    if whole:
        ranks = _range([row["h_star"] for row in whole])
        yield (
            f"Effective rank H*(0.10) of {n} documents' fields: {ranks} of at most {n - 1}"
            f"{_beside_noise(whole)}{_decided(whole, plain)}."
        )


def _beside_noise(whole: list[dict[str, Any]]) -> str:
    """The ranks of the nulls, and the layers whose own are not told from them."""
    if not all(row["n_draws"] for row in whole):
        return ""
    nulls = [row["lag_shuffle_mean"] for row in whole] + [row["gaussian_mean"] for row in whole]
    told, drawn = f", of noise of the same size {_range(nulls)}", min(row["n_draws"] for row in whole)
    if drawn < _DRAWS:
        return f"{told}; too few draws ({drawn}) to tell whether they are apart: take {_DRAWS} or more"
    near = [row["layer"] for row in whole if not _apart(row)]
    return told + (
        f"; not told from a null in layers {spans(near)}" if near else "; apart from both nulls in every layer"
    )


def _decided(whole: list[dict[str, Any]], plain: list[dict[str, Any]]) -> str:
    """The layers of which the rank is the number of documents: near its most, or growing nearly as that does."""
    n = whole[0]["n_snapshots"]
    half = {row["layer"]: row["h_star"] for row in plain if n // 2 <= row["n_snapshots"] <= (n + 1) // 2}
    growth = {row["layer"]: row["h_star"] / half[row["layer"]] for row in whole if half.get(row["layer"])}
    layers = [row["layer"] for row in whole if row["saturated"] or growth.get(row["layer"], 0) >= 2 * _GROWS]
    if not layers:
        return ""
    grown = [growth[layer] for layer in layers if layer in growth]
    how = f" (from half of them to all H* grows {_range(grown, 1)} times)" if grown else ""
    return f"; in layers {spans(layers)} the number of documents decides{how}"


def _range(values: list[float], digits: int = 0) -> str:
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return low if low == high else f"{low} to {high}"


def _apart(row: dict[str, Any]) -> bool:
    """Whether a rank is more than three standard deviations from both nulls."""
    scores = [row["z_lag_shuffle"], row["z_gaussian"]]
    return all(z is not None and abs(z) > _NOISE for z in scores)


_COHERENCY = """
select layer, avg(gamma::double) as gamma, avg(gamma_null::double) as gamma_null
from coherency where capture = '{}' and query_i < query_j group by layer having count(gamma) > 0 order by layer
"""


def coherency_lines(connection: DuckDBPyConnection, capture: str) -> Iterator[str]:
    """The layer whose rows go together most, beside permuted documents."""
    rows = run_sql(connection, _COHERENCY.format(capture.replace("'", "''"))).to_pylist()
    most = max(rows, key=lambda row: row["gamma"] - row["gamma_null"], default=None)
    if most is not None:
        yield (
            f"Query rows fluctuate together most in layer {most['layer']}: coherency {most['gamma']:.2f}, "
            f"with permuted documents {most['gamma_null']:.2f}."
        )
