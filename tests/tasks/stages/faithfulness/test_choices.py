"""The stage `choices` against a plain implementation, on tiny models whose tokens are characters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from storage.errors import ModelError
from tasks.corpora.continuations import Choice, Item
from tasks.models.loading import LoadedModel
from tasks.replay import CapturedReplay
from tasks.stages.contract import StageContext
from tasks.stages.faithfulness.choices_passes import ChoicePasses, MaskedCell
from tasks.stages.faithfulness.declaration import MaskingParameters
from tasks.stages.faithfulness.masking import rankings_of
from tests.oracles.contributions import Oracle
from tests.tasks.capture.made_captures import Made
from tests.tasks.stages.faithfulness.choosing import (
    PLAIN,
    SMALL,
    WINOGRANDE,
    Row,
    ids_of,
    loaded_of,
    make,
    plain_log_probability,
    plain_masks,
    plain_oracles,
    rows,
    run_choices,
    write,
)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return make(tmp_path)


def expected(loaded: LoadedModel, item: Row, row: Row, oracles: dict[str, dict[int, Oracle]]) -> np.ndarray:
    """Log-probabilities of the choices under the row's condition, by the plain way."""
    found = []
    for context, continuation in item["prompts"]:
        shown, whole = ids_of(context.rstrip()), ids_of(context + continuation)
        masks = {}
        if row["scope"] != "none":
            if context not in oracles:
                oracles[context] = plain_oracles(loaded, shown)
            condition = (row["scope"], row["score"], row["direction"], round(row["rate"], 6))
            masks = plain_masks(oracles[context], len(whole), *condition)
        found.append(plain_log_probability(loaded, whole, len(whole) - len(shown), masks))
    return np.array(found)


def items() -> dict[tuple[str, int], Row]:
    """(task, item) → its prompts and label, written out."""
    sky = [("The sky is", " blue"), ("The sky is", " a green one"), ("The sky is", " loud")]
    cats, numbers = [("Cats say ", "meow"), ("Cats say ", "woof")], [("One, two,", " three."), ("One, two,", " nine")]
    seen = [("Ann saw Bo and Ann", " fled."), ("Ann saw Bo and Bo", " fled.")]
    plain = [{"prompts": sky, "label": 0}, {"prompts": cats, "label": 1}, {"prompts": numbers, "label": 0}]
    return {**{("plain", i): item for i, item in enumerate(plain)}, ("winogrande", 0): {"prompts": seen, "label": 0}}


@pytest.mark.parametrize(
    ("name", "scopes"), [("llama", ["entry", "token", "row"]), ("gpt2", ["token"]), ("mistral-window", ["entry"])]
)
def test_picks_and_margins_are_those_of_the_plain_way(name: str, scopes: list[str], tmp_path: Path) -> None:
    made = make(tmp_path, name)
    files = [write(tmp_path / "plain.jsonl", *PLAIN), write(tmp_path / "w.jsonl", WINOGRANDE)]
    run_choices(made.runs, made.capture, files, scores=["raw", "cw_intra"], scopes=scopes, rates=[0.3])
    loaded, known = loaded_of(made), items()
    found = rows(made.runs)
    assert len(found) == 4 * (1 + len(scopes) * 2 * 2)  # scopes, scores, directions
    margins, oracles = set(), dict[str, dict[int, Oracle]]()
    for row in found:
        item = known[row["task"], row["item"]]
        want = expected(loaded, item, row, oracles)
        lengths = np.array([len(c) + (len(a) - len(a.rstrip())) for a, c in item["prompts"]])
        others = np.delete(want, item["label"])
        assert row["margin"] == pytest.approx(want[item["label"]] - others.max(), abs=2e-5)
        assert (row["label"], row["n_choices"]) == (item["label"], len(want))
        assert row["picked"] == want.argmax()
        assert row["picked_normalised"] == (want / lengths).argmax()
        margins.add(round(row["margin"], 4))
    assert len(margins) > len(found) / 2  # conditions do something, each its own


def test_the_clean_model_is_a_row_of_each_item_and_alone_on_request(made: Made, tmp_path: Path) -> None:
    file = write(tmp_path / "plain.jsonl", *PLAIN)
    run_choices(made.runs, made.capture, [file], scopes=["none"])
    clean = rows(made.runs)
    assert [row["item"] for row in clean] == [0, 1, 2]
    for row in clean:
        condition = {name: row[name] for name in ("scope", "reduce", "direction", "sign", "layers", "score")}
        assert set(condition.values()) == {"none"}
        assert (row["keep_first"], row["draw"], row["rate"]) == (False, 0, 0)
    run_choices(made.runs, made.capture, [file], **SMALL)
    assert [{**row, "stage_key": None} for row in rows(made.runs, "scope = 'none'")] == [
        {**row, "stage_key": None} for row in clean
    ]
    assert len(rows(made.runs)) == 3 * (1 + 2 * (2 + 2) * 2)  # scopes × (scores and draws) × directions


def test_a_mask_that_takes_nothing_leaves_the_clean_margin(made: Made, tmp_path: Path) -> None:
    """One context token and its BOS: a rate of a tenth of one candidate is none."""
    file = write(tmp_path / "short.jsonl", {"context": "a", "choices": ["b c", "c"], "label": 0})
    run_choices(
        made.runs, made.capture, [file], rates=[0.1, 1.0], scores=["vw"], scopes=["entry", "row", "layer_token"]
    )
    found = rows(made.runs)
    clean = next(row["margin"] for row in found if row["scope"] == "none")
    for row in found:
        assert (row["margin"] == pytest.approx(clean, abs=1e-6)) == (row["rate"] < 1)


def test_layers_alone_are_replayed_from_where_they_lie(made: Made, tmp_path: Path) -> None:
    file = write(tmp_path / "plain.jsonl", *PLAIN)
    chosen = {"rates": [0.5], "scores": ["raw"], "scopes": ["entry"]}
    run_choices(made.runs, made.capture, [file], layers=["all", "each", "1+2", "0-2", "2"], **chosen)
    found = rows(made.runs, "item = 0 and direction = 'comprehensiveness'")
    assert sorted(row["layers"] for row in found) == ["0", "1", "1-2", "2", "all"]
    loaded, item = loaded_of(made), items()["plain", 0]
    for row in found:
        layers = {"0": [0], "1": [1], "2": [2], "1-2": [1, 2], "all": [0, 1, 2]}[row["layers"]]
        oracles = {layer: o for layer, o in plain_oracles(loaded, ids_of("The sky is")).items() if layer in layers}
        want = []
        for context, continuation in item["prompts"]:
            whole = ids_of(context + continuation)
            masks = plain_masks(oracles, len(whole), "entry", "raw", "comprehensiveness", 0.5)
            want.append(plain_log_probability(loaded, whole, len(continuation), masks))
        assert row["margin"] == pytest.approx(want[0] - max(want[1:]), abs=2e-5)


def test_a_context_of_one_token_has_nothing_to_mask(tmp_path: Path) -> None:
    made = make(tmp_path, bos="never")
    file = write(tmp_path / "short.jsonl", {"context": "a", "choices": ["b c", "c"], "label": 0})
    scopes = ["entry", "token", "row", "layer_token"]
    run_choices(made.runs, made.capture, [file], rates=[1.0], scores=["cw_inter", "random"], scopes=scopes, draws=1)
    found = rows(made.runs)
    assert len(found) == 1 + 4 * 2 * 2
    np.testing.assert_allclose([row["margin"] for row in found], found[0]["margin"], atol=1e-6)


@pytest.mark.parametrize("name", ["llama", "qwen3_next", "gemma2", "lfm2"])
def test_a_context_is_ranked_as_the_same_text_of_a_corpus(name: str, tmp_path: Path) -> None:
    """By every score, out of the store of a capture that holds the context as its one document."""
    text = "The quick brown fox"
    made = make(tmp_path, name, text=text)
    replay = CapturedReplay.open(made.runs, made.capture)
    grid = MaskingParameters(scopes=("entry", "token", "row", "layer_token"), keep_first=(False, True))
    shard = replay.store.shard(0)
    corpus = rankings_of(replay.store, shard, grid, StageContext("", 0), replay)
    choices = Choice(0, ids_of(" jumps", bos=False)), Choice(0, ids_of(" is", bos=False))
    item = Item("plain", 0, 0, (shard.token_ids(0),), choices, cut=False)
    assert np.array_equal(item.contexts[0], ids_of(text))
    cells = [MaskedCell(cell, replay.store.shape.attention_layers) for cell in grid.cells()]
    contexts = ChoicePasses(replay, cells).rankings(item, 0)
    shown = len(item.contexts[0])
    for layer in replay.store.shape.attention_layers:
        for ranking in grid.rankings():
            if ranking.score == "random":
                continue
            want, sizes = corpus.of(0, layer, ranking)
            for choice, more in enumerate((6, 3)):
                got, as_many = contexts.of(choice, layer, ranking)
                entries = ranking.scope in ("entry", "row")
                assert got.shape[-1] == shown + more
                inside = got[..., :shown, :shown] if entries else got[..., :shown]
                assert torch.equal(inside, want), ranking
                assert int((got >= 0).sum()) == int((want >= 0).sum())
                assert torch.equal(as_many[..., :shown, :] if ranking.scope == "row" else as_many, sizes)


@pytest.mark.parametrize("name", ["qwen3_next", "gpt_oss", "lfm2", "gemma2"])
def test_gates_sinks_and_layers_without_attention(name: str, tmp_path: Path) -> None:
    made = make(tmp_path, name)
    file = write(tmp_path / "plain.jsonl", *PLAIN)
    run_choices(made.runs, made.capture, [file], rates=[0.5], scores=["cw_inter"], directions=["comprehensiveness"])
    loaded = loaded_of(made)
    for row in rows(made.runs):
        want = expected(loaded, items()["plain", row["item"]], {"scope": "none"}, {})
        clean = want[row["label"]] - np.delete(want, row["label"]).max()
        assert (row["margin"] == pytest.approx(clean, abs=1e-4)) == (row["scope"] == "none")


def test_attention_that_cannot_be_reached_is_refused_by_family(tmp_path: Path) -> None:
    made, file = make(tmp_path, "bloom"), write(tmp_path / "plain.jsonl", *PLAIN)
    with pytest.raises(ModelError, match="Keys can be dropped for all heads that share them"):
        run_choices(made.runs, made.capture, [file], scopes=["entry"], scores=["raw"], rates=[0.5])
    run_choices(made.runs, made.capture, [file], scopes=["layer_token"], scores=["raw"], rates=[0.5])
    assert len(rows(made.runs)) == 3 * (1 + 2)


def test_all_scores_and_baselines_run(made: Made, tmp_path: Path) -> None:
    file = write(tmp_path / "plain.jsonl", PLAIN[0])
    scores = ["raw", "vwon", "cw_inter", "norm", "alti", "rollout", "random"]
    run_choices(made.runs, made.capture, [file], scopes=["layer_token"], scores=scores, rates=[0.5], draws=3)
    found = rows(made.runs, "direction = 'comprehensiveness' and scope <> 'none'")
    assert sorted((row["score"], row["draw"]) for row in found) == sorted(
        [*((score, 0) for score in scores[:-1]), *(("random", draw) for draw in range(3))]
    )
    assert len({row["margin"] for row in found if row["score"] == "random"}) == 3


def test_the_same_seed_gives_the_same_and_another_other_draws(made: Made, tmp_path: Path) -> None:
    file, margins = write(tmp_path / "plain.jsonl", *PLAIN), []
    for seed, rates in ((0, [0.5]), (1, [0.5]), (0, [0.5, 0.9])):
        run_choices(made.runs, made.capture, [file], seed, scores=["random"], draws=1, rates=rates)
        margins.append([row["margin"] for row in rows(made.runs, "scope = 'entry' and round(rate, 2) = 0.5")])
    assert margins[0] != margins[1]
    assert margins[0] == pytest.approx(margins[2], abs=1e-6)
