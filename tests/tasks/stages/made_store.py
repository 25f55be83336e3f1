"""A store in memory that holds made-up documents, and rows collected as the tables that they are declared to be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from storage.columns import as_column, row_count
from storage.store_shape import StoreShape
from storage.tensors import DocumentLayer
from tasks.stages.contract import StageContext
from tasks.stages.contributions.declaration import ContributionParameters
from tasks.stages.registry import stage, tables
from tests.tasks.kernels.documents import Document, random_document

WINDOWS = (None, 4)
CONTEXT = StageContext("key", seed=3)


@dataclass
class MemoryRows:
    """Collects rows as Arrow tables of the declared schemas, so a wrong name or type fails as it would on disk."""

    tables: dict[str, pa.Table] = field(default_factory=dict)
    row_groups: list[str] = field(default_factory=list)

    def add(self, table: str, columns: Mapping[str, Any]) -> None:
        spec = tables()[table]
        given = {"capture": "made-up", "stage_key": "key", **columns}
        assert set(given) == set(spec.schema.names)
        n_rows = row_count(table, columns)
        words = pa.dictionary(pa.int32(), pa.string())  # as text lies in the file
        schema = pa.schema([f.with_type(words) if pa.types.is_string(f.type) else f for f in spec.schema])
        arrays = [as_column(table, f, given[f.name], n_rows) for f in schema]
        part = pa.Table.from_arrays(arrays, schema=schema)
        self.tables[table] = pa.concat_tables([self.tables[table], part]) if table in self.tables else part
        self.row_groups.append(table)

    def rows(self, table: str, *key: str) -> dict[tuple[Any, ...], dict[str, Any]]:
        """Rows by their key; fails if two rows share one."""
        found = self.tables[table].to_pylist()
        by_key = {tuple(row[k] for k in key): row for row in found}
        assert len(by_key) == len(found)
        return by_key


@dataclass
class MemoryShard:
    """`layers[layer]` holds the document of each id."""

    documents: list[int]
    layers: Sequence[Mapping[int, Document]]

    def layer(self, layer: int, kinds: Sequence[str]) -> Iterator[DocumentLayer]:
        for doc in self.documents:
            made = self.layers[layer][doc]
            found = DocumentLayer(doc, layer, len(made.value))
            for kind in kinds:
                setattr(found, kind, getattr(made, kind))
            yield found


@dataclass
class MemoryStore:
    """Two layers, the second with a sliding window if it is causal, over documents of these lengths."""

    lengths: Sequence[int] = (13, 2, 7)
    learned_sink: bool = False
    causal: bool = True
    layers: list[dict[int, Document]] = field(init=False)

    def __post_init__(self) -> None:
        self.layers = []
        for layer, window in enumerate(self.windows):
            options = {"window": window, "learned_sink": self.learned_sink, "causal": self.causal}
            documents = {
                doc: random_document(10 * layer + doc, n_tokens=n, **options) for doc, n in enumerate(self.lengths)
            }
            for document in documents.values():
                document.projection = documents[0].projection
            self.layers.append(documents)

    @property
    def windows(self) -> tuple[int | None, ...]:
        return WINDOWS if self.causal else (None, None)

    @property
    def shape(self) -> StoreShape:
        kinds = ("attention", "value", "sink_mass") if self.learned_sink else ("attention", "value")
        return StoreShape(2, 4, 2, 11, 5, self.causal, dict.fromkeys(kinds, "float32"), self.windows)

    def weights(self, layer: int) -> tuple[torch.Tensor, None]:
        return self.layers[layer][0].projection, None

    def shard(self, *documents: int) -> MemoryShard:
        return MemoryShard(list(documents), self.layers)


@dataclass
class Run:
    rows: MemoryRows
    partial: dict[str, np.ndarray]
    quality: dict[str, int]


def run_stage(
    store: Any,
    shards: Sequence[Any],
    parameters: Any = None,
    context: StageContext = CONTEXT,
    name: str = "contributions",
) -> Run:
    """The stage as its runner does it: every shard, their partials combined in order, the end."""
    parameters = parameters or ContributionParameters(edges=4, resamples=50)
    steps, rows, quality = stage(name).steps, MemoryRows(), {}
    partials = []
    for shard in shards:
        partial, counts = steps.per_shard(store, shard, parameters, context, rows)
        partials.append(partial)
        quality = {name: quality.get(name, 0) + n for name, n in counts.items()}
    combined = reduce(steps.combine, partials) if hasattr(steps, "combine") else {}
    if hasattr(steps, "finish"):
        quality |= steps.finish(store, combined, parameters, context, rows)
    return Run(rows, combined, quality)
