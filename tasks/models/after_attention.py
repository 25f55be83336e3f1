"""The norm that attention's output goes through before anything else reads it, found by what flows through a layer.

Parts of a layer's output can be followed through such a norm only where it is known: on attention's output before the
residual is added (Gemma 2, OLMo 2), or on their sum, which is then the residual stream (OPT-350m, BERT). In a pre-norm
model there is none: the residual stream itself is not normed.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from storage.errors import ModelError, UsageError
from tasks.kernels.layer_scores import Linearised
from tasks.models.anatomy import Anatomy
from tasks.models.patches import CHANNELS, PatchGrid

_TOKENS = 4
"""Of the document that is followed through the model."""
_EPS = ("eps", "variance_epsilon", "epsilon")
"""What norms call what is added to their square."""
_AGREES = 1e-5
_STILL = 1e-3
"""Share of what noise in attention's output does to a layer's output, below which it does nothing."""

_LOUD = 100.0
"""Noise that rounding of the residual stream is small beside."""


@torch.no_grad()
def norms_after(anatomy: Anatomy) -> dict[int, Linearised | None]:
    """The norm after attention of every layer that has attention.

    The model runs once on a few tokens; then each layer runs again with noise on what W_O gives. Where the layer's
    output stays as it was as long as one norm is held at what it gave before, all that attention adds goes through that
    norm. It is then told from the norm's input whether it is of attention's output or of residual + output.
    Hooks stand on the model meanwhile: no other thread may run it.
    Raises ModelError that names the family where such a norm is of anything else, or its output is not added to the
    residual, or the norm is neither a LayerNorm nor an RMSNorm.
    """
    calls = _calls(anatomy)
    return {layer: _norm(anatomy, layer, calls[layer]) for layer in anatomy.attended}


@torch.no_grad()
def output_scale(anatomy: Anatomy, layer: int) -> float:
    """c where the residual stream, or the norm after attention, is given c times what W_O gives: 1 in most families.

    Granite and Falcon-H1 multiply it, so Σ_h α ṽ is c times what W_O's weights alone say. Told from noise in W_O's
    output, which arrives multiplied by c in the first thing that it reaches, a norm or what leaves the layer; to four
    digits in bfloat16. Hooks as in `norms_after`. Raises UsageError for a layer without attention, ModelError for a
    family in which it is not one number.
    """
    _check(anatomy, layer)
    call = _calls(anatomy)[layer]
    clean, noisy = _run(anatomy, layer, call), _run(anatomy, layer, call, disturb=_LOUD)
    assert noisy.noise is not None and clean.output is not None and noisy.output is not None
    pairs = [(taken, noisy.norms[norm][0]) for norm, (taken, _) in clean.norms.items()]
    for before, after in (*pairs, (clean.output, noisy.output)):
        moved = (after - before).float().flatten()
        if moved.numel() != noisy.noise.numel() or not bool(moved.any()):
            continue  # Gemma 3n's streams, all of which the norm comes before; or attention does not reach it
        noise, eps = noisy.noise.float().flatten(), torch.finfo(before.dtype).eps
        scale = float(moved @ noise / (noise @ noise))
        if not float((moved - scale * noise).norm()) <= eps**0.5 * float(noise.norm()):  # NaN too
            break
        return 1.0 if abs(scale - 1) <= max(_AGREES, eps / 8) else scale
    got = f"another change in {anatomy.kind.name}"
    raise ModelError("attention's output multiplied by one number", got=got, where=f"layer {layer}")


def _check(anatomy: Anatomy, layer: int) -> None:
    if layer not in anatomy.attentions:
        there = ", ".join(map(str, anatomy.attended))
        raise UsageError("a layer with attention", got=str(layer), where=anatomy.kind.name, remedy=f"It has {there}.")


Call = tuple[tuple[Any, ...], dict[str, Any]]


def _calls(anatomy: Anatomy) -> dict[int, Call]:
    """What each layer is called with, in one run of the model on a few tokens."""
    calls: list[Call] = []

    def enters(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append((args, kwargs))

    with ExitStack() as stack:
        for module in dict.fromkeys(anatomy.layers):
            stack.callback(module.register_forward_pre_hook(enters, with_kwargs=True).remove)
        anatomy.body(**_document(anatomy))
    return dict(enumerate(calls))


def _document(anatomy: Anatomy) -> dict[str, Any]:
    body: Any = anatomy.body
    weight, random = next(body.parameters()), torch.Generator().manual_seed(0)
    if anatomy.kind.reads == "images":
        size = PatchGrid.of(body.config.to_dict(), anatomy.kind.name).image
        return {"pixel_values": torch.randn(1, CHANNELS, *size, generator=random).to(weight)}
    ids = torch.randint(body.config.vocab_size, (1, _TOKENS), generator=random).to(weight.device)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return {**given, "use_cache": False} if anatomy.causal else given


@dataclass
class _Flow:
    """What came by in one run of one layer."""

    attention: Tensor | None = None
    """What W_O gave, (1, T, D)."""
    norms: dict[nn.Module, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """The norms that ran after W_O, in order: what each took and gave."""
    noise: Tensor | None = None
    """What was added to what W_O gave."""
    read: set[nn.Module] = field(default_factory=set)
    """Those whose output another module took as it was."""
    output: Tensor | None = None


def _norm(anatomy: Anatomy, layer: int, call: Call) -> Linearised | None:
    clean = _run(anatomy, layer, call)
    if not clean.norms:
        return None
    noise = _moved(clean, _run(anatomy, layer, call, disturb=1))
    for norm, (_, given) in clean.norms.items():
        held = _run(anatomy, layer, call, disturb=1, hold=(norm, given))
        if _moved(clean, held) <= _STILL * noise:
            return _placed(anatomy, layer, norm, _residual(call), clean)
    return None


def _placed(anatomy: Anatomy, layer: int, norm: nn.Module, residual: Tensor, flow: _Flow) -> Linearised:
    """Where a norm stands that everything of attention goes through."""
    taken, attention = flow.norms[norm][0], flow.attention
    assert attention is not None  # a norm came after it
    if _close(taken, attention, attention) and norm not in flow.read:
        where = "output"
    elif residual.shape == taken.shape and _close(taken, residual + attention, residual.abs() + attention.abs()):
        where = "sum"
    else:
        raise ModelError(
            "a norm after attention that is of its output, or of the residual stream and its output",
            got=f"one of something else, or whose output is not added to the residual, in {anatomy.kind.name}",
            where=f"layer {layer}",
            remedy="Leave out alti for this model.",
        )
    linear = _linearised(norm, taken.shape[-1], "output" if where == "output" else "sum")
    if linear is None:
        got = f"{type(norm).__name__} of {anatomy.kind.name}"
        raise ModelError("a LayerNorm or an RMSNorm after attention", got=got, where=f"layer {layer}")
    return linear


def _linearised(norm: nn.Module, width: int, where: Any) -> Linearised | None:
    """The norm's weight, ε and whether it centres, from what it gives; None where it is neither of the two kinds.

    u = (1, −1, 1, …) has no small entry, so w = (norm(u) − norm(−u)) / 2 · scale / u is as good as the norm itself.
    """
    eps = next((getattr(norm, name) for name in _EPS if isinstance(getattr(norm, name, None), float)), None)
    if eps is None:
        return None
    random = torch.Generator().manual_seed(1)
    signs = 1.0 - 2.0 * (torch.arange(width) % 2)
    probe = torch.randn(8, width, generator=random) * torch.logspace(-3, 2, 8)[:, None]
    given = _in_float32(norm, torch.cat((signs[None], -signs[None], probe, probe[-1:] + 50)))
    centres = bool(torch.allclose(given[-1], given[-2], atol=1e-3, rtol=1e-3))
    unit = Linearised(where, centres, torch.ones(width), eps)
    weight = (given[0] - given[1]) / 2 * unit.scale(signs) / unit.unscaled(signs)
    linear = Linearised(where, centres, weight, eps)
    expected = linear.unscaled(probe) / linear.scale(probe) + (given[0] + given[1]) / 2
    off = (given[2:-1] - expected).abs().max() / expected.abs().max()
    return linear if bool(off <= _AGREES) else None


def _in_float32(norm: nn.Module, vectors: Tensor) -> Tensor:
    """What a norm gives of vectors (n, D), with its parameters in float32; on the CPU."""
    there = {name: tensor.float() for name, tensor in norm.state_dict(keep_vars=True).items()}
    device = next((tensor.device for tensor in there.values()), vectors.device)
    given: Tensor = torch.func.functional_call(norm, there, (vectors.to(device),))
    return given.float().cpu()


def _run(
    anatomy: Anatomy, layer: int, call: Call, *, disturb: float = 0, hold: tuple[nn.Module, Tensor] | None = None
) -> _Flow:
    """One layer again, with noise of `disturb` times its size in W_O's output, and a norm held at a given value."""
    flow, (args, kwargs) = _Flow(), call

    def projection_leaves(_module: nn.Module, _args: Any, output: Tensor) -> Tensor | None:
        flow.attention = output
        if not disturb:
            return None
        random = torch.randn(output.shape, generator=torch.Generator().manual_seed(2)).to(output)
        flow.noise = disturb * (1 + output.abs()) * random
        return output + flow.noise

    def norm_leaves(module: nn.Module, given: tuple[Any, ...], output: Tensor) -> Tensor | None:
        if flow.attention is None:
            return None
        flow.norms[module] = (given[0], output)
        return hold[1] if hold is not None and module is hold[0] else None

    def enters(_module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        for norm, (_, output) in flow.norms.items():
            if any(tensor is output for tensor in (*given, *named.values())):
                flow.read.add(norm)

    module = anatomy.layers[layer]
    with ExitStack() as stack:
        for part in module.modules():
            if "norm" in type(part).__name__.lower():
                stack.callback(part.register_forward_hook(norm_leaves).remove)
            else:
                stack.callback(part.register_forward_pre_hook(enters, with_kwargs=True).remove)
        stack.callback(anatomy.output_projections[layer].register_forward_hook(projection_leaves).remove)
        output = module(*args, **kwargs)
    flow.output = output[0] if isinstance(output, tuple) else output
    return flow


def _residual(call: Call) -> Tensor:
    args, kwargs = call
    residual: Tensor = args[0] if args else kwargs["hidden_states"]
    return residual


def _moved(one: _Flow, other: _Flow) -> float:
    """The largest difference between what the layer gave in two runs."""
    assert one.output is not None and other.output is not None
    return float((one.output - other.output).abs().max())


def _close(one: Tensor, other: Tensor, size: Tensor) -> bool:
    """Equal up to rounding of numbers of that size."""
    return bool(((one - other).abs() <= 4 * torch.finfo(one.dtype).eps * size.abs()).all())
