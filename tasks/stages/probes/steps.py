"""The stage `probes`: part of speech and depth in the tree, read off a word's hidden state at every layer.

From its direction ĥ, its magnitude ‖h‖, and the state itself (methods.md §3, "Probes"). A fit needs the words of all
shards, so shards divide the layers, one of which is in memory at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from threadpoolctl import threadpool_limits

from storage.keys import seed_for
from tasks.corpora.treebank import NONE
from tasks.kernels.direction import direction_and_magnitude
from tasks.stages.probes.declaration import METRICS
from tasks.stages.probes.words import COUNTS, folds_of, joined, require_words, words_of

if TYPE_CHECKING:
    from storage.tensors import ActivationStore, ShardReader
    from tasks.stages.contract import Partial, Rows, StageContext
    from tasks.stages.probes.declaration import ProbesParameters


_TRAINING = 0.8


def survey(store: ActivationStore, shard: ShardReader, parameters: ProbesParameters, context: StageContext) -> Partial:
    """The words of the shard's documents, and where their hidden states are."""
    assert context.prepared is not None  # in every run
    found = words_of(context.prepared, shard.documents, parameters, context.stage_key)
    context.advance(len(shard.documents) * len(store.shape.kept_layers))
    return found


def combine_survey(left: Partial, right: Partial) -> Partial:
    """Words one after the other."""
    return joined(left, right)


@dataclass(frozen=True)
class Split:
    """The words of one target."""

    target: str
    labels: np.ndarray
    """(n,) of the words drawn."""
    words: np.ndarray
    """(n,) which of the survey's words they are, in order."""
    sentences: np.ndarray
    """(n,)"""
    training: np.ndarray
    """(n,) bool"""


def per_shard(
    store: ActivationStore, shard: ShardReader, parameters: ProbesParameters, context: StageContext, rows: Rows
) -> tuple[Partial, dict[str, int]]:
    """Rows of this shard's layers: one per target and feature; counts of fits that did not converge, or cannot be."""
    threadpool_limits(limits=1)  # not undone, since other shards' fits go on in this process: same bytes by any workers
    assert context.survey is not None
    words, n_shards = context.survey, len(store.shards)
    require_words(words, sum(len(store.documents(s)) for s in store.shards))
    splits = [split(words, target, parameters, context.seed) for target in parameters.targets]
    drawn = np.unique(np.concatenate([one.words for one in splits]))
    layers = layers_of(store.shape.layer_numbers("residual"), store.shards.index(shard.index), n_shards)
    quality = {"probes_undefined": 0, "probes_not_converged": 0, "states_without_a_direction": 0}
    whole = len(shard.documents) * len(store.shape.kept_layers)
    for layer in layers:
        states = states_of(store, layer, words, drawn)
        found = [
            {"layer": layer, **_row(states, drawn, one, feature, parameters, context.seed)}
            for one in splits
            for feature in parameters.features
        ]
        quality["probes_undefined"] += sum(math.isnan(row["score"]) for row in found)
        quality["probes_not_converged"] += sum(not row["converged"] for row in found)
        quality["states_without_a_direction"] += int((~states.any(1)).sum())
        rows.add("probes", {name: [row[name] for row in found] for name in found[0]})
        context.advance(whole / len(layers))
    if not layers:
        context.advance(whole)
    return {}, quality


def layers_of(layers: Sequence[int], shard: int, n_shards: int) -> list[int]:
    """The layers that a shard does: each is one shard's, and those that have any are spread evenly, so that how many
    shards are done says how much is."""
    return [layer for at, layer in enumerate(layers) if at * n_shards // len(layers) == shard]


def split(words: Partial, target: str, parameters: ProbesParameters, seed: int) -> Split:
    """The words that have the target, so many of them drawn, and four fifths of all sentences for training."""
    labels, sentences = words[target], np.unique(words["sentence"])
    order = np.random.default_rng(seed_for(seed, "probes", "words")).permutation(len(labels))
    chosen = order[labels[order] != NONE]
    chosen = np.sort(chosen[: parameters.words] if parameters.words else chosen)
    dealt = np.random.default_rng(seed_for(seed, "probes", "sentences")).permutation(sentences)
    training = np.isin(words["sentence"][chosen], dealt[: int(_TRAINING * len(dealt))])
    return Split(target, labels[chosen], chosen, words["sentence"][chosen], training)


def states_of(store: ActivationStore, layer: int, words: Partial, drawn: np.ndarray) -> np.ndarray:
    """(n, D) float64: the residual stream before a layer (n_layers: after the last) at the words drawn.

    n is 0 in a treebank that annotates nothing that is asked for: its probes are undefined.
    """
    of_document: dict[int, list[int]] = {}
    for row, word in enumerate(drawn):
        of_document.setdefault(int(words["doc"][word]), []).append(row)
    found = np.empty((len(drawn), store.shape.streams * store.shape.d_model))
    for index in store.shards:
        reader = store.shard(index)
        wanted = of_document.keys() & set(reader.documents)
        for document in reader.layer(layer, ("residual",), wanted) if wanted else ():
            assert document.residual is not None
            rows = of_document[document.doc]
            found[rows] = document.residual.numpy()[words["position"][drawn[rows]]]
    return found


def _row(
    states: np.ndarray, drawn: np.ndarray, one: Split, feature: str, parameters: ProbesParameters, seed: int
) -> dict[str, Any]:
    from tasks.stages.probes.fits import Part, probe  # scikit-learn, which is slow to import

    own = states[np.searchsorted(drawn, one.words)]
    there = own.any(1)
    direction, magnitude = direction_and_magnitude(own[there])
    values = {"direction": direction, "magnitude": magnitude, "both": own[there]}[feature]
    training, labels, sentences = one.training[there], one.labels[there], one.sentences[there]
    train, test = (Part(values[at], labels[at], sentences[at]) for at in (training, ~training))
    folds = list(folds_of(train.sentences, parameters.folds))
    shuffle = np.random.default_rng(seed_for(seed, "probes", "shuffled", one.target)).permutation(len(train.labels))
    found = probe(one.target, train, test, folds, shuffle, parameters.resamples, seed_for(seed, "probes", "resamples"))
    return {"target": one.target, "feature": feature, "metric": METRICS[one.target], **found}


def finish(
    store: ActivationStore, partial: Partial, parameters: ProbesParameters, context: StageContext, rows: Rows
) -> dict[str, int]:
    """No rows; what became of the treebank's words."""
    assert context.survey is not None
    return dict(zip(COUNTS, context.survey["counts"].tolist(), strict=True))
