"""The capture of a prepared run folder, shard by shard: the model runs, its tensors go to the store."""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import partial as bind
from typing import TYPE_CHECKING, Any

import numpy as np

from storage.errors import ModelError
from storage.layout import under
from storage.manifest import placed
from storage.tensors import Chunk, ShardWriter, StoreShape, model_moves, write_model
from tasks.capture.batches import group_by_tokens
from tasks.capture.documents import read_windows
from tasks.capture.folder import CaptureFolder
from tasks.capture.kept import kept_of
from tasks.capture.model import captured_model
from tasks.capture.pipeline import Pipeline
from tasks.models.loading import LoadedModel
from tasks.models.packing import Packing
from tasks.models.rebuild import rebuild_of, sink_logits
from tasks.models.run import TapSettings, attention_calls, capture_batch
from tasks.progress import Progress, emit, waits
from tasks.shard import PartResult, publish_once

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch

    from tasks.capture.documents import Windows


def shards_left(runs: str, capture: str) -> list[int]:
    """The shards that are not published yet."""
    return CaptureFolder.open(runs, capture).shards_left()


def capture_shards(runs: str, capture: str, shards: Sequence[int]) -> list[int]:
    """Capture these shards, in order; returns those that were done here and now.

    Raises CaptureCheckError, naming model, layer, document and row, where an identity of attention does not hold.
    """
    folder = CaptureFolder.open(runs, capture)
    loaded = captured_model(folder)
    shape = store_shape(loaded, folder.settings)
    _publish_model(folder, loaded, shape)
    documents = read_windows(folder.fs, folder.layout)
    done = []
    for shard in shards:

        def compute(staging: str, shard: int = shard) -> PartResult:
            return _capture(folder, loaded, shape, documents, shard, staging)

        if _publish_shard(folder, shard, compute):
            done.append(shard)
    return done


def _publish_shard(folder: CaptureFolder, shard: int, compute: Any) -> bool:
    layout = folder.layout
    wait = bind(waits, "capture", f"shard {shard}")
    return publish_once(folder.fs, layout, layout.shard_record(shard), f"shard-{shard:05d}", compute, wait)


def warm_up(runs: str, capture: str) -> None:
    """Load the capture's model and touch every weight, so that what follows measures capture alone."""
    for weight in captured_model(CaptureFolder.open(runs, capture)).model.parameters():
        weight.sum()


def store_shape(loaded: LoadedModel, settings: Mapping[str, Any]) -> StoreShape:
    """The shape of the store that this model fills under a capture's settings."""
    a = loaded.anatomy
    kept = kept_of(settings, sinks=a.kind.sinks is not None, gated=bool(a.gates))
    rebuild = None
    if settings["attention"] == "rebuilt":
        rebuild = rebuild_of(a, attention_calls(loaded), loaded.dtype, loaded.name)
    return StoreShape(
        n_layers=a.n_layers,
        n_heads=a.n_heads,
        n_kv_heads=a.n_kv_heads,
        d_model=a.d_model,
        streams=a.n_streams,
        d_value=a.d_value,
        causal=a.causal,
        dtypes=kept.dtypes,
        windows=a.windows,
        kept=kept.layers,
        heads=kept.heads,
        positions=kept.positions,
        rebuild=rebuild,
        attended=a.attended if a.kind.hybrid else None,
        gated=bool(a.gates),
    )


def _publish_model(folder: CaptureFolder, loaded: LoadedModel, shape: StoreShape) -> None:
    fs, layout = folder.fs, folder.layout

    def compute(staging: str) -> PartResult:
        sinks = _sinks(loaded) if shape.rebuild is not None and shape.rebuild.sinks else None
        files = write_model(fs, under(staging, "store"), shape, *_model_tensors(loaded), sinks)
        return PartResult(placed(files, layout.store), model_moves(layout, under(staging, "store")))

    publish_once(fs, layout, layout.model_record, "model", compute)


def _model_tensors(loaded: LoadedModel) -> tuple[list[torch.Tensor], list[torch.Tensor] | None, torch.Tensor]:
    """Per layer with attention W_O by head and its bias (None where there is none), and the norms of W_V, (L, H_kv)."""
    import torch

    from tasks.models.anatomy import output_weights, value_weight_norms

    layers = loaded.anatomy.attended
    pairs = [output_weights(loaded.anatomy, layer) for layer in layers]
    biases = [bias for _, bias in pairs if bias is not None]
    norms = torch.stack([value_weight_norms(loaded.anatomy, layer).float().cpu() for layer in layers])
    return [w.cpu() for w, _ in pairs], biases or None, norms


def _sinks(loaded: LoadedModel) -> torch.Tensor:
    """The learned sink logits, (L, H)."""
    import torch

    logits = [sink_logits(loaded.anatomy, layer) for layer in loaded.anatomy.attended]
    return torch.stack([layer for layer in logits if layer is not None])


def _capture(
    folder: CaptureFolder, loaded: LoadedModel, shape: StoreShape, windows: Windows, shard: int, staging: str
) -> PartResult:
    started = time.perf_counter()
    documents = folder.record["shards"][shard]
    token_ids, inputs = [], []
    for doc in documents:
        token_ids.append(windows["token_ids"][doc].values.to_numpy())
        inputs.append(windows.inputs(doc))
    staged = f"{staging}/shard"
    batches = group_by_tokens([len(t) for t in token_ids], folder.settings["batch_tokens"], padded=True)
    writer = ShardWriter(folder.fs, staged, shape)
    nll: list[np.ndarray] = []
    with _pipeline(writer, loaded) as pipeline:
        for batch, members in enumerate(batches):
            batch_inputs, numbers = [inputs[i] for i in members], [documents[i] for i in members]
            lengths = [len(token_ids[i]) for i in members]
            writer.begin_batch(batch, lengths, numbers)

            def keep(layer: int, kind: str, tensor: torch.Tensor, batch: int = batch) -> None:
                parts = writer.parts(batch, kind)
                for part in range(parts):
                    pipeline.put(tensor.numel() // parts, batch, layer, kind, tensor, part)
                if parts > 1:  # a large tensor does not wait for what comes after it
                    pipeline.flush()

            with _memory(loaded, numbers, sum(lengths)):
                nll += capture_batch(loaded, batch_inputs, _tap_settings(folder, shape), keep, numbers)
            emit(Progress("capture", sum(lengths), "tokens"))
    work = PartResult(quality={"milliseconds": round(1000 * (time.perf_counter() - started))})
    work.add_folder(staged, folder.layout.shard(shard), writer.close(documents, token_ids, nll))
    return work


@contextmanager
def _memory(loaded: LoadedModel, documents: Sequence[int], n_tokens: int) -> Iterator[None]:
    """What a batch lacks memory for is said with what makes it smaller."""
    import torch

    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise ModelError(
            f"memory for a batch of {n_tokens:,} tokens on {loaded.device}",
            got=str(error).splitlines()[0] if str(error) else "none left",
            where=f"{loaded.name}, documents {documents[0]} to {documents[-1]}",
            remedy="Set a smaller batch_tokens or query_block in the section [capture] of a configuration file.",
        ) from error


def _pipeline(writer: ShardWriter, loaded: LoadedModel) -> Pipeline[Chunk]:
    import torch

    on_cpu = loaded.device == "cpu"
    return Pipeline(writer.encode, writer.put, threads=torch.get_num_threads(), take_turns=on_cpu)


def _tap_settings(folder: CaptureFolder, shape: StoreShape) -> TapSettings:
    settings = folder.settings
    return TapSettings(settings["query_block"], settings["padding"], shape.dtypes, Packing.of(shape))
