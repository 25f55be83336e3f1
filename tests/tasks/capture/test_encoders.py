"""Encoders of text and of images, from corpus to checked tables: what sees all keys is measured like what does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, processors

from flows.checks import check_tables, require
from tasks.models.sources import ModelSource
from tasks.models.tokenizer import open_encoder
from tasks.stages.run import finish_stage, prepare_stage, run_stage_shards, stage_parts_left
from tests.families import IMAGE_NAMES
from tests.oracles.contributions import Oracle
from tests.tasks.capture.made_captures import Made, make, save_model
from tests.tasks.corpora import pictures

TABLES = (
    "token_scores",
    "contribution_rows",
    "contribution_edges",
    "contribution_factors",
    "sink_geometry",
    "sink_curve",
    "sink_fit",
    "semantic_drift",
    "semantic_cone",
)


def text_capture(folder: Path, name: str, attention: str = "stored", **changes: Any) -> Made:
    """Documents of 17 tokens and, last, of two: a token that stands for the document, and one more."""
    model, texts = save_model(folder / "model", name, **changes), folder / "texts"
    texts.mkdir()
    for at, text in enumerate(("The quick brown ", "fox jumps", "x")):
        (texts / f"{at}.txt").write_text(text)
    settings = {"window": 17, "shard_tokens": 30, "bos": "always", "attention": attention}
    return make(model, sorted(texts.iterdir()), folder / "runs", **settings)


def image_capture(folder: Path, name: str, attention: str) -> Made:
    pytest.importorskip("PIL", reason="Pillow is not installed: pip install 'theodolite[images]'")
    pictures.save_pictures(folder / "pictures", 2)
    model, settings = pictures.save_model(folder / "model", name), {"shard_tokens": 40, "attention": attention}
    return make(model, [folder / "pictures"], folder / "runs", **settings)


def measured(made: Made) -> Made:
    """After the stage, with every check of the tables passed, those of the stage on rows that are there."""
    key = prepare_stage(made.runs, made.capture, "contributions", {"resamples": 20, "edges": 3})
    left = stage_parts_left(made.runs, made.capture, "contributions", key)
    run_stage_shards(made.runs, made.capture, "contributions", key, left)
    finish_stage(made.runs, made.capture, "contributions", key)
    results = check_tables(made.runs, [made.capture])
    require(results, [made.capture])
    checked = {result.name: result.rows_checked for result in results}
    own = ("contribution_", "sink_geometry_", "token_scores_")
    assert all(n for name, n in checked.items() if name.startswith(own))
    return made


@pytest.fixture(
    scope="module",
    params=[("bert", "stored"), ("albert", "rebuilt"), ("vit", "rebuilt"), ("dinov2_with_registers", "stored")],
    ids="-".join,
)
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    name, attention = request.param
    folder = tmp_path_factory.mktemp(name)
    return measured((image_capture if name in IMAGE_NAMES else text_capture)(folder, name, attention))


def rows(made: Made, table: str) -> list[dict[str, Any]]:
    return pq.read_table(Path(made.runs) / made.capture / "tables" / table).to_pylist()


def oracles(made: Made) -> dict[tuple[int, int], Oracle]:
    """By (layer, document), of what the store holds."""
    store, found = made.store, {}
    for shard in store.shards:
        for layer in store.shape.kept_layers:
            for document in store.shard(shard).layer(layer, ("attention", "value")):
                arrays = (document.attention.numpy(), document.value.numpy(), store.weights(layer)[0].numpy())
                found[layer, document.doc] = Oracle(*arrays, causal=False)
    return found


def near(value: Any) -> Any:
    return pytest.approx(value, rel=2e-3, abs=2e-5, nan_ok=True)


def test_no_table_is_empty_and_every_query_counts(encoder: Made) -> None:
    for table in TABLES:
        assert rows(encoder, table), table
    lengths = {row["doc"]: row["n_tokens"] for row in rows(encoder, "documents")}
    scores = rows(encoder, "token_scores")
    assert {row["n_queries"] - lengths[row["doc"]] for row in scores} == {0}
    per_document = {d: {row["position"] for row in scores if row["doc"] == d} for d in lengths}
    assert per_document == {d: set(range(n)) for d, n in lengths.items()}
    assert encoder.store.shape.causal is False
    if len(lengths) == 3:
        assert min(lengths.values()) == 2


def of_head(made: Made, table: str, layer: int, head: int) -> list[dict[str, Any]]:
    return [row for row in rows(made, table) if (row["layer"], row["head"]) == (layer, head)]


def test_token_scores_and_rows_are_those_of_the_definitions(encoder: Made) -> None:
    """Of one layer and head, from what the store holds."""
    found, layer, head = oracles(encoder), 1, 2
    for row in of_head(encoder, "contribution_rows", layer, head):
        expected = found[layer, row["doc"]].row(head, row["query"])
        assert row["sum_cw_intra"] == near(expected["cw_intra"]) == pytest.approx(1, abs=1e-5)
        assert row["sum_cw_inter"] == near(expected["cw_inter"])
        assert row["negative_share"] == near(expected["negative_share"])
        assert row["sum_alpha"] == pytest.approx(1, abs=1e-5)
    for row in of_head(encoder, "token_scores", layer, head):
        n, sums = found[layer, row["doc"]].token_scores(head, row["position"])
        for name, value in sums.items():
            assert row[name] == near(value / (n if row["reduce"] == "mean" else 1)), name


def test_edges_reach_keys_after_the_query(encoder: Made) -> None:
    found, layer, head = oracles(encoder), 0, 1
    edges = of_head(encoder, "contribution_edges", layer, head)
    assert any(row["key"] > row["query"] for row in edges) and any(row["key"] < row["query"] for row in edges)
    for row in edges:
        key, entry = found[layer, row["doc"]].edges(head, row["query"], 3)[row["rank"] - 1]
        assert row["key"] == key
        for name in ("relative_norm", "cosine", "cw_intra", "cw_inter"):
            assert row[name] == near(entry[name]), name


def test_the_first_token_is_the_sink_of_all_other_queries(encoder: Made) -> None:
    """Its geometry, and what many weights below 1/T add up to."""
    found, layer, head = oracles(encoder), 2, 0
    geometry = of_head(encoder, "sink_geometry", layer, head)
    expected = {(d, i) for (at, d), o in found.items() if at == layer for i in range(1, o.T)}
    assert {(row["doc"], row["query"]) for row in geometry} == expected
    for row in geometry:
        for name, value in found[layer, row["doc"]].sink(head, row["query"]).items():
            assert row[name] == near(value), name
    for row in of_head(encoder, "semantic_drift", layer, head):
        norm, cosine = found[layer, row["doc"]].drift(head)
        assert (row["drift_norm"], row["cosine_drift_sink"]) == (near(norm), near(cosine))


def test_factors_of_every_entry_but_that_of_the_sink_with_itself(encoder: Made) -> None:
    """The tail lies on both sides of the query, and the first query has one too."""
    found, layer, head = oracles(encoder), 1, 3
    factors = of_head(encoder, "contribution_factors", layer, head)
    for row in factors:
        parts = [o.factor_entries(head, row["token_group"])[0] for (at, _), o in found.items() if at == layer]
        entries = np.concatenate(parts)
        assert row["n"] == len(entries)
        means = [row[f"mean_{name}"] for name in ("alpha", "relative_norm", "cosine", "cw")]
        assert means == near(list(entries.mean(0)[3:]))
    assert sum(row["n"] for row in factors) == sum(row["n_tokens"] ** 2 - 1 for row in rows(encoder, "documents"))


@pytest.mark.parametrize("loaded_by", ["PreTrainedTokenizerFast", "BertTokenizer"])
def test_a_window_of_bert_begins_with_cls(loaded_by: str, tmp_path: Path) -> None:
    """Its tokenizer names no BOS token: [CLS] is what it begins a text with. One that only has [CLS] puts none."""
    ids = {}
    for begins in ("[CLS] $A", "$A"):
        folder = tmp_path / begins
        folder.mkdir()
        vocabulary = {token: i for i, token in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"))}
        tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begins} [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
        tokenizer.save(str(folder / "tokenizer.json"))
        config = {"tokenizer_class": loaded_by, "cls_token": "[CLS]", "sep_token": "[SEP]"}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
        encoder = open_encoder(ModelSource("tiny", str(folder)))
        ids[begins] = (encoder.bos_id, encoder.front, encoder.encode("a"))
    assert ids["[CLS] $A"] == (2, (2,), [5])
    if loaded_by == "PreTrainedTokenizerFast":  # BertTokenizer lays its own [CLS] over what the file says
        assert ids["$A"] == (None, (), [5])


def test_an_encoder_has_no_window_whatever_its_configuration_says(tmp_path: Path) -> None:
    made = measured(text_capture(tmp_path, "bert", sliding_window=4))
    assert made.store.shape.windows == (None, None, None)
    assert {row["n_queries"] for row in rows(made, "token_scores")} == {2, 10, 17}
