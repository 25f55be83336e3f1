"""The plain model on one document: transformers' own eager attention, with no tap active and no padding.

What a capture is held against. Nothing of the tap's is used: weights and hidden states are those that the model returns
when it is asked for them, the input of each output projection is taken by a hook of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from storage.errors import ModelError
from tasks.models.anatomy import Anatomy
from tasks.models.loading import LoadedModel, load_model
from tasks.models.sources import ModelSource


@dataclass
class PlainRun:
    """One document as the plain model computes it, float32 on the CPU."""

    attention: dict[int, Tensor]
    """(H, T, T) of each layer that has attention."""
    residual: list[Tensor] = field(default_factory=list)
    """Before each layer and after the last, (T, D)."""
    output_input: dict[int, Tensor] = field(default_factory=dict)
    """(T, H, d_v) of each layer that has attention."""
    nll: Tensor | None = None
    """(T,) in nats, NaN at position 0; None for a model that predicts no next token."""


def load_plain(source: ModelSource, dtype: str, device: str) -> LoadedModel:
    """The model under eager attention. Raises ModelError and UsageError as `load_model` does."""
    loaded = load_model(source, dtype, device)
    model: Any = loaded.model
    if model.config._attn_implementation != "eager":
        model.set_attn_implementation("eager")
    return loaded


def run_plain(loaded: LoadedModel, document: np.ndarray) -> PlainRun:
    """Run it over one document's inputs: token ids (T,), T ≥ 2, or pixels (3, H, W).

    Raises ModelError where it gives not one matrix a layer.
    """
    anatomy, model = loaded.anatomy, loaded.model
    given = _given(loaded, document)
    inputs: list[Tensor] = []
    last: list[Tensor] = []

    def projection_enters(_module: nn.Module, args: tuple[Any, ...]) -> None:
        inputs.append(_on_cpu(args[0][0]))

    def layer_leaves(_module: nn.Module, _args: Any, output: Any) -> None:
        last[:] = [output[0] if isinstance(output, tuple) else output]

    modules = dict.fromkeys(anatomy.output_projections.values())  # a family may share one module between its layers
    hooks = [module.register_forward_pre_hook(projection_enters) for module in modules]
    hooks.append(anatomy.layers[-1].register_forward_hook(layer_leaves))
    try:
        with torch.inference_mode():
            call: Callable[..., Any] = model
            out = call(**given, output_attentions=True, output_hidden_states=True)
    finally:
        for hook in hooks:
            hook.remove()
    attentions = [a for a in out.attentions or () if a is not None]
    if len(attentions) == anatomy.n_layers:  # MiniMax reports something of its layers without attention too
        attentions = [attentions[layer] for layer in anatomy.attended]
    if len(attentions) != len(anatomy.attended):
        raise ModelError(
            f"attention weights of {len(anatomy.attended)} layers from output_attentions=True",
            got=str(len(attentions)),
            where=loaded.name,
            remedy="This family cannot be run again without the tap; use --documents 0.",
        )
    return PlainRun(
        {layer: _on_cpu(a[0]) for layer, a in zip(anatomy.attended, attentions, strict=True)},
        [_stream(anatomy, h) for h in (*out.hidden_states[: anatomy.n_layers], last[0])],
        {
            layer: z.unflatten(-1, (anatomy.n_heads, anatomy.d_value))
            for layer, z in zip(anatomy.attended, inputs, strict=True)
        },
        _nll(out.logits[0], given["input_ids"][0]) if anatomy.causal else None,
    )


def _stream(anatomy: Anatomy, hidden: Tensor) -> Tensor:
    """The residual stream of the one document, (T, D); of several streams, (S, 1, T, D), all side by side."""
    return _on_cpu(hidden[0] if anatomy.n_streams == 1 else hidden[:, 0].transpose(0, 1).flatten(1))


def _given(loaded: LoadedModel, document: np.ndarray) -> dict[str, Any]:
    """A document as a user would give it to the model."""
    if loaded.anatomy.kind.reads == "images":
        weight = next(loaded.model.parameters())
        return {"pixel_values": torch.from_numpy(np.array(document))[None].to(weight.device, weight.dtype)}
    ids = torch.from_numpy(document.astype(np.int64))[None].to(loaded.device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}


def _on_cpu(tensor: Tensor) -> Tensor:
    return tensor.detach().float().cpu()


def _nll(logits: Tensor, ids: Tensor) -> Tensor:
    nll = nn.functional.cross_entropy(logits[:-1].float(), ids[1:], reduction="none")
    return torch.cat([nll.new_full((1,), torch.nan), nll]).cpu()
