"""Bad stores and bad tensors: each is refused with what was expected, what came, where, and what to do; never zeros."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from storage.errors import (
    DamagedPart,
    ForeignStore,
    MissingPart,
    StoreError,
)
from storage.filesystem import Filesystem
from storage.layout import Layout
from storage.manifest import FORMAT, FileRecord, Manifest, PartRecord, placed
from storage.tensors import ActivationStore, ShardWriter, write_model
from tests.storage.stores import (
    CAPTURE,
    SHAPE,
    Shard,
    random_shard,
    weights,
    with_dtype,
    write_shard,
    write_store,
)

LAYOUT = Layout(CAPTURE)
CHUNK = f"{LAYOUT.shard(0)}/batch-00/attention/c.1.0.0"
OTHER_CHUNK = f"{LAYOUT.shard(0)}/batch-00/attention/c.0.0.0"
WHAT = "attention of layer 1 in batch 0 of shard 0"


def read(fs: Filesystem) -> None:
    list(ActivationStore.open(fs, CAPTURE).shard(0).layer(1, ("attention",)))


def flip(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_a_deleted_chunk_is_missing_and_named(fs: Filesystem) -> None:
    write_store(fs)
    fs.remove(CHUNK)
    with pytest.raises(MissingPart, match=rf"expected {WHAT}, got no file, in .*{CHUNK}\. Run the same capture again"):
        read(fs)
    manifest = Manifest(fs, LAYOUT)
    assert manifest.published(LAYOUT.shard_record(0)) is None
    assert manifest.verify(LAYOUT.shard_record(0)) == [f"{CHUNK}: missing"]
    write_shard(fs)
    read(fs)


@pytest.mark.parametrize("keep", [0, 1, 3, 4, 20, -1])
def test_a_truncated_chunk_is_damaged_and_named(fs: Filesystem, keep: int) -> None:
    write_store(fs)
    data = fs.read_bytes(CHUNK)
    fs.write_bytes(CHUNK, data[:keep])
    with pytest.raises(DamagedPart, match=rf"{len(data)} bytes of {WHAT}, got \d+, in .*{CHUNK}\. Delete this file"):
        read(fs)
    assert Manifest(fs, LAYOUT).published(LAYOUT.shard_record(0)) is None


def test_every_flipped_bit_is_found(fs: Filesystem) -> None:
    write_store(fs)
    data = fs.read_bytes(CHUNK)
    for bit in range(0, 8 * len(data), 61):
        fs.write_bytes(CHUNK, flip(data, bit))
        with pytest.raises(DamagedPart, match=rf"checksum [0-9a-f]{{8}} of {WHAT}, got [0-9a-f]{{8}}, in .*{CHUNK}"):
            read(fs)
    fs.write_bytes(CHUNK, data)
    read(fs)


def test_a_chunk_of_another_layer_is_found_though_its_own_checksum_holds(fs: Filesystem) -> None:
    shard = random_shard()
    shard.tensors[0, 1, "attention"].copy_(2 * shard.tensors[0, 0, "attention"])  # same size when compressed
    write_store(fs, shards=0)
    write_shard(fs, shard=shard)
    other = fs.read_bytes(OTHER_CHUNK)
    if len(other) != fs.size(CHUNK):
        pytest.fail("the two chunks must have one size for this test to see anything")
    fs.write_bytes(CHUNK, other)
    with pytest.raises(DamagedPart, match=f"checksum .* of {WHAT}"):
        read(fs)


def test_a_damaged_description_is_found(fs: Filesystem) -> None:
    write_store(fs)
    for path in ("shards/00000/zarr.json", "shards/00000/batch-00/attention/zarr.json", "zarr.json"):
        file = f"{LAYOUT.store}/{path}"
        data = fs.read_bytes(file)
        fs.write_bytes(file, data.replace(b"zarr_format", b"zarr_farmot"))
        with pytest.raises(DamagedPart, match=rf"checksum .*, got another, in .*{path}"):
            read(fs)
        fs.remove(file)
        with pytest.raises(MissingPart, match=rf"the description of .*, got no file, in .*{path}"):
            read(fs)
        fs.write_bytes(file, data)
    read(fs)


def test_damaged_losses_and_weights_are_found(fs: Filesystem) -> None:
    write_store(fs)
    store = ActivationStore.open(fs, CAPTURE)
    fs.write_bytes(f"{LAYOUT.shard(0)}/nll/c.0.0", b"x")
    with pytest.raises(DamagedPart, match="nll of shard 0, got 1"):
        store.shard(0).nll(0)
    fs.remove(f"{LAYOUT.store_model}/output_weight/c.1.0.0.0")
    with pytest.raises(MissingPart, match="output projection of layer 1, got no file"):
        store.weights(1)
    fs.remove(LAYOUT.model_record)
    with pytest.raises(MissingPart, match=r"manifest/model\.json"):
        ActivationStore.open(fs, CAPTURE)


def test_numbers_that_are_not_finite_are_never_handed_out(fs: Filesystem) -> None:
    """A store with checksums that hold, written by something that did not look: NaN put in beneath the writer."""
    write_store(fs)
    values = np.full((1, 4, 21), np.nan, dtype="<f4")
    from storage.chunks import encode

    body, end, record = encode(values, values.shape, float("nan"))
    fs.write_bytes(CHUNK, body + end)
    manifest = Manifest(fs, LAYOUT)
    old = manifest.read_part(LAYOUT.shard_record(0))
    manifest.publish(LAYOUT.shard_record(0), PartRecord({**old.files, CHUNK: record}, old.rows, old.quality), [])
    with pytest.raises(DamagedPart, match="finite attention of layer 1, document 0, shard 0, got NaN or infinity"):
        read(fs)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"format": FORMAT + 1}, rf"format {FORMAT} or older, got format {FORMAT + 1}, in .*capture\.json.*upgrade"),
        ({"zarr_format": 3}, r"a record of Theodolite with its format, got JSON without one, in .*capture\.json"),
    ],
    ids=["newer", "foreign"],
)
def test_a_newer_or_foreign_store_is_refused(fs: Filesystem, content: dict[str, int], message: str) -> None:
    write_store(fs)
    fs.write_bytes(LAYOUT.capture_record, json.dumps(content).encode())
    with pytest.raises(ForeignStore, match=message):
        ActivationStore.open(fs, CAPTURE)


def test_a_foreign_zarr_group_is_refused(fs: Filesystem) -> None:
    Manifest(fs, LAYOUT).write_capture({})
    data = b'{"attributes": {}, "zarr_format": 3, "node_type": "group"}'
    fs.write_bytes(f"{LAYOUT.store}/zarr.json", data)
    record = PartRecord(placed({"zarr.json": FileRecord.of(data)}, LAYOUT.store))
    Manifest(fs, LAYOUT).publish(LAYOUT.model_record, record, [])
    with pytest.raises(ForeignStore, match=r"the shape of an activation store, got .*zarr\.json"):
        ActivationStore.open(fs, CAPTURE)


# ---- tensors that the writer refuses


def started(fs: Filesystem, dtype: str = "float32") -> ShardWriter:
    writer = ShardWriter(fs, LAYOUT.staging("s"), with_dtype(dtype))
    writer.begin_batch(0, [3, 4], documents=[40, 41])
    return writer


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    ("kind", "at", "place"),
    [
        ("value", (4, 1, 2), "document 41, token 1"),
        ("residual", (2, 0), "document 40, token 2"),
        ("output_input", (3, 0, 0), "document 41, token 0"),
        ("attention", (2, 6), "document 41, head 2, entry 0"),
        ("attention", (0, 5), "document 40, head 0, entry 5"),
    ],
)
def test_numbers_that_are_not_finite_are_refused_by_name(
    fs: Filesystem, bad: float, kind: str, at: tuple[int, ...], place: str
) -> None:
    writer = started(fs)
    tensor = torch.ones(SHAPE.layer_shape(kind, [3, 4]))
    tensor[at] = bad
    with pytest.raises(
        StoreError, match=rf"finite numbers in {kind} of layer 1, {place}, got {bad}\. The model is unst"
    ):
        writer.add(0, 1, kind, tensor)
    assert fs.list(LAYOUT.staging("s")) == []


def test_a_cast_that_overflows_is_refused_by_name_and_the_largest_that_fits_is_kept(fs: Filesystem) -> None:
    writer = started(fs, "float16")
    tensor = torch.full((7, 6), -65504.0)
    writer.add(0, 1, "residual", tensor)
    tensor[5, 3] = -70000.0
    message = (
        r"values within float16's range \(±65504\) in residual of layer 2, document 41, token 2, got -70000\. "
        r"Store residual as float32 or bfloat16"
    )
    with pytest.raises(StoreError, match=message):
        writer.add(0, 2, "residual", tensor)
    started(fs, "bfloat16").add(0, 2, "residual", tensor)
    with pytest.raises(StoreError, match="values within bfloat16's range"):
        started(fs, "bfloat16").add(0, 2, "residual", torch.full((7, 6), 3.4e38))


def test_weights_and_losses_are_refused_too(fs: Filesystem) -> None:
    broken = weights()
    broken[1, 2, 0, 3] = float("nan")
    with pytest.raises(StoreError, match=r"finite numbers in model/output_weight of layer 1 at \[2, 0, 3\], got nan"):
        write_model(fs, LAYOUT.staging("m"), SHAPE, broken, None)
    with pytest.raises(ValueError, match="model/output_weight: expected 2 layers, got 1"):
        write_model(fs, LAYOUT.staging("m"), SHAPE, weights()[:1], None)
    with pytest.raises(ValueError, match=r"model/output_weight, layer 0: expected shape \(4, 3, 6\), got \(3, 6\)"):
        write_model(fs, LAYOUT.staging("m"), SHAPE, weights()[:, 0], None)
    shard = random_shard()
    shard.nll[1][2] = np.inf
    with pytest.raises(StoreError, match="finite losses of document 1, got inf"):
        write_shard(fs, shard=shard)


def test_a_shard_that_lacks_a_layer_is_not_closed(fs: Filesystem) -> None:
    full = random_shard()
    lacking = {key: tensor for key, tensor in full.tensors.items() if key != (1, 1, "value")}
    with pytest.raises(
        StoreError, match=r"every layer of every kind.*1 chunks unwritten, the first batch-01/value/c\.1"
    ):
        write_shard(fs, shard=Shard(full.documents, lacking, full.token_ids, full.nll))
    with pytest.raises(StoreError, match="every layer of every kind, in batches counted from 0"):
        ShardWriter(fs, LAYOUT.staging("s"), SHAPE).close([], [], [])
    with pytest.raises(ValueError, match=r"token ids of documents of \[5, 3, 2\] tokens, got \[5, 3\]"):
        write_shard(fs, shard=Shard(full.documents, full.tensors, full.token_ids[:2], full.nll))
    with pytest.raises(ValueError, match=r"losses of documents of \[5, 3, 2\] tokens"):
        write_shard(fs, shard=Shard(full.documents, full.tensors, full.token_ids, full.token_ids[::-1]))
