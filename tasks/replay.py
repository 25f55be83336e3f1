"""A capture's documents, run again by its own model from any layer, out of the residual stream that the store holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from storage.errors import ForeignStore, UnknownName, UsageError
from storage.store_reader import ActivationStore
from tasks.capture.folder import CaptureFolder

if TYPE_CHECKING:
    from tasks.models.interventions import Condition
    from tasks.models.observation import Observables
    from tasks.models.replay import Replayed, Replayer, Start

_ROOM = 4
"""Batches of the capture that one of a replay may be as large as: it keeps no attention."""


@dataclass(frozen=True)
class CapturedReplay:
    """What a replay needs of a capture: its store, and its model, which is loaded when something runs."""

    prepared: CaptureFolder
    store: ActivationStore
    query_block: int = 128
    """Queries of attention at a time."""
    batch_tokens: int = 4096
    """Tokens of a batch of documents and conditions, padding included."""

    @classmethod
    def open(
        cls, runs: str, capture: str, *, query_block: int | None = None, batch_tokens: int | None = None
    ) -> CapturedReplay:
        """Open a capture's store. Blocks and batches are the capture's own unless told, and so part of its key.

        Raises UnknownName, MissingPart, DamagedPart or ForeignStore.
        """
        prepared = CaptureFolder.open(runs, capture)
        store, settings = ActivationStore.open(prepared.fs, capture), prepared.settings
        block = settings["query_block"] if query_block is None else query_block
        return cls(prepared, store, block, batch_tokens or _ROOM * settings["batch_tokens"])

    @cached_property
    def replayer(self) -> Replayer:
        """The model that was captured. Raises ForeignStore where its files are not those any more, or ModelError."""
        from tasks.capture.model import captured_model
        from tasks.models.replay import Replayer

        self._require_exact()
        return Replayer(captured_model(self.prepared), query_block=self.query_block, batch_tokens=self.batch_tokens)

    def _require_exact(self) -> None:
        """A replay must begin where the clean run was, lest the store's rounding count as an intervention's effect."""
        stored, computed = self.store.shape.dtypes.get("residual"), self.prepared.settings["dtype"]
        if stored is not None and stored not in ("float32", computed):
            raise UsageError(
                f"a residual stream stored in {computed}, as the model computed it",
                got=stored,
                where=self.store_name,
                remedy=f"Capture again with --store-dtype residual={computed}.",
            )

    @cached_property
    def documents(self) -> list[int]:
        """Those that the store holds, in order."""
        return [doc for shard in self.store.shards for doc in self.prepared.record["shards"][shard]]

    def run(
        self,
        layer: int,
        conditions: Sequence[Condition] = ((),),
        documents: Sequence[int] | None = None,
        observables: Observables | None = None,
    ) -> Iterator[Replayed]:
        """Every document, or those named, under every condition, from `layer` (n_layers: head and loss only).

        In the store's order. What is computed follows from the store, the weights and the layer. Raises what
        `Replayer.run` does, UnknownName for a document that the store does not hold, and UsageError or UnknownName for
        a store without the residual stream before that layer.
        """
        wanted = self.documents if documents is None else self._known(documents)
        n_layers = self.store.shape.n_layers
        if not 0 <= layer <= n_layers:
            raise UsageError(f"a layer from 0 to {n_layers} to replay from", got=str(layer), where=self.store_name)
        return self.replayer.run(layer, self.starts(layer, wanted), conditions, observables)

    def starts(self, layer: int, documents: Sequence[int]) -> Iterator[Start]:
        """Documents where a replay from `layer` begins, in the store's order; a batch of the store is in memory."""
        from tasks.models.replay import Start

        wanted = set(self._known(documents))
        for shard in self.store.shards:
            if wanted.isdisjoint(self.prepared.record["shards"][shard]):
                continue
            reader = self.store.shard(shard)
            for found in reader.layer(layer, ("residual",), wanted):
                if found.residual is None:
                    raise ForeignStore("a residual stream", got="none", where=self.store_name)
                yield Start(found.doc, reader.token_ids(found.doc), found.residual)

    @property
    def store_name(self) -> str:
        return self.prepared.layout.capture

    def _known(self, documents: Sequence[int]) -> list[int]:
        there = set(self.documents)
        for document in documents:
            if document not in there:
                raise UnknownName.among("document", str(document), map(str, self.documents), where=self.store_name)
        return list(documents)
