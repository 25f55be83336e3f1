"""Selections of one document and layer as rows, and rows gathered to row groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from tasks.kernels.selection import Selection
    from tasks.kernels.sink_statistics import SinkStatistics
    from tasks.stages.contract import Rows

Columns = dict[str, Any]

_ROWS = 300_000
"""Rows of a row group at least, but the last: a document's may be a few hundred."""


@dataclass(frozen=True)
class Control:
    """Mean and standard deviation of F over the random rankings, by distance (H, Q, N); NaN where not drawn."""

    mean: Mapping[str, np.ndarray]
    sd: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, drawn: np.ndarray, by_distance: Mapping[str, np.ndarray], n_queries: int) -> Control:
        """From F (rankings, H, drawn, N) of the queries at the places given."""
        mean, sd = {}, {}
        for name, f in by_distance.items():
            draws, n_heads, _, n_sizes = f.shape
            mean[name], sd[name] = (np.full((n_heads, n_queries, n_sizes), np.nan, np.float32) for _ in range(2))
            mean[name][:, drawn] = f.mean(0)
            if draws > 1:
                sd[name][:, drawn] = f.std(0, ddof=1)
        return cls(mean, sd)


def selection_rows(
    selection: Selection, distance: str, queries: np.ndarray, sizes: Sequence[int], control: Control | None
) -> Columns:
    """The rows of one ranking, distance and sink, without the columns of these and of the place."""
    found, shape = selection.by_distance[distance], selection.mass.shape
    there = np.flatnonzero(np.broadcast_to(selection.defined, shape))
    nothing = np.float32(np.nan)
    euclidean = distance == "euclidean"
    figures: Columns = {
        "precision": found.precision,
        "recall": found.recall,
        "f_score": found.f_score,
        "inversions": found.inversions.astype(np.int32),
        "margin": found.margin,
        "mass": selection.mass,
        "random_f_mean": control.mean[distance] if control else nothing,
        "random_f_sd": control.sd[distance] if control else nothing,
        "certified_precision": selection.certified_precision if euclidean else nothing,
        "certified_recall": selection.certified_recall if euclidean else nothing,
    }
    _, n_queries, n_sizes = shape
    place, size = np.divmod(there, n_sizes)
    return {
        "head": (place // n_queries).astype(np.int32),
        "query": queries.astype(np.int32)[place % n_queries],
        "n": np.asarray(sizes, np.int32)[size],
        **{name: x.reshape(-1)[there] if x.ndim else np.broadcast_to(x, len(there)) for name, x in figures.items()},
    }


def statistics_rows(statistics: SinkStatistics, doc: int, layer: int, n_heads: int) -> Columns:
    """A row per query head: heads that share a key/value head share its values."""
    group = n_heads // len(statistics.norm_ratio)
    return {
        "doc": doc,
        "layer": layer,
        "head": np.arange(n_heads, dtype=np.int32),
        **{name: x.repeat_interleave(group).numpy() for name, x in vars(statistics).items()},
    }


class RowGroups:
    """Rows of one table, handed on in groups of at least _ROWS; text is kept as one word for a whole piece."""

    def __init__(self, rows: Rows, table: str) -> None:
        self._rows, self._table = rows, table
        self._pieces: list[tuple[Columns, int]] = []
        self._waiting = 0

    def add(self, columns: Columns) -> None:
        """Rows whose single values stand for every row of the piece."""
        n = len(columns["head"])
        self._pieces.append((columns, n))
        self._waiting += n
        if self._waiting >= _ROWS:
            self.flush()

    def flush(self) -> None:
        """Hand on what waits."""
        pieces, self._pieces, waiting, self._waiting = self._pieces, [], self._waiting, 0
        if waiting:
            counts = [n for _, n in pieces]
            names = pieces[0][0]
            self._rows.add(self._table, {name: _joined([c[name] for c, _ in pieces], counts) for name in names})


def _joined(values: list[Any], counts: list[int]) -> Any:
    """A column of pieces one after the other; single values are repeated, words as a dictionary."""
    if isinstance(values[0], np.ndarray):
        return np.concatenate(values)
    words, index = np.unique(np.asarray(values), return_inverse=True)
    repeated = np.repeat(index.astype(np.int32), counts)
    if isinstance(values[0], str):
        return pa.DictionaryArray.from_arrays(repeated, pa.array([str(word) for word in words]))
    return words.astype(np.int32)[repeated]
