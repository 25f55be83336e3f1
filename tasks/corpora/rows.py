"""Corpora of rows: JSON Lines, Parquet and data sets of the hub, one document a row, its text in a field."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import CorpusError, UnknownName, UsageError
from tasks.corpora.files import CorpusFile, unreadable
from tasks.corpora.hub import HubDataset
from tasks.corpora.lines import read_lines
from tasks.corpora.streams import opened

DEFAULT_FIELD = "text"
ROWS_AT_ONCE = 1024
JOIN = "+"
"""Between the names of fields that are one text together, a line break between them: question+answer."""


def choose_fields(wanted: str | None, fields: Mapping[str, bool], where: str) -> tuple[str, ...]:
    """The fields that hold the text: one as `choose_field` says, or those that a wish joins by +.

    A field whose own name has a + in it is that field. Raises what `choose_field` does.
    """
    several = wanted is not None and JOIN in wanted and wanted not in fields
    names = wanted.split(JOIN) if wanted is not None and several else [wanted]
    return tuple(choose_field(name, fields, where) for name in names)


def joined(texts: Iterable[str | None]) -> str:
    """The text of several fields: one a line or more, what is empty left out."""
    return "\n".join(text for text in texts if text)


def choose_field(wanted: str | None, fields: Mapping[str, bool], where: str) -> str:
    """The field that holds the text.

    fields: name → whether it holds a string. Without a wish: `text` if there, else the only string field.
    Raises: UnknownName (no such field; names the nearest), UsageError (several string fields, or none).
    """
    strings = [name for name, is_string in fields.items() if is_string]
    if wanted is not None:
        if wanted not in fields:
            raise UnknownName.among("field", wanted, fields, where=where)
        if wanted not in strings:
            raise UsageError(
                "a field that holds text", got=f"'{wanted}', which does not", where=where, remedy=_choose(strings)
            )
        return wanted
    if DEFAULT_FIELD in strings:
        return DEFAULT_FIELD
    if len(strings) != 1:
        raise UsageError(
            f"a field named '{DEFAULT_FIELD}', or one string field alone",
            got=f"the fields {', '.join(fields) or '(none)'}",
            where=where,
            remedy=_choose(strings),
        )
    return strings[0]


def _choose(strings: list[str]) -> str:
    return f"Choose with --field one of: {', '.join(strings)}." if strings else "No field of it holds text."


_ANOTHER = "Mend or remove that line, or choose another field with --field."


def read_jsonl(file: CorpusFile, wanted: str | None) -> Iterator[tuple[str, str]]:
    """(text, place) of every line; blank lines are passed over, a null is an empty text."""
    fields: tuple[str, ...] = ()
    for number, line in read_lines(file):
        if not line.strip():
            continue
        row = parse_row(file, number, line)
        if not fields:
            likely = (wanted, *(wanted or "").split(JOIN), DEFAULT_FIELD)  # a null there may be a text that is missing
            kinds = {name: isinstance(v, str) or (v is None and name in likely) for name, v in row.items()}
            fields = choose_fields(wanted, kinds, file.place(number))
        for field in fields:
            if field not in row:
                raise UnknownName.among("field", field, row, where=file.place(number))
        texts = (text_in(file, number, field, row[field], _ANOTHER) for field in fields)
        yield joined(texts), f"{file.name}:{number}"


def parse_row(file: CorpusFile, number: int, line: str) -> dict[str, Any]:
    """The object of one line. Raises CorpusError naming the line."""
    remedy = "Each line holds one JSON object; mend or remove that line."
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        got = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise CorpusError("a JSON object", got=got, where=file.place(number), remedy=remedy) from error
    if not isinstance(row, dict):
        raise CorpusError("a JSON object", got=f"a {type(row).__name__}", where=file.place(number), remedy=remedy)
    return row


_MEND = "Mend or remove that line."


def text_in(file: CorpusFile, number: int, field: str, value: object, remedy: str = _MEND) -> str:
    """The text of a row's field, a null as an empty one. Raises CorpusError naming the line, and the remedy for a value
    that is no text: where fields can be chosen it is another one."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise CorpusError(
            f"a string in the field '{field}'",
            got=f"a {type(value).__name__}",
            where=file.place(number),
            remedy=remedy,
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:  # JSON may escape half of a surrogate pair, which is no character
        raise CorpusError(
            f"text in the field '{field}'",
            got=f"half a surrogate pair at character {error.start}",
            where=file.place(number),
            remedy=_MEND,
        ) from error
    return value


def read_parquet(file: CorpusFile, wanted: str | None) -> Iterator[tuple[str, str]]:
    """(text, place) of every row, a batch of rows in memory at a time; a null is an empty text."""
    row = 0
    try:
        with opened(file) as stream, pq.ParquetFile(stream) as source:
            kinds = {column.name: _holds_text(column.type) for column in source.schema_arrow}
            fields = choose_fields(wanted, kinds, file.place())
            for batch in source.iter_batches(ROWS_AT_ONCE, columns=list(fields)):
                for texts in zip(*(batch.column(field).to_pylist() for field in fields), strict=True):
                    yield joined(texts), f"{file.name}:{row}"
                    row += 1
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise unreadable(file, error) from error


def _holds_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def read_dataset(file: CorpusFile, wanted: str | None) -> Iterator[tuple[str, str]]:
    """(text, place) of every row of a data set of the hub, as they arrive; a null is an empty text."""
    assert isinstance(file.origin, HubDataset)
    kinds, rows = file.origin.rows()
    fields = choose_fields(wanted, kinds, file.place())
    for number, row in enumerate(rows):
        yield joined(row[field] for field in fields), f"{file.name}:{number}"
