"""Reading the activation store: one layer of one batch at a time, checked against the manifest; never silent zeros."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch

from storage.errors import DamagedPart, ForeignStore, UnknownName, UsageError
from storage.filesystem import Filesystem
from storage.layout import MODEL_BIAS, MODEL_SINKS, MODEL_VALUE_NORM, MODEL_WEIGHT, batch_array, zarr_json
from storage.manifest import Manifest, open_manifest
from storage.rebuild import LayerTerms, rebuilt_attention
from storage.store_folder import StoreFolder
from storage.store_shape import AXES, StoreShape, spans
from storage.triangles import pack, unpack, unpack_chosen

if TYPE_CHECKING:
    import zarr


@dataclass
class DocumentLayer:
    """One layer of one document, float32 on the CPU; a kind that was not asked for is None."""

    doc: int
    layer: int
    n_tokens: int
    attention: torch.Tensor | None = None
    """(H, T, T), zeros above the diagonal if attention is causal; as stored, or rebuilt from query and key. Of a store
    of chosen heads and query positions (H', R, T), those alone and in order; see `of_head` and `row`."""
    value: torch.Tensor | None = None
    """(T, H_kv, d_v)"""
    output_input: torch.Tensor | None = None
    """(T, H, d_v)"""
    residual: torch.Tensor | None = None
    """(T, D), before the layer; layer n_layers is after the last."""
    sink_mass: torch.Tensor | None = None
    """(T, H)"""
    query: torch.Tensor | None = None
    """(T, H, d_qk), rotary positions applied; a store of rebuilt attention keeps it."""
    key: torch.Tensor | None = None
    """(T, H_kv, d_qk), rotary positions applied; a store of rebuilt attention keeps it."""
    gate: torch.Tensor | None = None
    """(T, H, d_v): output_input = gate ⊙ Σ α v, where the store says `gated`."""
    shape: StoreShape | None = field(default=None, repr=False, compare=False)
    """The store's, which says which heads and query positions lie in the tensors."""

    def of_head(self, kind: str, head: int) -> torch.Tensor:
        """What a kind holds of one query head, by the model's own number: attention (R, T), a value or key (T, d) of
        the head that serves it, and the like. UsageError for a head that is not kept, ValueError for a kind that was
        not asked for, or has no heads.
        """
        values, axes = getattr(self, kind), AXES[kind][1:]
        if values is None or self.shape is None or not {"head", "kv_head"} & set(axes):
            raise ValueError(f"expected a kind of tensor by head that was asked for, got {kind}")
        at = self.shape.stored.head_index(head, self.shape.n_heads)
        return values.select(axes.index("head"), at) if "head" in axes else values[:, self.shape.serving(kind)[at]]

    def row(self, head: int, position: int) -> torch.Tensor:
        """Attention (T,) of one query, by the model's own head number and the query's position in the document.

        UsageError naming those that are kept.
        """
        if self.shape is None:
            raise ValueError("expected a document that was read from a store")
        return self.of_head("attention", head)[self.shape.stored.row_index(position, self.n_tokens)]


class ActivationStore:
    """The activation store of a capture, for reading. Shards are those that the manifest has a record of."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest, self._layout = manifest, manifest.layout
        self._model = StoreFolder(
            manifest, self._layout.store, self._layout.model_record, "the model's part of the store"
        )
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
        return ShardReader(self._manifest, self.shape, index, self.terms)

    def terms(self, layer: int) -> LayerTerms:
        """How attention of a layer is rebuilt; ValueError for a store that keeps no query and key."""
        sinks = None
        if self.shape.rebuild is not None and self.shape.rebuild.sinks:
            sinks = torch.from_numpy(self._model.layer(MODEL_SINKS, self._at(layer), f"learned sinks of layer {layer}"))
        return self.shape.terms(layer, sinks)

    def weights(self, layer: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The output projection of a layer by head, (H, d_v, D) float32, and its bias, (D,) or None."""
        at = self._at(layer)
        weight = self._model.layer(MODEL_WEIGHT, at, f"output projection of layer {layer}")
        if not self._model.has(zarr_json(MODEL_BIAS)):
            return torch.from_numpy(weight), None
        bias = self._model.layer(MODEL_BIAS, at, f"output bias of layer {layer}")
        return torch.from_numpy(weight), torch.from_numpy(bias)

    def value_norm(self, layer: int) -> np.ndarray:
        """The Frobenius norm of W_V of each key/value head of a layer, (H_kv,) float32."""
        return self._model.layer(MODEL_VALUE_NORM, self._at(layer), f"norms of the value projection of layer {layer}")

    def _at(self, layer: int) -> int:
        """Where a layer's heads lie in the model's part; UsageError for a layer that has none."""
        there = self.shape.attention_layers
        if layer in there:
            return there.index(layer)
        with_attention = f"a layer that has attention ({spans(there)})"
        raise UsageError(
            f"a layer from 0 to {self.shape.n_layers - 1}" if self.shape.attended is None else with_attention,
            got=str(layer),
        )

    def group(self) -> zarr.Group:
        """The whole store as zarr-python's own group, unchecked: for a notebook."""
        import zarr

        return zarr.open_group(self._manifest.fs.zarr_store(self._layout.store, read_only=True), mode="r")


class ShardReader:
    """One published shard. Holds no tensor: each is decoded when it is asked for."""

    def __init__(
        self, manifest: Manifest, shape: StoreShape, index: int, terms: Callable[[int], LayerTerms] | None = None
    ) -> None:
        self.index, self.shape, self._terms = index, shape, terms or (lambda layer: shape.terms(layer, None))
        layout = manifest.layout
        self._folder = StoreFolder(manifest, layout.shard(index), layout.shard_record(index), f"shard {index}")
        attributes = self._folder.attributes("")
        try:
            self.documents: list[int] = list(attributes["documents"])
            self.lengths: list[int] = list(attributes["lengths"])
            self._batches: list[int] = list(attributes["batches"])
        except KeyError as error:
            raise ForeignStore(
                "a shard's documents", got=f"no {error}", where=self._folder.where(zarr_json(""))
            ) from error

    def layer(
        self,
        layer: int,
        kinds: Sequence[str] = ("attention", "value"),
        documents: Collection[int] | None = None,
    ) -> Iterator[DocumentLayer]:
        """One layer of every document, or of those named, in order; a batch of it is in memory at a time.

        Attention is read where it is stored and rebuilt where query and key are. Raises UsageError (a layer that is not
        there, or not kept), UnknownName (a kind that the store does not offer), and, naming the file, MissingPart or
        DamagedPart.
        """
        self._require_offered(layer, kinds)
        return self._documents(layer, kinds, set(self.documents if documents is None else documents))

    def _require_offered(self, layer: int, kinds: Sequence[str]) -> None:
        """Raises UnknownName for a kind that the store does not offer, UsageError for a layer without it."""
        for kind in kinds:
            if kind not in self.shape.offered:
                offered = sorted(self.shape.offered)
                raise UnknownName.among("stored kind of tensor", kind, offered, where=f"shard {self.index}")
            self.shape.index(kind, layer)

    def document(self, doc: int, layer: int, kinds: Sequence[str] = ("attention", "value")) -> DocumentLayer:
        """One layer of one document; of the store, its batch is read. Raises what `layer` does, and UnknownName."""
        self._part(doc)
        return next(self.layer(layer, kinds, (doc,)))

    def triangles(self, layer: int, documents: Collection[int] | None = None) -> Iterator[tuple[int, torch.Tensor]]:
        """Causal attention of every document, or of those named, in order, as packed triangles (H, T(T+1)/2), float32.

        Entries as in `storage.triangles`. What is stored comes as it lies, with half the entries of `layer`; what is
        rebuilt is packed. Raises what `layer` does, and ValueError of a store of an encoder or of chosen positions.
        """
        if not self.shape.causal or self.shape.positions is not None:
            raise ValueError("expected a store of whole causal attention")
        if "attention" in self.shape.rebuilt:
            found = self.layer(layer, ("attention",), documents)
            return ((d.doc, pack(d.attention)) for d in found if d.attention is not None)
        self._require_offered(layer, ("attention",))
        return self._triangles(layer, set(self.documents if documents is None else documents))

    def _triangles(self, layer: int, wanted: Collection[int]) -> Iterator[tuple[int, torch.Tensor]]:
        start = 0
        for batch, count in enumerate(self._batches):
            documents, lengths = self.documents[start : start + count], self.lengths[start : start + count]
            start += count
            if not set(wanted) & set(documents):
                continue
            array, ends = self._kind(batch, layer, "attention"), accumulate(self.shape.steps("attention", lengths))
            for doc, length, (first, last) in zip(documents, lengths, pairwise((0, *ends)), strict=True):
                if doc in wanted:
                    yield doc, self._finite("attention", array[:, first:last], DocumentLayer(doc, layer, length))

    def _documents(self, layer: int, kinds: Sequence[str], wanted: Collection[int]) -> Iterator[DocumentLayer]:
        start, kept = 0, list(dict.fromkeys(behind for kind in kinds for behind in self.shape.behind(kind)))
        terms = self._terms(layer) if self.shape.rebuilt & set(kinds) else None
        for batch, count in enumerate(self._batches):
            if not set(wanted) & set(self.documents[start : start + count]):
                start += count
                continue
            documents, lengths = self.documents[start : start + count], self.lengths[start : start + count]
            arrays = {kind: self._kind(batch, layer, kind) for kind in kept}
            offsets = {kind: [0, *accumulate(self.shape.steps(kind, lengths))] for kind in kept}
            for k, (doc, length) in enumerate(zip(documents, lengths, strict=True)):
                if doc not in wanted:
                    continue
                found, read = DocumentLayer(doc, layer, length, shape=self.shape), dict[str, torch.Tensor]()
                for kind in kept:
                    part = slice(offsets[kind][k], offsets[kind][k + 1])
                    values = arrays[kind][:, part] if kind == "attention" else arrays[kind][part]
                    read[kind] = self._document(kind, values, found)
                if terms is not None:
                    read["attention"] = attention = self._rebuilt(read["query"], read["key"], terms, length)
                    read["sink_mass"] = (1 - attention.sum(dim=-1)).clamp(min=0).T
                for kind in kinds:
                    setattr(found, kind, read[kind])
                yield found
            start += count

    def _rebuilt(self, query: torch.Tensor, key: torch.Tensor, terms: LayerTerms, length: int) -> torch.Tensor:
        """(H, T, T), or of the kept heads and query positions (H', R, T)."""
        kept = self.shape.stored
        if kept.every_head_and_position:
            return rebuilt_attention(query, key, terms)
        if kept.heads is not None:
            key = key[:, self.shape.serving("key")]
            terms = terms.of_heads(kept.heads)
        return rebuilt_attention(query, key, terms, kept.rows(length))

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
        array = self._folder.layer(batch_array(batch, kind), self.shape.index(kind, layer), what)
        if self.shape.dtypes[kind] == "bfloat16":
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    def _finite(self, kind: str, values: torch.Tensor, place: DocumentLayer) -> torch.Tensor:
        """The values as float32; DamagedPart where some are not finite."""
        values = values.to(torch.float32)
        if values.numel() and not bool(torch.stack(torch.aminmax(values)).isfinite().all()):
            raise DamagedPart(
                f"finite {kind} of layer {place.layer}, document {place.doc}, shard {self.index}",
                got="NaN or infinity",
                where=self._folder.where(""),
                remedy="Delete this shard and run the same capture again.",
            )
        return values

    def _document(self, kind: str, values: torch.Tensor, place: DocumentLayer) -> torch.Tensor:
        values = self._finite(kind, values, place)
        if kind != "attention":
            return values
        if not self.shape.causal:
            return values.reshape(len(values), values.shape[1] // place.n_tokens, place.n_tokens)
        if self.shape.positions is None:
            return unpack(values)
        return unpack_chosen(values, self.shape.stored.rows(place.n_tokens), place.n_tokens)
