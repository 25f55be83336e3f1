"""`Displace` applied: the residual stream moved by δ as it is in the run at hand, and the noise that it is moved by.

Noise comes from the seed, the document, the layer and the arm alone, and so from no order of execution: conditions that
differ in δ, protocol, or what else they change have it in common. Only `published` shares its vectors, of all layers
and documents, as the authors' notebook does; its signs are drawn anew at each.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from storage.keys import seed_for
from tasks.kernels.perturbation import displaced, noise
from tasks.models.interventions import Displace

_KEPT = 4
"""Tensors of noise that are kept, since the conditions of a document that follow each other share theirs."""


def displaced_residual(displace: Displace, document: int, hidden: Tensor) -> Tensor:
    """(T, D) as it leaves the layer → moved, in its own dtype: worked out in float64, and cast last."""
    drawn = _noise(displace.arm, len(hidden), hidden.shape[1], noise_seed(displace, document))
    changed = displaced(
        hidden,
        displace.delta,
        drawn,
        protocol=displace.protocol,
        arm=displace.arm,
        first_token=displace.first_token,
    )
    return changed.to(hidden.dtype)


def noise_seed(displace: Displace, document: int) -> int:
    """What the noise of a document is drawn from; documents that share it are neighbours, `sharing` at a time."""
    together = document // displace.sharing
    if (displace.protocol, displace.arm) == ("published", "angle"):  # the same at all layers
        return seed_for(displace.seed, displace.arm, *([together] if displace.own_vectors else []))
    return seed_for(displace.seed, displace.arm, together, displace.layer)


@lru_cache(maxsize=_KEPT)
def _noise(arm: str, n_tokens: int, width: int, seed: int) -> Tensor:
    with torch.inference_mode(False):  # kept beyond the pass that makes it
        return noise(arm, n_tokens, width, seed)
