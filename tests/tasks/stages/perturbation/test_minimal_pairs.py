"""The stage `minimal_pairs` against the plain float64 model moved by hooks, on tiny models of characters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from storage.errors import CorpusError, UnknownName, UsageError
from tasks.capture.folder import CaptureFolder
from tasks.capture.model import captured_model
from tasks.kernels.perturbation import noise
from tasks.models.displacement import noise_seed
from tasks.models.interventions import Displace
from tasks.progress import Progress, listening
from tasks.stages.parameters import stage_parameters
from tasks.stages.perturbation.minimal_pairs_parameters import MinimalPairsParameters, PairCell
from tasks.stages.perturbation.minimal_pairs_passes import _document
from tasks.stages.perturbation.norm_survey import medians
from tasks.stages.registry import stage
from tasks.stages.run import ROWS, SURVEY, prepare_stage, run_stage_shards, stage_units
from tests.oracles import perturbation as oracle
from tests.oracles.displaced_model import DisplacedModel, Rule
from tests.tasks.capture import made_captures
from tests.tasks.capture.made_captures import Made
from tests.tasks.stages.faithfulness.choosing import ids_of, make
from tests.tasks.stages.running import Ran, run

PAIRS = [("The cat sees", "The cat see"), ("A dog", "A cog"), ("He is so old", "He are so old"), ("Same", "Same")]
GRID: dict[str, Any] = {"deltas": [0.7], "relative_deltas": [0.2], "layers": ["0-1"]}


def write(path: Path, pairs: list[tuple[str, str]] = PAIRS) -> str:
    rows = [{"sentence_good": good, "sentence_bad": bad} for good, bad in pairs]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("files") / "cats.jsonl")


@pytest.fixture(scope="module")
def done(made: Made, file: str) -> Ran:
    everything = {"protocols": ["exact", "published"], "pair_noise": ["shared", "independent", "published"]}
    return run(made, "minimal_pairs", {**GRID, **everything, "first_token": ["include", "exclude"], "files": [file]})


def by_key(ran: Ran) -> dict[tuple[Any, ...], dict[str, Any]]:
    names = ("item", "protocol", "arm", "pair_noise", "delta_kind", "first_token")
    found = {tuple(row[name] for name in names): row for row in ran.rows("minimal_pairs")}
    assert len(found) == len(ran.rows("minimal_pairs"))
    return found


def test_every_sentence_is_as_likely_as_in_the_plain_model_moved_alike(done: Ran, made: Made) -> None:
    loaded = captured_model(CaptureFolder.open(made.runs, made.capture))
    plain, width = DisplacedModel(loaded), loaded.anatomy.d_model
    norms = {layer: plain_median(made, layer) for layer in (0, 1)}
    rows = by_key(done)
    assert len(rows) == 3 * (1 + 2 * 2 * 3 * 2 * 2)
    differ = set()
    for (item, protocol, arm, pair_noise, kind, first), row in rows.items():
        good, bad = PAIRS[item]
        equal, want = len(good) == len(bad), []
        together = pair_noise == "shared" or (pair_noise == "published" and arm == "angle" and equal)
        for side, text in enumerate((good, bad)):
            ids, rules = ids_of(text), dict[int, Rule]()
            for layer in (0, 1) if arm != "none" else ():
                delta = 0.7 if kind == "absolute" else 0.2 * norms[layer]
                pair = {"sharing": 2 if together else 1, "own_vectors": not together}
                one = Displace(layer, delta, arm, protocol, first == "include", draw(0), **pair)
                drawn = noise(arm, len(ids), width, noise_seed(one, document(item, side))).numpy()
                rules[layer] = rule(one, drawn)
            want.append(-plain.passed(ids, rules).losses.sum())
        assert [row["logp_good"], row["logp_bad"]] == pytest.approx(want, abs=1e-4)
        assert row["correct"] == (row["logp_good"] > row["logp_bad"])
        assert (row["n_good"], row["n_bad"], row["first_scored"]) == (len(good), len(bad), True)
        differ.add(round(row["logp_good"], 4))
    assert len(differ) > 20  # conditions do something, each its own


def rule(one: Displace, drawn: np.ndarray) -> Rule:
    return lambda h: oracle.moved(h, one.delta, one.protocol, one.arm, drawn, first_token=one.first_token)


def draw(seed: int) -> int:
    (cell,) = MinimalPairsParameters(files=("a",), arms=("angle",), deltas=(1.0,), relative_deltas=()).pair_cells(3)
    return cell.condition({}, seed, equal=True)[0].seed


def document(item: int, side: int) -> int:
    class Named:
        task = "cats"

    Named.item = item
    return _document(Named, side)


def plain_median(made: Made, layer: int) -> float:
    readers = [made.store.shard(s) for s in made.store.shards]
    documents = [
        d.residual.numpy() for r in readers for d in r.layer(layer + 1, ("residual",)) if d.residual is not None
    ]
    return oracle.median_norm(documents)


def test_a_row_says_how_many_tokens_moved(made: Made, file: str) -> None:
    ran = run(made, "minimal_pairs", {**GRID, "deltas": [0.01, 1e9], "relative_deltas": [], "files": [file]})
    clean = {row["item"]: row for row in ran.rows("minimal_pairs") if row["arm"] == "none"}
    for row in ran.rows("minimal_pairs"):
        whole = 0 if row["arm"] == "none" else 2 * sum(len(text) + 1 for text in PAIRS[row["item"]])
        assert row["n_tokens"] == whole
        assert row["unmoved"] == (whole if row["delta"] > 1 else 0)
        if row["delta"] > 1:  # longer than any state: nothing is moved
            assert row["logp_good"] == pytest.approx(clean[row["item"]]["logp_good"], abs=1e-5)
    assert ran.record()["quality"]["flagged_rows"] == 3 * 2


def test_shared_noise_is_the_same_for_both_and_independent_is_not() -> None:
    cell = PairCell(next(MinimalPairsParameters(files=("a",)).cells(3)), "shared")
    shared = {noise_seed(cell.condition({1: 1.0}, 0, equal=False)[0], d) for d in (6, 7)}
    apart = PairCell(cell.cell, "independent")
    independent = {noise_seed(apart.condition({1: 1.0}, 0, equal=False)[0], d) for d in (6, 7)}
    assert (len(shared), len(independent)) == (1, 2)


@pytest.mark.parametrize(("arm", "equal", "seeds"), [("angle", True, 1), ("angle", False, 2), ("magnitude", True, 2)])
@pytest.mark.parametrize("protocol", ["exact", "published"])
def test_published_noise_shares_vectors_of_one_length_and_redraws_signs(
    arm: str, equal: bool, seeds: int, protocol: str
) -> None:
    parameters = MinimalPairsParameters(files=("a",), arms=(arm,), protocols=(protocol,), pair_noise=("published",))
    condition = next(parameters.pair_cells(6)).condition({}, 0, equal=equal)
    assert len({noise_seed(condition[0], d) for d in (6, 7)}) == seeds


def test_the_clean_model_alone_on_request_and_pairs_that_differ_in_nothing_left_out(made: Made, file: str) -> None:
    ran = run(made, "minimal_pairs", {"arms": ["none"], "files": [file]})
    rows = ran.rows("minimal_pairs")
    assert sorted(row["item"] for row in rows) == [0, 1, 2]
    assert {row["arm"] for row in rows} == {row["protocol"] for row in rows} == {"none"}
    quality = ran.record()["quality"]
    assert (quality["pairs_alike"], quality["pairs_too_short"], quality["pairs_first_token_unscored"]) == (1, 0, 0)


def test_without_a_bos_token_the_first_token_is_not_scored_and_it_is_said(tmp_path: Path) -> None:
    made = make(tmp_path, bos="never")
    ran = run(
        made, "minimal_pairs", {"arms": ["none"], "files": [write(tmp_path / "a.jsonl", [("ab", "cb"), ("a", "b")])]}
    )
    (row,) = ran.rows("minimal_pairs")
    assert (row["first_scored"], row["n_good"]) == (False, 1)
    quality = ran.record()["quality"]
    assert (quality["pairs_first_token_unscored"], quality["pairs_too_short"]) == (1, 1)


def test_pairs_are_spread_over_the_shards_and_progress_counts_them(made: Made, tmp_path: Path) -> None:
    file = write(tmp_path / "cats.jsonl")
    assert len(made.store.shards) == 3
    given = {**GRID, "files": [file], "seeds": 2, "layers": ["each:0-1"]}
    key = prepare_stage(made.runs, made.capture, "minimal_pairs", given)
    assert [stage_units(made.runs, made.capture, "minimal_pairs", key, [shard]) for shard in range(3)] == [2, 1, 1]
    told: list[Progress] = []
    with listening(told.append):
        run(made, "minimal_pairs", given)
    assert sum(p.step for p in told if p.kind == "minimal_pairs") == pytest.approx(4)
    assert {p.unit for p in told if p.kind == "minimal_pairs"} == {"pairs"}
    surveyed = [p for p in told if p.kind == "minimal_pairs: survey"]
    documents = sum(len(made.store.documents(shard)) for shard in made.store.shards)
    assert sum(p.step for p in surveyed) == pytest.approx(documents)
    assert {p.unit for p in surveyed} == {"documents"}


def test_other_pairs_and_batches_make_no_difference(made: Made, done: Ran, tmp_path: Path) -> None:
    """A pair's noise is its own."""
    alone = run(made, "minimal_pairs", {**GRID, "files": [write(tmp_path / "cats.jsonl", PAIRS[:2])]})
    whole = by_key(done)
    for key, row in by_key(alone).items():
        assert row["logp_good"] == pytest.approx(whole[key]["logp_good"], abs=1e-5)


def test_the_key_is_of_the_files_bytes_and_names(made: Made, tmp_path: Path) -> None:
    def key(file: str) -> str:
        return prepare_stage(made.runs, made.capture, "minimal_pairs", {"arms": ["none"], "files": [file]})

    (tmp_path / "there").mkdir()
    one = key(write(tmp_path / "cats.jsonl"))
    assert key(write(tmp_path / "there" / "cats.jsonl")) == one
    assert key(write(tmp_path / "dogs.jsonl")) != one
    file = write(tmp_path / "cats.jsonl", PAIRS[:2])
    assert key(file) != one
    begun = key(file)
    write(tmp_path / "cats.jsonl")
    for phase in (SURVEY, ROWS):
        with pytest.raises(CorpusError, match="got files that changed since"):
            run_stage_shards(made.runs, made.capture, "minimal_pairs", begun, [0], phase)


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({}, UsageError, r"files of minimal pairs, got none, in minimal_pairs\.files.*--set minimal_pairs\.files="),
        ({"files": "a", "items": -1}, UsageError, r"items of at least 0, got -1"),
        ({"files": "a", "pair_noise": "same"}, UnknownName, r"got 'same', in minimal_pairs\.pair_noise"),
        ({"files": "a", "pair_noise": "shared,shared"}, UsageError, r"each once.*in minimal_pairs\.pair_noise"),
        ({"files": "a", "arms": "none,angle"}, UnknownName, r"got 'none', in minimal_pairs\.arms"),
        ({"files": "a", "deltas": "0"}, UsageError, r"deltas in \(0, 1e\+15\], got 0\.0, in minimal_pairs\.deltas"),
    ],
)
def test_parameters_that_cannot_be(given: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        stage_parameters(stage("minimal_pairs"), given)


def test_what_is_wrong_is_said_before_anything_runs(made: Made, tmp_path: Path) -> None:
    alike = write(tmp_path / "alike.jsonl", [("a b", "a b")])
    with pytest.raises(CorpusError, match="differ in something, got 1 whose sentences are the"):
        stage("minimal_pairs").check_files(stage_parameters(stage("minimal_pairs"), {"files": alike}))
    file = write(tmp_path / "cats.jsonl")
    with pytest.raises(UsageError, match="layers from 0 to 2, got 7"):
        prepare_stage(made.runs, made.capture, "minimal_pairs", {"files": [file], "layers": ["7"]})


def test_a_sentence_that_does_not_fit_is_refused_before_the_run_takes_an_older_ones_place(tmp_path: Path) -> None:
    made = make(tmp_path)
    older = run(made, "minimal_pairs", {"arms": ["none"], "files": [write(tmp_path / "cats.jsonl")]})
    long = write(tmp_path / "long.jsonl", [PAIRS[0], ("a" * 64, "b")])  # and a BOS token: one more than positions
    with pytest.raises(CorpusError, match=r"at most 64 tokens, the model's positions, got 65, in .*line 2"):
        prepare_stage(made.runs, made.capture, "minimal_pairs", {"arms": ["none"], "files": [long]})
    layout = CaptureFolder.open(made.runs, made.capture).layout
    record = Path(made.runs) / layout.stages_table("minimal_pairs", older.key)
    assert [path.name for path in record.parent.glob("*minimal_pairs*")] == [record.name]


def test_an_absolute_delta_needs_no_residual_stream_and_a_relative_one_does(tmp_path: Path) -> None:
    made = make(tmp_path, keep="value")
    file = write(tmp_path / "cats.jsonl")
    with pytest.raises(UsageError, match="a store with the residual stream, to which a relative δ is relative"):
        prepare_stage(made.runs, made.capture, "minimal_pairs", {"files": [file]})
    ran = run(made, "minimal_pairs", {"files": [file], "relative_deltas": [], "deltas": [1.0], "layers": ["1"]})
    assert len(ran.rows("minimal_pairs")) == 3 * 3
    assert medians({}) == {}


def test_a_real_models_pairs_are_as_likely_as_transformers_says(fixtures: Path, tmp_path: Path) -> None:
    model, text = fixtures / "models" / "stories260K", tmp_path / "text.txt"
    text.write_text("Once upon a time there was a cat.")
    made = made_captures.make(model, [text], tmp_path / "runs", device="cpu", attention="none", keep="value")
    file = fixtures / "data/blimp/determiner_noun_agreement_1.jsonl"
    ran = run(made, "minimal_pairs", {"arms": ["none"], "files": [str(file)], "items": 12})
    rows = sorted(ran.rows("minimal_pairs"), key=lambda row: row["item"])
    plain: Any = AutoModelForCausalLM.from_pretrained(model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    for row, line in zip(rows, file.read_text().splitlines()[:12], strict=True):
        for side in ("good", "bad"):
            ids = tokenizer(json.loads(line)[f"sentence_{side}"], return_tensors="pt").input_ids
            assert ids[0, 0] == tokenizer.bos_token_id
            with torch.inference_mode():
                loss = plain(ids, labels=ids).loss
            assert row[f"logp_{side}"] == pytest.approx(-float(loss) * (ids.shape[1] - 1), rel=1e-5)
            assert row[f"n_{side}"] == ids.shape[1] - 1
