"""Small documents for the kernels' tests: attention, value and output projection of one layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tasks.kernels.outputs import HeadOutputs, head_outputs
from tasks.kernels.visibility import Visibility
from tasks.kernels.weights import LayerWeights
from tests.oracles.contributions import Oracle

Sight = Mapping[str, Any]
"""What a query may see, as options of `random_document`."""


def sights(*windows: int) -> list[Sight]:
    """All keys before the query, those inside each of the windows, and all keys of the document."""
    return [{}, *({"window": window} for window in windows), {"causal": False}]


@dataclass
class Document:
    attention: Tensor
    value: Tensor
    projection: Tensor
    window: int | None = None
    sink_mass: Tensor | None = None
    gate: Tensor | None = None
    causal: bool = True

    @property
    def visibility(self) -> Visibility:
        return Visibility(self.window, self.causal)

    @property
    def weights(self) -> LayerWeights:
        return LayerWeights.of(self.projection)

    def outputs(self, query_block: int = 64) -> HeadOutputs:
        options = {"gate": self.gate, "visibility": self.visibility, "query_block": query_block}
        return head_outputs(self.attention, self.value, self.weights, **options)

    def oracle(self) -> Oracle:
        mass = None if self.sink_mass is None else self.sink_mass.double().numpy()
        arrays = (x.double().numpy() for x in (self.attention, self.value, self.projection))
        gate = None if self.gate is None else self.gate.numpy()
        return Oracle(*arrays, window=self.window, sink_mass=mass, gate=gate, causal=self.causal)


def random_document(
    seed: int,
    n_heads: int = 4,
    n_kv_heads: int = 2,
    n_tokens: int = 13,
    d_value: int = 5,
    d_model: int = 11,
    *,
    window: int | None = None,
    learned_sink: bool = False,
    gated: bool = False,
    causal: bool = True,
) -> Document:
    """Random values and softmax attention over the visible keys; with `learned_sink` rows sum to less than 1."""
    random = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n_heads, n_tokens, n_tokens, generator=random)
    i, j = torch.arange(n_tokens)[:, None], torch.arange(n_tokens)[None]
    if causal:
        seen = (j <= i) if window is None else (j <= i) & (i - j < window)
        logits = logits.masked_fill(~seen, -torch.inf)
    extra = torch.randn(n_heads, n_tokens, 1, generator=random) if learned_sink else None
    whole = logits if extra is None else torch.cat((logits, extra), -1)
    attention = whole.softmax(-1)
    return Document(
        attention=attention[..., :n_tokens].contiguous(),
        value=torch.randn(n_tokens, n_kv_heads, d_value, generator=random),
        projection=torch.randn(n_heads, d_value, d_model, generator=random),
        window=window,
        sink_mass=attention[..., n_tokens].T.contiguous() if learned_sink else None,
        gate=torch.rand(n_tokens, n_heads, d_value, generator=random) if gated else None,
        causal=causal,
    )


def rotation(size: int, seed: int = 0) -> Tensor:
    """A random orthogonal matrix of the model's space."""
    q, r = np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))
    return torch.from_numpy(q * np.sign(np.diag(r))).float()
