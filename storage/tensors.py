"""The activation store: the one module that writes tensors. Reading is in `store_reader`, offered here too.

A shard is a Zarr group of forward batches; a batch holds one array per kind of tensor, its documents laid end to end,
a chunk per layer. It is written in staging by one writer, and published by the manifest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from storage.chunks import Array, encode, metadata
from storage.errors import AGAIN, StoreError
from storage.filesystem import Filesystem
from storage.kept import DTYPES
from storage.layout import (
    MODEL,
    MODEL_BIAS,
    MODEL_SINKS,
    MODEL_VALUE_NORM,
    MODEL_WEIGHT,
    SHARDS,
    Layout,
    batch_array,
    batch_group,
    under,
    zarr_json,
)
from storage.manifest import FileRecord
from storage.refusals import fits, raise_unfit
from storage.store_reader import ActivationStore, DocumentLayer, ShardReader
from storage.store_shape import AXES, StoreShape

__all__ = [
    "ActivationStore",
    "DocumentLayer",
    "ShardReader",
    "ShardWriter",
    "StoreShape",
    "model_moves",
    "write_model",
]

_NAN_BITS = 0x7FC0
"""NaN of bfloat16: the fill of arrays that hold its bits."""


class ShardWriter:
    """Writes one shard of a store into a staging folder, a layer of a batch at a time, in any order of layers.

    For one thread, but for `encode`. What a killed writer left in the folder is removed first.
    """

    def __init__(self, fs: Filesystem, staging_path: str, shape: StoreShape) -> None:
        self._files = _Files(fs, staging_path)
        self.shape = shape
        self._lengths: dict[int, tuple[int, ...]] = {}
        self._documents: dict[int, tuple[int, ...]] = {}
        self._arrays: dict[str, Array] = {}

    def begin_batch(self, batch: int, lengths: Sequence[int], documents: Sequence[int] | None = None) -> None:
        """Announce forward batch `batch` of documents of these lengths; `documents` lets errors name them."""
        if batch in self._lengths or not lengths or min(lengths) < 1:
            raise ValueError(f"expected a new batch of documents of one token or more, got {batch} of {list(lengths)}")
        self._lengths[batch] = tuple(int(n) for n in lengths)
        self._documents[batch] = tuple(documents if documents is not None else range(len(lengths)))
        for kind in self.shape.dtypes:
            self._arrays[batch_array(batch, kind)] = self._array(batch, kind)

    def add(self, batch: int, layer: int, kind: str, tensor: torch.Tensor) -> None:
        """Write one layer of one kind: (H, entries), (N, H_kv, d_v), (N, D) and the like; see StoreShape.layer_shape.

        Raises StoreError, naming layer, kind and document, for NaN, infinity, or a value beyond the stored dtype;
        ValueError for a wrong shape, a layer twice, or a kind that the store does not keep.
        """
        for number in range(self.parts(batch, kind)):
            self.put(self.encode(batch, layer, kind, tensor, number))

    def parts(self, batch: int, kind: str) -> int:
        """How many chunks a layer of a kind is: one, or as many as its size asks for."""
        return len(list(self._announced(batch, kind).blocks(0)))

    def _announced(self, batch: int, kind: str) -> Array:
        array = self._arrays.get(batch_array(batch, kind))
        if array is None:
            raise ValueError(f"the store takes no {kind} in batch {batch}")
        return array

    def encode(self, batch: int, layer: int, kind: str, tensor: torch.Tensor, number: int = 0) -> Chunk:
        """The first half of `add`, from any thread: one chunk's values checked and compressed, nothing written."""
        array = self._announced(batch, kind)
        if layer not in self.shape.layer_numbers(kind):
            raise ValueError(f"the store takes no {kind} of layer {layer} in batch {batch}")
        if tuple(tensor.shape) != array.shape[1:]:
            raise ValueError(f"{kind} of layer {layer}: expected shape {array.shape[1:]}, got {tuple(tensor.shape)}")
        stored = self.shape.dtypes[kind]
        steps = self.shape.steps(kind, self._lengths[batch])
        name, part = list(array.blocks(self.shape.index(kind, layer)))[number]
        if not fits(tensor[part], stored):
            raise_unfit(tensor, stored, kind, layer, steps=steps, documents=self._documents[batch])
        return _chunk(f"{batch_array(batch, kind)}/{name}", array, _stored(tensor[part], stored))

    def put(self, chunk: Chunk) -> None:
        """The second half of `add`: write what `encode` made."""
        self._files.put(chunk)

    def close(
        self, documents: Sequence[int], token_ids: Sequence[np.ndarray], nll: Sequence[np.ndarray]
    ) -> dict[str, FileRecord]:
        """Write token ids and losses (nats; NaN where nothing precedes), then the metadata; the shard is complete.

        An encoder's losses are NaN everywhere: it predicts no next token.
        `documents`, and the arrays per document, are in the order of the batches. Returns every file's record, by its
        path inside the shard. Raises StoreError if a layer of anything is lacking.
        """
        self._check_complete()
        lengths = [n for batch in sorted(self._lengths) for n in self._lengths[batch]]
        self._check_documents(documents, lengths, token_ids, nll)
        for name, dtype, fill, rows in (("token_ids", "<i4", -1, token_ids), ("nll", "<f4", float("nan"), nll)):
            array = Array((1, sum(lengths)), dtype, ("shard", "token"), _PER_TOKEN[name], fill)
            self._arrays[name] = array
            for chunk in _chunks(name, array, 0, np.concatenate([np.asarray(row, dtype=dtype) for row in rows])):
                self.put(chunk)
        for path, data in metadata(self._groups(documents, lengths), self._arrays).items():
            self._files.put(Chunk(path, [data], FileRecord.of(data)))
        return self._files.records

    def _array(self, batch: int, kind: str) -> Array:
        lengths, dtype = self._lengths[batch], self.shape.dtypes[kind]
        offsets = [0, *accumulate(self.shape.steps(kind, lengths))]
        attributes = {**self.shape.describe(kind), "document_offsets": offsets}
        if "positions" in attributes:
            attributes["query_positions"] = [list(self.shape.stored.rows(n)) for n in lengths]
        shape = (self.shape.layers(kind), *self.shape.layer_shape(kind, lengths))
        fill = _NAN_BITS if dtype == "bfloat16" else float("nan")
        return Array(shape, DTYPES[dtype], AXES[kind], attributes, fill)

    def _groups(self, documents: Sequence[int], lengths: Sequence[int]) -> dict[str, dict[str, Any]]:
        groups: dict[str, dict[str, Any]] = {
            "": {
                "meaning": "one shard: a block of documents, as forward batches laid end to end, without padding",
                "documents": [int(d) for d in documents],
                "lengths": list(lengths),
                "batches": [len(self._lengths[b]) for b in sorted(self._lengths)],
            }
        }
        start = 0
        for batch in sorted(self._lengths):
            count = len(self._lengths[batch])
            ids = [int(d) for d in documents[start : start + count]]
            groups[batch_group(batch)] = {"documents": ids, "lengths": list(self._lengths[batch])}
            start += count
        return groups

    def _check_complete(self) -> None:
        written = self._files.records
        missing = [
            f"{path}/{name}"
            for path, a in self._arrays.items()
            for name in a.chunk_names
            if f"{path}/{name}" not in written
        ]
        if sorted(self._lengths) != list(range(len(self._lengths))) or not self._lengths or missing:
            raise StoreError(
                "every layer of every kind, in batches counted from 0",
                got=f"{len(missing)} chunks unwritten, the first {missing[0]}"
                if missing
                else f"{sorted(self._lengths)}",
                where=self._files.folder,
                remedy=f"The shard was not captured whole: {AGAIN}.",
            )

    def _check_documents(
        self,
        documents: Sequence[int],
        lengths: Sequence[int],
        token_ids: Sequence[np.ndarray],
        nll: Sequence[np.ndarray],
    ) -> None:
        for name, rows in (("token ids", token_ids), ("losses", nll)):
            if len(documents) != len(lengths) or [len(row) for row in rows] != list(lengths):
                raise ValueError(
                    f"expected {name} of documents of {list(lengths)} tokens, got {[len(r) for r in rows]}"
                )
        for document, losses in zip(documents, nll, strict=True):
            bad = losses[1:][~np.isfinite(losses[1:])]
            if not self.shape.causal:  # an encoder predicts no next token: NaN says so
                bad = bad[~np.isnan(bad)]
            if len(bad):
                raise StoreError(
                    f"finite losses of document {document}",
                    got=f"{bad[0]}",
                    remedy="The model's logits are not finite for it: leave it out, or compute in float32.",
                )


_PER_TOKEN = {
    "token_ids": {"meaning": "token ids of the shard's documents, one after the other"},
    "nll": {"meaning": "loss in nats of each token given those before it; NaN at the start of a document"},
}


def write_model(
    fs: Filesystem,
    staging_path: str,
    shape: StoreShape,
    w_o: Iterable[torch.Tensor],
    bias: Iterable[torch.Tensor] | None,
    value_norm: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> dict[str, FileRecord]:
    """Write what does not depend on the text, and the store's own groups, into staging, as float32.

    L counts the layers that have attention. `w_o`: per layer the output projection by head, (H, d_v, D); a tensor
    (L, H, d_v, D) serves. `bias`: per layer (D,),
    or None. `value_norm`: Frobenius norm of W_V per layer and key/value head, (L, H_kv). `sinks`: learned sink logits
    (L, H), which a store of rebuilt attention needs. Returns every file's record by its path inside the store; publish
    them with `model_moves`.
    """
    files, arrays = _Files(fs, staging_path), dict[str, Array]()
    n_layers = len(shape.attention_layers)
    sizes: tuple[int, ...] = (n_layers, shape.n_heads, shape.d_value, shape.d_model)
    arrays[MODEL_WEIGHT] = _model_array(MODEL_WEIGHT, sizes, ("layer", "head", "d_value", "d_model"), shape)
    _write_layers(files, MODEL_WEIGHT, arrays[MODEL_WEIGHT], w_o)
    if bias is not None:
        arrays[MODEL_BIAS] = _model_array(MODEL_BIAS, (n_layers, shape.d_model), ("layer", "d_model"), shape)
        _write_layers(files, MODEL_BIAS, arrays[MODEL_BIAS], bias)
    if value_norm is not None:
        sizes = (n_layers, shape.n_kv_heads)
        arrays[MODEL_VALUE_NORM] = _model_array(MODEL_VALUE_NORM, sizes, ("layer", "kv_head"), shape)
        _write_layers(files, MODEL_VALUE_NORM, arrays[MODEL_VALUE_NORM], value_norm)
    if sinks is not None:
        arrays[MODEL_SINKS] = _model_array(MODEL_SINKS, (n_layers, shape.n_heads), ("layer", "head"), shape)
        _write_layers(files, MODEL_SINKS, arrays[MODEL_SINKS], sinks)
    groups: dict[str, dict[str, Any]] = {
        "": {"meaning": "activation store of Theodolite", "shape": shape.as_json()},
        MODEL: {"meaning": "what does not depend on the text"},
        SHARDS: {"meaning": "one group per shard"},
    }
    for path, data in metadata(groups, arrays).items():
        files.put(Chunk(path, [data], FileRecord.of(data)))
    return files.records


_MODEL = {
    MODEL_WEIGHT: {"meaning": "output projection of attention by head: output = sum over heads of z @ W + bias"},
    MODEL_BIAS: {"meaning": "bias of the output projection of attention"},
    MODEL_SINKS: {"meaning": "learned sink logit of each head: beside the scores in the softmax, then dropped"},
    MODEL_VALUE_NORM: {"meaning": "Frobenius norm of the value projection of each key/value head"},
}


def _model_array(name: str, sizes: tuple[int, ...], axes: tuple[str, ...], shape: StoreShape) -> Array:
    layers = {} if shape.attended is None else {"layers": list(shape.attended)}
    return Array(sizes, "<f4", axes, {**_MODEL[name], **layers}, float("nan"))


def _write_layers(files: _Files, path: str, array: Array, layers: Iterable[torch.Tensor]) -> None:
    count = 0
    for layer, tensor in enumerate(layers):
        if tuple(tensor.shape) != array.shape[1:] or layer >= array.shape[0]:
            raise ValueError(f"{path}, layer {layer}: expected shape {array.shape[1:]}, got {tuple(tensor.shape)}")
        if not fits(tensor, "float32"):
            raise_unfit(tensor, "float32", path, layer, steps=[], documents=[])
        for chunk in _chunks(path, array, layer, _stored(tensor, "float32")):
            files.put(chunk)
        count += 1
    if count != array.shape[0]:
        raise ValueError(f"{path}: expected {array.shape[0]} layers, got {count}")


def model_moves(layout: Layout, staging_path: str) -> list[tuple[str, str]]:
    """The renames that publish what `write_model` wrote; shards that are there already stay."""
    names = (zarr_json(""), zarr_json(SHARDS), MODEL)
    return [(under(staging_path, name), under(layout.store, name)) for name in names]


class _Files:
    """Files of a staging folder, each with its record as it is written."""

    def __init__(self, fs: Filesystem, folder: str) -> None:
        self._fs, self.folder, self.records = fs, folder, dict[str, FileRecord]()
        fs.remove(folder)

    def put(self, chunk: Chunk) -> None:
        if chunk.name in self.records:
            raise ValueError(f"{chunk.name} is written already")
        self._fs.write_bulk(under(self.folder, chunk.name), chunk.parts)
        self.records[chunk.name] = chunk.record


@dataclass(frozen=True)
class Chunk:
    """A file of the store that is still to be written."""

    name: str
    parts: Sequence[bytes]
    record: FileRecord


def _chunks(array_path: str, array: Array, layer: int, values: np.ndarray) -> Iterator[Chunk]:
    for name, part in array.blocks(layer):
        yield _chunk(f"{array_path}/{name}", array, values[part])


def _chunk(path: str, array: Array, values: np.ndarray) -> Chunk:
    body, end, record = encode(values[None], array.chunk, array.fill)
    return Chunk(path, (body, end), record)


def _stored(tensor: torch.Tensor, dtype: str) -> np.ndarray:
    """The tensor as it lies in the store; bfloat16 as bits."""
    cast = tensor.detach().to("cpu", getattr(torch, dtype)).contiguous()
    return cast.view(torch.int16).numpy().view(np.uint16) if dtype == "bfloat16" else cast.numpy()
