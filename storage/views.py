"""The text of the warehouse's views: a file of `sql/views` over a literal list of Parquet files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

import sql
from storage.catalog import Run, TablePart
from storage.errors import StoreError
from storage.filesystem import Filesystem
from storage.tables import TableSpec

_TYPES = {
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "varchar",
    pa.bool_(): "boolean",
}
_NOT_FOLDED = "random() >= 0"
"""Always true, but not known to the optimiser: what stands behind it cannot be moved or left out."""


def create_view(fs: Filesystem, name: str, spec: TableSpec, parts: Sequence[TablePart], runs: Iterable[Run]) -> str:
    """The statement that creates view `name` of the table over these parts.

    The view's own text reads `parts` (rows as they lie in the files) and may read `current_keys` (the runs given).
    A part that is lost or damaged becomes a branch that raises its error: a query that could have rows of that capture
    fails and names the file; a query for another capture does not.
    """
    branches = [
        _empty(spec),
        *_reads(fs, parts),
        *(_failure(spec, part, part.problem) for part in parts if part.problem),
    ]
    return (
        f"create or replace view {name} as\n"
        f"with parts as (\n{_UNION.join(branches)}\n),\n"
        f"current_keys as (\n{_keys(runs)}\n)\n"
        f"select * from (\n{sql.read('views', spec.name).body}\n)"
    )


_UNION = "\nunion all by name\n"


def _empty(spec: TableSpec) -> str:
    """No rows, but every column with its type: what a table without parts is, and what older files are filled up to."""
    columns = ", ".join(f"cast(null as {_TYPES[f.type]}) as {f.name}" for f in spec.schema)
    return f"select {columns} where false"


def _reads(fs: Filesystem, parts: Sequence[TablePart]) -> list[str]:
    """The sound parts: one scan for each version of their stage, since a version may have columns of its own."""
    sound = [part for part in parts if not part.problem]
    versions = sorted({(part.run.stage, part.run.version) for part in sound})
    scans = []
    for version in versions:
        chosen = [part.path for part in sound if (part.run.stage, part.run.version) == version]
        paths = ", ".join(file_literal(fs.absolute(path)) for path in chosen)
        scans.append(f"select * from read_parquet([{paths}], hive_partitioning = false)")
    return scans


def _failure(spec: TableSpec, part: TablePart, problem: StoreError) -> str:
    """The rows that cannot be read: only capture and key are known, and all else raises.

    Every other column raises too, lest the optimiser prove from a filter that no row can pass and skip the branch.
    """
    known = {"capture": text_literal(part.run.capture), "stage_key": text_literal(part.run.key)}
    message = text_literal(f"{type(problem).__name__}: {problem}")
    columns = ", ".join(f"{known.get(f.name) or _raise(message, _TYPES[f.type])} as {f.name}" for f in spec.schema)
    return f"select {columns} where {_raise(message, 'boolean')}"


def _raise(message: str, kind: str) -> str:
    return f"case when {_NOT_FOLDED} then cast(error({message}) as {kind}) end"


def _keys(runs: Iterable[Run]) -> str:
    rows = [f"({text_literal(r.capture)}, {text_literal(r.stage)}, {text_literal(r.key)})" for r in runs]
    # The first row gives the types and is never shown.
    values = ", ".join(["('', '', '')", *rows])
    return f"select * from (values {values}) as keys(capture, stage, key) where key <> ''"


def text_literal(text: str) -> str:
    """Text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


def file_literal(path: str) -> str:
    """A path as DuckDB takes it for that very file: a character that would make it a pattern stands in brackets."""
    return text_literal("".join(f"[{c}]" if c in "*?[" else c for c in path))


def comments(name: str, spec: TableSpec) -> list[str]:
    """The statements that give view `name` and its columns their meaning, as the comments of its file state it."""
    view = sql.read("views", spec.name)
    on_columns = [
        f"comment on column {name}.{column} is {text_literal(meaning)}"
        for column, meaning in view.column_meanings().items()
    ]
    return [f"comment on view {name} is {text_literal(f'{view.summary} Grain: {view.grain}.')}", *on_columns]
