"""Which files a corpus is: named files, folders and patterns, in an order that is the same everywhere."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import BinaryIO

from storage.errors import CorpusError, UsageError, nearest
from tasks.corpora import hub, objects
from tasks.corpora.folders import matching, walk
from tasks.corpora.hub import HubDataset
from tasks.corpora.objects import StoredObject
from tasks.corpora.topics import PYTHON_TOPICS, python_topics
from tasks.progress import told_digest

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
IMAGES = {
    ".png": "image",
    ".jpg": "image",
    ".jpeg": "image",
    ".webp": "image",
    ".bmp": "image",
    ".npy": "array",
}
KINDS_OF = {"text": KINDS, "images": IMAGES}
"""What the model reads → suffix → kind of file."""
_OTHERS = {
    "text": "This model reads text; images need one that reads them, such as ViT or DINOv2.",
    "images": "This model reads images; text needs one that reads it.",
}
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
DIGEST_VERSION = 1
"""Raised whenever the same files would be read as other texts."""


@dataclass(frozen=True)
class CorpusFile:
    """One file of a corpus and how to read it."""

    path: PurePath
    """Where it lies on this machine; of an object, its key."""
    name: str
    """Its path below the folder, prefix or pattern that found it: what rows in tables call it, on any machine."""
    kind: str
    """text, jsonl, parquet, conllu, image or array; `topics` for the text that Python carries and `dataset` for one of
    the hub, which have no file."""
    compression: str | None
    origin: StoredObject | HubDataset | None = None
    """Where it comes from if not from this machine."""

    def place(self, line: int | None = None) -> str:
        """How an error names it."""
        where = self.origin.url if isinstance(self.origin, StoredObject) else str(self.origin or self.path)
        return where if line is None else f"{where}, line {line}"

    def open(self) -> BinaryIO:
        """Its bytes as they lie. Raises CorpusError where it cannot be read."""
        if isinstance(self.origin, StoredObject):
            return self.origin.open()
        try:
            return Path(self.path).open("rb")
        except OSError as error:
            raise unreadable(self, error) from error

    def size(self) -> int:
        """Its bytes as they lie, compressed if it is; 0 for what has no file. Raises CorpusError."""
        if isinstance(self.origin, StoredObject):
            return self.origin.size
        if self.kind in ("topics", "dataset"):
            return 0
        try:
            return Path(self.path).stat().st_size
        except OSError as error:
            raise unreadable(self, error) from error


def expand(paths: Sequence[str], reads: str = "text") -> list[CorpusFile]:
    """Every file that the names stand for: files in the order given, folders and patterns in sorted order.

    reads: text or images, whichever the model does. A folder gives every file of that below it whose suffix is known;
    hidden files, and files without a suffix (licences, checksums), are taken only when named. A pattern (`*`, `?`,
    `[…]`, `**`) gives the files it matches. Links are followed, each folder once. `s3://bucket/prefix` does for objects
    what a folder does for files.

    Raises: UsageError (nothing named; a package that is not installed), CorpusError (no such file, none of a known
    kind, a folder that cannot be read, a link that leads nowhere).
    """
    if not paths:
        raise UsageError("at least one corpus", got="none", remedy="Give --corpus a file, a folder or a pattern.")
    return [file for path in paths for file in _expand_one(path, reads)]


def _expand_one(path: str, reads: str) -> list[CorpusFile]:
    if not path.strip():
        raise UsageError("a corpus", got=f"'{path}'", where="--corpus", remedy="Give a file, a folder or a pattern.")
    if reads == "images" and (path == PYTHON_TOPICS or path.startswith(hub.SCHEME)):
        expected = "images: files, folders, patterns or objects"
        raise CorpusError(expected, got=f"'{path}', which is text", where="--corpus", remedy=_OTHERS[reads])
    if path == PYTHON_TOPICS:
        return [CorpusFile(Path(PYTHON_TOPICS), PYTHON_TOPICS, "topics", None)]
    if path.startswith(hub.SCHEME):
        dataset = hub.parse(path)
        return [CorpusFile(PurePath(path), dataset.source, "dataset", None, dataset)]
    files = _objects(path, reads) if path.startswith(objects.SCHEME) else _local(path, reads)
    if not files:
        wanted = {"text": "at least one file of text", "images": "at least one image"}[reads]
        remedy = f"{_OTHERS[reads]} Known suffixes: {_suffixes(reads)}."
        raise CorpusError(wanted, got="none", where=path, remedy=remedy)
    return files


def _objects(url: str, reads: str) -> list[CorpusFile]:
    found = [(PurePosixPath(name), o) for name, o in objects.find(url)]
    if not (len(found) == 1 and found[0][1].url == url):
        found = [(name, o) for name, o in found if not _hidden(name) and (glob.has_magic(url) or _known(name, reads))]
    return [_file(PurePosixPath(o.key), str(name), reads, o) for name, o in found]


def _local(path: str, reads: str) -> list[CorpusFile]:
    if "://" in path:
        raise UsageError(
            f"files of this machine, {objects.SCHEME}BUCKET/PREFIX or {hub.SCHEME}NAME",
            got=f"'{path}'",
            where="--corpus",
            remedy="Other addresses are not read: fetch it first.",
        )
    place = Path(path).expanduser()
    if place.is_dir():
        found = [p for p in walk(place) if not _hidden(p.relative_to(place)) and _known(p, reads)]
        return [_file(_there(p), p.relative_to(place).as_posix(), reads) for p in found]
    if place.is_file():
        return [_file(place, place.name, reads)]
    if glob.has_magic(path):
        root = _fixed_part(place)
        return [_file(_there(p), p.relative_to(root).as_posix(), reads) for p in matching(place) if not p.is_dir()]
    raise _absent(place)


def _absent(place: Path) -> CorpusError:
    beside = sorted(p.name for p in place.parent.iterdir()) if place.parent.is_dir() else None
    if beside is None:
        remedy = f"The folder {place.parent} is not there either."
    elif near := nearest(place.name, beside):
        remedy = f"Did you mean '{near}'?"
    else:
        remedy = f"Nothing in {place.parent} has a name like it."
    return CorpusError(f"a file, a folder, a pattern or '{PYTHON_TOPICS}'", got=f"'{place}', not there", remedy=remedy)


def _hidden(path: PurePath) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _there(path: Path) -> Path:
    """Itself, if it is a file: left out without a word, it would not be missed."""
    if path.is_file():
        return path
    raise CorpusError(
        "a file",
        got="a link that leads nowhere" if path.is_symlink() else "something else",
        where=str(path),
        remedy="Mend or remove it, or name the files that you mean.",
    )


def _fixed_part(pattern: Path) -> Path:
    """The folder in front of the first wildcard."""
    fixed = Path()
    for part in pattern.parts[:-1]:
        if glob.has_magic(part):
            break
        fixed /= part
    return fixed


def _split(path: PurePath) -> tuple[str, str | None]:
    """(suffix without compression, compression): `a.jsonl.gz` → (.jsonl, gzip)."""
    compression = COMPRESSIONS.get(path.suffix.lower())
    inner = path.with_suffix("") if compression else path
    return inner.suffix.lower(), compression


def _known(path: PurePath, reads: str) -> bool:
    suffix, compression = _split(path)
    return bool(suffix) and suffix in KINDS_OF[reads] and not (reads == "images" and compression)


def _suffixes(reads: str) -> str:
    listed = ", ".join(suffix for suffix in KINDS_OF[reads] if suffix)
    return listed if reads == "images" else f"{listed}, each but .parquet also with {' or '.join(COMPRESSIONS)}"


def _file(path: PurePath, name: str, reads: str, origin: StoredObject | None = None) -> CorpusFile:
    suffix, compression = _split(path)
    kind = KINDS_OF[reads].get(suffix)
    if kind is None or (compression and kind in ("parquet", "image", "array")):
        other = any(suffix in kinds for kinds in KINDS_OF.values() if kinds is not KINDS_OF[reads])
        rename = "Rename it to what it holds; .txt reads any text as one document."
        raise CorpusError(
            f"a file of a known kind ({_suffixes(reads)})",
            got=f"'{path.name}'",
            where=str(path.parent) if origin is None else origin.url,
            remedy=_OTHERS[reads] if other or reads == "images" else rename,
        )
    return CorpusFile(path, name, kind, compression, origin)


def files_digest(files: Sequence[CorpusFile], field: str | None) -> str:
    """SHA-256 (64 hex digits) of what a corpus says: every file's bytes and kind in reading order, and the field.

    Names and places of files do not enter it: the same bytes elsewhere are the same corpus. Of an object its size and
    ETag stand for its bytes, of a data set of the hub its revision.
    """
    whole = hashlib.sha256(f"theodolite corpus {DIGEST_VERSION}\0{field or ''}\0".encode())
    for file in files:
        whole.update(f"{file.kind}\0{file.compression or ''}\0".encode())
        whole.update(_content_digest(file))
    return whole.hexdigest()


def _content_digest(file: CorpusFile) -> bytes:
    if file.kind == "topics":
        text = "\0".join(f"{topic}\0{text}" for topic, text in python_topics())
    elif isinstance(file.origin, StoredObject):
        text = f"object\0{file.origin.size}\0{file.origin.tag}"
    elif isinstance(file.origin, HubDataset):
        text = file.origin.revision()
    else:
        return _bytes_digest(file)
    return hashlib.sha256(text.encode()).digest()


def _bytes_digest(file: CorpusFile) -> bytes:
    try:
        with file.open() as stream:
            return told_digest(stream)
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
