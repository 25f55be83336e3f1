"""What the tests of the tap share: a capture taken apart into documents, and the plain model's own account."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from storage import triangles
from tasks.models.loading import LoadedModel, prepare
from tasks.models.run import TapSettings, capture_batch
from tasks.models.sources import ModelSource
from tests.families import tiny_model


@dataclass
class Document:
    """One document's tensors, a list over the layers with attention; residual over all, and one more; nll (T,)."""

    attention: list[Tensor]
    value: list[Tensor]
    output_input: list[Tensor]
    residual: list[Tensor]
    sink_mass: list[Tensor]
    gate: list[Tensor]
    nll: Tensor


def tiny(name: str, *, dtype: str = "float32", device: str = "cpu") -> LoadedModel:
    model = tiny_model(name, dtype=getattr(torch, dtype)).to(device)
    return prepare(model, ModelSource(f"tiny-{name}", ""), dtype=dtype, device=device)


@cache
def shared(name: str) -> LoadedModel:
    """`tiny(name)`, made once for all tests that leave the model as it is."""
    return tiny(name)


def capture(loaded: LoadedModel, ids: Sequence[np.ndarray], **settings: Any) -> list[Document]:
    """Capture one batch and cut what was emitted into documents, attention unpacked to (H, T, T)."""
    emitted: dict[tuple[int, str], Tensor] = {}

    def emit(layer: int, kind: str, tensor: Tensor) -> None:
        assert (layer, kind) not in emitted, "emitted twice"
        assert tensor.device.type == "cpu"
        emitted[layer, kind] = tensor

    numbers = list(range(10, 10 + len(ids)))
    nll = capture_batch(loaded, ids, TapSettings(**{"query_block": 8, **settings}), emit, numbers)
    lengths = [len(losses) for losses in nll]
    attended = loaded.anatomy.attended

    def cut(kind: str) -> list[list[Tensor]]:
        layers = range(loaded.anatomy.n_layers + 1) if kind == "residual" else attended
        if (layers[0], kind) not in emitted:
            return [[] for _ in lengths]
        pieces = [emitted.pop((layer, kind)).split(lengths) for layer in layers]
        return [[piece[d] for piece in pieces] for d in range(len(lengths))]

    causal = loaded.anatomy.causal
    entries = [triangles.entries(n) if causal else n * n for n in lengths]
    packed = [emitted.pop((layer, "attention")).split(entries, dim=1) for layer in attended]

    def square(attention: Tensor, n: int) -> Tensor:
        return triangles.unpack(attention) if causal else attention.reshape(-1, n, n)

    kinds = [cut(kind) for kind in ("value", "output_input", "residual", "sink_mass", "gate")]
    assert not emitted, f"left over: {sorted(emitted)}"
    return [
        Document([square(layer[d], n) for layer in packed], *(k[d] for k in kinds), torch.from_numpy(nll[d]))
        for d, n in enumerate(lengths)
    ]


@dataclass
class Plain:
    """The plain eager model on one document: logits (T, V), of an encoder its last hidden state (T, D); lists over
    layers of hidden states (T, D), and over those with attention of its weights (H, T, T) and of what the output
    projection returned (T, D)."""

    logits: Tensor
    attentions: list[Tensor]
    hidden_states: list[Tensor]
    projected: list[Tensor]


def plain(model: nn.Module, projections: Mapping[int, nn.Module], ids: np.ndarray, *, causal: bool = True) -> Plain:
    outputs: list[Tensor] = []
    once = dict.fromkeys(projections.values())  # an encoder may run one module in several layers
    hooks = [p.register_forward_hook(lambda _m, _a, out: outputs.append(out[0])) for p in once]
    with torch.inference_mode():
        out: Any = model(**inputs(ids, causal), output_attentions=True, output_hidden_states=True)
    for hook in hooks:
        hook.remove()
    attentions = [a for a in out.attentions if a is not None]
    if len(attentions) > len(projections):  # MiniMax reports something of its layers without attention too
        attentions = [attentions[layer] for layer in projections]
    assert len(attentions) == len(projections)
    last = out.logits[0] if causal else out.last_hidden_state[0]
    return Plain(last, [a[0] for a in attentions], [_stream(h) for h in out.hidden_states], outputs)


def _stream(hidden: Tensor) -> Tensor:
    """(T, D) of (1, T, D); of several streams (S, 1, T, D) the numbers of a token side by side, (T, S D)."""
    return hidden[0] if hidden.ndim == 3 else torch.cat(list(hidden[:, 0]), dim=-1)


def inputs(ids: np.ndarray, causal: bool) -> dict[str, Any]:
    """One document as a model takes it, without a cache: token ids, or the pixels of an image."""
    if ids.ndim == 3:
        return {"pixel_values": torch.from_numpy(ids)[None]}
    batch = torch.from_numpy(ids.astype(np.int64))[None]
    return {"input_ids": batch, "attention_mask": torch.ones_like(batch), **({"use_cache": False} if causal else {})}


def plain_of(loaded: LoadedModel, ids: np.ndarray) -> Plain:
    """The same weights under transformers' own eager attention."""
    anatomy, tapped = loaded.anatomy, loaded.model.config._attn_implementation
    loaded.model.set_attn_implementation("eager")
    try:
        return plain(loaded.model, anatomy.output_projections, ids, causal=anatomy.causal)
    finally:
        loaded.model.set_attn_implementation(tapped)


def nll_of(logits: Tensor, ids: np.ndarray) -> Tensor:
    """Cross-entropy of each next token from full logits, (T − 1,)."""
    targets = torch.from_numpy(ids.astype(np.int64))[1:]
    return nn.functional.cross_entropy(logits[:-1].double(), targets, reduction="none")


def assert_near(got: Tensor, want: Tensor, tolerance: float = 1e-5) -> None:
    """Equal within `tolerance` of the largest entry of `want` (or of 1): residual streams grow, rounding with them."""
    assert got.shape == want.shape, f"{tuple(got.shape)} != {tuple(want.shape)}"
    if want.numel():
        error = (got.double() - want.double()).abs().max().item()
        allowed = tolerance * max(1.0, want.abs().max().item())
        assert error <= allowed, f"differs by {error:.3g}, {allowed:.3g} allowed"
