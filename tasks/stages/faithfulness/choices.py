"""The stage `choices`: which continuation a model holds likelier, clean and with parts of the context masked.

Scores come from a clean pass over the context alone, and one mask serves all choices (methods.md §1, "Downstream").
The items are spread over the capture's shards, so that shards are what a run resumes by.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from storage.keys import seed_for
from tasks.capture.model import captured_model
from tasks.corpora.continuations import Item, ItemEncoder
from tasks.corpora.windows import bos_of
from tasks.models.families import max_positions
from tasks.models.tokenizer import captured_encoder
from tasks.stages.faithfulness.choices_parameters import CLEAN, shard_part
from tasks.stages.faithfulness.choices_passes import ChoicePasses, MaskedCell
from tasks.stages.faithfulness.masking_grid import KEYS, expanded
from tasks.stages.replays import label, replay_of

if TYPE_CHECKING:
    from storage.store_shape import StoreShape
    from storage.tensors import ActivationStore, ShardReader
    from tasks.replay import CapturedReplay
    from tasks.stages.contract import Partial, Rows, StageContext
    from tasks.stages.faithfulness.choices_parameters import ChoicesParameters


_PASSES = 256
"""Passes over a choice that a piece of work holds, one item at least: pieces are what an interrupted run keeps."""


def per_shard(
    store: ActivationStore, shard: ShardReader, parameters: ChoicesParameters, context: StageContext, rows: Rows
) -> tuple[Partial, dict[str, int]]:
    """Rows per item of this shard's and condition.

    And counts of contexts cut, of items left out since choices of theirs are alike, and of undefined scores.
    """
    replay, shape = replay_of(context), store.shape
    cells = _cells(parameters, shape)
    seed = seed_for(context.seed, "choices", replay.prepared.record["key"])
    passes = ChoicePasses(replay, cells)
    conditions = _conditions(cells, shape)
    given = _items(parameters, shard, replay)
    kept = [item for item in given if not item.alike]
    context.advance(len(given) - len(kept))
    quality = {"contexts_cut": 0, "items_alike": len(given) - len(kept), "undefined_scores": 0}
    for number, items in _pieces(kept, 1 + len(cells)):
        found = _piece(passes, context, f"items-{number}", items, seed)
        quality["contexts_cut"] += sum(item.cut for item in items)
        quality["undefined_scores"] += int(found["undefined"].sum())
        answers = [_answers(*each) for each in zip(items, found["log_probability"], strict=True)]
        of_items = {name: np.concatenate([columns[name] for columns in answers]) for name in answers[0]}
        rows.add("choices", {**{name: values * len(items) for name, values in conditions.items()}, **of_items})
    return {}, quality


def _cells(parameters: ChoicesParameters, shape: StoreShape) -> list[MaskedCell]:
    """Every condition, each set of layers apart. Layers need not lie in the store: nothing of it is read."""
    if not parameters.masks:
        return []
    found: dict[tuple[Any, ...], MaskedCell] = {}
    for cell in parameters.cells():
        for layers in expanded(cell.layers, shape.attention_layers, "choices.layers"):
            named = cell.ranking, cell.direction, cell.rate, layers  # 0-2 may be all there are
            found.setdefault(named, MaskedCell(cell, layers))
    return list(found.values())


def _conditions(cells: Sequence[MaskedCell], shape: StoreShape) -> dict[str, Any]:
    """The columns that name the conditions, the clean one first."""
    clean = {**dict.fromkeys(KEYS, CLEAN), "keep_first": False, "draw": 0, "rate": 0.0}
    named = [clean, *({**one.cell.columns(), "layers": label(one.layers, shape)} for one in cells)]
    return {name: [columns[name] for columns in named] for name in KEYS}


def require_fitting(parameters: ChoicesParameters, replay: CapturedReplay) -> None:
    """Tokenise every item. Raises CorpusError for the first that the model cannot be given."""
    encoder = _encoder(replay)
    for question in parameters.questions():
        encoder.item(question)


def _items(parameters: ChoicesParameters, shard: ShardReader, replay: CapturedReplay) -> list[Item]:
    """The shard's items."""
    encoder, questions = _encoder(replay), parameters.questions()
    return [encoder.item(questions[i]) for i in shard_part(len(questions), shard.index, replay.prepared.n_shards)]


def _encoder(replay: CapturedReplay) -> ItemEncoder:
    """Tokenises as the capture's corpus was."""
    prepared, loaded = replay.prepared, captured_model(replay.prepared)
    config: Any = loaded.model.config
    encoder = captured_encoder(loaded.source, prepared.record["ingredients"]["tokenizer_digest"])
    bos = bos_of(prepared.settings["bos"], encoder.named_bos, encoder.front)
    return ItemEncoder(encoder.encode, bos, max_positions(config.to_dict()))


def _pieces(items: Sequence[Item], n_conditions: int) -> Iterator[tuple[int, list[Item]]]:
    """(the number of its first item in the shard, items) of each piece of work."""
    size = max(1, _PASSES // (n_conditions * max((len(item.choices) for item in items), default=1)))
    for start in range(0, len(items), size):
        yield start, list(items[start : start + size])


def _piece(passes: ChoicePasses, context: StageContext, piece: str, items: Sequence[Item], seed: int) -> Partial:
    """log_probability (items, choices at most, conditions), NaN behind an item's last choice; undefined (items,)."""
    done = 0

    def compute() -> Partial:
        nonlocal done
        most = max(len(item.choices) for item in items)
        found = np.full((len(items), most, 1 + passes.n_cells), np.nan)
        undefined = np.zeros(len(items), np.int64)
        for at, item in enumerate(items):
            own = seed_for(seed, item.task, item.item)
            values, undefined[at] = passes.log_probabilities(item, own, context.advance)
            found[at, : len(values)] = values
            done += 1
        return {"log_probability": found, "undefined": undefined}

    kept = context.once(piece, compute)
    if done < len(items):  # of an earlier try
        context.advance(len(items) - done, True)
    return kept


def _answers(item: Item, log_probabilities: np.ndarray) -> dict[str, np.ndarray]:
    """The columns of one item; log_probabilities (choices at least, conditions). Ties go to the earlier choice."""
    log_probabilities = log_probabilities[: len(item.choices)]
    tokens = np.array([len(choice.token_ids) for choice in item.choices])
    others = np.delete(log_probabilities, item.label, axis=0)
    same: dict[str, Any] = {"task": item.task, "item": item.item, "label": item.label, "n_choices": len(item.choices)}
    return {
        **{name: np.repeat(value, log_probabilities.shape[1]) for name, value in same.items()},
        "picked": log_probabilities.argmax(0).astype(np.int32),
        "picked_normalised": (log_probabilities / tokens[:, None]).argmax(0).astype(np.int32),
        "margin": log_probabilities[item.label] - others.max(0),
    }
