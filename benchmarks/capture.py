"""Capture of SmolLM2-135M, 16 windows of 512 tokens, beside what a user would write or pick instead.

`python -m benchmarks.capture TEXT` runs every case in a process of its own, alternated, and prints medians:

bare      the eager forward pass with logits, nothing kept, batch 1 and 2
script    `output_attentions=True, output_hidden_states=True`, then `numpy.save` of everything, batch 4 and 1
bridge    TransformerLens' bridge, `run_with_cache` of the tensors that we keep, then `numpy.save` (batch 1)
ours      capture with all checks, float32 and float16
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import alternate, measured, table

DOCUMENTS, WINDOW = 16, 512
MODEL = os.environ.get("BENCHMARK_MODEL", "smollm2-135m")
"""Also a folder: SmolLM2 saved as safetensors loads in a second instead of twenty."""


def load(implementation: str) -> tuple[Any, Any, Any]:
    """Model, tokenizer and the 16 windows as one (16, 512) tensor of token ids."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from tasks.models.sources import resolve

    source = resolve(MODEL)
    options = {"gguf_file": source.gguf_file} if source.gguf_file else {}
    model = AutoModelForCausalLM.from_pretrained(source.folder, attn_implementation=implementation, **options).eval()
    tokenizer = AutoTokenizer.from_pretrained(source.folder, **options)
    text = Path(os.environ["BENCHMARK_TEXT"]).read_text()[:200_000]
    ids = tokenizer(text, add_special_tokens=False, verbose=False).input_ids[: DOCUMENTS * WINDOW]
    return model, tokenizer, torch.tensor(ids).view(DOCUMENTS, WINDOW)


def folder_bytes(folder: Path) -> int:
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())


def bare(batch: int) -> dict[str, float]:
    import torch

    model, _, ids = load("eager")
    result: dict[str, float] = {}
    with torch.inference_mode():
        model(ids[:1], use_cache=False)
        with measured(result):
            for start in range(0, DOCUMENTS, batch):
                model(ids[start : start + batch], use_cache=False)
    return result


def script(batch: int, folder: Path) -> dict[str, float]:
    import torch

    model, _, ids = load("eager")
    result: dict[str, float] = {}
    with torch.inference_mode():
        model(ids[:1], use_cache=False)
        with measured(result):
            for start in range(0, DOCUMENTS, batch):
                out = model(
                    ids[start : start + batch], use_cache=False, output_attentions=True, output_hidden_states=True
                )
                for layer, attention in enumerate(out.attentions):
                    np.save(folder / f"{start}-attention-{layer}.npy", attention.numpy())
                for layer, hidden in enumerate(out.hidden_states):
                    np.save(folder / f"{start}-hidden-{layer}.npy", hidden.numpy())
    return result | {"bytes": folder_bytes(folder)}


def bridge(folder: Path) -> dict[str, float]:
    import torch
    from transformer_lens.model_bridge import TransformerBridge

    model, tokenizer, ids = load("eager")
    lens = TransformerBridge.boot_transformers("HuggingFaceTB/SmolLM2-135M", hf_model=model, tokenizer=tokenizer)
    kept = ("attn.hook_pattern", "attn.hook_v", "attn.hook_z", "hook_resid_pre", "29.hook_resid_post")
    result: dict[str, float] = {}
    with torch.inference_mode():
        lens(ids[:1])
        with measured(result):
            for start in range(DOCUMENTS):
                _, cache = lens.run_with_cache(ids[start : start + 1], names_filter=lambda n: n.endswith(kept))
                for name, tensor in cache.items():
                    np.save(folder / f"{start}-{name}.npy", tensor.numpy())
    return result | {"bytes": folder_bytes(folder), "tensors": len(cache)}


def ours(dtype: str, folder: Path) -> dict[str, float]:
    from tasks.capture.plan import prepare_capture
    from tasks.capture.run import capture_shards, shards_left, warm_up
    from tasks.capture.settings import CaptureSettings

    settings = CaptureSettings(
        MODEL,
        (os.environ["BENCHMARK_TEXT"],),
        window=WINDOW,
        max_documents=DOCUMENTS,
        bos="never",
        store_dtype=dtype,
        attention="stored",  # the same tensors as the script's: by default fewer bytes would be compared with its
    )
    capture = prepare_capture(settings, str(folder))
    warm_up(str(folder), capture)
    result: dict[str, float] = {}
    with measured(result):
        capture_shards(str(folder), capture, shards_left(str(folder), capture))
    return result | {"bytes": folder_bytes(folder)}


def disk_rate(folder: Path) -> float:
    """Bytes a second of a plain sequential write, the limit of anything that stores: for the report."""
    block, start = np.random.default_rng(0).bytes(1 << 26), time.perf_counter()
    with (folder / "probe").open("wb") as file:
        for _ in range(8):
            file.write(block)
    return 8 * (1 << 26) / (time.perf_counter() - start)


def one(case: str, argument: str) -> None:
    folder = Path(tempfile.mkdtemp(dir=os.environ.get("BENCHMARK_FOLDER")))
    try:
        run = {
            "bare": lambda: bare(int(argument)),
            "script": lambda: script(int(argument), folder),
            "bridge": lambda: bridge(folder),
            "ours": lambda: ours(argument, folder),
        }[case]
        print(json.dumps(run()))
    finally:
        shutil.rmtree(folder)


def row(name: str, r: dict[str, float], base: float, stored: float) -> dict[str, str]:
    """One case as a row of the README's table."""
    share = f"{r['bytes'] / 1e6:,.0f} MB ({r['bytes'] / stored:.2f})" if "bytes" in r else "–"
    return {
        "case": name,
        "seconds": f"{r['seconds']:.1f}",
        "× bare": f"{r['seconds'] / base:.2f}",
        "CPU seconds": f"{r['cpu_seconds']:.1f}",
        "MiB above the model": f"{r['peak_mib']:.0f}",
        "stored (share of the script's)": share,
    }


def main(text: str, rounds: int = 3) -> None:
    rounds = int(os.environ.get("BENCHMARK_ROUNDS", rounds))
    os.environ["BENCHMARK_TEXT"] = str(Path(text).resolve())
    bridge_python = os.environ.get("BRIDGE_PYTHON", sys.executable)
    cases = {
        "bare, batch 1": ("bare", "1"),
        "ours, float32": ("ours", "float32"),
        "script, batch 4": ("script", "4"),
        "ours, float16": ("ours", "float16"),
        "script, batch 1": ("script", "1"),
        "bare, batch 2": ("bare", "2"),
    }
    if bridge_python != sys.executable or importlib.util.find_spec("transformer_lens"):
        cases["bridge, batch 1"] = ("bridge", "1")
    results = alternate(
        "benchmarks.capture", cases, rounds, lambda name: bridge_python if "bridge" in name else sys.executable
    )
    base, stored = results["bare, batch 1"]["seconds"], results["script, batch 4"]["bytes"]
    print(table([row(name, r, base, stored) for name, r in results.items()]))
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCHMARK_FOLDER")) as folder:
        print(f"\nplain sequential write here: {disk_rate(Path(folder)) / 2**20:,.0f} MiB/s")


if __name__ == "__main__":
    if sys.argv[1] in ("bare", "script", "bridge", "ours"):
        one(sys.argv[1], sys.argv[2])
    else:
        main(sys.argv[1])
