"""Bytes of a corpus file as text: in pieces, or one line at a time, decompressed on the way.

Decompression is Arrow's: unlike the zstandard package's reader, it refuses a stream that ends too early.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator

import pyarrow as pa

from storage.errors import CorpusError
from tasks.corpora.files import CorpusFile, unreadable
from tasks.corpora.streams import opened

BUFFER = 1 << 20


def read_chunks(file: CorpusFile) -> Iterator[str]:
    """The text of a file a buffer at a time, its line ends as they are; a byte-order mark in front is dropped."""
    decoder, line = codecs.getincrementaldecoder("utf-8-sig")(), 1
    for data in _chunks(file):
        try:
            text = decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise _not_utf8(file, line + error.object.count(b"\n", 0, error.start), error) from error
        line += text.count("\n")
        yield text


def _chunks(file: CorpusFile) -> Iterator[bytes]:
    """Its bytes, and b"" at the end."""
    data = b" "
    try:
        with opened(file) as source, pa.input_stream(source, compression=file.compression) as stream:
            while data:
                data = stream.read(BUFFER)
                yield data
    except OSError as error:  # Arrow's own refusals are OSError too
        raise unreadable(file, error) from error


def read_lines(file: CorpusFile) -> Iterator[tuple[int, str]]:
    """(line number from 1, line without its end), never more of the file in memory than a buffer and the line."""
    lines = _raw_lines(file)
    for number, line in enumerate(lines, start=1):
        try:
            yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise _not_utf8(file, number, error) from error


def _raw_lines(file: CorpusFile) -> Iterator[bytes]:
    number = 0
    try:
        with opened(file) as source, pa.input_stream(source, compression=file.compression) as stream:
            for line in io.BufferedReader(stream, BUFFER):
                number += 1
                yield line
    except OSError as error:
        raise unreadable(file, error, number + 1) from error


def _not_utf8(file: CorpusFile, line: int, error: UnicodeDecodeError) -> CorpusError:
    return CorpusError(
        "text in UTF-8",
        got=f"byte 0x{error.object[error.start]:02x} ({error.reason})",
        where=file.place(line),
        remedy="Convert the file, for example with `iconv -f LATIN1 -t UTF-8`.",
    )
