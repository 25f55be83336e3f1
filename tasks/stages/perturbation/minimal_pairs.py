"""The stage `minimal_pairs`: does the model hold the grammatical sentence of a pair likelier, clean and perturbed?

By summed log-probability (methods.md §3). The residual stream is moved as in `perturbation`; whether both sentences of
a pair are moved by the same noise is a condition of its own, since the verdict turns on it. The pairs are spread over
the capture's shards, so that shards are what a run resumes by.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.capture.model import captured_model
from tasks.corpora.pairs import EncodedPair, PairEncoder
from tasks.models.families import max_positions
from tasks.models.tokenizer import captured_encoder
from tasks.stages.faithfulness.choices_parameters import CLEAN, shard_part
from tasks.stages.perturbation.minimal_pairs_parameters import CONDITION, PairCell
from tasks.stages.perturbation.minimal_pairs_passes import PairPasses
from tasks.stages.perturbation.norm_survey import combine_survey, medians
from tasks.stages.perturbation.norm_survey import survey as norms
from tasks.stages.replays import replay_of

if TYPE_CHECKING:
    from storage.tensors import ActivationStore, ShardReader
    from tasks.replay import CapturedReplay
    from tasks.stages.contract import Partial, Rows, StageContext
    from tasks.stages.perturbation.minimal_pairs_parameters import MinimalPairsParameters

__all__ = ["combine_survey", "per_shard", "require_fitting", "survey"]

_PASSES = 512
"""Passes over a sentence that a piece of work holds, one pair at least: pieces are what an interrupted run keeps."""
_MOST_UNMOVED = 0.05


def survey(
    store: ActivationStore, shard: ShardReader, parameters: MinimalPairsParameters, context: StageContext
) -> Partial:
    """What a relative δ is relative to: ‖h‖ of the capture's tokens where they leave each perturbed layer."""
    if parameters.perturbs:
        return norms(store, shard, parameters, context)
    context.advance(len(shard.documents) * len(store.shape.kept_layers))
    return {}


def per_shard(
    store: ActivationStore, shard: ShardReader, parameters: MinimalPairsParameters, context: StageContext, rows: Rows
) -> tuple[Partial, dict[str, int]]:
    """Rows per pair of this shard's and condition; counts of pairs left out, and of what hampers the others."""
    replay, n_layers = replay_of(context), store.shape.n_layers
    cells = list(parameters.pair_cells(n_layers))
    passes = PairPasses(replay, cells, medians(context.survey), context.seed)
    pairs, quality = _pairs(parameters, shard, replay, context)
    conditions = _conditions(cells, n_layers)
    for number, piece in _pieces(pairs, passes.n_conditions):
        found = _piece(passes, context, f"pairs-{number}", piece)
        columns = _columns(piece, found)
        quality["flagged_rows"] += int((columns["unmoved"] > _MOST_UNMOVED * columns["n_tokens"]).sum())
        rows.add("minimal_pairs", {**{name: values * len(piece) for name, values in conditions.items()}, **columns})
    return {}, quality


def require_fitting(parameters: MinimalPairsParameters, replay: CapturedReplay) -> None:
    """Tokenise every pair. Raises CorpusError for the first that the model cannot be given."""
    encoder = _encoder(replay)
    for pair in parameters.pairs():
        encoder.pair(pair)


def _encoder(replay: CapturedReplay) -> PairEncoder:
    """Tokenises as the capture's corpus was.

    Whatever BOS token there is stands in front, also where the tokenizer by itself would put none: without one nothing
    predicts the first token, which may be all that tells the sentences apart.
    """
    prepared, loaded = replay.prepared, captured_model(replay.prepared)
    config: Any = loaded.model.config
    encoder = captured_encoder(loaded.source, prepared.record["ingredients"]["tokenizer_digest"])
    bos = None if prepared.settings["bos"] == "never" else encoder.bos_id
    return PairEncoder(encoder.encode, bos, max_positions(config.to_dict()))


def _pairs(
    parameters: MinimalPairsParameters, shard: ShardReader, replay: CapturedReplay, context: StageContext
) -> tuple[list[EncodedPair], dict[str, int]]:
    """The shard's pairs, and how many are left out."""
    encoder, written = _encoder(replay), parameters.pairs()
    given = [encoder.pair(written[i]) for i in shard_part(len(written), shard.index, replay.prepared.n_shards)]
    kept = [pair for pair in given if pair.scored and not pair.alike]
    context.advance(len(given) - len(kept))
    quality = {"pairs_alike": sum(pair.scored and pair.alike for pair in given)}
    quality |= {"pairs_too_short": sum(not pair.scored for pair in given), "flagged_rows": 0}
    quality["pairs_first_token_unscored"] = sum(not pair.first_scored for pair in kept)
    return kept, quality


def _conditions(cells: Sequence[PairCell], n_layers: int) -> dict[str, list[Any]]:
    """The columns that name the conditions, the clean one first."""
    clean = {**dict.fromkeys(CONDITION, CLEAN), "arm": CLEAN, "delta": 0.0, "seed": 0}
    named = [clean, *(one.columns(n_layers) for one in cells)]
    return {name: [columns[name] for columns in named] for name in CONDITION}


def _pieces(pairs: Sequence[EncodedPair], n_conditions: int) -> Iterator[tuple[int, list[EncodedPair]]]:
    """(the number of its first pair in the shard, pairs) of each piece of work."""
    size = max(1, _PASSES // (2 * n_conditions))
    for start in range(0, len(pairs), size):
        yield start, list(pairs[start : start + size])


def _piece(passes: PairPasses, context: StageContext, name: str, pairs: Sequence[EncodedPair]) -> Partial:
    """logp (pairs, 2, conditions), and beside it n_tokens and unmoved."""
    done = False

    def compute() -> Partial:
        nonlocal done
        found, done = passes.answers(pairs, context.advance), True
        return {"logp": found.logp, "n_tokens": found.n_tokens, "unmoved": found.unmoved}

    kept = context.once(name, compute)
    if not done:  # but by an earlier try
        context.advance(len(pairs), True)
    return kept


def _columns(pairs: Sequence[EncodedPair], found: Partial) -> dict[str, Any]:
    """Rows of every pair and condition, (pairs, conditions) raveled. A tie is not right."""
    n_conditions = found["logp"].shape[2]
    good, bad = found["logp"][:, 0].ravel(), found["logp"][:, 1].ravel()
    of_pair: dict[str, list[Any]] = {
        "task": [pair.task for pair in pairs],
        "item": [pair.item for pair in pairs],
        "first_scored": [pair.first_scored for pair in pairs],
        "n_good": [len(pair.good) - 1 for pair in pairs],
        "n_bad": [len(pair.bad) - 1 for pair in pairs],
    }
    return {
        **{name: np.repeat(np.array(values, dtype=None), n_conditions) for name, values in of_pair.items()},
        "logp_good": good,
        "logp_bad": bad,
        "correct": good > bad,
        **{name: found[name].sum(1).ravel().astype(np.int32) for name in ("n_tokens", "unmoved")},
    }
