"""Attention rebuilt by the store's reader, against the softmax written out entry by entry in float64."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from storage.errors import DamagedPart, UsageError
from storage.filesystem import Filesystem
from storage.layout import Layout
from storage.rebuild import LayerTerms, Rebuild, rebuilt_attention
from storage.tensors import ActivationStore
from tests.storage.stores import BATCHES, CAPTURE, SHAPE, sinks, write_store

REBUILD = Rebuild(d_qk=5, n_key_heads=2, scaling=(0.9, 0.4), softcap=(None, 1.5), sinks=True)
KEPT = replace(SHAPE, dtypes=dict.fromkeys(("query", "key", "value", "residual"), "float32"), rebuild=REBUILD)


def by_hand(query: np.ndarray, key: np.ndarray, terms: LayerTerms) -> np.ndarray:
    """query (T, H, d), key (T, H_kv, d) → (H, T, T), one entry at a time."""
    length, n_heads, _ = query.shape
    out, group = np.zeros((n_heads, length, length)), n_heads // key.shape[1]
    for head in range(n_heads):
        for i in range(length):
            seen = [
                j
                for j in range(length)
                if (j <= i or not terms.causal) and (terms.window is None or j > i - terms.window)
            ]
            scores = [float(query[i, head] @ key[j, head // group]) * terms.scaling for j in seen]
            if terms.softcap is not None:
                scores = [math.tanh(s / terms.softcap) * terms.softcap for s in scores]
            total = sum(map(math.exp, scores))
            if terms.sinks is not None:
                total += math.exp(float(terms.sinks[head]))
            out[head, i, seen] = [math.exp(s) / total for s in scores]
    return out


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("sink", [True, False])
def test_rebuilt_attention_is_the_softmax_written_out(
    causal: bool, window: int | None, softcap: float | None, sink: bool
) -> None:
    rng = np.random.default_rng(2)
    query, key = rng.normal(size=(9, 6, 4)), rng.normal(size=(9, 2, 4))
    terms = LayerTerms(0.8, softcap, window, causal, torch.linspace(-1, 1, 6) if sink else None)
    got = rebuilt_attention(torch.from_numpy(query), torch.from_numpy(key), terms)
    assert got.dtype == torch.float32
    np.testing.assert_allclose(got.numpy(), by_hand(query, key, terms), atol=1e-6)


def test_the_reader_rebuilds_with_the_stores_own_terms(fs: Filesystem) -> None:
    (shard,) = write_store(fs, shape=KEPT)
    store = ActivationStore.open(fs, CAPTURE)
    assert store.shape == KEPT and store.shape.offered == {*KEPT.dtypes, "attention", "sink_mass"}
    for layer in range(2):
        terms = LayerTerms(REBUILD.scaling[layer], REBUILD.softcap[layer], KEPT.windows[layer], True, sinks()[layer])
        given = [shard.tensors[batch, layer, kind] for kind in ("query", "key") for batch in (0, 1)]
        queries, keys = (
            [part for batch, tensor in enumerate(pair) for part in tensor.split(BATCHES[batch])]
            for pair in (given[:2], given[2:])
        )
        found = store.shard(0).layer(layer, ("sink_mass", "attention", "query"))
        for document, query, key in zip(found, queries, keys, strict=True):
            want = by_hand(query.numpy(), key.numpy(), terms)
            assert document.attention is not None and document.sink_mass is not None and document.query is not None
            np.testing.assert_allclose(document.attention.numpy(), want, atol=1e-6)
            np.testing.assert_allclose(document.sink_mass.numpy(), 1 - want.sum(-1).T, atol=1e-6)
            assert torch.equal(document.query, query) and document.key is None


def test_a_damaged_key_stops_what_is_rebuilt_from_it_and_is_named(fs: Filesystem) -> None:
    write_store(fs, shape=KEPT)
    path = next(p for p in sorted(fs.list(Layout(CAPTURE).shard(0))) if "batch-01/key/c.1" in p)
    fs.write_bytes(path, fs.read_bytes(path)[:-3])
    reader = ActivationStore.open(fs, CAPTURE).shard(0)
    list(reader.layer(0, ("attention",)))
    with pytest.raises(DamagedPart, match="key of layer 1 in batch 1 of shard 0"):
        list(reader.layer(1, ("attention",)))


def test_layers_that_are_not_kept_are_not_rebuilt(fs: Filesystem) -> None:
    write_store(fs, shape=replace(KEPT, kept=(1,)))
    reader = ActivationStore.open(fs, CAPTURE).shard(0)
    assert len(list(reader.layer(1, ("attention",)))) == 3
    with pytest.raises(UsageError, match=r"a layer whose attention the store keeps \(1\), got 0"):
        reader.layer(0, ("attention",))
