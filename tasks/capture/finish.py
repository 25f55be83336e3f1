"""The end of a capture: its four tables, and its row in the table of stages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from storage.errors import RESUME, IncompleteRun
from storage.kept import DTYPES
from storage.layout import FINAL
from storage.tables import PartWriter, TableSpec
from tasks.capture.corpus import reading_of
from tasks.capture.documents import read_windows
from tasks.capture.folder import CaptureFolder
from tasks.capture.tables import CAPTURES, DOCUMENT_ROWS, HEADS, TOKENS
from tasks.models.families import family_of
from tasks.models.loading import pick_device
from tasks.models.sources import resolve
from tasks.run_record import StageRun, mark, request
from tasks.shard import PartResult, publish_once

if TYPE_CHECKING:
    from storage.tensors import ActivationStore, StoreShape

CAPTURE = "capture"


def capture_run_record(folder: CaptureFolder) -> StageRun:
    """The capture itself as a row of the table of stages."""
    ingredients = folder.record["ingredients"]
    return StageRun(CAPTURE, folder.record["key"], ingredients["capture_version"], ingredients, 0)


def request_capture(runs: str, capture: str) -> None:
    """Note that the capture was asked for; a capture under way shows as partial."""
    folder = CaptureFolder.open(runs, capture)
    request(folder, capture_run_record(folder))


def finish_capture(runs: str, capture: str) -> bool:
    """Publish the tables captures, documents, tokens and heads; True if done here and now.

    Raises IncompleteRun, and leaves the capture partial, where shards are missing.
    """
    folder = CaptureFolder.open(runs, capture)
    left = folder.shards_left()
    run = capture_run_record(folder)
    if left:
        mark(folder, run, "partial")
        raise IncompleteRun(
            f"all {folder.n_shards} shards of the capture",
            got=f"{len(left)} missing (shards {', '.join(map(str, left[:8]))}{' …' if len(left) > 8 else ''})",
            where=f"capture {capture}",
            remedy=RESUME,
        )
    layout = folder.layout
    record_path = layout.part_record(CAPTURE, run.key, FINAL)
    done = publish_once(folder.fs, layout, record_path, "capture-final", lambda staging: _tables(folder, run, staging))
    mark(folder, run, "done")
    return done


def _tables(folder: CaptureFolder, run: StageRun, staging: str) -> PartResult:
    from storage.tensors import ActivationStore

    store = ActivationStore.open(folder.fs, folder.layout.capture)
    documents = read_windows(folder.fs, folder.layout)
    windows = {**documents.to_pydict(), "digest": list(documents.digests())}
    token_ids = [np.asarray(ids, dtype=np.int32) for ids in windows["token_ids"]]
    nll = [store.shard(shard).nll(doc) for shard in store.shards for doc in store.documents(shard)]
    tables: list[tuple[TableSpec, Mapping[str, Any]]] = [
        (CAPTURES, _capture_columns(folder, store)),
        (DOCUMENT_ROWS, _document_columns(windows, token_ids, nll)),
        (TOKENS, _token_columns(folder, token_ids, nll)),
        (HEADS, _head_columns(store)),
    ]
    work = PartResult()
    for spec, columns in tables:
        writer = PartWriter(
            folder.fs,
            f"{staging}/{spec.name}.parquet",
            spec,
            {"capture": folder.layout.capture, "stage_key": run.key},
        )
        writer.add(columns)
        record, rows = writer.close()
        work.add_file(writer.path, folder.layout.table_part(spec.name, run.key, FINAL), record)
        work.rows[spec.name] = rows
    work.quality = dict(folder.record["left_out"])
    return work


def _document_columns(windows: dict[str, list], token_ids: list[np.ndarray], nll: list[np.ndarray]) -> dict[str, Any]:
    return {
        "doc": np.arange(len(token_ids), dtype=np.int32),
        "source": windows["source"],
        "start_token": np.asarray(windows["start_token"], dtype=np.int32),
        "digest": windows["digest"],
        "n_tokens": np.asarray([len(ids) for ids in token_ids], dtype=np.int32),
        "nll_sum": np.asarray([np.nansum(values[1:], dtype=np.float64) for values in nll]),
        "n_predicted": np.asarray([np.count_nonzero(~np.isnan(values[1:])) for values in nll], dtype=np.int32),
    }


def _token_columns(folder: CaptureFolder, token_ids: list[np.ndarray], nll: list[np.ndarray]) -> dict[str, Any]:
    reading = reading_of(resolve(folder.model), folder.record["model_config"]).proven()
    lengths = np.asarray([len(ids) for ids in token_ids])
    return {
        "doc": np.repeat(np.arange(len(lengths), dtype=np.int32), lengths),
        "position": np.concatenate([np.arange(n, dtype=np.int32) for n in lengths]),
        **reading.token_columns(token_ids),
        "nll": np.concatenate(nll).astype(np.float32),
    }


def _head_columns(store: ActivationStore) -> dict[str, Any]:
    shape = store.shape
    numbers = shape.attention_layers  # the others have no heads
    norms = np.stack([store.value_norm(layer) for layer in numbers])
    heads = np.tile(np.arange(shape.n_heads, dtype=np.int32), len(numbers))
    layers = np.repeat(np.asarray(numbers, dtype=np.int32), shape.n_heads)
    kv_head = heads // (shape.n_heads // shape.n_kv_heads)
    output_norms = [store.weights(layer)[0].flatten(1).norm(dim=1).numpy() for layer in numbers]
    return {
        "layer": layers,
        "head": heads,
        "kv_head": kv_head.astype(np.int32),
        "weight_norm_v": norms[np.repeat(np.arange(len(numbers)), shape.n_heads), kv_head].astype(np.float32),
        "weight_norm_o": np.concatenate(output_norms).astype(np.float32),
    }


def _capture_columns(folder: CaptureFolder, store: ActivationStore) -> dict[str, Any]:
    record, settings, shape = folder.record, folder.settings, store.shape
    parts = [folder.manifest.published(folder.layout.shard_record(i)) for i in range(folder.n_shards)]
    published = [part for part in parts if part is not None]
    seconds = sum(part.quality["milliseconds"] for part in published) / 1000
    n_tokens = sum(record["lengths"])
    ingredients = record["ingredients"]
    family = family_of(record["model_config"], where=settings["model"])
    values = {
        "name": folder.layout.capture,
        "model": settings["model"],
        "model_digest": ingredients["model_digest"],
        "family": family.model_type,
        "norm": family.norm,
        "n_layers": shape.n_layers,
        "n_heads": shape.n_heads,
        "n_kv_heads": shape.n_kv_heads,
        "d_model": shape.d_model,
        "d_value": shape.d_value,
        "causal": shape.causal,
        "corpus": ", ".join(settings["corpus"]),
        "corpus_digest": ingredients["corpus_digest"],
        "tokenizer_digest": ingredients["tokenizer_digest"],
        "bos_policy": settings["bos"],
        "window_tokens": settings["window"],
        "stride_tokens": settings["stride"],
        "n_docs": len(record["lengths"]),
        "n_tokens": n_tokens,
        "compute_dtype": settings["dtype"],
        "attention_storage": settings["attention"],
        "value_dtype": shape.dtypes.get("value", "none"),
        "device": pick_device(settings["device"]),
        "bytes": sum(file.size for part in published for file in part.files.values()),
        "seconds": seconds,
        "tokens_per_second": n_tokens / seconds if seconds else float("nan"),
        "created_at": record["created_at"],
        "versions": json.dumps(record["versions"], sort_keys=True),
        "config": json.dumps(
            {
                "settings": settings,
                "store_dtypes": _store_dtypes(shape),
                "kept_layers": list(shape.kept_layers),
                **({} if shape.attended is None else {"attention_layers": list(shape.attended)}),
                **({} if shape.heads is None else {"kept_heads": list(shape.heads)}),
                **({} if shape.positions is None else {"kept_positions": shape.positions}),
                "model": record["model_config"],
            },
            sort_keys=True,
        ),
    }
    return {name: [value] for name, value in values.items()}


def _store_dtypes(shape: StoreShape) -> dict[str, str]:
    """Every kept kind's dtype; attention that is rebuilt is as coarse as the coarser of query and key."""
    if shape.rebuild is None:
        return dict(shape.dtypes)
    coarser = max((shape.dtypes[kind] for kind in ("query", "key")), key=list(DTYPES).index)
    return {**shape.dtypes, "attention": coarser}
