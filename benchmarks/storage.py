"""What attention costs in the store, as tapped (`stored`) and as query and key (`rebuilt`), for SmolLM2-135M.

`python -m benchmarks.storage TEXT` captures one document of 512, 2,048 and 8,192 tokens both ways, each length in a
process of its own, alternated, and prints medians. Three layers are kept, the first, the middle and the last: all 30
of 8,192 tokens would be 36 GB as tapped.

bytes      of the files that hold attention, per token and layer
capture    seconds of the whole capture per token: the model, its checks, and three layers written
read       seconds per token and layer until attention is there as (H, T, T)
worst      the largest difference of rebuilt from tapped attention, over every entry of the three layers
codecs     of one layer's packed triangle, and of its query, as chunks are compressed: share left, rate in and out
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import alternate, measured, table

LENGTHS = (512, 2048, 8192)
LAYERS = (0, 14, 29)
MODEL = os.environ.get("BENCHMARK_MODEL", "smollm2-135m")
"""Also a folder: SmolLM2 saved as safetensors loads in a second instead of twenty."""
CODECS = [(name, level, shuffle) for name, level in (("lz4", 5), ("zstd", 1)) for shuffle in ("bit", "byte", "no")]
KINDS = {"stored": ("attention",), "rebuilt": ("query", "key")}


def captured(way: str, length: int, runs: Path) -> tuple[Any, dict[str, float]]:
    """One document of this length, captured that way: its store, and what it took."""
    from storage.filesystem import open_runs
    from storage.tensors import ActivationStore
    from tasks.capture.plan import prepare_capture
    from tasks.capture.run import capture_shards, shards_left, warm_up
    from tasks.capture.settings import CaptureSettings

    settings = CaptureSettings(
        MODEL,
        (os.environ["BENCHMARK_TEXT"],),
        window=length,
        max_documents=1,
        bos="never",
        attention=way,
        layers=",".join(map(str, LAYERS)),
        keep="value",
    )
    name = prepare_capture(settings, str(runs))
    warm_up(str(runs), name)
    result: dict[str, float] = {}
    with measured(result):
        capture_shards(str(runs), name, shards_left(str(runs), name))
    arrays = [folder for kind in KINDS[way] for folder in (runs / name).rglob(f"batch-*/{kind}")]
    result["bytes"] = sum(file.stat().st_size for folder in arrays for file in folder.glob("c.*"))
    return ActivationStore.open(open_runs(str(runs)), name), result


def attention(store: Any, layer: int) -> Any:
    """(H, T, T) of the one document."""
    return next(iter(store.shard(0).layer(layer, ("attention",)))).attention


def size(length: int, runs: Path) -> dict[str, float]:
    """Both ways of one length: bytes and seconds per token and layer, and the worst difference."""
    stores, result = {}, dict[str, float]()
    captured("rebuilt", 64, runs)  # what a process does once is not a length's
    for way in KINDS:
        stores[way], taken = captured(way, length, runs)
        result[f"{way} bytes"] = taken["bytes"] / length / len(LAYERS)
        result[f"{way} capture"] = taken["seconds"] / length
        result[f"{way} peak"] = taken["peak_mib"]
        start = time.perf_counter()
        for layer in LAYERS:
            attention(stores[way], layer)
        result[f"{way} read"] = (time.perf_counter() - start) / length / len(LAYERS)
    differences = []
    for layer in LAYERS:
        tapped, rebuilt = (attention(stores[way], layer) for way in KINDS)
        differences.append(rebuilt.sub_(tapped).abs_().max().item())
    return result | {"worst": max(differences)}


def codecs(length: int, runs: Path) -> dict[str, float]:
    """Each codec on the middle layer: the share of bytes left, and MB/s in and out."""
    import numpy as np

    from storage.triangles import pack

    stored, _ = captured("stored", length, runs)
    rebuilt, _ = captured("rebuilt", length, runs)
    document = next(iter(rebuilt.shard(0).layer(LAYERS[1], ("query",))))
    arrays = {"triangle": pack(attention(stored, LAYERS[1])).numpy(), "query": np.asarray(document.query)}
    result: dict[str, float] = {}
    for name, array in arrays.items():
        for key, value in codec_figures(array):
            result[f"{name}, {key}"] = value
    return result


def codec_figures(array: Any) -> Iterator[tuple[str, float]]:
    """Every codec on an array's rows of the first axis, each compressed by itself, as chunks are."""
    from numcodecs import Blosc

    shuffles = {"bit": Blosc.BITSHUFFLE, "byte": Blosc.SHUFFLE, "no": Blosc.NOSHUFFLE}
    rows = [row.copy() for row in array] if len(array) < 64 else [array]
    for name, level, shuffle in CODECS:
        codec = Blosc(cname=name, clevel=level, shuffle=shuffles[shuffle], typesize=array.itemsize)
        start = time.perf_counter()
        packed = [codec.encode(row) for row in rows]
        middle = time.perf_counter()
        for data in packed:
            codec.decode(data)
        end = time.perf_counter()
        where = f"{name} {level}, {shuffle} shuffle"
        yield f"{where}: share", sum(map(len, packed)) / array.nbytes
        yield f"{where}: in", array.nbytes / 1e6 / (middle - start)
        yield f"{where}: out", array.nbytes / 1e6 / (end - middle)


def one(case: str, length: int) -> None:
    folder = Path(tempfile.mkdtemp(dir=os.environ.get("BENCHMARK_FOLDER")))
    try:
        print(json.dumps((size if case == "size" else codecs)(length, folder)))
    finally:
        shutil.rmtree(folder)


def size_row(name: str, r: dict[str, float]) -> dict[str, str]:
    """One length as a row of the README's table: stored / rebuilt."""
    pairs = {
        "bytes per token and layer": ("bytes", 1, ",.0f"),
        "capture, ms per token": ("capture", 1e3, ".2f"),
        "peak, MiB": ("peak", 1, ",.0f"),
        "read, µs per token and layer": ("read", 1e6, ",.0f"),
    }
    cells = {
        title: " / ".join(format(r[f"{way} {figure}"] * unit, form) for way in KINDS)
        for title, (figure, unit, form) in pairs.items()
    }
    ratio = r["stored bytes"] / r["rebuilt bytes"]
    return {"tokens": name, **cells, "rebuilt smaller": f"{ratio:.2f} ×", "worst difference": f"{r['worst']:.1e}"}


def codec_rows(r: dict[str, float]) -> list[dict[str, str]]:
    names = dict.fromkeys(key.rpartition(":")[0] for key in r)
    return [
        {
            "what, codec": name,
            "bytes left": f"{r[f'{name}: share']:.3f}",
            "MB/s in": f"{r[f'{name}: in']:,.0f}",
            "MB/s out": f"{r[f'{name}: out']:,.0f}",
        }
        for name in names
    ]


def main(text: str, rounds: int = 3) -> None:
    rounds = int(os.environ.get("BENCHMARK_ROUNDS", rounds))
    lengths = [int(n) for n in os.environ.get("BENCHMARK_LENGTHS", "").split(",") if n] or LENGTHS
    os.environ["BENCHMARK_TEXT"] = str(Path(text).resolve())
    cases = {f"{length:,}": ("size", str(length)) for length in lengths}
    results = alternate("benchmarks.storage", {**cases, "codecs": ("codecs", str(lengths[-1] // 4))}, rounds)
    print("stored / rebuilt:\n")
    print(table([size_row(name, results[name]) for name in cases]))
    print(f"\ncodecs, layer {LAYERS[1]} of {lengths[-1] // 4:,} tokens:\n")
    print(table(codec_rows(results["codecs"])))


if __name__ == "__main__":
    if sys.argv[1] in ("size", "codecs"):
        one(sys.argv[1], int(sys.argv[2]))
    else:
        main(sys.argv[1])
