"""Chosen heads and query positions: what is kept is the whole capture's, under the model's own numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flows.config_file import configure, require_kept
from storage.errors import UsageError
from storage.filesystem import open_runs
from storage.kept import ALL_HEADS, Kept
from storage.tensors import ActivationStore
from tasks.capture.cost import ConfigShape, stored_bytes
from tasks.capture.folder import CaptureFolder
from tasks.capture.kept import kept_of
from tasks.capture.plan import plan_capture, prepare_capture
from tasks.capture.settings import CaptureSettings
from tasks.capture.verify_sample import rerun_sample
from tasks.stages.registry import stage
from tasks.stages.requirements import require_kinds
from tasks.stages.run import prepare_stage
from tests.storage.stores import SHAPE
from tests.tasks.capture.made_captures import capturing
from tests.tasks.models.capturing import tiny

Captured = Callable[..., tuple[str, str]]
WINDOW = 40
CHOICES = {"heads": "7,2-3", "positions": "0-5,last:2,every:9"}
HEADS = (2, 3, 7)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, fixtures: Path) -> CaptureSettings:
    """stories260K: eight query heads on four of keys and values. The last document has 3 tokens or so."""
    text = tmp_path_factory.mktemp("text") / "text.txt"
    text.write_text("Once upon a time there was a little girl who had a red ball. " * 6)
    model = str(fixtures / "models" / "stories260K")
    return CaptureSettings(model, (str(text),), window=WINDOW, shard_tokens=96, query_block=16, device="cpu")


@pytest.fixture(scope="module")
def captured(base: CaptureSettings, tmp_path_factory: pytest.TempPathFactory) -> Captured:
    """Capture with these settings, once; returns the folder of runs and the capture's id."""
    return capturing(base, str(tmp_path_factory.mktemp("runs")))


def store_of(runs: str, capture: str) -> ActivationStore:
    return ActivationStore.open(open_runs(runs), capture)


@pytest.mark.parametrize("way", ["stored", "rebuilt"])
@pytest.mark.parametrize("choice", [("heads",), ("positions",), ("heads", "positions")])
def test_what_is_kept_is_what_a_whole_capture_holds(captured: Captured, way: str, choice: tuple[str, ...]) -> None:
    chosen = store_of(*captured(attention=way, **{name: CHOICES[name] for name in choice}))
    whole = store_of(*captured(attention="stored"))
    kinds = ("attention", "value", "output_input", "residual")
    heads = list(HEADS) if "heads" in choice else list(range(8))
    seen = 0
    for shard in whole.shards:
        for part, full in zip(*(s.shard(shard).layer(3, kinds) for s in (chosen, whole)), strict=True):
            n = full.n_tokens
            rows = sorted({*range(6), n - 2, n - 1, *range(0, n, 9)} & set(range(n))) if "positions" in choice else None
            wanted = full.attention[heads][:, rows if rows is not None else slice(None)]
            assert part.attention.shape == wanted.shape
            assert (part.attention - wanted).abs().max() <= (1e-5 if way == "rebuilt" else 0)
            kv = [1, 3] if "heads" in choice else [0, 1, 2, 3]
            assert torch.equal(part.value, full.value[:, kv]) and torch.equal(part.residual, full.residual)
            assert torch.equal(part.output_input, full.output_input[:, heads])
            seen += n < WINDOW
    assert seen  # a shorter document was among them


def test_readers_ask_by_the_models_own_numbers(captured: Captured) -> None:
    chosen, whole = store_of(*captured(attention="stored", **CHOICES)), store_of(*captured(attention="stored"))
    kinds = ("attention", "value", "output_input")
    for part, full in zip(*(s.shard(0).layer(1, kinds) for s in (chosen, whole)), strict=True):
        for head in HEADS:
            assert torch.equal(part.row(head, 5), full.row(head, 5))
            assert torch.equal(full.row(head, 5), full.attention[head, 5])
            assert torch.equal(part.of_head("value", head), full.value[:, head // 2])
            assert torch.equal(part.of_head("output_input", head), full.output_input[:, head])
        with pytest.raises(UsageError, match=r"a head that the store keeps \(2–3, 7\), got 4"):
            part.row(4, 0)
        with pytest.raises(
            UsageError, match=r"a query position that the store keeps \(0–5, 9, 18, 27, 36, 38–39\), got 6"
        ):
            part.row(7, 6)
        with pytest.raises(UsageError, match="a head from 0 to 7, got 8"):
            full.of_head("attention", 8)
        with pytest.raises(ValueError, match="by head that was asked for, got residual"):
            full.of_head("residual", 0)
        break


def test_arrays_say_what_they_hold(captured: Captured) -> None:
    runs, capture = captured(attention="rebuilt", **CHOICES)
    found = {
        kind: json.loads(
            next(
                (Path(runs) / capture / "activations.zarr" / "shards").glob(f"*/batch-00/{kind}/zarr.json")
            ).read_text()
        )["attributes"]
        for kind in ("query", "key", "value", "output_input", "residual")
    }
    heads = {kind: attributes.get("heads") for kind, attributes in found.items()}
    assert heads == {"query": [2, 3, 7], "key": [1, 3], "value": [1, 3], "output_input": [2, 3, 7], "residual": None}
    assert found["query"]["positions"] == "0-5,last:2,every:9" and "positions" not in found["key"]
    assert found["query"]["query_positions"][0] == [*range(6), 9, 18, 27, 36, 38, 39]


def test_a_document_without_any_of_the_positions_has_no_rows(captured: Captured) -> None:
    for way in ("stored", "rebuilt"):
        store = store_of(*captured(attention=way, positions="39", batch_tokens=1))  # each document a batch of its own
        rows = {
            document.n_tokens: tuple(document.attention.shape)
            for shard in store.shards
            for document in store.shard(shard).layer(0, ("attention",))
        }
        assert rows.pop(WINDOW) == (8, 1, WINDOW)
        assert rows and all(shape == (8, 0, n) for n, shape in rows.items())


def test_learned_sinks_and_bidirectional_attention_are_kept_by_head_and_position() -> None:
    from tests.tasks.models.test_rebuild import LENGTHS, emitted, shape_of  # what it holds against is the tests' own

    for name in ("gpt_oss", "bert"):
        loaded = tiny(name)
        for way in ("stored", "rebuilt"):
            whole = emitted(loaded, shape_of(loaded, attention=way))
            shape = shape_of(loaded, attention=way, heads="1,3", positions="last,0-2")
            part = emitted(loaded, shape)
            assert part.keys() == whole.keys()
            for (layer, kind), tensor in part.items():
                assert tuple(tensor.shape) == shape.layer_shape(kind, LENGTHS), (name, kind)
                full = whole[layer, kind]
                if kind == "sink_mass":
                    rows = [0, 1, 2, 28, 29, 30, 31, 35, 36]
                    assert torch.equal(tensor, full[rows][:, [1, 3]])
                elif kind == "attention" and not loaded.anatomy.causal:
                    square = full[[1, 3], : 29 * 29].view(2, 29, 29)[:, [0, 1, 2, 28]]
                    assert torch.equal(tensor[:, : 4 * 29].view(2, 4, 29), square)


def test_what_a_stage_needs_is_refused_by_name(captured: Captured) -> None:
    for name, lacking in (("heads", "all heads"), ("positions", "all query positions")):
        runs, capture = captured(attention="stored", **{name: CHOICES[name]})
        message = (
            "expected a store with all heads, all query positions, attention, value, got one without "
            f"{lacking}, in capture {capture}, stage contributions. Capture again with .*: no --{name}"
        )
        with pytest.raises(UsageError, match=message):
            prepare_stage(runs, capture, "contributions", {})
        shape = store_of(runs, capture).shape
        with pytest.raises(UsageError, match=message):
            require_kinds(stage("contributions"), shape.offered | shape.stored.whole, f"capture {capture}")
        config = configure(None, {"capture": {name: CHOICES[name]}, "run": {}}, ())
        with pytest.raises(UsageError, match=f"got one without {lacking}, in this capture, stage contributions"):
            require_kept(config.capture, ["contributions"])
    by_head = replace(stage("contributions"), whole=frozenset({ALL_HEADS}))
    require_kinds(by_head, store_of(*captured(positions="last")).shape.offered | {ALL_HEADS}, "here")


def test_verify_compares_what_is_kept(captured: Captured) -> None:
    for way in ("stored", "rebuilt"):
        runs, capture = captured(attention=way, **CHOICES)
        found = rerun_sample(runs, capture, 9, 0)
        assert not found.problems and len(found.documents) > 1
        assert max(layer.attention for layer in found.layers if layer.attention is not None) <= 1e-4
        assert all(layer.attention is not None for layer in found.layers[:-1])


def test_an_error_is_named_by_the_models_own_numbers(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.capture.verify_sample.COMPUTED", {"float32": -1.0})
    monkeypatch.setattr("tasks.capture.verify_sample.STORED", {"float32": -1.0})
    found = rerun_sample(*captured(attention="stored", heads="7", positions="last"), 1, 0)
    assert [line for line in found.problems if "attention of layer 0" in line and "head 7, query " in line]


def test_the_same_choice_has_the_same_key(base: CaptureSettings, tmp_path: Path) -> None:
    def ingredients(**changes: Any) -> dict[str, Any]:
        runs = str(tmp_path)
        return CaptureFolder.open(runs, prepare_capture(base.changed(**changes), runs)).record["ingredients"]

    whole = ingredients()
    assert not {"heads", "positions"} & set(whole)
    assert ingredients(heads="0-7", positions=f"0-{WINDOW - 1}") == ingredients(positions="every:1") == whole
    assert ingredients(positions=f"last:{WINDOW}") == whole
    assert ingredients(heads="3,2, 2")["heads"] == "2-3"
    assert ingredients(positions="-1,4,3")["positions"] == "3-4,last"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": "0-8"}, "heads from 0 to 7, got 8, in heads"),
        ({"heads": "first"}, "heads as numbers and ranges, such as 0-5,10, got 'first', in heads"),
        ({"positions": "3,40"}, r"positions from 0 to 39, or as many from the end, in a window of 40.*got '3,40'"),
        ({"positions": "last:41"}, r"positions from 0 to 39, or as many from the end, .*got 'last:41', in positions"),
    ],
)
def test_parts_that_the_model_does_not_have_are_refused(
    base: CaptureSettings, tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        plan_capture(base.changed(**changes), str(tmp_path))


def test_the_plan_is_what_the_store_holds(captured: Captured, base: CaptureSettings, tmp_path: Path) -> None:
    for way in ("stored", "rebuilt"):
        settings = base.changed(attention=way, **CHOICES)
        planned = plan_capture(settings, str(tmp_path)).bytes_by_kind
        store = store_of(*captured(attention=way, **CHOICES))
        for kind in store.shape.dtypes:
            sizes = [store.shape.layer_shape(kind, store.shard(shard).lengths) for shard in store.shards]
            held = 4 * store.shape.layers(kind) * sum(int(np.prod(size)) for size in sizes)
            assert planned[kind] == held, kind
    shape = ConfigShape(30, 9, 3, 576, 64, 64, 3, 1536, 49152, 8192, True, True, "interface")
    kept = kept_of({"attention": "rebuilt", "store_dtype": "float32", "heads": "0,2,8", "positions": "last:10"})
    found = stored_bytes(shape, [512, 4], kept)
    assert found["query"] == 30 * (10 + 4) * 3 * 64 * 4 and found["key"] == 30 * 516 * 2 * 64 * 4


def test_parts_that_cannot_be_are_refused() -> None:
    assert Kept(heads=(2, 7)).heads_of(4, 8) == (1, 3) and Kept(heads=(2, 3, 7)).serving(4, 8) == [0, 0, 1]
    with pytest.raises(ValueError, match=r"heads from 0 to 7, got \(8,\)"):
        replace(SHAPE, n_heads=8, heads=(8,))
