"""What a relative δ is relative to: the median over all tokens of the capture of ‖h‖ as it leaves each layer.

Exact, and so all norms are kept until the last shard is in: four bytes a token and perturbed layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from storage.tensors import ActivationStore, ShardReader
    from tasks.stages.contract import Partial, StageContext
    from tasks.stages.perturbation.grid import PerturbationGrid


def survey(store: ActivationStore, shard: ShardReader, parameters: PerturbationGrid, context: StageContext) -> Partial:
    """layer-<n>: ‖h‖ (tokens,) float32 of what leaves each perturbed layer; nothing where no δ is relative."""
    found: Partial = {}
    layers = _perturbed(parameters, store.shape.n_layers) if parameters.relative_deltas else []
    share = len(store.shape.kept_layers) / max(1, len(layers))
    for layer in layers:
        norms = []
        for document in shard.layer(layer + 1, ("residual",)):
            assert document.residual is not None  # the stage asks for it
            norms.append(document.residual.double().norm(dim=-1).float().numpy())
            context.advance(share)
        found[f"layer-{layer}"] = np.concatenate(norms)
    if not layers:
        context.advance(share * len(shard.documents))
    return found


def combine_survey(left: Partial, right: Partial) -> Partial:
    """The norms of both."""
    return {name: np.concatenate([left[name], right[name]]) for name in left}


def medians(partial: Partial | None) -> dict[int, float]:
    """Layer → median ‖h‖, float64."""
    if partial is None:
        raise ValueError("expected a stage that is declared to survey")
    return {int(name.removeprefix("layer-")): float(np.median(v.astype(np.float64))) for name, v in partial.items()}


def _perturbed(parameters: PerturbationGrid, n_layers: int) -> list[int]:
    return sorted({layer for layers in parameters.layer_sets(n_layers) for layer in layers})
