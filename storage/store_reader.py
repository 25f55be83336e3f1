"""Reading the activation store: one layer of one batch at a time, checked against the manifest; never silent zeros."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from storage.chunks import blocks, decode
from storage.errors import DamagedPart, ForeignStore, MissingPart, UnknownName, UsageError
from storage.filesystem import Filesystem
from storage.layout import MODEL_BIAS, MODEL_VALUE_NORM, MODEL_WEIGHT, batch_array, under, zarr_json
from storage.manifest import FileRecord, Manifest, open_manifest
from storage.store_shape import StoreShape
from storage.triangles import unpack

if TYPE_CHECKING:
    import zarr

_ArrayShape = tuple[tuple[int, ...], tuple[int, ...], np.dtype[Any]]
"""An array's shape, its chunks' shape, and its dtype."""

_REMEDY = "Run the same capture again: it rebuilds what is missing."


@dataclass
class DocumentLayer:
    """One layer of one document, float32 on the CPU; a kind that was not asked for is None."""

    doc: int
    layer: int
    n_tokens: int
    attention: torch.Tensor | None = None
    """(H, T, T), zeros above the diagonal if attention is causal."""
    value: torch.Tensor | None = None
    """(T, H_kv, d_v)"""
    output_input: torch.Tensor | None = None
    """(T, H, d_v)"""
    residual: torch.Tensor | None = None
    """(T, D), before the layer; layer n_layers is after the last."""
    sink_mass: torch.Tensor | None = None
    """(T, H)"""


class ActivationStore:
    """The activation store of a capture, for reading. Shards are those that the manifest has a record of."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest, self._layout = manifest, manifest.layout
        self._model = _Folder(manifest, self._layout.store, self._layout.model_record, "the model's part of the store")
        self.shape = StoreShape.from_json(self._model.attributes("").get("shape"), self._model.where(zarr_json("")))

    @classmethod
    def open(cls, fs: Filesystem, capture: str) -> ActivationStore:
        """Open the store of a capture. Raises UnknownName, MissingPart, DamagedPart or ForeignStore."""
        return cls(open_manifest(fs, capture))

    @cached_property
    def shards(self) -> list[int]:
        names = self._manifest.fs.children(self._layout.shard_records_root)
        return sorted(int(name.removesuffix(".json")) for name in names)

    def documents(self, shard: int) -> list[int]:
        return self.shard(shard).documents

    def shard(self, index: int) -> ShardReader:
        """A shard for reading; UnknownName if the manifest has none of that number."""
        if index not in self.shards:
            raise UnknownName.among("shard", str(index), map(str, self.shards), where=self._layout.capture)
        return ShardReader(self._manifest, self.shape, index)

    def weights(self, layer: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The output projection of a layer by head, (H, d_v, D) float32, and its bias, (D,) or None."""
        _check_layer(layer, self.shape.n_layers)
        weight = self._model.layer(MODEL_WEIGHT, layer, f"output projection of layer {layer}")
        if not self._model.has(zarr_json(MODEL_BIAS)):
            return torch.from_numpy(weight), None
        bias = self._model.layer(MODEL_BIAS, layer, f"output bias of layer {layer}")
        return torch.from_numpy(weight), torch.from_numpy(bias)

    def value_norm(self, layer: int) -> np.ndarray:
        """The Frobenius norm of W_V of each key/value head of a layer, (H_kv,) float32."""
        _check_layer(layer, self.shape.n_layers)
        return self._model.layer(MODEL_VALUE_NORM, layer, f"norms of the value projection of layer {layer}")

    def group(self) -> zarr.Group:
        """The whole store as zarr-python's own group, unchecked: for a notebook."""
        import zarr

        return zarr.open_group(self._manifest.fs.zarr_store(self._layout.store, read_only=True), mode="r")


class ShardReader:
    """One published shard. Holds no tensor: each is decoded when it is asked for."""

    def __init__(self, manifest: Manifest, shape: StoreShape, index: int) -> None:
        self.index, self.shape = index, shape
        layout = manifest.layout
        self._folder = _Folder(manifest, layout.shard(index), layout.shard_record(index), f"shard {index}")
        attributes = self._folder.attributes("")
        try:
            self.documents: list[int] = list(attributes["documents"])
            self.lengths: list[int] = list(attributes["lengths"])
            self._batches: list[int] = list(attributes["batches"])
        except KeyError as error:
            raise ForeignStore(
                "a shard's documents", got=f"no {error}", where=self._folder.where(zarr_json(""))
            ) from error

    def layer(self, layer: int, kinds: Sequence[str] = ("attention", "value")) -> Iterator[DocumentLayer]:
        """One layer of every document in order; a batch of it is in memory at a time.

        Raises UsageError (no such layer), UnknownName (a kind that is not stored), and, naming the file, MissingPart or
        DamagedPart.
        """
        for kind in kinds:
            if kind not in self.shape.dtypes:
                raise UnknownName.among("stored kind of tensor", kind, self.shape.dtypes, where=f"shard {self.index}")
            _check_layer(layer, self.shape.layers(kind))
        return self._documents(layer, kinds)

    def _documents(self, layer: int, kinds: Sequence[str]) -> Iterator[DocumentLayer]:
        start = 0
        for batch, count in enumerate(self._batches):
            documents, lengths = self.documents[start : start + count], self.lengths[start : start + count]
            arrays = {kind: self._kind(batch, layer, kind) for kind in kinds}
            offsets = {kind: [0, *accumulate(self.shape.steps(kind, lengths))] for kind in kinds}
            for k, (doc, length) in enumerate(zip(documents, lengths, strict=True)):
                found = DocumentLayer(doc, layer, length)
                for kind in kinds:
                    part = slice(offsets[kind][k], offsets[kind][k + 1])
                    values = arrays[kind][:, part] if kind == "attention" else arrays[kind][part]
                    setattr(found, kind, self._document(kind, values, found))
                yield found
            start += count

    def token_ids(self, doc: int) -> np.ndarray:
        """A document's token ids, int32 (T,)."""
        return self._tokens[0][self._part(doc)]

    def nll(self, doc: int) -> np.ndarray:
        """A document's loss per token in nats, float32 (T,); NaN at position 0."""
        return self._tokens[1][self._part(doc)]

    @cached_property
    def _tokens(self) -> tuple[np.ndarray, np.ndarray]:
        names = ("token_ids", "nll")
        ids, nll = (self._folder.layer(name, 0, f"{name} of shard {self.index}") for name in names)
        return ids, nll

    def _part(self, doc: int) -> slice:
        if doc not in self.documents:
            raise UnknownName.among("document", str(doc), map(str, self.documents), where=f"shard {self.index}")
        k = self.documents.index(doc)
        start = sum(self.lengths[:k])
        return slice(start, start + self.lengths[k])

    def _kind(self, batch: int, layer: int, kind: str) -> torch.Tensor:
        what = f"{kind} of layer {layer} in batch {batch} of shard {self.index}"
        array = self._folder.layer(batch_array(batch, kind), layer, what)
        if self.shape.dtypes[kind] == "bfloat16":
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    def _document(self, kind: str, values: torch.Tensor, place: DocumentLayer) -> torch.Tensor:
        values = values.to(torch.float32)
        if not bool(torch.stack(torch.aminmax(values)).isfinite().all()):
            raise DamagedPart(
                f"finite {kind} of layer {place.layer}, document {place.doc}, shard {self.index}",
                got="NaN or infinity",
                where=self._folder.where(""),
                remedy="Delete this shard and run the same capture again.",
            )
        if kind != "attention":
            return values
        return unpack(values) if self.shape.causal else values.reshape(-1, place.n_tokens, place.n_tokens)


class _Folder:
    """Files of a published part of the store, each checked against the part's record as it is read."""

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

    def layer(self, array: str, layer: int, what: str) -> np.ndarray:
        """One layer of an array as stored, without its first axis."""
        shape, chunk, dtype = self._array(array)
        out = np.empty(shape[1:], dtype)
        for name, part in blocks(shape, chunk, layer):
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


def _check_layer(layer: int, n_layers: int) -> None:
    if not 0 <= layer < n_layers:
        raise UsageError(f"a layer from 0 to {n_layers - 1}", got=str(layer))
