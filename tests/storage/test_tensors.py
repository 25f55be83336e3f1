"""The activation store: what a capture puts in comes out, also through plain zarr; the same input, the same bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from storage import chunks
from storage.errors import ForeignStore, UnknownName, UsageError
from storage.filesystem import Filesystem, open_runs
from storage.layout import Layout
from storage.manifest import Manifest
from storage.rebuild import Rebuild
from storage.store_shape import AXES
from storage.tensors import ActivationStore, DocumentLayer, ShardWriter, StoreShape
from storage.triangles import unpack
from tests.storage.stores import (
    BATCHES,
    CAPTURE,
    SHAPE,
    Shard,
    biases,
    random_shard,
    tree,
    weights,
    with_dtype,
    write_shard,
    write_store,
)

LAYOUT = Layout(CAPTURE)
REBUILD = Rebuild(d_qk=5, n_key_heads=2, scaling=(0.5, 0.25), softcap=(None, 30.0), sinks=False)
ALL_KINDS = replace(SHAPE, dtypes=dict.fromkeys(AXES, "float32"), rebuild=REBUILD)


def expected(shape: StoreShape, shard: Shard, kind: str, layer: int, k: int) -> torch.Tensor:
    """Document k of the shard as it was given to the writer, rounded to the stored dtype."""
    batch, within = (0, k) if k < len(BATCHES[0]) else (1, k - len(BATCHES[0]))
    steps = shape.steps(kind, BATCHES[batch])
    part = slice(sum(steps[:within]), sum(steps[: within + 1]))
    tensor = shard.tensors[batch, layer, kind].to(getattr(torch, shape.dtypes[kind])).float()
    if kind != "attention":
        return tensor[part]
    length = BATCHES[batch][within]
    return unpack(tensor[:, part]) if shape.causal else tensor[:, part].reshape(-1, length, length)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("causal", [True, False])
def test_every_kind_comes_back(fs: Filesystem, dtype: str, causal: bool) -> None:
    shape = replace(with_dtype(dtype, ALL_KINDS), causal=causal)
    (shard,) = write_store(fs, shape=shape)
    store = ActivationStore.open(fs, CAPTURE)
    assert store.shape == shape
    reader = store.shard(0)
    for kind in AXES:
        for layer in range(shape.layers(kind)):
            found = list(reader.layer(layer, (kind,)))
            assert [(d.doc, d.layer, d.n_tokens) for d in found] == [(0, layer, 5), (1, layer, 3), (2, layer, 2)]
            for k, document in enumerate(found):
                tensor = getattr(document, kind)
                assert tensor.dtype == torch.float32
                assert torch.equal(tensor, expected(shape, shard, kind, layer, k))


def test_only_what_is_asked_for_is_decoded(fs: Filesystem) -> None:
    write_store(fs)
    fs.remove(f"{LAYOUT.shard(0)}/batch-00/value/c.1.0.0.0")
    reader = ActivationStore.open(fs, CAPTURE).shard(0)
    document = next(reader.layer(1, ("attention", "residual")))
    assert isinstance(document, DocumentLayer)
    assert document.value is None and document.output_input is None and document.sink_mass is None
    assert document.attention is not None and document.attention.shape == (4, 5, 5)
    assert document.residual is not None and document.residual.shape == (5, 6)


def test_a_batch_is_decoded_when_its_first_document_is_due(fs: Filesystem) -> None:
    write_store(fs)
    fs.remove(f"{LAYOUT.shard(0)}/batch-01/value/c.0.0.0.0")
    documents = ActivationStore.open(fs, CAPTURE).shard(0).layer(0)
    assert [next(documents).doc, next(documents).doc] == [0, 1]
    with pytest.raises(FileNotFoundError):
        next(documents)


def test_token_ids_and_losses_come_back(fs: Filesystem) -> None:
    first, second = write_store(fs, shards=2)
    store = ActivationStore.open(fs, CAPTURE)
    assert store.shards == [0, 1]
    assert store.documents(1) == second.documents == [10, 11, 12]
    for shard, reader in ((first, store.shard(0)), (second, store.shard(1))):
        assert (reader.documents, reader.lengths) == (shard.documents, [5, 3, 2])
        for k, doc in enumerate(shard.documents):
            assert reader.token_ids(doc).dtype == np.int32
            np.testing.assert_array_equal(reader.token_ids(doc), shard.token_ids[k])
            np.testing.assert_array_equal(reader.nll(doc), shard.nll[k])


@pytest.mark.parametrize("bias", [True, False])
def test_output_weights_come_back(fs: Filesystem, bias: bool) -> None:
    write_store(fs, bias=bias)
    store = ActivationStore.open(fs, CAPTURE)
    for layer in range(SHAPE.n_layers):
        weight, found = store.weights(layer)
        assert torch.equal(weight, weights()[layer])
        assert (found is None) if not bias else torch.equal(found, biases()[layer])


lengths = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), min_size=1, max_size=3)


@given(lengths, st.sampled_from(["float32", "float16", "bfloat16"]), st.integers(64, 400))
@settings(max_examples=20)
def test_any_lengths_and_any_splitting_into_chunks_come_back(
    tmp_path: Path, batches: list[list[int]], dtype: str, chunk_bytes: int
) -> None:
    fs = open_runs(str(tmp_path / "runs"), create=True)
    shape = with_dtype(dtype)
    write_store(fs, shape=shape, shards=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK_BYTES", chunk_bytes)
        shard = write_shard(fs, shape=shape, batches=batches)
    store = ActivationStore.open(fs, CAPTURE)
    group = store.group()["shards/00000"]
    assert isinstance(group, zarr.Group)
    for (batch, layer, kind), tensor in shard.tensors.items():
        want = tensor.to(getattr(torch, dtype))
        plain = group[f"batch-{batch:02d}/{kind}"][layer]
        bits = torch.from_numpy(np.asarray(plain).view(np.int16)).view(torch.bfloat16) if dtype == "bfloat16" else plain
        assert torch.equal(torch.as_tensor(bits), want)
        joined = [getattr(d, kind) for d in store.shard(0).layer(layer, (kind,))]
        per_batch = joined[sum(map(len, batches[:batch])) :][: len(batches[batch])]
        if kind != "attention":
            assert torch.equal(torch.cat(per_batch), want.float())


def test_large_layers_are_split_over_heads_and_small_ones_are_not(
    fs: Filesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 200)  # attention of batch 0: 4 heads of 21 entries of 4 bytes
    write_store(fs)
    folder = f"{LAYOUT.shard(0)}/batch-00"
    assert fs.children(f"{folder}/attention") == ["c.0.0.0", "c.0.1.0", "c.1.0.0", "c.1.1.0", "zarr.json"]
    assert fs.children(f"{folder}/value") == ["c.0.0.0.0", "c.1.0.0.0", "zarr.json"]


def test_the_limit_holds_for_every_chunk() -> None:
    for shape in ((3, 32, 40_000_000), (2, 5000, 64, 128), (4, 7, 11), (2, 20_000, 8192)):
        chunk = chunks.Array(shape, "<f4", tuple("abcd"[: len(shape)]), {}, 0.0).chunk
        assert chunk[0] == 1
        assert 4 * np.prod(chunk) <= chunks.CHUNK_BYTES
    assert chunks.Array((4, 7, 11), "<f4", ("a", "b", "c"), {}, 0.0).chunk == (1, 7, 11)


def test_plain_zarr_opens_the_store_and_finds_its_axes_explained(fs: Filesystem) -> None:
    (shard,) = write_store(fs)
    group = zarr.open_group(fs.absolute(LAYOUT.store), mode="r")
    assert group.attrs["shape"]["n_heads"] == 4
    assert dict(group["shards/00000"].attrs)["documents"] == [0, 1, 2]
    attention = group["shards/00000/batch-00/attention"]
    assert isinstance(attention, zarr.Array)
    assert attention.shape == (2, 4, 21)
    assert attention.metadata.dimension_names == ("layer", "head", "entry")
    assert attention.attrs["axes"] == ["layer", "head", "entry"]
    assert attention.attrs["document_offsets"] == [0, 15, 21]
    assert "row-major (entry i(i+1)/2 + j is query i, key j)" in str(attention.attrs["ragged_axis"])
    assert np.isnan(attention.fill_value)
    np.testing.assert_array_equal(attention[1], shard.tensors[0, 1, "attention"].numpy())
    residual = group["shards/00000/batch-01/residual"]
    assert isinstance(residual, zarr.Array)
    np.testing.assert_array_equal(residual[2], shard.tensors[1, 2, "residual"].numpy())
    assert {name for name, _ in group.members(max_depth=None)} >= {"model/output_weight", "shards/00000/token_ids"}
    np.testing.assert_array_equal(group["model/output_bias"][:], biases().numpy())
    np.testing.assert_array_equal(group["shards/00000/nll"][0], np.concatenate(shard.nll))


def test_bfloat16_lies_as_tagged_bits(fs: Filesystem) -> None:
    (shard,) = write_store(fs, shape=with_dtype("bfloat16"))
    array = ActivationStore.open(fs, CAPTURE).group()["shards/00000/batch-00/value"]
    assert isinstance(array, zarr.Array)
    assert (array.dtype, array.attrs["dtype"], array.attrs["bits"]) == (np.uint16, "bfloat16", True)
    bits = torch.from_numpy(np.asarray(array[0]).view(np.int16)).view(torch.bfloat16)
    assert torch.equal(bits, shard.tensors[0, 0, "value"].bfloat16())


def test_the_same_tensors_make_the_same_bytes(tmp_path: Path) -> None:
    trees = []
    for name in "ab":
        fs = open_runs(str(tmp_path / name), create=True)
        write_store(fs, shards=2)
        trees.append(tree(fs.where))
    assert trees[0] == trees[1]
    assert len(trees[0]) == len([p for p in trees[0] if "/c." in p or p.endswith(".json")])


def test_the_order_of_layers_does_not_change_the_bytes(tmp_path: Path) -> None:
    trees = []
    shard = random_shard()
    for name, order in (("a", list(shard.tensors)), ("b", list(reversed(shard.tensors)))):
        fs = open_runs(str(tmp_path / name), create=True)
        write_shard(fs, shard=replace(shard, tensors={key: shard.tensors[key] for key in order}))
        trees.append(tree(fs.where))
    assert trees[0] == trees[1]


def test_the_record_names_every_file_and_every_byte(fs: Filesystem) -> None:
    write_store(fs)
    manifest = Manifest(fs, LAYOUT)
    shard, model = manifest.published(LAYOUT.shard_record(0)), manifest.published(LAYOUT.model_record)
    assert shard is not None and model is not None
    assert sorted([*shard.files, *model.files]) == fs.list(LAYOUT.store)
    assert manifest.verify(LAYOUT.shard_record(0)) == manifest.verify(LAYOUT.model_record) == []


def test_the_model_can_be_published_again_beside_shards(fs: Filesystem) -> None:
    write_store(fs)
    write_store(fs, shards=0)
    store = ActivationStore.open(fs, CAPTURE)
    assert len(list(store.shard(0).layer(0))) == 3


def test_unknown_things_are_named(fs: Filesystem) -> None:
    write_store(fs)
    store = ActivationStore.open(fs, CAPTURE)
    reader = store.shard(0)
    with pytest.raises(
        UnknownName, match=r"stored kind of tensor, got 'atention', in shard 0. Did you mean 'attention'"
    ):
        reader.layer(0, ("atention",))
    with pytest.raises(UnknownName, match=r"got 'sink_mass'"):
        reader.layer(0, ("sink_mass",))
    with pytest.raises(UsageError, match=r"a layer from 0 to 1, got 2"):
        reader.layer(2, ("value",))
    with pytest.raises(UsageError, match=r"a layer from 0 to 2, got -1"):
        reader.layer(-1, ("residual",))
    with pytest.raises(UsageError, match=r"a layer from 0 to 1, got 7"):
        store.weights(7)
    with pytest.raises(UnknownName, match=r"name of a shard, got '4', in tiny-capture"):
        store.shard(4)
    with pytest.raises(UnknownName, match=r"name of a document, got '9', in shard 0"):
        reader.nll(9)
    with pytest.raises(UnknownName, match=r"name of a capture, got 'tiny'"):
        ActivationStore.open(fs, "tiny")


def test_a_shape_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(UnknownName, match=r"kind of tensor, got 'valeu'. Did you mean 'value'"):
        replace(SHAPE, dtypes={"valeu": "float32"})
    with pytest.raises(UnknownName, match=r"dtype of the store, got 'float8', in value"):
        replace(SHAPE, dtypes={"value": "float8"})
    with pytest.raises(ValueError, match="a window for each of 2 layers, got 1"):
        replace(SHAPE, windows=(None,))
    with pytest.raises(ForeignStore, match=r"the shape of an activation store, got .* in somewhere"):
        StoreShape.from_json({"n_layers": 2, "windows": [None, None]}, "somewhere")
    with pytest.raises(ValueError, match=r"layers from 0 to 1, got \(0, 2\)"):
        replace(SHAPE, kept=(0, 2))
    with pytest.raises(ValueError, match="query and key together with how attention is rebuilt"):
        replace(SHAPE, dtypes={"query": "float32", "key": "float32"})
    for shape in (SHAPE, replace(ALL_KINDS, kept=(1,))):
        assert StoreShape.from_json(json.loads(json.dumps(shape.as_json())), "") == shape
    assert not {"kept", "rebuild"} & set(SHAPE.as_json())


def test_a_writer_is_asked_for_what_it_announced(fs: Filesystem) -> None:
    writer = ShardWriter(fs, LAYOUT.staging("s"), SHAPE)
    with pytest.raises(ValueError, match="no value in batch 0"):
        writer.add(0, 0, "value", torch.zeros(2, 2, 3))
    writer.begin_batch(0, [2])
    for bad in (
        lambda: writer.begin_batch(0, [2]),
        lambda: writer.begin_batch(1, []),
        lambda: writer.begin_batch(1, [2, 0]),
    ):
        with pytest.raises(ValueError, match="a new batch of documents of one token or more"):
            bad()
    with pytest.raises(ValueError, match="no value of layer 2 in batch 0"):
        writer.add(0, 2, "value", torch.zeros(2, 2, 3))
    with pytest.raises(ValueError, match="no sink_mass in batch 0"):
        writer.add(0, 0, "sink_mass", torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"value of layer 0: expected shape \(2, 2, 3\), got \(3, 2, 3\)"):
        writer.add(0, 0, "value", torch.zeros(3, 2, 3))
    writer.add(0, 0, "value", torch.zeros(2, 2, 3))
    with pytest.raises(ValueError, match=r"batch-00/value/c\.0\.0\.0\.0 is written already"):
        writer.add(0, 0, "value", torch.zeros(2, 2, 3))


def test_what_a_killed_writer_left_in_staging_does_not_survive(fs: Filesystem) -> None:
    fs.write_bytes(f"{LAYOUT.staging('shard-0')}/batch-07/leftover", b"x")
    write_store(fs)
    assert not [path for path in fs.list("") if "leftover" in path]
