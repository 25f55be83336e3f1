"""An answer as a file: CSV, JSON or Parquet, put in place whole."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from flows.console import plain
from storage.errors import StorageReadOnly, StoreError, UsageError
from storage.os_errors import translate_os_errors

OPTION = "--output"


def check_output(path: str) -> None:
    """Refuse, before anything is asked, a file that could not be written: UsageError says why and what to do."""
    file = Path(path)
    if file.suffix.lower() not in _WRITERS:
        raise UsageError(
            f"a file that ends in {', '.join(_WRITERS)}",
            got=f"'{path}'",
            where=OPTION,
            remedy="The ending says what is written.",
        )
    if file.is_dir():
        raise UsageError("a file", got="a folder", where=path, remedy=f"Name a file in it with {OPTION}.")
    if not file.parent.is_dir():
        got = "a file" if file.parent.exists() else "nothing there"
        remedy = f"Make it, or name another place with {OPTION}."
        raise UsageError("a folder to write into", got=got, where=str(file.parent), remedy=remedy)


def write_answer(answer: pa.Table, path: str) -> None:
    """Write an answer in the format of the ending of `path`, replacing what is there by rename.

    Raises what `check_output` raises, StorageFull, and StoreError where the place cannot be written.
    """
    check_output(path)
    file = Path(path)
    scratch = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with _told(path):
            _WRITERS[file.suffix.lower()](answer, str(scratch))
            scratch.replace(file)
    finally:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)


@contextmanager
def _told(path: str) -> Iterator[None]:
    """A refusal of the operating system or of DuckDB, in the family's words."""
    try:
        with translate_os_errors(path):
            yield
    except (StorageReadOnly, duckdb.IOException) as error:
        raise _refused(path, "no leave to write there", error) from error
    except StoreError:
        raise
    except OSError as error:
        raise _refused(path, error.strerror or str(error), error) from error


def _refused(path: str, got: str, error: Exception) -> StoreError:
    kind = StorageReadOnly if isinstance(error, StorageReadOnly) else StoreError
    got = str(error).splitlines()[0] if isinstance(error, duckdb.Error) else got
    return kind("a place that can be written", got=got, where=path, remedy=f"Name another file with {OPTION}.")


def _write_csv(answer: pa.Table, path: str) -> None:
    """As DuckDB writes it: a header, NULL as nothing, lists as text."""
    with duckdb.connect() as connection:
        connection.register("answer", answer)
        connection.table("answer").write_csv(path, header=True)


def _write_json(answer: pa.Table, path: str) -> None:
    """An array with one object for each row, as `--json` has them under `rows`: NaN is null."""
    rows = (json.dumps(row, default=str, allow_nan=False) for row in plain(answer.to_pylist()))
    Path(path).write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")


def _write_parquet(answer: pa.Table, path: str) -> None:
    pq.write_table(answer, path)


_WRITERS: dict[str, Callable[[pa.Table, str], None]] = {
    ".csv": _write_csv,
    ".json": _write_json,
    ".parquet": _write_parquet,
}
