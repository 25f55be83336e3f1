"""The batch follows the memory there is; what a capture holds does not follow its layers or its length."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from storage.kept import Kept
from tasks.capture import batch_size
from tasks.capture.cost import ConfigShape
from tasks.capture.kept import kept_of
from tasks.capture.settings import CaptureSettings
from tests.tasks.capture.made_captures import save_model

GIB = 2**30
BODY = """
import json, resource, sys
from pathlib import Path
from tasks.capture.run import capture_shards, shards_left, warm_up
from tasks.capture.settings import CaptureSettings
from tasks.capture.plan import prepare_capture
from benchmarks.harness import CLEAR, resident

folder, model, corpus, options = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
name = prepare_capture(CaptureSettings(model, (corpus,), **options), folder)
warm_up(folder, name)
shards, seen = shards_left(folder, name), []
capture_shards(folder, name, shards[:1])
CLEAR.write_text("5")
before = resident("VmRSS")
for shard in shards[1:]:
    capture_shards(folder, name, [shard])
    seen.append(resident("VmRSS"))
print(json.dumps({"before": before, "peak": resident("VmHWM"), "seen": seen}))
"""

linux = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux says a process's peak")


def shape(**changes: int) -> ConfigShape:
    config = {
        "model_type": "llama",
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        **changes,
    }
    return ConfigShape.of(config, "config.json")


def way(attention: str) -> Kept:
    return kept_of(CaptureSettings("model", ("corpus.txt",), attention=attention).model_dump())


def test_the_batch_shrinks_with_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for gib in (64, 3, 2.6, 0.5):
        monkeypatch.setattr(batch_size, "memory_of", lambda _, gib=gib: int(gib * GIB))
        found.append(batch_size.batch_tokens(shape(), 512, "float32", 128, way("stored"), "cpu"))
    assert found[0] == 1024
    assert found == sorted(found, reverse=True)
    assert found[-1] == 256


def test_a_gpu_with_room_takes_larger_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_size, "memory_of", lambda _: 80 * GIB)
    small = batch_size.batch_tokens(shape(), 512, "bfloat16", 128, way("rebuilt"), "cuda")
    large = batch_size.batch_tokens(
        shape(num_hidden_layers=80, hidden_size=4608), 512, "bfloat16", 128, way("rebuilt"), "cuda"
    )
    assert small == 16384
    assert 512 <= large <= small


def test_a_limit_on_the_process_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limit = tmp_path / "batch_size.max"
    monkeypatch.setattr(batch_size, "_CGROUP", limit)
    whole = batch_size.memory_of("cpu")
    limit.write_text("max\n")
    assert batch_size.memory_of("cpu") == whole
    limit.write_text("1048576\n")
    assert batch_size.memory_of("cpu") == 1048576


def test_without_a_gpu_auto_is_the_cpu_and_torch_is_not_asked() -> None:
    code = "from tasks.capture.batch_size import likely_device; print(likely_device('cpu'), 'torch' in sys.modules)"
    code = f"import sys; {code}"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["cpu", "False"]


def run(tmp_path: Path, model: Path, corpus: Path, **options: object) -> dict[str, list[int] | int]:
    command = [sys.executable, "-c", BODY, str(tmp_path), str(model), str(corpus), json.dumps(options)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not ran.returncode, ran.stderr[-2000:]
    found: dict[str, list[int] | int] = json.loads(ran.stdout.splitlines()[-1])
    return found


@linux
@pytest.mark.slow
def test_300_batches_leave_memory_as_it_was(tmp_path: Path) -> None:
    model, corpus = save_model(tmp_path / "model"), tmp_path / "corpus.txt"
    corpus.write_text("All that glisters is not gold; often have you heard that told.\n" * 600)
    options = {"window": 32, "batch_tokens": 96, "shard_tokens": 960, "max_documents": 3 * 330}
    found = run(tmp_path / "runs", model, corpus, **options)
    seen = found["seen"]
    assert isinstance(seen, list)
    assert len(seen) == 32  # 33 shards of ten batches
    grown = statistics.median(seen[-8:]) - statistics.median(seen[4:12])
    assert grown < 16 * 2**20, f"{grown / 2**20:.1f} MiB more after 200 batches: {seen}"


@linux
@pytest.mark.slow
def test_ten_more_layers_take_no_more_memory(tmp_path: Path) -> None:
    """One layer of attention is 8 MiB here, and what ten layers hold by themselves would be 84."""
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("All that glisters is not gold; often have you heard that told.\n" * 60)
    peaks = {}
    for layers in (4, 14):
        model = save_model(tmp_path / f"model-{layers}", num_hidden_layers=layers, max_position_embeddings=1024)
        options = {"window": 1024, "batch_tokens": 1024, "shard_tokens": 1024, "attention": "stored"}
        found = run(tmp_path / f"runs-{layers}", model, corpus, **options)
        assert isinstance(found["peak"], int) and isinstance(found["before"], int)
        peaks[layers] = (found["peak"] - found["before"]) / 2**20
    assert peaks[14] - peaks[4] < 30, f"{peaks} MiB"
