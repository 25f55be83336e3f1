"""Corpora in object storage: `s3://bucket/key`, `s3://bucket/prefix` and patterns, through the package obstore.

An object enters a corpus's digest by its size and ETag, so that nothing is fetched twice: an object that is written
anew, or elsewhere, makes another capture.
"""

from __future__ import annotations

import glob
import io
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol

from storage.errors import CorpusError, UsageError

SCHEME = "s3://"
_REMEDY = "Keys, region and endpoint are read from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT."
READ_AHEAD = 8 << 20
"""Bytes asked of object storage at once: few requests, and little that is read in vain."""


class Bucket(Protocol):
    """What a corpus needs of a bucket."""

    def list(self, prefix: str) -> Iterable[tuple[str, int, str]]:
        """(key, bytes, ETag) of every object below a prefix that ends at a slash, or of all (""), in any order."""

    def head(self, key: str) -> tuple[str, int, str] | None:
        """(key, bytes, ETag) of one object; None where there is none."""

    def fetch(self, key: str, start: int, stop: int) -> bytes:
        """Bytes from `start` to before `stop` of an object."""


class Ranges(io.RawIOBase):
    """A file whose bytes are fetched by range; wrap it in a buffer, or every small read is a request.

    fetch: (first byte, byte after the last) → those bytes.
    """

    def __init__(self, size: int, fetch: Callable[[int, int], bytes]) -> None:
        self._size, self._fetch, self._at = size, fetch, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, origin + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        stop = min(self._at + len(buffer), self._size)
        if stop <= self._at:
            return 0
        data = self._fetch(self._at, stop)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


@dataclass(frozen=True)
class StoredObject:
    """One object of a corpus."""

    url: str
    key: str
    size: int
    tag: str
    bucket: Bucket = field(compare=False, repr=False)

    def open(self) -> BinaryIO:
        """Its bytes, fetched as they are read. Raises CorpusError while reading where the storage does not answer."""
        return io.BufferedReader(Ranges(self.size, lambda a, b: self.bucket.fetch(self.key, a, b)), READ_AHEAD)


class ObstoreBucket:
    """A bucket through any store of obstore."""

    def __init__(self, store: Any, url: str) -> None:
        self._store, self._url = store, url

    def list(self, prefix: str) -> Iterator[tuple[str, int, str]]:
        import obstore

        with _answered(self._url):
            for batch in obstore.list(self._store, prefix=prefix or None):
                yield from ((entry["path"], entry["size"], _tag(entry)) for entry in batch)

    def head(self, key: str) -> tuple[str, int, str] | None:
        import obstore

        with _answered(self._url):
            try:
                entry = obstore.head(self._store, key)
            except FileNotFoundError:
                return None
        return entry["path"], entry["size"], _tag(entry)

    def fetch(self, key: str, start: int, stop: int) -> bytes:
        import obstore

        with _answered(f"{self._url}/{key}"):
            return bytes(obstore.get_range(self._store, key, start=start, end=stop))


def _tag(entry: Any) -> str:
    return str(entry["e_tag"] or entry["version"] or entry["last_modified"])


@contextmanager
def _answered(where: str) -> Iterator[None]:
    import obstore.exceptions

    try:
        yield
    except (obstore.exceptions.BaseError, OSError) as error:
        got = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CorpusError("object storage that answers", got=got, where=where, remedy=_REMEDY) from error


def open_bucket(name: str) -> Bucket:
    """The bucket of that name. UsageError where obstore is not installed; nothing is asked of the network yet."""
    url = f"{SCHEME}{name}"
    try:
        import obstore.store
    except ImportError as error:
        raise UsageError(
            "the package obstore, which reads object storage",
            got="none",
            where=url,
            remedy="pip install 'theodolite[s3]', or give files of this machine.",
        ) from error
    with _answered(url):
        return ObstoreBucket(obstore.store.from_url(url), url)


def find(url: str) -> list[tuple[str, StoredObject]]:
    """(name below the prefix, object) for an object, a prefix or a pattern, sorted by key.

    Raises UsageError (no bucket named, no obstore), CorpusError (the storage does not answer).
    """
    name, _, path = url.removeprefix(SCHEME).partition("/")
    if not name:
        raise UsageError("a bucket", got=f"'{url}'", where="--corpus", remedy="Write s3://BUCKET/PREFIX.")
    bucket, path = open_bucket(name), path.rstrip("/")

    def found(entries: Iterable[tuple[str, int, str]], root: str) -> list[tuple[str, StoredObject]]:
        objects = [StoredObject(f"{SCHEME}{name}/{key}", key, size, tag, bucket) for key, size, tag in sorted(entries)]
        return [(o.key[len(root) :], o) for o in objects]

    if path and not glob.has_magic(path):
        if (whole := bucket.head(path)) is not None:
            return found([whole], path.rpartition("/")[0] + "/" if "/" in path else "")
        return found(bucket.list(f"{path}/"), f"{path}/")
    if not path:
        return found(bucket.list(""), "")
    fixed = re.split(r"[^/]*[*?\[]", path, maxsplit=1)[0]
    matching = re.compile(_pattern(path))
    return found((entry for entry in bucket.list(fixed) if matching.fullmatch(entry[0])), fixed)


def _pattern(path: str) -> str:
    """A pattern as glob means it, as a regular expression: `**/` any folders, `*` and `?` inside one name."""
    parts = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    tokens = re.split(r"(\*\*/|\*\*|\*|\?|\[!?[^\]]+\])", path)
    translated = [
        parts.get(token) or (token.replace("[!", "[^") if token[:1] == "[" else re.escape(token)) for token in tokens
    ]
    return "".join(translated)
