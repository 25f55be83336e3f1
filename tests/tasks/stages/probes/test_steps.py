"""The stage `probes` on a capture of a small treebank: alignment, splits, baselines, and what is refused."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from storage.errors import CorpusError, ForeignStore, UsageError
from tasks.capture.folder import CaptureFolder
from tasks.stages.parameters import stage_parameters
from tasks.stages.probes.declaration import ProbesParameters
from tasks.stages.probes.steps import layers_of, split, states_of
from tasks.stages.probes.words import COUNTS, folds_of, words_of
from tasks.stages.registry import stage
from tasks.stages.run import prepare_stage
from tests.tasks.capture import made_captures
from tests.tasks.capture.made_captures import Made, save_model
from tests.tasks.stages.running import Ran, run

TAGS = {"the": "DET", "cat": "NOUN", "dog": "NOUN", "sees": "VERB", "hears": "VERB", "a": "DET", ".": "PUNCT"}


def treebank(path: Path, n: int = 24) -> Path:
    """Sentences such as `the cat sees a dog.`, one of them with a contraction and an empty node."""
    random, lines = np.random.default_rng(0), []
    for number in range(n):
        subject, thing = random.choice(["cat", "dog"], 2)
        verb, article = random.choice(["sees", "hears"]), random.choice(["the", "a"])
        lines += [f"# sent_id = s{number}"]
        for at, (form, head) in enumerate(zip(["the", subject, verb, article, thing, "."], "230531", strict=True), 1):
            glued = "SpaceAfter=No" if at == 5 else "_"
            lines.append(f"{at}\t{form}\t_\t{TAGS[form]}\t_\t_\t{3 if head == '1' else head}\tdep\t_\t{glued}")
        lines.append("")
    lines += ["# sent_id = c", "1-2\tdont\t_\t_\t_\t_\t_\t_\t_\t_", "1\tdo\t_\tAUX\t_\t_\t3\taux\t_\t_"]
    lines += ["2\tnot\t_\tPART\t_\t_\t3\tadvmod\t_\t_", "2.1\tx\t_\tVERB\t_\t_\t_\t_\t_\t_"]
    lines += ["3\tgo\t_\tVERB\t_\t_\t0\troot\t_\t_", ""]
    path.write_text("\n".join(lines) + "\n")
    return path


def capture(folder: Path, corpus: Path, **settings: Any) -> Made:
    model = folder / "model"
    if not model.exists():
        save_model(model)
    usual = {"window": 40, "shard_tokens": 200, "device": "cpu", "attention": "none", "keep": "residual"}
    return made_captures.make(model, [corpus], folder / "runs", **{**usual, **settings})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("probes")
    return capture(folder, treebank(folder / "bank.conllu"))


@pytest.fixture(scope="module")
def done(made: Made) -> Ran:
    return run(made, "probes", {"resamples": 50})


def words(made: Made, **parameters: Any) -> dict[str, np.ndarray]:
    prepared = CaptureFolder.open(made.runs, made.capture)
    documents = [doc for shard in made.store.shards for doc in made.store.documents(shard)]
    return words_of(prepared, documents, ProbesParameters(**parameters), repr(parameters))


def test_words_end_where_their_last_letter_is(made: Made) -> None:
    """Tokens are letters behind a BOS token."""
    found = words(made)
    counts = dict(zip(COUNTS, found["counts"].tolist(), strict=True))
    assert counts["words"] == 24 * 6 + 3
    assert counts["words_sharing_a_token"] == 2  # do and not, neither of which is written
    assert counts["words_without_a_token"] == counts["documents_without_a_sentence"] == 0
    assert len(found["doc"]) == 24 * 6 + 1
    readers = [made.store.shard(s) for s in made.store.shards]
    ids = {doc: reader.token_ids(doc) for reader in readers for doc in reader.documents}
    last = {"the": "e", "cat": "t", "dog": "g", "sees": "s", "hears": "s", "a": "a", ".": "."}
    for doc, position, pos in zip(found["doc"], found["position"], found["pos"], strict=True):
        token = made_captures.LETTERS[ids[doc][position] - 3]
        assert (token in last.values()) or token == "o"
        if token == ".":
            assert pos == 12  # PUNCT


def test_a_row_for_every_layer_target_and_feature(done: Ran, made: Made) -> None:
    rows = done.rows("probes")
    n_layers = made.store.shape.n_layers
    keys = {(row["layer"], row["target"], row["feature"]) for row in rows}
    assert len(rows) == len(keys) == (n_layers + 1) * 2 * 3
    assert {row["metric"] for row in rows if row["target"] == "pos"} == {"accuracy"}
    assert {row["metric"] for row in rows if row["target"] == "depth"} == {"r2"}
    for row in rows:
        assert row["n_train"] + row["n_test"] == 24 * 6 + 1
        assert row["score_lo"] <= row["score"] <= row["score_hi"]
        assert row["converged"]
    quality = done.record()["quality"]
    assert quality["words"] == 24 * 6 + 3
    assert quality["words_sharing_a_token"] == 2
    assert quality["probes_undefined"] == quality["probes_not_converged"] == 0


def test_the_letter_tells_the_part_of_speech_and_a_shuffled_label_does_not(done: Ran) -> None:
    rows = {(r["layer"], r["target"], r["feature"]): r for r in done.rows("probes")}
    row = rows[0, "pos", "both"]  # the embedding of the last letter
    assert row["score"] > 0.8
    assert row["score_shuffled"] < 0.6
    assert row["score_majority"] < 0.5
    assert row["n_classes"] >= 4
    depth = rows[0, "depth", "both"]
    assert depth["score_majority"] <= 0
    assert depth["score"] > 0.1
    assert 0 < depth["spearman"] <= 1


def test_a_score_is_that_of_a_fit_written_out(done: Ran, made: Made) -> None:
    parameters, found = ProbesParameters(), words(made)
    one = split(found, "pos", parameters, 0)
    assert len(np.unique(one.sentences[one.training])) == 20  # four fifths of 25
    assert not set(one.sentences[one.training]) & set(one.sentences[~one.training])
    states = states_of(made.store, 1, found, one.words)
    train, test = states[one.training], states[~one.training]
    mean, sd = train.mean(0), train.std(0)
    (row,) = [r for r in done.rows("probes") if (r["layer"], r["target"], r["feature"]) == (1, "pos", "both")]
    model = LogisticRegression(C=row["penalty"], tol=1e-8, max_iter=5_000)
    model.fit((train - mean) / sd, one.labels[one.training])
    assert row["score"] == pytest.approx(model.score((test - mean) / sd, one.labels[~one.training]), abs=0.04)
    values, counts = np.unique(one.labels[one.training], return_counts=True)
    assert row["score_majority"] == pytest.approx((one.labels[~one.training] == values[counts.argmax()]).mean())


@pytest.mark.parametrize("n_shards", [1, 2, 3, 7, 40])
def test_each_layer_is_one_shards(n_shards: int) -> None:
    layers = (0, 1, 2, 5, 6, 9)
    of_shards = [layers_of(layers, shard, n_shards) for shard in range(n_shards)]
    assert sorted(layer for own in of_shards for layer in own) == list(layers)
    assert max(map(len, of_shards)) <= -(-len(layers) // n_shards)
    halves = sum(map(len, of_shards[: n_shards // 2])), sum(map(len, of_shards[n_shards // 2 :]))
    assert n_shards == 1 or abs(halves[0] - halves[1]) <= 2


def test_folds_hold_whole_sentences_out() -> None:
    sentences = np.array([3, 3, 5, 7, 7, 7, 9])
    folds = [fold.tolist() for fold in folds_of(sentences, 3)]
    assert folds == [[0, 1, 6], [2], [3, 4, 5]]
    assert [fold.tolist() for fold in folds_of(np.array([1, 1]), 3)] == [[0, 1]]


def test_shards_and_the_files_place_make_no_difference(done: Ran, made: Made, tmp_path: Path) -> None:
    whole = capture(Path(made.runs).parent, Path(made.runs).parent / "bank.conllu", shard_tokens=10_000)
    assert (len(made.store.shards), len(whole.store.shards)) == (3, 1)

    def table(ran: Ran) -> list[dict[str, Any]]:
        rows = ran.table("probes").drop_columns(["capture", "stage_key"]).to_pylist()
        return sorted((row for row in rows if row["feature"] == "both"), key=lambda row: (row["layer"], row["target"]))

    given = {"resamples": 50, "features": ["both"]}
    for left, right in zip(table(done), table(run(whole, "probes", given)), strict=True):
        assert left == pytest.approx(right, abs=0.03, nan_ok=True)
    elsewhere = tmp_path / "other"
    elsewhere.mkdir()
    named = {**given, "treebank": [str(treebank(elsewhere / "bank.conllu"))]}
    for left, right in zip(table(done), table(run(made, "probes", named)), strict=True):
        assert left == pytest.approx(right, nan_ok=True)


def test_words_are_drawn_by_the_seed_up_to_a_cap(made: Made) -> None:
    found = words(made)
    one, same, other = (split(found, "pos", ProbesParameters(words=40), seed) for seed in (0, 0, 1))
    assert len(one.words) == 40
    assert one.words.tolist() == same.words.tolist() != other.words.tolist()
    assert len(split(found, "pos", ProbesParameters(words=0), 0).words) == 24 * 6 + 1


def test_what_does_not_converge_is_counted_and_told(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.stages.probes.fits.MOST_STEPS", 1)
    ran = run(made, "probes", {"resamples": 10, "targets": ["pos"], "features": ["both"]})
    rows = ran.rows("probes")
    assert not any(row["converged"] for row in rows)
    assert ran.record()["quality"]["probes_not_converged"] == len(rows)
    warnings.resetwarnings()


def test_too_few_words_are_undefined_and_counted(tmp_path: Path) -> None:
    made = capture(tmp_path, treebank(tmp_path / "bank.conllu", 1), max_documents=1)
    ran = run(made, "probes", {"resamples": 10})
    rows = ran.rows("probes")
    assert all(np.isnan(row["score"]) for row in rows)
    assert ran.record()["quality"]["probes_undefined"] == len(rows)


@pytest.mark.parametrize("target", ["pos", "depth"])
def test_a_treebank_without_annotation_is_undefined_and_counted(tmp_path: Path, target: str) -> None:
    """Its heads are blank, so that no word has a depth; and with no part of speech either there is no word to read."""
    bank = treebank(tmp_path / "bank.conllu")
    rows = [line.split("\t") for line in bank.read_text().splitlines()]
    blank = (3, 6) if target == "pos" else (6,)
    bare = [["_" if at in blank and row[at:] else cell for at, cell in enumerate(row)] for row in rows]
    bank.write_text("".join("\t".join(row) + "\n" for row in bare))
    ran = run(capture(tmp_path, bank), "probes", {"resamples": 10})
    undefined = [row for row in ran.rows("probes") if np.isnan(row["score"])]
    targets = ("pos", "depth") if target == "pos" else ("depth",)
    assert {row["target"] for row in undefined} == set(targets)
    assert len(undefined) == len(targets) * 3 * 4  # features, layers and behind the last
    assert {(row["n_train"], row["n_test"], row["penalty"] > 0) for row in undefined} == {(0, 0, False)}
    quality = ran.record()["quality"]
    assert (quality["probes_undefined"], quality["words"]) == (len(undefined), 24 * 6 + 3)


def test_a_corpus_that_is_no_treebank_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sees a dog.")
    made = capture(tmp_path, text)
    with pytest.raises(CorpusError, match=r"a treebank in CoNLL-U .* got text"):
        run(made, "probes")
    bank = treebank(tmp_path / "bank.conllu")
    with pytest.raises(CorpusError, match=r"a capture of the sentences of a CoNLL-U treebank, got none of 1 documents"):
        run(made, "probes", {"treebank": [str(bank)]})


def test_a_treebank_or_a_tokenizer_that_changed_is_refused(tmp_path: Path) -> None:
    bank = treebank(tmp_path / "bank.conllu", 2)
    made = capture(tmp_path, bank)
    named = {"treebank": [str(bank)]}
    first = prepare_stage(made.runs, made.capture, "probes", named)
    treebank(bank, 3)
    assert prepare_stage(made.runs, made.capture, "probes", named) != first
    with pytest.raises(CorpusError, match="the corpus that was captured, got files that changed since"):
        run(made, "probes")
    tokenizer = tmp_path / "model" / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + "\n")
    with pytest.raises(ForeignStore, match="the tokenizer that was captured"):
        run(made, "probes", named)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"targets": "upos"}, r"the name of a target, got 'upos', in probes\.targets"),
        ({"features": ""}, r"some of direction, magnitude, both, each once, got none, in probes\.features"),
        ({"words": -1}, r"words of at least 0, got -1, in probes\.words"),
        ({"folds": 1}, r"folds of at least 2, got 1, in probes\.folds"),
        ({"resamples": 0}, r"resamples of at least 1, got 0, in probes\.resamples"),
    ],
)
def test_parameters_that_cannot_be(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        stage_parameters(stage("probes"), given)


def test_windows_that_overlap_have_each_word_once(tmp_path: Path) -> None:
    bank = treebank(tmp_path / "bank.conllu", 3)
    made = capture(tmp_path, bank, window=9, stride=5)
    found = words(made)
    places = list(zip(found["sentence"], found["doc"], found["position"], strict=True))
    assert len(places) == len(set(places)) == 3 * 6 + 1
