"""What the tests of replay share: the residual stream of a capture as where a replay begins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tasks.models.loading import LoadedModel
from tasks.models.replay import Replayed, Replayer, Start
from tests.tasks.models.capturing import Document, capture


def captured(loaded: LoadedModel, ids: Sequence[np.ndarray]) -> list[Document]:
    """Captured one by one, so that a replay in a batch is held against passes without padding."""
    return [capture(loaded, [one])[0] for one in ids]


def starts(documents: Sequence[Document], ids: Sequence[np.ndarray], layer: int) -> list[Start]:
    """The documents, numbered from 0, before a layer."""
    return [
        Start(d, one, document.residual[layer]) for d, (document, one) in enumerate(zip(documents, ids, strict=True))
    ]


def losses(replayed: Sequence[Replayed]) -> torch.Tensor:
    """The losses of all predicted tokens, one document and condition after the other."""
    return torch.cat([torch.from_numpy(one.nll[1:]) for one in replayed])


def replayer(loaded: LoadedModel, **settings: int) -> Replayer:
    """With blocks that no document's length divides."""
    return Replayer(loaded, **{"query_block": 8, **settings})
