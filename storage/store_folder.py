"""Files of a published part of the store: read whole, and checked against the manifest before they are believed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from storage.chunks import blocks, decode
from storage.errors import DamagedPart, MissingPart
from storage.layout import under, zarr_json
from storage.manifest import FileRecord, Manifest

_ArrayShape = tuple[tuple[int, ...], tuple[int, ...], np.dtype[Any]]
"""An array's shape, its chunks' shape, and its dtype."""

_REMEDY = "Run the same capture again: it rebuilds what is missing."


class StoreFolder:
    """One part's folder and the record that it was published with."""

    def __init__(self, manifest: Manifest, folder: str, record_path: str, what: str) -> None:
        self._fs, self._folder, self._what = manifest.fs, folder, what
        self._files = manifest.read_part(record_path).files
        self._arrays: dict[str, _ArrayShape] = {}  # what each array's description says, read once

    def where(self, name: str) -> str:
        return self._fs.absolute(under(self._folder, name))

    def has(self, name: str) -> bool:
        return under(self._folder, name) in self._files

    def read(self, name: str, what: str) -> tuple[bytes, FileRecord]:
        """A file's bytes and its record; MissingPart, naming what it holds, if either is not there."""
        path = under(self._folder, name)
        if path in self._files:
            try:
                return self._fs.read_bytes(path), self._files[path]
            except MissingPart:
                pass
        raise MissingPart(what, got="no file", where=self.where(name), remedy=_REMEDY)

    def json(self, name: str) -> dict[str, Any]:
        data, record = self.read(name, f"the description of {self._what}")
        if FileRecord.of(data) != record:
            raise DamagedPart(
                f"checksum {record.crc32c}",
                got="another",
                where=self.where(name),
                remedy="Delete it and capture again.",
            )
        content: dict[str, Any] = json.loads(data)
        return content

    def attributes(self, group: str) -> dict[str, Any]:
        attributes: dict[str, Any] = self.json(zarr_json(group))["attributes"]
        return attributes

    def layer(self, array: str, index: int, what: str) -> np.ndarray:
        """One layer of an array as stored, without its first axis, along which it is number `index`."""
        shape, chunk, dtype = self._array(array)
        out = np.empty(shape[1:], dtype)
        for name, part in blocks(shape, chunk, index):
            data, record = self.read(under(array, name), what)
            decode(data, record, out[part][None], chunk, what=what, where=self.where(under(array, name)))
        return out

    def _array(self, array: str) -> _ArrayShape:
        if array in self._arrays:
            return self._arrays[array]
        described = self.json(zarr_json(array))
        chunk = described["chunk_grid"]["configuration"]["chunk_shape"]
        dtype = np.dtype(described["data_type"]).newbyteorder("<")
        self._arrays[array] = tuple(described["shape"]), tuple(chunk), dtype
        return self._arrays[array]
