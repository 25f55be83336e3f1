"""What a capture keeps is what was chosen; a stage cannot tell rebuilt attention from stored, and names what lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from flows.checks import check_tables, require
from storage.errors import ModelError, UnknownName, UsageError
from storage.filesystem import open_runs
from storage.store_shape import AXES
from storage.tensors import ActivationStore
from tasks.capture.attention_storage import smaller_storage, stored_for_any_length
from tasks.capture.cost import ConfigShape, attention_bytes, stored_bytes
from tasks.capture.describe import describe
from tasks.capture.folder import CaptureFolder
from tasks.capture.kept import KINDS, kept_of
from tasks.capture.plan import plan_capture, prepare_capture
from tasks.capture.settings import CaptureSettings
from tasks.models.sources import read_config, resolve
from tasks.models.table import ALIBI, FAMILIES, Family
from tasks.stages.run import finish_stage, prepare_stage, run_stage_shards, stage_parts_left
from tests.tasks.capture.made_captures import capturing

Captured = Callable[..., tuple[str, str]]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> CaptureSettings:
    text = tmp_path_factory.mktemp("text") / "text.txt"
    text.write_text("The assert statement is a convenient way to insert debugging assertions. " * 2)
    return CaptureSettings("sample", (str(text),), window=48, shard_tokens=96, device="cpu")


@pytest.fixture(scope="module")
def captured(base: CaptureSettings, tmp_path_factory: pytest.TempPathFactory) -> Captured:
    """Capture with these settings, once; returns the folder of runs and the capture's id."""
    return capturing(base, str(tmp_path_factory.mktemp("runs")))


def run_contributions(runs: str, capture: str) -> None:
    key = prepare_stage(runs, capture, "contributions", {"resamples": 20})
    run_stage_shards(runs, capture, "contributions", key, stage_parts_left(runs, capture, "contributions", key))
    finish_stage(runs, capture, "contributions", key)


def columns(runs: str, capture: str, table: str) -> dict[str, np.ndarray]:
    """A table's columns over all parts, less those that say which capture it is."""
    found = pq.read_table(Path(runs) / capture / "tables" / table)
    names = [name for name in found.column_names if name not in ("capture", "stage_key")]
    return {name: found[name].to_numpy() for name in names}


def store_of(runs: str, capture: str) -> ActivationStore:
    return ActivationStore.open(open_runs(runs), capture)


def test_a_store_of_query_and_key_gives_the_attention_of_a_stored_one(captured: Captured) -> None:
    stored, rebuilt = store_of(*captured()), store_of(*captured(attention="rebuilt"))
    assert set(rebuilt.shape.dtypes) == {"query", "key", "value", "output_input", "residual"}
    for shard in stored.shards:
        for layer in stored.shape.kept_layers:
            pairs = zip(*(s.shard(shard).layer(layer, ("attention", "value")) for s in (stored, rebuilt)), strict=True)
            for a, b in pairs:
                assert a.attention is not None and b.attention is not None and a.value is not None
                assert (a.doc, a.n_tokens) == (b.doc, b.n_tokens) and a.attention.shape == b.attention.shape
                assert (a.attention - b.attention).abs().max() <= 1e-5 and b.attention.dtype == torch.float32
                assert torch.equal(a.value, b.value) and b.query is None


def test_a_stage_cannot_tell_the_difference(captured: Captured) -> None:
    for settings in ({}, {"attention": "rebuilt"}):
        run_contributions(*captured(**settings))
        runs, capture = captured(**settings)
        require(check_tables(runs, [capture]), [capture])
    for table in ("token_scores", "contribution_rows", "sink_geometry", "sink_fit", "semantic_drift"):
        a, b = columns(*captured(), table), columns(*captured(attention="rebuilt"), table)
        assert len(a["head"]) > 0
        for name, values in a.items():
            if values.dtype.kind == "f" and name != "a_min":  # a_min is a ratio of two fitted numbers near 0
                np.testing.assert_allclose(b[name], values, rtol=2e-3, atol=1e-4, err_msg=f"{table}.{name}")
            elif values.dtype.kind in "iu":
                assert (b[name] == values).all(), f"{table}.{name}"


def test_chosen_layers_are_kept_and_no_others(captured: Captured) -> None:
    runs, capture = captured(layers="4,1-2")
    chosen, every = store_of(runs, capture), store_of(*captured())
    assert chosen.shape.kept_layers == (1, 2, 4)
    assert chosen.shape.layer_numbers("residual") == (1, 2, 3, 4, 5)
    for layer, kinds in ((1, ("attention", "residual")), (4, ("attention", "value")), (5, ("residual",))):
        for a, b in zip(*(s.shard(0).layer(layer, kinds) for s in (chosen, every)), strict=True):
            assert all(torch.equal(getattr(a, kind), getattr(b, kind)) for kind in kinds)
    with pytest.raises(UsageError, match=r"a layer whose attention the store keeps \(1–2, 4\), got 3"):
        chosen.shard(0).layer(3, ("attention",))
    with pytest.raises(UsageError, match=r"a layer whose residual the store keeps \(1–5\), got 0"):
        chosen.shard(0).layer(0, ("residual",))


def test_a_stage_runs_over_the_kept_layers_under_their_own_numbers(captured: Captured) -> None:
    runs, capture = captured(layers="1-2,4")
    run_contributions(runs, capture)
    require(check_tables(runs, [capture]), [capture])
    run_contributions(*captured())
    for table in ("contribution_rows", "sink_fit", "contribution_factors"):
        chosen, every = columns(runs, capture, table), columns(*captured(), table)
        assert set(chosen["layer"]) == {1, 2, 4}
        kept = np.isin(every["layer"], (1, 2, 4))
        for name in ("layer", "head", *(n for n in every if every[n].dtype.kind == "f" and n[:9] != "curvature")):
            np.testing.assert_array_equal(chosen[name], every[name][kept], err_msg=f"{table}.{name}")


def test_dtypes_and_kinds_are_kept_as_chosen(captured: Captured) -> None:
    store = store_of(*captured(store_dtype="residual=bfloat16,attention=float16", keep="residual"))
    assert store.shape.dtypes == {"attention": "float16", "residual": "bfloat16"}
    full = store_of(*captured())
    for a, b in zip(*(s.shard(0).layer(2, ("attention", "residual")) for s in (store, full)), strict=True):
        assert torch.equal(a.attention, b.attention.half().float())
        assert torch.equal(a.residual, b.residual.bfloat16().float())
    runs, capture = captured(store_dtype="residual=bfloat16,attention=float16", keep="residual")
    require(check_tables(runs, [capture]), [capture])
    assert columns(runs, capture, "captures")["value_dtype"].tolist() == ["none"]
    with pytest.raises(UnknownName, match="stored kind of tensor, got 'value'"):
        store.shard(0).layer(0, ("value",))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention": "none"}, "attention, value, got one without attention.*--attention stored or rebuilt"),
        ({"keep": "residual"}, "attention, value, got one without value.*--keep with value"),
    ],
)
def test_a_stage_says_what_the_store_lacks(captured: Captured, changes: dict[str, str], message: str) -> None:
    runs, capture = captured(**changes)
    with pytest.raises(UsageError, match=message):
        prepare_stage(runs, capture, "contributions", {})
    assert not (Path(runs) / capture / "manifest" / "stages" / "contributions").exists()  # nothing was asked for


def test_the_same_choice_has_the_same_key_and_the_default_the_old_one(base: CaptureSettings, tmp_path: Path) -> None:
    def ingredients(**changes: Any) -> dict[str, Any]:
        runs = str(tmp_path)
        return CaptureFolder.open(runs, prepare_capture(base.changed(**changes), runs)).record["ingredients"]

    plain = ingredients()
    assert "layers" not in plain and "keep" not in plain and plain["attention"] == "stored"
    assert ingredients(layers="0-5", keep="residual,value,output_input", store_dtype="value=float32") == plain
    assert ingredients(layers="3,1, 2")["layers"] == "1-3"
    assert ingredients(store_dtype="key=float16,query=float16")["store_dtype"] == "query=float16,key=float16"
    mixed = ingredients(store_dtype="float16,attention=bfloat16,key=float32")["store_dtype"]
    assert CaptureSettings("sample", ("t",), store_dtype=mixed).store_dtype == mixed
    assert kept_of({"attention": "rebuilt", "store_dtype": mixed}).dtypes == {
        "query": "bfloat16", "key": "float32", **dict.fromkeys(("value", "output_input", "residual"), "float16")
    }  # fmt: skip


def test_the_plan_shows_both_ways_and_auto_takes_the_smaller(base: CaptureSettings, tmp_path: Path) -> None:
    short, long = (base.changed(window=w, attention="auto") for w in (8, 128))
    for settings, way in ((short, "stored"), (long, "rebuilt")):
        plan = plan_capture(settings, str(tmp_path))
        assert plan.attention == way == min(plan.attention_bytes, key=lambda w: plan.attention_bytes[w])
        kinds = {"stored": {"attention"}, "rebuilt": {"query", "key"}}[way]
        assert sum(plan.bytes_by_kind[kind] for kind in kinds) == plan.attention_bytes[way]
        assert plan.key == plan_capture(settings.changed(attention=way), str(tmp_path)).key
    plans = [plan_capture(base.changed(window=128, attention=way), str(tmp_path)) for way in ("stored", "rebuilt")]
    two = 2 * 3 * 8 * (128 * 129 // 2) * 4  # triangles of two documents, padded to one length: not held if rebuilt
    assert plans[0].memory_peak_bytes - plans[1].memory_peak_bytes == two
    assert "attention" not in plan_capture(base.changed(attention="none"), str(tmp_path)).bytes_by_kind


def test_auto_is_the_smaller_and_needs_no_lengths_where_stored_always_is() -> None:
    shape = ConfigShape.of(read_config(resolve("sample")), "sample")

    def storage(window: int, lengths: Sequence[int], dtype: str = "float32", **settings: str) -> str | None:
        """None where the lengths decide nothing."""
        choices = {"attention": "auto", "store_dtype": "float32", "dtype": dtype, **settings}
        if stored_for_any_length({"model_type": "gpt_neox"}, shape, choices, window):
            return None
        return smaller_storage(shape, lengths, choices)

    long = 4 * 16  # (T + 1) / 2 numbers a token and head against 2 × 16
    assert (storage(64, [long] * 9), storage(long - 1, [long - 1] * 9)) == ("rebuilt", None)
    assert (storage(256, [20] * 9), storage(256, [256] * 9)) == ("stored", "rebuilt")
    for store, dtype, expected in (
        ("float16", "float32", None),  # rounding queries and keys would move attention
        ("float16", "float16", "rebuilt"),  # there is nothing to round
        ("float16,key=float32", "float32", None),
        ("value=float16", "bfloat16", "rebuilt"),
        ("bfloat16", "float16", None),
    ):
        assert storage(256, [256] * 9, dtype, store_dtype=store) == expected, (store, dtype)


@pytest.mark.parametrize(("n_more", "attention"), [(-1, "rebuilt"), (0, "stored")])
def test_auto_reads_the_first_documents_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_more: int, attention: str
) -> None:
    """Short documents first: where they fill the sample, the long ones after them decide nothing, and are not read."""
    monkeypatch.setattr("tasks.capture.describe.SAMPLE", 8)
    read = []
    lengths = [20] * (8 + n_more) + [256] * 40

    class Stream:
        left_out: ClassVar[dict[str, int]] = {}

        def __iter__(self) -> Iterator[SimpleNamespace]:
            for n in lengths:
                read.append(n)
                yield SimpleNamespace(token_ids=range(n))

    monkeypatch.setattr("tasks.capture.corpus.TextReading.documents", lambda *_: Stream())
    text = tmp_path / "t.txt"
    text.write_text("Text.")
    described = describe(CaptureSettings("sample", (str(text),), window=256))
    assert described.settings.attention == attention and described.measured is None and read == lengths[:8]
    del lengths[3:]
    described = describe(CaptureSettings("sample", (str(text),), window=256))
    assert described.measured is not None and described.measured.lengths == [20] * 3


def test_estimates_of_chosen_parts_by_hand() -> None:
    shape = ConfigShape(30, 9, 3, 576, 64, 64, 3, 1536, 49152, 8192, True, True, "interface")
    choices = {"attention": "rebuilt", "store_dtype": "float32,residual=float16", "layers": "0-4,8"}
    found = stored_bytes(shape, [512, 100], kept_of(choices))
    assert found["query"] == 6 * 612 * 9 * 64 * 4 and found["key"] == 6 * 612 * 3 * 64 * 4
    assert found["residual"] == 8 * 612 * 576 * 2  # layers 0 to 5, 8 and 9
    assert attention_bytes(shape, [512], choices)["stored"] == 6 * 9 * 512 * 513 // 2 * 4


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"attention": "packed"}, UsageError, "one of stored, rebuilt, none, auto, got 'packed', in attention"),
        ({"layers": "3-1"}, UsageError, r"numbers and ranges, such as 0-5,10, got '3-1', in layers"),
        ({"layers": "-1"}, UsageError, r"numbers and ranges, such as 0-5,10, got '-1', in layers"),
        ({"layers": " ,"}, UsageError, r"numbers and ranges, such as 0-5,10, got ' ,', in layers"),
        ({"keep": "residul"}, UnknownName, "kind of tensor to keep, got 'residul', in keep. Did you mean 'residual'"),
        ({"keep": "", "attention": "none"}, UsageError, "something to keep.*got nothing, in keep"),
        ({"store_dtype": "float8"}, UsageError, "one of float32, float16, bfloat16, got 'float8', in store_dtype"),
        ({"store_dtype": "valu=float16"}, UnknownName, "kind of tensor, got 'valu', in store_dtype. Did you mean 'v"),
        ({"store_dtype": ""}, UsageError, "one of float32, float16, bfloat16, got '', in store_dtype"),
    ],
)
def test_choices_that_cannot_be_are_refused(
    base: CaptureSettings, changes: dict[str, str], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        base.changed(**changes)


def test_layers_beyond_the_models_are_refused(base: CaptureSettings, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="layers from 0 to 5, got 9, in layers"):
        plan_capture(base.changed(layers="2,7-9"), str(tmp_path))


def test_a_family_that_cannot_be_rebuilt_is_refused_before_any_work(
    base: CaptureSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = replace(FAMILIES["gpt_neox"], not_rebuilt=ALIBI)
    monkeypatch.setitem(cast("dict[str, Family]", FAMILIES), "gpt_neox", row)
    with pytest.raises(ModelError, match=r"rebuilt from query and key, got 'gpt_neox': ALiBi adds .*, in sample"):
        prepare_capture(base.changed(attention="rebuilt"), str(tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()
    plan = plan_capture(base.changed(attention="auto", window=128), str(tmp_path))
    assert plan.attention == "stored" and set(plan.attention_bytes) == {"stored"}


def test_the_kinds_that_can_be_named_are_those_of_the_store() -> None:
    assert set(KINDS) == set(AXES)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("float16,bfloat16", "one dtype for the kinds that are not named"),
        ("value=float16,value=float32", "one dtype for value"),
    ],
)
def test_two_dtypes_for_one_kind_are_refused(text: str, expected: str) -> None:
    with pytest.raises(UsageError, match=f"expected {expected}, got '{text}', in store_dtype"):
        CaptureSettings("sample", ("t",), store_dtype=text)
