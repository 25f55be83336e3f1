"""A capture's documents, run again by its own model from any layer, out of the residual stream that the store holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from storage.errors import ForeignStore, UnknownName, UsageError
from storage.store_reader import ActivationStore
from tasks.models.sources import resolve_captured
from tasks.prepared import Prepared

if TYPE_CHECKING:
    from tasks.models.interventions import Condition
    from tasks.models.replay import Replayed, Replayer, Start

_REMEDY = "Its files changed since. Put them back, or capture the new ones."


@dataclass(frozen=True)
class CapturedReplay:
    """What a replay needs of a capture: its store, and its model, which is loaded when something runs."""

    prepared: Prepared
    store: ActivationStore
    query_block: int = 128
    """Queries of attention at a time."""
    batch_tokens: int = 4096
    """Tokens of a batch of documents and conditions, padding included."""

    @classmethod
    def open(cls, runs: str, capture: str, *, query_block: int = 128, batch_tokens: int = 4096) -> CapturedReplay:
        """Open a capture's store. Raises UnknownName, MissingPart, DamagedPart or ForeignStore."""
        prepared = Prepared.open(runs, capture)
        return cls(prepared, ActivationStore.open(prepared.fs, capture), query_block, batch_tokens)

    @cached_property
    def replayer(self) -> Replayer:
        """The model that was captured. Raises ForeignStore where its files are not those any more, or ModelError."""
        from tasks.models.loading import load_model, pick_device
        from tasks.models.replay import Replayer

        settings = self.prepared.settings
        source = resolve_captured(settings["model"], self.prepared.record["ingredients"]["model_digest"], _REMEDY)
        loaded = load_model(source, settings["dtype"], pick_device(settings["device"]))
        return Replayer(loaded, query_block=self.query_block, batch_tokens=self.batch_tokens)

    @cached_property
    def documents(self) -> list[int]:
        """Those that the store holds, in order."""
        return [doc for shard in self.store.shards for doc in self.prepared.record["shards"][shard]]

    def run(
        self, layer: int, conditions: Sequence[Condition] = ((),), documents: Sequence[int] | None = None
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
        return self.replayer.run(layer, self.starts(layer, wanted), conditions)

    def starts(self, layer: int, documents: Sequence[int]) -> Iterator[Start]:
        """Documents where a replay from `layer` begins, in the store's order; a batch of the store is in memory."""
        from tasks.models.replay import Start

        wanted = set(self._known(documents))
        for shard in self.store.shards:
            if wanted.isdisjoint(self.prepared.record["shards"][shard]):
                continue
            reader = self.store.shard(shard)
            for found in reader.layer(layer, ("residual",)):
                if found.doc in wanted:
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
