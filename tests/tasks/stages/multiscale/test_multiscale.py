"""The stages `scalogram`, `pod` and `coherency`: rows against plain sums over a captured store, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.errors import UsageError
from storage.filesystem import open_runs
from storage.warehouse import connect, query, run_checks
from tasks.stages.contract import StageContext
from tasks.stages.multiscale import pod_blocks
from tasks.stages.multiscale.declaration import CoherencyParameters, PodParameters, ScalogramParameters
from tasks.stages.multiscale.ensemble import Ensemble, combine_survey, survey
from tasks.stages.multiscale.pod_blocks import Blocks
from tasks.stages.multiscale.pod_modes import read_modes
from tasks.stages.multiscale.pod_spectra import Spectra
from tasks.stages.registry import declared_checks, tables
from tasks.stages.run import SURVEY, finish_stage, prepare_stage, run_stage_shards
from tests.oracles import multiscale as oracle
from tests.tasks.capture.made_captures import Made
from tests.tasks.stages.running import Ran, captured, run

WINDOW, WHOLE = 20, 9
pytestmark = pytest.mark.usefixtures("no_sync")
TEXT = "The quick brown fox jumps over the lazy dog, and then it sleeps. " * 3
POD = {"draws": 2, "epsilons": "0.1,0.01", "n_snapshots": "4,6", "modes": 3, "per_head": "true"}


@pytest.fixture(scope="module")
def no_sync() -> Iterator[None]:
    """What is on the disk after a power cut is not tested here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda _file: None)
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, no_sync: None) -> Made:
    """Ten documents, the last of them short, in five shards, of two layers."""
    text = TEXT[: (WINDOW - 1) * WHOLE + 7]
    return captured(tmp_path_factory.mktemp("fields"), text=text, window=WINDOW, shard_tokens=40, batch_tokens=20)


@pytest.fixture(scope="module")
def fields(made: Made) -> dict[int, np.ndarray]:
    """By layer, attention of the whole documents by head: (N, H, T, T)."""
    tensors = made.tensors()
    docs = sorted({doc for doc, _, kind in tensors if kind == "attention"})
    attention = {
        layer: [tensors[doc, layer, "attention"].double().numpy() for doc in docs]
        for layer in made.store.shape.kept_layers
    }
    return {layer: np.stack([a for a in found if a.shape[-1] == WINDOW]) for layer, found in attention.items()}


@pytest.fixture(scope="module")
def done(made: Made) -> dict[str, Ran]:
    values = {"scalogram": {"per_head": "true"}, "pod": POD, "coherency": {"scales": "2,3", "queries": 4}}
    return {name: run(made, name, given) for name, given in values.items()}


def by(rows: list[dict[str, Any]], *names: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    found = {tuple(row[name] for name in names): row for row in rows}
    assert len(found) == len(rows)
    return found


def test_the_ensemble_is_the_whole_documents(fields: dict[int, np.ndarray], done: dict[str, Ran]) -> None:
    assert all(len(found) == WHOLE for found in fields.values())
    for ran in done.values():
        assert ran.record()["quality"]["documents_of_other_lengths"] == 1


def test_scalogram(fields: dict[int, np.ndarray], done: dict[str, Ran]) -> None:
    rows = by(done["scalogram"].rows("scalogram"), "layer", "head", "protocol", "field", "scale")
    scales = sorted({key[-1] for key in rows})
    assert len(scales) == 20 and len(rows) == 3 * 5 * 5 * 20
    uniform = np.tril(np.ones((WINDOW, WINDOW)) / np.arange(1, WINDOW + 1)[:, None])
    for layer, attention in fields.items():
        for head in (None, 2):
            mine = attention.mean(1) if head is None else attention[:, head]
            for scale in scales[::7]:
                energy = rows[layer, head, "exact", "observed", scale]["energy"]
                assert energy == pytest.approx(oracle.energy(mine, scale), rel=1e-5)
                flat = rows[layer, head, "exact", "uniform", scale]["energy"]
                assert flat == pytest.approx(oracle.energy([uniform], scale), rel=1e-5)
                published = np.mean([oracle.published_energy(field, scale) for field in mine])
                assert rows[layer, head, "published", "observed", scale]["energy"] == pytest.approx(published, rel=1e-5)


def test_the_document_shuffled_ensemble_is_the_mean_over_permutations(
    fields: dict[int, np.ndarray], done: dict[str, Ran]
) -> None:
    rows = by(done["scalogram"].rows("scalogram"), "layer", "head", "protocol", "field", "scale")
    scale = sorted({key[-1] for key in rows})[9]
    mine, random, found = fields[1].mean(1), np.random.default_rng(0), []
    for _ in range(30):
        found.append(oracle.energy(random.permuted(mine, axis=0), scale))
    assert rows[1, None, "exact", "doc_shuffle", scale]["energy"] == pytest.approx(np.mean(found), rel=0.03)


def test_lag_mass(fields: dict[int, np.ndarray], done: dict[str, Ran]) -> None:
    rows = by(done["scalogram"].rows("lag_mass"), "layer", "head", "lag_lo", "lag_hi")
    lag = np.subtract.outer(np.arange(WINDOW), np.arange(WINDOW))
    bands = [(0, 0), (1, 7), (8, 19)]
    assert {key[2:] for key in rows} == set(bands)
    for lo, hi in bands:
        inside = ((lag >= lo) & (lag <= hi)) * fields[0].mean((0, 1))
        assert rows[0, None, lo, hi]["mass"] == pytest.approx(inside[5:].sum(1).mean(), rel=1e-5)


def test_spectra_ranks_and_modes(made: Made, fields: dict[int, np.ndarray], done: dict[str, Ran]) -> None:
    key = ("layer", "head", "protocol", "filter_scale", "field", "draw")
    spectra: dict[tuple[Any, ...], list[float]] = {}
    for row in done["pod"].rows("pod_spectrum"):
        place = [None if isinstance(x := row[k], float) and math.isnan(x) else x for k in key]
        spectra.setdefault(tuple(place), []).append(row["eigenvalue"])
    lag = np.subtract.outer(np.arange(WINDOW), np.arange(WINDOW))
    scales = {(k[0], k[3]) for k in spectra if k[2] == "exact" and k[3] is not None}
    assert len({layer for layer, _ in scales}) == 3
    for layer, attention in fields.items():
        for head in (None, 0, 3):
            mine = attention.mean(1) if head is None else attention[:, head]
            expected, modes = oracle.spectrum(mine)
            found = spectra[layer, head, "exact", None, "observed", 0]
            np.testing.assert_allclose(found, expected, atol=1e-12 * expected[0])
            whole = read_modes(made.runs, made.capture, layer, head=head)
            overlap = np.abs(whole.modes.reshape(3, -1) @ modes[:3].T)
            np.testing.assert_allclose(overlap, np.eye(3), atol=1e-5)
            np.testing.assert_allclose(np.square(whole.coefficients).mean(1), expected[:3], rtol=1e-9)
            assert whole.documents.tolist() == list(range(WHOLE))
    for layer, scale in scales:
        expected, _ = oracle.spectrum(fields[layer].mean(1), np.exp(-2.0 * (lag / scale - 1) ** 2))
        np.testing.assert_allclose(spectra[layer, None, "exact", scale, "observed", 0], expected, rtol=1e-5, atol=1e-15)
    nulls = {k[4:] for k in spectra if k[4] != "observed"}
    assert nulls == {(f, d) for f in ("lag_shuffle", "gaussian") for d in (0, 1)}
    energies = {k: sum(v) for k, v in spectra.items() if k[:4] == (1, None, "exact", None)}
    for place, energy in energies.items():
        assert energy == pytest.approx(energies[1, None, "exact", None, "observed", 0], rel=0.25), place


def test_ensembles_grow_and_published_ranks_are_one_larger(done: dict[str, Ran]) -> None:
    rows = done["pod"].rows("pod_summary")
    assert {row["n_snapshots"] for row in rows} == {4, 6, WHOLE}
    whole = {
        (row["layer"], row["protocol"], row["n_snapshots"], round(row["epsilon"], 3)): row
        for row in rows
        if row["head"] is None and math.isnan(row["filter_scale"]) and row["field"] == "observed"
    }
    for (layer, protocol, n, epsilon), row in whole.items():
        other = whole[layer, "exact", n, epsilon]
        assert row["h_star"] == other["h_star"] + (protocol == "published")
        assert math.isnan(row["reconstruction_error"]) == (n < WHOLE)
        assert row["h_star"] <= n - (protocol == "exact")
    for row in rows:
        if row["protocol"] == "published":
            assert row["t_spec"] <= 100 and row["field"] == "observed"


def test_coherency(fields: dict[int, np.ndarray], done: dict[str, Ran]) -> None:
    rows = by(done["coherency"].rows("coherency"), "layer", "scale", "query_i", "query_j")
    assert {(row["scale"], row["lag"]) for row in rows.values()} == {(2.0, 3), (3.0, 5)}
    for (layer, scale, i, j), row in rows.items():
        assert row["gamma"] == pytest.approx(oracle.gamma(fields[layer].mean(1), scale, i, j), rel=1e-4, abs=1e-6)
    null = [row["gamma_null"] for key, row in rows.items() if key[2] < key[3]]
    assert 0.15 < np.mean(null) < 0.5


def test_all_checks_hold_and_queries_answer(made: Made, done: dict[str, Ran]) -> None:
    connection = connect(open_runs(made.runs), tables())
    results = run_checks(connection, declared_checks())
    assert [r for r in results if not r.passed] == []
    seen = {r.name: r.rows_checked for r in results}
    assert all(seen[name] for name in seen if name.startswith(("pod_", "scalogram_", "lag_mass", "coherency")))
    for name in ("scale_by_layer", "effective_rank", "published_vs_exact", "head_allocation"):
        assert query(connection, name, {}).num_rows
    heads = query(connection, "head_allocation", {}).to_pylist()
    assert [row["n_heads_measured"] for row in heads] == [4, 4, 4]
    assert sum(row["heads_in_proportion"] for row in heads) == pytest.approx(12)


def parts(made: Made, key: str) -> dict[str, bytes]:
    folder = Path(made.runs) / made.capture / "partials" / "pod" / key[:16]
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.safetensors"))}


def test_any_order_of_shards_and_any_size_of_blocks(
    made: Made, done: dict[str, Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bytes in another order; in blocks of two snapshots the same numbers to rounding."""
    import shutil

    other = replace(made, runs=str(tmp_path / "runs"))
    shutil.copytree(made.runs, other.runs, ignore=shutil.ignore_patterns("pod*"))
    expected = done["pod"]
    arguments = (other.runs, other.capture, "pod", prepare_stage(other.runs, other.capture, "pod", POD))
    run_stage_shards(*arguments, [4, 2, 0, 1, 3], SURVEY)
    finish_stage(*arguments, SURVEY)
    for shard in (3, 1, 0, 4, 2):
        run_stage_shards(*arguments, [shard])
    finish_stage(*arguments)
    again = Ran(other, "pod", arguments[3])
    assert again.key == expected.key
    for name in ("pod_spectrum", "pod_summary", "pod_modes"):
        assert again.bytes(name) == expected.bytes(name)
    assert parts(other, again.key) == parts(made, expected.key)

    monkeypatch.setattr(pod_blocks, "BLOCK_BYTES", 2 * 8 * WINDOW * (WINDOW + 1) // 2)
    shutil.rmtree(other.runs)
    shutil.copytree(made.runs, other.runs, ignore=shutil.ignore_patterns("pod*"))
    blocked = run(other, "pod", POD)
    for name, column in (("pod_spectrum", "eigenvalue"), ("pod_modes", "profile")):
        one, two = (ran.table(name).column(column).to_numpy() for ran in (expected, blocked))
        np.testing.assert_allclose(two, one, atol=1e-12 if name == "pod_spectrum" else 1e-5)


def test_two_blocks_at_most_are_in_memory(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is read or drawn, one other block is kept at most; each pair of blocks is met, and the sum is whole."""
    kept: list[int] = []
    build = Blocks._made

    def counted(self: Blocks, source: Any, at: int) -> np.ndarray:
        kept.append(len(self._kept))
        return build(self, source, at)

    monkeypatch.setattr(Blocks, "_made", counted)
    found = [survey(made.store, made.store.shard(s), None, StageContext("key", 0)) for s in made.store.shards]
    ensemble = Ensemble.of(made.store, reduce(combine_survey, found))
    blocks = Blocks(ensemble, 1, None, 0, block_bytes=2 * 8 * WINDOW * (WINDOW + 1) // 2)
    blocks.prepare()
    work = {source: {"full": None} for source in (("observed", 0), ("lag_shuffle", 0), ("gaussian", 1))}
    arrays = Spectra(blocks, (WHOLE,), 2, (0.1,), 0).run(work, lambda _done: None)
    assert len(blocks) == 5 and len(kept) > 15 and max(kept) == 1
    whole = Blocks(ensemble, 1, None, 0)
    whole.prepare()
    for name, values in Spectra(whole, (WHOLE,), 2, (0.1,), 0).run(work, lambda _done: None).items():
        np.testing.assert_allclose(arrays[name], values, atol=1e-12 if "mode" not in name else 1e-5)


def test_fewer_entries_than_documents(tmp_path: Path, fields: dict[int, np.ndarray]) -> None:
    """A window of 16 tokens has 136 entries; the same spectra by entries as by snapshots."""
    made = captured(tmp_path, text=(TEXT * 20)[: 15 * 150], window=16, shard_tokens=1600, batch_tokens=400)
    ran = run(made, "pod", {"draws": 1, "n_snapshots": "100,140", "scales": "3"})
    tensors = made.tensors()
    attention = np.stack([tensors[doc, 0, "attention"].double().numpy().mean(0) for doc in range(150)])
    expected, _ = oracle.spectrum(attention)
    rows = [row for row in ran.rows("pod_spectrum") if row["layer"] == 0 and row["field"] == "observed"]
    found = [r["eigenvalue"] for r in rows if math.isnan(r["filter_scale"]) and r["protocol"] == "exact"]
    assert len(found) == 136
    np.testing.assert_allclose(found, expected[:136], atol=1e-12 * expected[0])
    whole = read_modes(made.runs, made.capture, 0)
    np.testing.assert_allclose(np.square(whole.coefficients).mean(1), expected[:4], rtol=1e-6)
    filtered = read_modes(made.runs, made.capture, 0, scale=3.0)
    lag = np.subtract.outer(np.arange(16), np.arange(16))
    weighted, modes = oracle.spectrum(attention, np.exp(-2.0 * (lag / 3.0 - 1) ** 2))
    np.testing.assert_allclose(np.square(filtered.coefficients).mean(1), weighted[:4], rtol=1e-6)
    np.testing.assert_allclose(np.abs(filtered.modes.reshape(4, -1) @ modes[:4].T), np.eye(4), atol=1e-4)
    assert all(r.passed for r in run_checks(connect(open_runs(made.runs), tables()), declared_checks()))


def test_equal_documents_have_no_spectrum(tmp_path: Path) -> None:
    """Every field is the mean: eigenvalues of 0, no rank, and checks that hold."""
    folder = tmp_path / "same"
    made = captured(folder, text="abcdefghijklmnopqrs" * 4, window=WINDOW)
    ran = run(made, "pod", {"draws": 1, "scales": "2"})
    assert {row["eigenvalue"] for row in ran.rows("pod_spectrum")} == {0.0}
    assert {row["h_star"] for row in ran.rows("pod_summary")} == {None}
    assert ran.record()["quality"]["constant_ensembles"] == 6
    assert "pod_modes" not in {path.name for path in (Path(made.runs) / made.capture / "tables").iterdir()}
    pairs = run(made, "coherency", {"scales": "2"})
    assert pairs.record()["quality"]["undefined_pairs"] == len(pairs.rows("coherency"))
    assert [r for r in run_checks(connect(open_runs(made.runs), tables()), declared_checks()) if not r.passed] == []


@pytest.mark.parametrize("stage", ["scalogram", "pod", "coherency"])
@pytest.mark.parametrize(
    ("text", "window", "values", "message"),
    [
        (
            "abcdefgh\n",
            20,
            {},
            r"at least 3 windows, and most of all, of one length, got 1 of 10 tokens among 1 of 10 to 10",
        ),
        (TEXT, 12, {}, r"windows of at least 16 tokens, got 12. Capture with a larger --window"),
        (TEXT, 20, {"scales": "2,7"}, r"scales of at most 6\.364, inside the cone of influence of 20 tokens, got 7"),
    ],
)
def test_captures_that_are_no_ensemble_are_refused(
    tmp_path: Path, stage: str, text: str, window: int, values: dict[str, Any], message: str
) -> None:
    made = captured(tmp_path, text=text, window=window)
    with pytest.raises(UsageError, match=message):
        prepare_stage(made.runs, made.capture, stage, values)


def test_encoders_and_more_snapshots_than_documents_are_refused(tmp_path: Path, made: Made) -> None:
    with pytest.raises(UsageError, match="ensembles of at most the 9 documents of 20 tokens, got 10"):
        prepare_stage(made.runs, made.capture, "pod", {"n_snapshots": "10"})
    encoder = captured(tmp_path, "bert", text=TEXT, window=WINDOW)
    with pytest.raises(UsageError, match=r"queries see no later key.*, got an encoder's store"):
        prepare_stage(encoder.runs, encoder.capture, "pod", {})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ScalogramParameters(omega0=2.0), r"omega0 from 5 to 12, got 2\.0, in scalogram\.omega0"),
        (lambda: ScalogramParameters(scales=(0.5,)), "scales of at least 1 lag, got 0.5, in scalogram.scales"),
        (lambda: CoherencyParameters(scales=(3.0, 2.0)), "scales in ascending order, each once"),
        (lambda: PodParameters(protocols=("exact", "printed")), "the name of a protocol, got 'printed'"),
        (lambda: PodParameters(protocols=()), "some of exact, published, each once, got none"),
        (lambda: PodParameters(epsilons=(0.1, 0.1000000001)), "shares that differ in float32"),
        (lambda: PodParameters(epsilons=(1e-320,)), "shares above 0, as float32 holds them"),
        (lambda: PodParameters(scales=(4.0, 4.00000001)), "scales that differ in float32"),
        (lambda: PodParameters(epsilons=(1.5,)), r"epsilons in \(0, 1\), got 1.5, in pod.epsilons"),
        (lambda: PodParameters(n_snapshots=(2,)), "n snapshots of at least 3, got 2, in pod.n_snapshots"),
        (lambda: PodParameters(draws=-1), "draws from 0 to 1,000, got -1, in pod.draws"),
        (lambda: CoherencyParameters(queries=1), "queries from 2 to 1,000, got 1, in coherency.queries"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()
