"""POD of attention fields read from a store, beside what decomposes the same fields in memory.

`python -m benchmarks.pod` makes a store of documents of 256 tokens (`BENCHMARK_HEADS` heads, 4 by default, of random
attention with a few common patterns), and takes spectrum and first modes of 150, 1,000 and 2,000 of them with ours,
reading included, on one thread. Beside it, at 1,000: numpy.linalg.svd, scikit-learn's PCA, PyDMD's and PySPOD's
decompositions of the same T×T fields, in memory and centred before the clock starts; whichever of them can be imported
from `BENCHMARK_RIVALS`, a folder of packages, or the environment. Limits are printed beside each figure.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.harness import alternate, measured, resident, table

if TYPE_CHECKING:
    from tasks.stages.multiscale.ensemble import Ensemble

T, SIZES, COMPARED = 256, (150, 1000, 2000), 1000
HEADS = int(os.environ.get("BENCHMARK_HEADS", "4"))
DOCUMENTS_A_SHARD = 50
ROUNDS = int(os.environ.get("BENCHMARK_ROUNDS", "3"))
GOAL_RATIO, GOAL_ERROR, GOAL_RATE = 15, 1e-7, 0.8
RIVALS = ("numpy", "sklearn", "pydmd", "pyspod")


def attention(doc: int) -> np.ndarray:
    """(H, T, T) float32 of one document: patterns common to all documents, each weighted by chance, and noise."""
    common, random = np.random.default_rng(0), np.random.default_rng([1, doc])
    patterns = common.normal(size=(6, T, T)).astype(np.float32)
    logits = random.normal(size=(HEADS, T, T)).astype(np.float32)
    logits += np.einsum("hk,kij->hij", random.normal(size=(HEADS, 6)).astype(np.float32), patterns)
    weights = np.exp(logits) * np.tril(np.ones((T, T), np.float32))
    return weights / weights.sum(-1, keepdims=True)


def make_store(folder: str) -> None:
    """A store of one layer that keeps attention alone, written as a capture writes it."""
    import torch

    from storage.filesystem import open_runs
    from storage.layout import Layout
    from storage.manifest import Manifest, PartRecord, placed
    from storage.store_shape import StoreShape
    from storage.tensors import ShardWriter, model_moves, write_model
    from storage.triangles import pack

    fs, layout = open_runs(folder, create=True), Layout("fields")
    manifest = Manifest(fs, layout)
    shape = StoreShape(1, HEADS, HEADS, 8, 8, True, {"attention": "float32"}, (None,))
    manifest.write_capture({"capture": "fields", "key": "0" * 64})
    files = write_model(fs, layout.staging("model"), shape, torch.zeros(1, HEADS, 8, 8), None)
    moves = model_moves(layout, layout.staging("model"))
    manifest.publish(layout.model_record, PartRecord(placed(files, layout.store)), moves)
    for shard, start in enumerate(range(0, SIZES[-1], DOCUMENTS_A_SHARD)):
        docs = range(start, start + DOCUMENTS_A_SHARD)
        writer = ShardWriter(fs, layout.staging(f"shard-{shard}"), shape)
        for batch, doc in enumerate(docs):
            writer.begin_batch(batch, [T], [doc])
            writer.add(batch, 0, "attention", pack(torch.from_numpy(attention(doc))))
        tokens = [np.zeros(T, np.int32) for _ in docs]
        nll = [np.append(np.nan, np.ones(T - 1)).astype(np.float32) for _ in docs]
        written = PartRecord(placed(writer.close(list(docs), tokens, nll), layout.shard(shard)))
        manifest.publish(layout.shard_record(shard), written, [(layout.staging(f"shard-{shard}"), layout.shard(shard))])


def ensemble(folder: str, n: int) -> Ensemble:
    """The first n documents of the store."""
    from storage.filesystem import open_runs
    from storage.tensors import ActivationStore
    from tasks.stages.multiscale.ensemble import Ensemble

    store = ActivationStore.open(open_runs(folder), "fields")
    shards = {shard: [d for d in store.documents(shard) if d < n] for shard in store.shards}
    return Ensemble(store, T, {shard: docs for shard, docs in shards.items() if docs}, 0)


def ours(folder: str, n: int, result: dict[str, float]) -> np.ndarray:
    """Reading, mean, products, spectrum, and the first four modes."""
    from tasks.stages.multiscale.pod_blocks import BLOCK_BYTES, Blocks
    from tasks.stages.multiscale.pod_spectra import OBSERVED_SOURCE, Spectra, name_of

    found = ensemble(folder, n)
    next(found.fields(0))  # what is imported and compiled once
    with measured(result):
        blocks = Blocks(found, 0, None, 0)
        blocks.prepare()
        arrays = Spectra(blocks, (n,), 4, (0.1,), 0).run({OBSERVED_SOURCE: {"full": None}}, lambda _done: None)
    result["allowed_mib"] = (2 * min(BLOCK_BYTES, 8 * n * len(blocks.lags)) + 4 * 8 * n**2) / 2**20
    return arrays[name_of("full", OBSERVED_SOURCE, n)]


def rival(name: str, folder: str, n: int, result: dict[str, float]) -> np.ndarray:
    """Eigenvalues of the same fields, T×T, float64, in memory."""
    fields = np.empty((n, T * T))
    for row, field in zip(fields, ensemble(folder, n).fields(0), strict=True):
        row[:] = field.ravel()
    fields -= fields.mean(0)
    decompose = {"numpy": _numpy, "sklearn": _sklearn, "pydmd": _pydmd, "pyspod": _pyspod}[name](fields)
    with measured(result):
        return decompose()


def _numpy(fields: np.ndarray) -> Callable[[], np.ndarray]:
    return lambda: np.linalg.svd(fields, full_matrices=False)[1] ** 2 / len(fields)


def _sklearn(fields: np.ndarray) -> Callable[[], np.ndarray]:
    from sklearn.decomposition import PCA

    n = len(fields)
    return lambda: PCA(svd_solver="full").fit(fields).explained_variance_ * (n - 1) / n


def _pydmd(fields: np.ndarray) -> Callable[[], np.ndarray]:
    """The decomposition behind all of its models, of snapshots as columns."""
    from pydmd.utils import compute_svd

    return lambda: compute_svd(fields.T, svd_rank=-1)[1] ** 2 / len(fields)


def _pyspod(fields: np.ndarray) -> Callable[[], np.ndarray]:
    from pyspod.pod.standard import Standard

    n = len(fields)
    params = {"time_step": 1, "n_space_dims": 2, "n_variables": 1, "n_modes_save": 4, "normalize_weights": False}
    params |= {"normalize_data": False, "savedir": tempfile.mkdtemp()}
    return lambda: np.sort(np.real(Standard(params=params).fit(data_list=fields.reshape(n, T, T)).eigs))[::-1] / n


def rate(n: int, result: dict[str, float]) -> None:
    """Flops a second of a large float64 product, and of our symmetric products of n snapshots."""
    from tasks.kernels.pod import products

    block = np.random.default_rng(0).normal(size=(n, T * (T + 1) // 2))
    square = np.random.default_rng(0).normal(size=(2, 2048, 2048))
    best = {}
    for name, work, flops in (
        ("gemm", lambda: square[0] @ square[1], 2 * 2048**3),
        ("gram", lambda: products(block), n * (n + 1) * block.shape[1]),
    ):
        seconds = []
        for _ in range(3):
            start = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - start)
        best[name] = flops / min(seconds) / 1e9
    result |= {"gemm_gflops": best["gemm"], "gram_gflops": best["gram"], "share": best["gram"] / best["gemm"]}


def case(name: str, folder: str, n: int) -> None:
    """One case in a process of its own; prints its figures."""
    from threadpoolctl import threadpool_limits

    threadpool_limits(limits=1)
    result: dict[str, float] = {}
    if name == "rate":
        rate(n, result)
    else:
        values = ours(folder, n, result) if name == "ours" else rival(name, folder, n, result)
        np.save(Path(folder) / f"{name}-{n}.npy", values[: n - 1])
        result["process_mib"] = resident("VmHWM") / 2**20
    print(json.dumps(result))


def installed(name: str) -> bool:
    from importlib import import_module

    try:
        import_module({"sklearn": "sklearn.decomposition", "pyspod": "pyspod.pod.standard"}.get(name, name))
    except ImportError as error:
        print(f"{name} is left out: {error}", file=sys.stderr)
        return False
    return True


def main() -> None:
    if len(sys.argv) == 4:
        case(sys.argv[1], sys.argv[2], int(sys.argv[3]))
        return
    if folder := os.environ.get("BENCHMARK_RIVALS"):
        sys.path.append(folder)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), folder)))
    rivals = [name for name in RIVALS if installed(name)]
    with tempfile.TemporaryDirectory() as folder:
        make_store(folder)
        cases = {f"ours, N = {n}": ("ours", folder, str(n)) for n in SIZES}
        cases |= {f"{name}, N = {COMPARED}": (name, folder, str(COMPARED)) for name in rivals}
        found = alternate("benchmarks.pod", cases, ROUNDS)
        rates = alternate("benchmarks.pod", {"rate": ("rate", folder, str(COMPARED))}, ROUNDS)["rate"]
        print(_report(found, folder))
    print(
        f"\nProducts of {COMPARED} snapshots: {rates['gram_gflops']:.1f} of {rates['gemm_gflops']:.1f} GFlop/s that a "
        f"product of 2,048 × 2,048 matrices reaches, {rates['share']:.2f} (aim {GOAL_RATE})."
    )


def _report(found: dict[str, dict[str, float]], folder: str) -> str:
    base = found[f"ours, N = {COMPARED}"]["cpu_seconds"]
    mine = np.load(Path(folder) / f"ours-{COMPARED}.npy")
    rows = []
    for name, figures in found.items():
        short, n = name.split(", N = ")
        row = {"case": name, "seconds": f"{figures['seconds']:.2f}", "CPU seconds": f"{figures['cpu_seconds']:.2f}"}
        row["MiB above"] = f"{figures['peak_mib']:,.0f}"
        row["MiB allowed"] = f"{figures['allowed_mib']:,.0f}" if short == "ours" else "–"
        row["CPU × ours"] = "–" if short == "ours" else f"{figures['cpu_seconds'] / base:.1f}"
        row["aim"] = {"numpy": str(GOAL_RATIO), "ours": "–"}.get(short, "1")
        theirs = np.load(Path(folder) / f"{short}-{n}.npy")
        same = short != "ours" and len(theirs) >= 4
        m = min(len(mine), len(theirs))
        error = np.abs(theirs[:m] - mine[:m]).max() / mine[0] if same else 0
        row["worst difference / λ_1"] = f"{error:.1g} (at most {GOAL_ERROR:g})" if same else "–"
        rows.append(row)
    return table(rows)


if __name__ == "__main__":
    main()
