"""What a capture will be, before anything runs: plan and preparation, torch-free."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from storage.errors import CorpusError, ModelError, StorageFull, UsageError
from storage.filesystem import LocalFolder, open_runs
from storage.layout import Layout
from storage.manifest import Manifest
from tasks.capture.cost import ConfigShape, memory_peak, operations, parameters, stored_bytes
from tasks.capture.documents import read_windows
from tasks.capture.kept import kept_of
from tasks.capture.plan import plan_capture, prepare_capture
from tasks.capture.settings import CaptureSettings
from tests.conftest import ROOT

TEXT = "Assert statements are a convenient way to insert debugging assertions into a program. " * 4


@pytest.fixture
def settings(tmp_path: Path) -> CaptureSettings:
    (tmp_path / "text.txt").write_text(TEXT)
    return CaptureSettings("sample", (str(tmp_path / "text.txt"),), window=32, shard_tokens=64)


def test_plan_says_what_will_be_and_writes_nothing(settings: CaptureSettings, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    plan = plan_capture(settings, str(runs))
    assert (plan.family, plan.window, plan.n_tokens) == ("gpt_neox", 32, len(TEXT))
    assert plan.n_docs == -(-len(TEXT) // 32)
    assert plan.shards == -(-plan.n_docs // 2)
    assert plan.bytes_total == sum(plan.bytes_by_kind.values())
    assert plan.fits
    assert not runs.exists()


def test_plan_loads_neither_torch_nor_prefect(settings: CaptureSettings, tmp_path: Path) -> None:
    program = (
        "import sys; from tasks.capture.plan import plan_capture; from tasks.capture.settings import CaptureSettings;"
        f"plan_capture(CaptureSettings('sample', ({settings.corpus[0]!r},), window=32), {str(tmp_path)!r});"
        "print([m for m in ('torch', 'transformers', 'prefect') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_prepared_documents_hold_every_token(settings: CaptureSettings, tmp_path: Path) -> None:
    capture = prepare_capture(settings, str(tmp_path / "runs"))
    fs, layout = open_runs(str(tmp_path / "runs")), Layout(capture)
    windows = [row for group in read_windows(fs, layout).groups() for row in group.to_pylist()]
    assert [len(w["token_ids"]) for w in windows] == Manifest(fs, layout).read_capture()["lengths"]
    assert sum(len(w["token_ids"]) for w in windows) == len(TEXT)
    assert [w["start_token"] for w in windows][:3] == [0, 32, 64]


def test_prepared_once_and_brought_up_to_what_the_key_leaves_open(settings: CaptureSettings, tmp_path: Path) -> None:
    runs = str(tmp_path / "runs")
    capture = prepare_capture(settings, runs)
    record = Manifest(open_runs(runs), Layout(capture)).read_capture()
    assert prepare_capture(settings.changed(device="cpu"), runs) == capture
    again = Manifest(open_runs(runs), Layout(capture)).read_capture()
    assert again["settings"]["device"] == "cpu"
    assert again == {**record, "settings": {**record["settings"], "device": "cpu"}}


def test_documents_that_are_gone_are_made_again(settings: CaptureSettings, tmp_path: Path) -> None:
    runs = str(tmp_path / "runs")
    fs, layout = open_runs(runs, create=True), Layout(prepare_capture(settings, runs))
    before = fs.read_bytes(layout.windows)
    fs.remove(layout.windows)
    prepare_capture(settings, runs)
    assert fs.read_bytes(layout.windows) == before


def test_what_does_not_fit_the_disk_is_refused_before_anything_runs(
    settings: CaptureSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalFolder, "free_bytes", lambda _: 1000)
    with pytest.raises(StorageFull, match=r"free bytes, got 1,000.*--max-documents"):
        prepare_capture(settings, str(tmp_path / "runs"))
    assert not list((tmp_path / "runs").rglob("capture.json"))


def test_bad_input_is_named(settings: CaptureSettings, tmp_path: Path) -> None:
    runs = str(tmp_path / "runs")
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    with pytest.raises(CorpusError, match="at least one document"):
        plan_capture(settings.changed(corpus=(str(empty),)), runs)
    with pytest.raises(UsageError, match=r"window of at most 256 tokens, the model's positions, got 300.*--window 256"):
        plan_capture(settings.changed(window=300), runs)
    with pytest.raises(UsageError, match="window of at least 2 tokens, got 1"):
        plan_capture(settings.changed(window=1), runs)
    with pytest.raises(UsageError, match="Object storage is not in this version"):
        plan_capture(settings, "s3://bucket/runs")
    with pytest.raises(ModelError):
        plan_capture(settings.changed(model=str(tmp_path / "no-such-model")), runs)


def test_unknown_family_is_refused_by_name(settings: CaptureSettings, tmp_path: Path) -> None:
    folder = tmp_path / "mamba"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "mamba", "hidden_size": 8}))
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match="got 'mamba'"):
        plan_capture(settings.changed(model=str(folder)), str(tmp_path / "runs"))


def test_model_without_a_tokenizer_says_what_to_do(settings: CaptureSettings, tmp_path: Path, fixtures: Path) -> None:
    with pytest.raises(ModelError, match="tokenizer"):
        plan_capture(settings.changed(model=str(fixtures / "models" / "induction-neox")), str(tmp_path / "runs"))


def test_estimates_of_smollm2() -> None:
    """Against the numbers counted by hand: 30 layers of 9 and 3 heads of 64, width 576, MLP 1,536."""
    config = {
        "model_type": "llama",
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "intermediate_size": 1536,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
    }
    shape = ConfigShape.of(config, "smollm2")
    assert (shape.d_value, shape.n_kv_heads, shape.positions) == (64, 3, 8192)
    assert parameters(shape) == 30 * (576 * 576 * 2 + 2 * 576 * 192 + 3 * 576 * 1536)
    kept = kept_of({"attention": "stored", "store_dtype": "float32"})
    one = stored_bytes(shape, [512], kept)
    assert one["attention"] == 30 * 9 * 512 * 513 // 2 * 4
    assert one["residual"] == 31 * 512 * 576 * 4
    assert operations(shape, [512]) == 2 * (parameters(shape) + 49152 * 576) * 512 + 4 * 30 * 9 * 64 * 512 * 512
    peaks = [memory_peak(shape, [512] * 4, batch, "float32", 256, kept) for batch in ([0], [0, 1])]
    assert peaks[0] < peaks[1]


def test_configuration_without_a_size_is_named() -> None:
    with pytest.raises(ModelError, match="'num_hidden_layers' in the model's configuration, in somewhere"):
        ConfigShape.of({"hidden_size": 8, "num_attention_heads": 2}, "somewhere")


def _copied_sample(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "samples" / "topics-neox", tmp_path / "model"))


@pytest.mark.parametrize("value", [0, -3, "two", True, 2.5, [8]])
def test_a_size_that_is_none_is_named_with_its_file(settings: CaptureSettings, tmp_path: Path, value: object) -> None:
    model = _copied_sample(tmp_path)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "num_attention_heads": value}))
    with pytest.raises(ModelError) as caught:
        plan_capture(settings.changed(model=str(model)), str(tmp_path / "runs"))
    assert (
        f"expected an integer of at least 1 for 'num_attention_heads' in the model's configuration, got {value!r}, "
        in (str(caught.value))
    )
    assert f"in {model / 'config.json'}" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [("tokenizer.json", "{"), ("tokenizer.json", ""), ("tokenizer_config.json", "{"), ("tokenizer_config.json", "[]")],
)
def test_a_damaged_tokenizer_is_named(settings: CaptureSettings, tmp_path: Path, name: str, content: str) -> None:
    model = _copied_sample(tmp_path)
    (model / name).write_text(content)
    with pytest.raises(
        ModelError, match=f"expected a {re.escape(name)} that can be read, got .*fetch the model"
    ) as caught:
        plan_capture(settings.changed(model=str(model)), str(tmp_path / "runs"))
    assert f"in {model / name}" in str(caught.value)


def test_names_that_are_empty_are_refused(settings: CaptureSettings, tmp_path: Path) -> None:
    """An empty path would be the current folder."""
    with pytest.raises(UsageError, match="expected a model, got '', in --model"):
        plan_capture(settings.changed(model=""), str(tmp_path))
    with pytest.raises(UsageError, match="expected a corpus, got '', in --corpus"):
        plan_capture(settings.changed(corpus=("",)), str(tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": 0}, "window of at least 2 tokens, got 0"),
        ({"stride": 0}, "at least 1, got 0, in stride"),
        ({"device": "tpu"}, "one of auto, cpu, cuda, mps, got 'tpu', in device"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: CaptureSettings, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        settings.changed(**change)
