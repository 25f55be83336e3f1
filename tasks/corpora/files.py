"""Which files a corpus is: named files, folders and patterns, in an order that is the same everywhere."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from storage.errors import CorpusError, UsageError
from tasks.corpora.topics import PYTHON_TOPICS, python_topics

KINDS = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".raw": "text",
    "": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".conllu": "conllu",
}
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
DIGEST_VERSION = 1
"""Raised whenever the same files would be read as other texts."""


@dataclass(frozen=True)
class CorpusFile:
    """One file of a corpus and how to read it."""

    path: Path
    name: str
    """Its path below the folder or pattern that found it: what rows in tables call it, on any machine."""
    kind: str
    """text, jsonl, parquet or conllu; `topics` for the text that Python carries, which has no file."""
    compression: str | None

    def place(self, line: int | None = None) -> str:
        """How an error names it."""
        return str(self.path) if line is None else f"{self.path}, line {line}"


def expand(paths: Sequence[str]) -> list[CorpusFile]:
    """Every file that the names stand for: files in the order given, folders and patterns in sorted order.

    A folder gives every file below it whose suffix is known; hidden files, and files without a suffix (licences,
    checksums), are taken only when named. A pattern (`*`, `?`, `[…]`, `**`) gives the files it matches.

    Raises: UsageError (nothing named; object storage), CorpusError (no such file, none of a known kind).
    """
    if not paths:
        raise UsageError("at least one corpus", got="none", remedy="Give --corpus a file, a folder or a pattern.")
    return [file for path in paths for file in _expand_one(path)]


def _expand_one(path: str) -> list[CorpusFile]:
    if not path.strip():
        raise UsageError("a corpus", got=f"'{path}'", where="--corpus", remedy="Give a file, a folder or a pattern.")
    if path == PYTHON_TOPICS:
        return [CorpusFile(Path(PYTHON_TOPICS), PYTHON_TOPICS, "topics", None)]
    if "://" in path:
        raise UsageError(
            "a corpus in files of this machine", got=f"'{path}'", remedy="Object storage is not in this version."
        )
    place = Path(path).expanduser()
    if place.is_dir():
        found = [p for p in sorted(place.rglob("*")) if p.is_file() and not _hidden(p, place) and _known(p)]
        files = [_file(p, p.relative_to(place).as_posix()) for p in found]
    elif place.is_file():
        files = [_file(place, place.name)]
    elif glob.has_magic(path):
        root = _fixed_part(place)
        matched = sorted(Path(p) for p in glob.glob(str(place), recursive=True))  # noqa: PTH207 (keeps `**` and `~`)
        files = [_file(p, p.relative_to(root).as_posix()) for p in matched if p.is_file()]
    else:
        raise _absent(place)
    if not files:
        raise CorpusError("at least one file of text", got="none", where=path, remedy=f"Known suffixes: {_suffixes()}.")
    return files


def _absent(place: Path) -> CorpusError:
    beside = sorted(p.name for p in place.parent.iterdir()) if place.parent.is_dir() else None
    if beside is None:
        remedy = f"The folder {place.parent} is not there either."
    elif near := get_close_matches(place.name, beside, n=1, cutoff=0.4):
        remedy = f"Did you mean '{near[0]}'?"
    else:
        remedy = f"Nothing in {place.parent} has a name like it."
    return CorpusError(f"a file, a folder, a pattern or '{PYTHON_TOPICS}'", got=f"'{place}', not there", remedy=remedy)


def _hidden(path: Path, below: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(below).parts)


def _fixed_part(pattern: Path) -> Path:
    """The folder in front of the first wildcard."""
    fixed = Path()
    for part in pattern.parts[:-1]:
        if glob.has_magic(part):
            break
        fixed /= part
    return fixed


def _split(path: Path) -> tuple[str, str | None]:
    """(suffix without compression, compression): `a.jsonl.gz` → (.jsonl, gzip)."""
    compression = COMPRESSIONS.get(path.suffix.lower())
    inner = path.with_suffix("") if compression else path
    return inner.suffix.lower(), compression


def _known(path: Path) -> bool:
    suffix, _ = _split(path)
    return bool(suffix) and suffix in KINDS


def _suffixes() -> str:
    return f"{', '.join(s for s in KINDS if s)}, each but .parquet also with {' or '.join(COMPRESSIONS)}"


def _file(path: Path, name: str) -> CorpusFile:
    suffix, compression = _split(path)
    kind = KINDS.get(suffix)
    if kind is None or (kind == "parquet" and compression):
        raise CorpusError(
            f"a file of a known kind ({_suffixes()})",
            got=f"'{path.name}'",
            where=str(path.parent),
            remedy="Rename it to what it holds; .txt reads any text as one document.",
        )
    return CorpusFile(path, name, kind, compression)


def corpus_digest(paths: Sequence[str], field: str | None) -> str:
    """SHA-256 (64 hex digits) of what a corpus says: every file's bytes and kind in reading order, and the field.

    Names and places of files do not enter it: the same bytes elsewhere are the same corpus.
    """
    whole = hashlib.sha256(f"theodolite corpus {DIGEST_VERSION}\0{field or ''}\0".encode())
    for file in expand(paths):
        whole.update(f"{file.kind}\0{file.compression or ''}\0".encode())
        whole.update(_topics_digest() if file.kind == "topics" else _bytes_digest(file))
    return whole.hexdigest()


def _topics_digest() -> bytes:
    text = "\0".join(f"{topic}\0{text}" for topic, text in python_topics())
    return hashlib.sha256(text.encode()).digest()


def _bytes_digest(file: CorpusFile) -> bytes:
    try:
        with file.path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").digest()
    except OSError as error:
        raise unreadable(file, error) from error


def unreadable(file: CorpusFile, error: Exception, line: int | None = None) -> CorpusError:
    """The error for a file that the machine or its decompressor cannot read."""
    return CorpusError(
        f"a readable {file.compression or file.kind} file",
        got=str(error),
        where=file.place(line),
        remedy="The file is cut off, damaged or closed to you: fetch it again, or leave it out.",
    )
