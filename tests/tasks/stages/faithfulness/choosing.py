"""What tests of the stage `choices` share: a stage run on a capture, and the answers by the definitions.

The plain way: float64, one pass per choice and condition by hooks on the plain model (tests/oracles/masking.py), scores
in loops from what transformers reports of the context alone.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from storage.filesystem import open_runs
from storage.warehouse import connect, run_sql
from tasks.capture.folder import CaptureFolder
from tasks.capture.model import captured_model
from tasks.models.anatomy import output_weights, values_in
from tasks.models.loading import LoadedModel, prepare
from tasks.stages.registry import tables
from tasks.stages.run import finish_stage, prepare_stage, run_stage_shards, stage_parts_left
from tests.oracles.contributions import Oracle
from tests.oracles.masking import masked_losses
from tests.oracles.masking_scores import candidates, entry_scores, ranks, token_scores
from tests.tasks.capture import made_captures
from tests.tasks.capture.made_captures import BOS, LETTERS, Made, save_model

Row = dict[str, Any]
PLAIN = [
    {"context": "The sky is", "choices": ["blue", "a green one", "loud"], "label": 0},
    {"context": "Cats say ", "choices": ["meow", "woof"], "label": 1},
    {"context": "One, two,", "choices": ["three.", "nine"], "label": 0},
]
WINOGRANDE = {"sentence": "Ann saw Bo and _ fled.", "option1": "Ann", "option2": "Bo", "answer": "1"}
SMALL: dict[str, Any] = {"rates": [0.3], "scores": ["raw", "cw_intra", "random"], "draws": 2}
LINE = "The quick brown fox jumps over the lazy dog.\n"


def ids_of(text: str, bos: bool = True) -> np.ndarray:
    """Tokens are characters."""
    return np.array([*([BOS] if bos else []), *(3 + LETTERS.index(letter) for letter in text)], np.int32)


def make(folder: Path, name: str = "llama", text: str = LINE * 4, **settings: object) -> Made:
    """A capture of a tiny model, of three shards."""
    model, file = save_model(folder / "model", name), folder / "text.txt"
    file.write_text(text)
    return made_captures.make(model, [file], folder / "runs", window=29, shard_tokens=80, batch_tokens=60, **settings)


def loaded_of(made: Made) -> LoadedModel:
    """The captured model."""
    return captured_model(CaptureFolder.open(made.runs, made.capture))


def write(path: Path, *rows: Mapping[str, Any]) -> Path:
    """A file of questions."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run_choices(runs: str, capture: str, files: Sequence[Path], seed: int = 0, **parameters: Any) -> str:
    """Every shard of the stage, and its end; the stage's key."""
    given = {"files": [str(file) for file in files], **parameters}
    key = prepare_stage(runs, capture, "choices", given, seed)
    run_stage_shards(runs, capture, "choices", key, stage_parts_left(runs, capture, "choices", key))
    finish_stage(runs, capture, "choices", key)
    return key


def rows(runs: str, where: str = "true") -> list[Row]:
    """Rows of the table, in an order that is always the same."""
    columns = "task, item, scope, score, direction, rate, layers, draw"
    connection = connect(open_runs(runs), tables())
    return list(run_sql(connection, f"select * from choices where {where} order by {columns}").to_pylist())


def plain_oracles(loaded: LoadedModel, ids: np.ndarray) -> dict[int, Oracle]:
    """Layer → what transformers reports of a context alone, in float64."""
    model: Any = copy.deepcopy(loaded.model).double()
    anatomy = prepare(model, loaded.source, dtype="float64", device="cpu").anatomy
    model.set_attn_implementation("eager")
    values: dict[int, Tensor] = {}
    for layer, module in anatomy.value_projections.items():
        module.register_forward_hook(lambda _m, _a, output, layer=layer: values.__setitem__(layer, output[0]))
    with torch.inference_mode():
        out = model(input_ids=torch.from_numpy(ids.astype(np.int64))[None], output_attentions=True, use_cache=False)
    return {
        layer: Oracle(
            out.attentions[layer][0].numpy(),
            values_in(anatomy, values[layer]).numpy(),
            output_weights(anatomy, layer)[0].double().numpy(),
            anatomy.windows[layer],
        )
        for layer in anatomy.attended
    }


def plain_masks(
    oracles: Mapping[int, Oracle], length: int, scope: str, score: str, direction: str, rate: float
) -> dict[int, Tensor]:
    """Layer → (H, T, T) bool of a context and choice of `length` tokens: what of the context goes, by |score|."""
    masks = {}
    for layer, oracle in oracles.items():
        shown = oracle.T
        mask = torch.zeros(oracle.H, length, length, dtype=torch.bool)
        scores = _entry_scores(oracle, score)
        for h in range(oracle.H):
            if scope == "token":
                by_key = token_scores(scores[h], oracle.window, True, "sum", True)
                ranked = ranks(by_key, [[(j,) for j in range(len(by_key))]], False)
                mask[h, :, : len(by_key)] = torch.from_numpy(_share(ranked, len(by_key), direction, rate))
                continue
            places = candidates(shown, oracle.window, True, False)
            groups = [places] if scope == "entry" else [[p for p in places if p[0] == i] for i in range(shown)]
            ranked = ranks(scores[h], groups, True)
            for group in groups:
                for i, j in group:
                    mask[h, i, j] = bool(_share(ranked[i, j], len(group), direction, rate))
        masks[layer] = mask
    return masks


def _entry_scores(oracle: Oracle, score: str) -> np.ndarray:
    """Each once: the loops are slow."""
    known = oracle.__dict__.setdefault("known", {})
    if score not in known:
        known[score] = entry_scores(oracle, score)
    return np.asarray(known[score])


def _share(ranked: Any, n: int, direction: str, rate: float) -> Any:
    k = math.floor(Fraction(repr(rate)) * n)
    if direction == "comprehensiveness":
        return (ranked >= 0) & (ranked < k)
    return (ranked >= 0) & (ranked >= n - k) & (k > 0)


def plain_log_probability(loaded: LoadedModel, ids: np.ndarray, n_scored: int, masks: Mapping[int, Tensor]) -> float:
    """Of the last `n_scored` tokens of a document."""
    none = torch.zeros(loaded.anatomy.n_heads, len(ids), len(ids), dtype=torch.bool)
    return -float(masked_losses(loaded, ids, masks or dict.fromkeys(loaded.anatomy.attended, none))[-n_scored:].sum())
