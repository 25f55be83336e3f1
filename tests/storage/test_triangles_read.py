"""Attention read as packed triangles: what `layer` makes, packed; and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from storage.errors import DamagedPart, UsageError
from storage.filesystem import open_runs
from storage.layout import Layout
from storage.tensors import ActivationStore
from storage.triangles import pack
from tests.storage.stores import CAPTURE, SHAPE, random_shard, write_shard, write_store


def test_triangles_are_the_packed_attention_of_the_documents_asked_for(tmp_path: Path) -> None:
    fs = open_runs(str(tmp_path), create=True)
    write_store(fs, shards=2)
    store = ActivationStore.open(fs, CAPTURE)
    reader = store.shard(1)
    for layer in (0, 1):
        whole = {d.doc: pack(d.attention) for d in reader.layer(layer, ("attention",)) if d.attention is not None}
        assert [doc for doc, _ in reader.triangles(layer)] == list(whole) == reader.documents
        for doc in reader.documents:
            ((found, triangle),) = reader.triangles(layer, (doc,))
            assert found == doc and triangle.dtype == torch.float32
            np.testing.assert_array_equal(triangle, whole[doc])
    assert list(reader.triangles(0, ())) == []
    with pytest.raises(UsageError, match="a layer from 0 to 1, got 2"):
        reader.triangles(2)


def test_encoders_have_none_and_nan_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = open_runs(str(tmp_path / "encoder"), create=True)
    write_store(fs, shape=replace(SHAPE, causal=False, windows=(None, None)))
    with pytest.raises(ValueError, match="expected a store of whole causal attention"):
        ActivationStore.open(fs, CAPTURE).shard(0).triangles(0)
    fs = open_runs(str(tmp_path / "nan"), create=True)
    write_store(fs)
    shard = random_shard(first=0)
    shard.tensors[1, 0, "attention"][2, 1] = float("nan")
    monkeypatch.setattr("storage.tensors.fits", lambda _tensor, _dtype: True)
    fs.remove(Layout(CAPTURE).shard_record(0))
    write_shard(fs, 0, shard=shard)
    reader = ActivationStore.open(fs, CAPTURE).shard(0)
    assert [doc for doc, _ in reader.triangles(0, (0, 1))] == [0, 1]
    with pytest.raises(DamagedPart, match="finite attention of layer 0, document 2, shard 0, got NaN or infinity"):
        list(reader.triangles(0))
