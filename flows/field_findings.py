"""What the stages over ensembles of attention fields found: a few lines, from the named queries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from duckdb import DuckDBPyConnection

from storage.numbers import spans
from storage.warehouse import query, run_sql

_NOISE = 3.0
"""Standard deviations within which a rank is not told from a null's."""


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
    """Effective ranks of the layers' unfiltered fields, and in which of them they are told from noise."""
    rows = query(connection, "effective_rank", {"capture": capture, "whole": True}).to_pylist()
    whole = [row for row in rows if row["filter_scale"] is None and row["h_star"] is not None]
    if not whole:
        return
    n, ranks = whole[0]["n_snapshots"], [row["h_star"] for row in whole]
    told = f"Effective rank H*(0.10) of {n} documents' fields: {_range(ranks)} of at most {n - 1}"
    if all(row["n_draws"] for row in whole):
        nulls = [row["lag_shuffle_mean"] for row in whole] + [row["gaussian_mean"] for row in whole]
        near = [row["layer"] for row in whole if not _apart(row)]
        told += f", of noise of the same size {_range(nulls)}"
        told += f"; not told from a null in layers {spans(near)}" if near else "; apart from both nulls in every layer"
    saturated = [row["layer"] for row in whole if row["saturated"]]
    if saturated:
        told += f"; in layers {spans(saturated)} the number of documents decides"
    yield f"{told}."


def _range(values: list[float]) -> str:
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
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
