"""Rows of the stage `masking`, from a captured model to its table, against plain passes with α zeroed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from storage.keys import seed_for
from storage.tensors import ShardReader
from tasks.capture.folder import CaptureFolder
from tasks.capture.model import captured_model
from tasks.models.loading import LoadedModel
from tests.oracles.masked_rows import Anatomy, MaskedDocument, Norm
from tests.oracles.masking import PlainModel
from tests.tasks.capture.made_captures import Made
from tests.tasks.stages.running import TEXT, Ran, captured, run

NORMS = {"gemma2": ("output", "post_attention_layernorm"), "opt-350m": ("sum", "self_attn_layer_norm")}
SCALES = {"granite": 0.4}
SHORT = TEXT[:13]
"""Documents of 13 and 2 tokens."""

EVERYTHING = {"signs": "absolute,signed", "reduce": "sum,mean", "keep_first": "false,true", "draws": 2}


def norm(loaded: LoadedModel, name: str, layer: int) -> Norm | None:
    """What the family's code says of the norm after attention."""
    if name not in NORMS:
        return None
    where, module = NORMS[name]
    found: Any = getattr(loaded.anatomy.layers[layer], module)
    weight = found.weight.detach().double().numpy() + (name == "gemma2")
    return where, isinstance(found, torch.nn.LayerNorm), weight, found.eps


def documents(made: Made, name: str, seed: int = 0) -> dict[int, MaskedDocument]:
    prepared, store = CaptureFolder.open(made.runs, made.capture), made.store
    loaded, shape = captured_model(prepared), store.shape
    plain = PlainModel(loaded)
    norms = {layer: norm(loaded, name, layer) for layer in shape.attention_layers}
    anatomy = Anatomy({layer: shape.windows[layer] for layer in shape.attention_layers}, norms, SCALES.get(name, 1.0))

    def document(doc: int, ids: np.ndarray) -> MaskedDocument:
        def draw(layer: int, scope: str, number: int, size: tuple[int, ...]) -> np.ndarray:
            named = seed_for(seed_for(seed, "masking", prepared.record["key"]), doc, layer, scope, number)
            return torch.rand(*size, generator=torch.Generator().manual_seed(named)).numpy()

        return MaskedDocument(plain, ids, anatomy, draw)

    return {doc: document(doc, reader.token_ids(doc)) for reader in shards(made) for doc in reader.documents}


def shards(made: Made) -> list[ShardReader]:
    return [made.store.shard(shard) for shard in made.store.shards]


def numbers(layers: str, made: Made) -> list[int]:
    """The layers that a row's label names."""
    if layers == "all":
        return list(made.store.shape.attention_layers)
    ranges = [part.split("-") for part in layers.replace("+", ",").split(",")]
    return [layer for ends in ranges for layer in range(int(ends[0]), int(ends[-1]) + 1)]


def assert_rows(ran: Ran, name: str) -> list[dict[str, Any]]:
    """Every row against the definitions; returns them."""
    of, rows = documents(ran.made, name), ran.rows("masking")
    losses = {doc: reader.nll(doc)[1:] for reader in shards(ran.made) for doc in reader.documents}
    unsure = 0
    for row in rows:
        document = of[row["doc"]]
        before = document.close_calls
        masks = document.masks(row, numbers(row["layers"], ran.made))
        if document.close_calls == before:
            assert row["nll_sum"] == pytest.approx(document.nll_sum(masks), rel=2e-5), row
            assert row["masked_fraction"] == pytest.approx(document.fraction(masks), rel=1e-6), row
        else:
            unsure += 1
        clean = losses[row["doc"]]
        assert row["nll_clean_sum"] == pytest.approx(clean.sum(dtype=np.float64), rel=1e-12)
        assert row["nll_clean_sum"] == pytest.approx(document.nll_sum({}), rel=2e-5)
        assert row["n_predicted"] == len(clean)
    assert unsure <= len(rows) / 50
    keys = ["doc", "scope", "reduce", "direction", "sign", "keep_first", "layers", "score", "draw", "rate"]
    assert len({tuple(row[key] for key in keys) for row in rows}) == len(rows)
    assert np.ptp([row["nll_sum"] - row["nll_clean_sum"] for row in rows]) > 1
    return rows


def test_every_choice_of_the_grid(tmp_path: Path) -> None:
    """All scopes, scores, signs, reduces, with and without the first token, both directions."""
    made = captured(tmp_path, text=SHORT)
    rows = assert_rows(run(made, "masking", {**EVERYTHING, "rates": "0.5"}), "llama")
    by_scope = {scope: [row for row in rows if row["scope"] == scope] for scope in ("entry", "row", "token")}
    of_all = [row for row in rows if row["scope"] == "layer_token"]
    n_documents = len({row["doc"] for row in rows})
    assert n_documents == 2
    each = n_documents * 2 * 2 * 2  # documents, directions, signs, with and without the first token
    assert [len(found) for found in by_scope.values()] == [each * 7, each * 7, each * 2 * 7]
    assert len(of_all) == each * 2 * 10
    assert {row["reduce"] for row in rows if row["scope"] in ("entry", "row")} == {"none"}


@pytest.mark.parametrize(
    "name", ["gpt2", "gpt_neox", "qwen3_next", "mistral-window", "gemma2", "gpt_oss", "granite", "opt-350m"]
)
def test_families(name: str, tmp_path: Path) -> None:
    """LayerNorm and biases, gates and layers without attention, windows, norms after attention, learned sinks."""
    values = {"rates": "0.4", "draws": 1, "reduce": "mean"}
    assert_rows(run(captured(tmp_path, name, text=SHORT), "masking", values), name)


def test_layers_alone_and_in_sets(tmp_path: Path) -> None:
    values = {"layers": "each,0+2,all", "rates": "0.05,0.9", "scores": "raw,cw_intra,alti,rollout,random", "draws": 1}
    rows = assert_rows(run(captured(tmp_path), "masking", values), "llama")
    assert {row["layers"] for row in rows} == {"0", "1", "2", "0,2", "all"}
