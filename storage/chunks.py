"""Chunks of the activation store as Zarr 3 files: what zarr-python reads, written without its event loop.

A chunk is a layer of a batch (lz4 on bit-shuffled bytes, then CRC-32C). zarr-python reads a missing chunk as the fill
value, and takes 0.5 to 1 ms a chunk more, on cores that the model wants. So bytes are compressed here, and zarr-python
writes the metadata alone. The tests read every kind back through zarr-python.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np
from numcodecs import Blosc, blosc

from storage.errors import DamagedPart
from storage.layout import chunk_name
from storage.manifest import SEAL_BYTES, Checksum, FileRecord

CHUNK_BYTES = 64 << 20
"""Most bytes of a chunk before compression: a larger layer is split along its next axes."""

_LEVEL = 5
_REMEDY = "Delete this file and run the same capture again: it rebuilds the shard."

blosc.use_threads = False  # the model, or other shards, have the other cores; also required outside the main thread


@dataclass(frozen=True)
class Array:
    """One array of the store: `shape` begins with the layer, and a chunk holds one layer or a part of one."""

    shape: tuple[int, ...]
    dtype: str
    dimensions: tuple[str, ...]
    attributes: Mapping[str, Any]
    fill: float | int

    @property
    def chunk(self) -> tuple[int, ...]:
        """The shape of a chunk: one layer, cut along its first axes into as few equal parts as CHUNK_BYTES allows."""
        sizes = [1, *(max(1, n) for n in self.shape[1:])]  # an axis without entries has no chunk, but its size is one
        for axis in range(1, len(sizes)):
            slab = math.prod(sizes) // sizes[axis] * np.dtype(self.dtype).itemsize
            most = max(1, CHUNK_BYTES // slab)
            sizes[axis] = math.ceil(sizes[axis] / math.ceil(sizes[axis] / most))
        return tuple(sizes)

    @property
    def chunk_names(self) -> list[str]:
        """Every chunk's file name, in order."""
        return [name for layer in range(self.shape[0]) for name, _ in self.blocks(layer)]

    def blocks(self, layer: int) -> Iterator[tuple[str, tuple[slice, ...]]]:
        """The chunks of a layer: the file's name, and the part of the layer (its shape less the first axis)."""
        yield from blocks(self.shape, self.chunk, layer)


@cache
def _codec(itemsize: int) -> Blosc:
    return Blosc(cname="lz4", clevel=_LEVEL, shuffle=Blosc.BITSHUFFLE, typesize=itemsize)


def blocks(shape: tuple[int, ...], chunk: tuple[int, ...], layer: int) -> Iterator[tuple[str, tuple[slice, ...]]]:
    grid = [range(math.ceil(n / c)) for n, c in zip(shape[1:], chunk[1:], strict=True)]
    for index in product(*grid):
        part = tuple(slice(i * c, min((i + 1) * c, n)) for i, c, n in zip(index, chunk[1:], shape[1:], strict=True))
        yield chunk_name((layer, *index)), part


def encode(block: np.ndarray, chunk: tuple[int, ...], fill: float | int) -> tuple[bytes, bytes, FileRecord]:
    """A chunk's compressed bytes, the checksum that ends its file, and the file's record.

    `block` is a layer's part, of the chunk's shape or cut by the array's edge, where Zarr pads with the fill value.
    """
    if block.shape != chunk:
        whole = np.full(chunk, fill, dtype=block.dtype)
        whole[tuple(slice(n) for n in block.shape)] = block
        block = whole
    body, checksum = _codec(block.itemsize).encode(np.ascontiguousarray(block)), Checksum()
    checksum.update(body)
    return body, checksum.seal(), checksum.sealed_record()


def decode(data: bytes, record: FileRecord, out: np.ndarray, chunk: tuple[int, ...], *, what: str, where: str) -> None:
    """Decompress a chunk's file into `out`, a part of a layer. Raises DamagedPart naming what was read and where."""
    if len(data) != record.size:
        raise DamagedPart(f"{record.size} bytes of {what}", got=f"{len(data)}", where=where, remedy=_REMEDY)
    body, checksum = memoryview(data)[:-SEAL_BYTES], Checksum()
    checksum.update(body)
    if got := checksum.differing(record, data[-SEAL_BYTES:]):
        raise DamagedPart(f"checksum {record.crc32c} of {what}", got=got, where=where, remedy=_REMEDY)
    size = math.prod(chunk) * out.itemsize
    if int.from_bytes(data[4:8], "little") != size:  # Blosc's header says how many bytes will come out
        raise DamagedPart(f"{size} bytes after decompressing {what}", got="another size", where=where, remedy=_REMEDY)
    codec = _codec(out.itemsize)
    if out.shape == chunk and out.flags.c_contiguous:
        codec.decode(body, out)
        return
    padded = np.empty(chunk, dtype=out.dtype)
    codec.decode(body, padded)
    out[...] = padded[tuple(slice(n) for n in out.shape)]


def metadata(groups: Mapping[str, Mapping[str, Any]], arrays: Mapping[str, Array]) -> dict[str, bytes]:
    """The `zarr.json` of groups (by path, attributes) and arrays (by path), made by zarr-python, by file path."""
    import zarr
    from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec
    from zarr.storage import MemoryStore

    files: dict[str, Any] = {}
    store = MemoryStore(files)
    for path, attributes in groups.items():
        zarr.create_group(store, path=path, attributes=dict(attributes), overwrite=True)
    for path, array in arrays.items():
        zarr.create_array(
            store,
            name=path,
            shape=array.shape,
            chunks=array.chunk,
            dtype=array.dtype,
            filters=None,
            serializer=BytesCodec(endian="little"),
            compressors=[
                BloscCodec(typesize=np.dtype(array.dtype).itemsize, cname="lz4", clevel=_LEVEL, shuffle="bitshuffle"),
                Crc32cCodec(),
            ],
            fill_value=array.fill,
            chunk_key_encoding={"name": "default", "separator": "."},
            dimension_names=array.dimensions,
            attributes=dict(array.attributes),
            config={"write_empty_chunks": True},
        )
    return {path: buffer.to_bytes() for path, buffer in sorted(files.items())}
