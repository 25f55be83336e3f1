"""Small stores for the tests: random tensors written and published exactly as a capture does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from storage.filesystem import Filesystem
from storage.layout import Layout
from storage.manifest import Manifest, PartRecord, placed
from storage.tensors import ShardWriter, StoreShape, model_moves, write_model

CAPTURE = "tiny-capture"
SHAPE = StoreShape(
    n_layers=2,
    n_heads=4,
    n_kv_heads=2,
    d_model=6,
    d_value=3,
    causal=True,
    dtypes={"attention": "float32", "value": "float32", "output_input": "float32", "residual": "float32"},
    windows=(None, 4),
)
BATCHES = ((5, 3), (2,))
"""Lengths of the documents of each forward batch of a shard."""

Tensors = Mapping[tuple[int, int, str], torch.Tensor]


@dataclass(frozen=True)
class Shard:
    """What was written: tensors by (batch, layer, kind), and the arrays per document."""

    documents: list[int]
    tensors: Tensors
    token_ids: list[np.ndarray]
    nll: list[np.ndarray]


def with_dtype(dtype: str, shape: StoreShape = SHAPE) -> StoreShape:
    return replace(shape, dtypes=dict.fromkeys(shape.dtypes, dtype))


def random_shard(
    shape: StoreShape = SHAPE, batches: Sequence[Sequence[int]] = BATCHES, *, first: int = 0, seed: int = 0
) -> Shard:
    """Random tensors; attention is positive, as it is in life."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for batch, lengths in enumerate(batches):
        for kind in shape.dtypes:
            for layer in shape.layer_numbers(kind):
                tensor = torch.randn(shape.layer_shape(kind, lengths), generator=generator)
                tensors[batch, layer, kind] = tensor.abs() if kind == "attention" else tensor
    lengths = [n for batch in batches for n in batch]
    nll = [np.r_[np.nan, np.linspace(0.5, 2.0, n - 1)].astype(np.float32) for n in lengths]
    token_ids = [np.arange(n, dtype=np.int32) + 10 * k for k, n in enumerate(lengths)]
    return Shard(list(range(first, first + len(lengths))), tensors, token_ids, nll)


def write_shard(
    fs: Filesystem,
    index: int = 0,
    *,
    shape: StoreShape = SHAPE,
    batches: Sequence[Sequence[int]] = BATCHES,
    shard: Shard | None = None,
) -> Shard:
    """Write and publish one shard, as `tasks/shard.py` does it."""
    layout = Layout(CAPTURE)
    shard = shard or random_shard(shape, batches, first=10 * index, seed=index)
    staging = layout.staging(f"shard-{index}")
    writer = ShardWriter(fs, staging, shape)
    for batch, lengths in enumerate(batches):
        writer.begin_batch(batch, lengths)
    for (batch, layer, kind), tensor in shard.tensors.items():
        writer.add(batch, layer, kind, tensor)
    files = writer.close(shard.documents, shard.token_ids, shard.nll)
    record = PartRecord(placed(files, layout.shard(index)), quality={"documents": len(shard.documents)})
    Manifest(fs, layout).publish(layout.shard_record(index), record, [(staging, layout.shard(index))])
    return shard


def write_store(fs: Filesystem, *, shape: StoreShape = SHAPE, bias: bool = True, shards: int = 1) -> list[Shard]:
    """A whole capture's store: its record, the model's part, and shards."""
    layout, manifest = Layout(CAPTURE), Manifest(fs, Layout(CAPTURE))
    manifest.write_capture({"name": CAPTURE})
    staging = layout.staging("model")
    logits = sinks(shape) if shape.rebuild is not None and shape.rebuild.sinks else None
    files = write_model(fs, staging, shape, weights(shape), biases(shape) if bias else None, None, logits)
    manifest.publish(layout.model_record, PartRecord(placed(files, layout.store)), model_moves(layout, staging))
    return [write_shard(fs, i, shape=shape) for i in range(shards)]


def weights(shape: StoreShape = SHAPE) -> torch.Tensor:
    """(L, H, d_v, D)"""
    generator = torch.Generator().manual_seed(7)
    return torch.randn(shape.n_layers, shape.n_heads, shape.d_value, shape.d_model, generator=generator)


def sinks(shape: StoreShape = SHAPE) -> torch.Tensor:
    """(L, H)"""
    return torch.linspace(-1, 2, shape.n_layers * shape.n_heads).reshape(shape.n_layers, shape.n_heads)


def biases(shape: StoreShape = SHAPE) -> torch.Tensor:
    """(L, D)"""
    return torch.arange(shape.n_layers * shape.d_model, dtype=torch.float32).reshape(shape.n_layers, -1)


def tree(folder: str | Path, *, without: Sequence[str] = ("locks", "staging")) -> dict[str, bytes]:
    """Every file's bytes under a folder, hidden ones too, except in folders of work in progress."""
    root = Path(folder)
    files = [p for p in root.rglob("*") if p.is_file() and not set(p.relative_to(root).parts[:-1]) & set(without)]
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in sorted(files)}
