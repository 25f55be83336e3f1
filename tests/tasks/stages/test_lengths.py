"""Captures and stages of a model whose rotary frequencies follow the length: each text as alone in the plain model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from storage.filesystem import open_runs
from storage.warehouse import connect, run_sql
from tasks.stages.registry import tables
from tests.tasks.capture.made_captures import Made, make, save_model
from tests.tasks.stages.faithfulness.choosing import ids_of, run_choices, write
from tests.tasks.stages.running import run

LONG = "The quick brown fox jumps"
"""26 tokens with the BOS; frequencies change at 16."""
TEXTS = ("A fox", LONG, "The dog is here", "Dogs")
ROPES: dict[str, dict[str, Any]] = {
    "longrope": {
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "short_factor": [1.0] * 4,
            "long_factor": [1.5, 3.0, 6.0, 9.0],
            "original_max_position_embeddings": 16,
        }
    },
    "dynamic": {
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
        "max_position_embeddings": 16,
    },
}

pytestmark = pytest.mark.skipif(
    int(transformers.__version__.split(".")[0]) < 5, reason="rope_parameters are transformers 5's name"
)


@pytest.fixture(params=list(ROPES), scope="module")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp(request.param)
    model = save_model(folder / "model", **ROPES[request.param])
    files = [folder / f"{i}.txt" for i in range(len(TEXTS))]
    for file, text in zip(files, TEXTS, strict=True):
        file.write_text(text)
    return make(model, files, folder / "runs", window=26)


def losses(made: Made, text: str) -> np.ndarray:
    """Of each token but the first, by transformers alone on a model that has not run yet, in float64."""
    folder = Path(made.runs).parent / "model"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").double().eval()
    ids = torch.from_numpy(ids_of(text).astype(np.int64))
    with torch.no_grad():
        scores = torch.log_softmax(model(ids[None], use_cache=False).logits[0], -1)
    return -scores[:-1].gather(1, ids[1:, None])[:, 0].numpy()


def test_documents_of_both_sides_in_one_batch(made: Made) -> None:
    reader = made.store.shard(0)
    assert reader.documents == [0, 1, 2, 3]
    for doc, text in enumerate(TEXTS):
        assert reader.nll(doc)[1:] == pytest.approx(losses(made, text), abs=2e-5)


def test_a_replay_gives_the_captures_losses(made: Made) -> None:
    ran = run(made, "sink", {})
    clean = {row["doc"]: row["nll_clean_sum"] for row in ran.rows("sink_removal")}
    for doc, text in enumerate(TEXTS):
        assert clean[doc] == pytest.approx(losses(made, text).sum(), abs=2e-4)


def test_sentences_of_a_pair_on_both_sides(made: Made, tmp_path: Path) -> None:
    file = write(tmp_path / "pairs.jsonl", {"sentence_good": "A fox", "sentence_bad": LONG})
    ran = run(made, "minimal_pairs", {"files": [str(file)], "arms": ["none"]})
    (row,) = ran.rows("minimal_pairs")
    want = [-losses(made, text).sum() for text in ("A fox", LONG)]
    assert [row["logp_good"], row["logp_bad"]] == pytest.approx(want, abs=2e-4)


def test_choices_on_both_sides(made: Made, tmp_path: Path) -> None:
    context, choices = "The dog", [" is", " is not the one that"]
    run_choices(
        made.runs,
        made.capture,
        [write(tmp_path / "items.jsonl", {"context": context, "choices": choices, "label": 0})],
        scopes=["none"],
    )
    connection = connect(open_runs(made.runs), tables())
    (margin,) = run_sql(connection, "select margin from choices")["margin"].to_pylist()
    short, long = (-losses(made, context + choice)[len(context) :].sum() for choice in choices)
    assert margin == pytest.approx(short - long, abs=2e-4)
