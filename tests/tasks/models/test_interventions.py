"""Interventions on every family: what changes nothing, what takes everything, and what puts everything back."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from tasks.models.intervention_tensors import HeldTensors
from tasks.models.interventions import (
    PARTS,
    Condition,
    DropKeys,
    Intervention,
    MaskEntries,
    Part,
    Perturb,
    Restore,
    ScaleHeads,
)
from tasks.models.loading import LoadedModel
from tasks.models.replay import Replayer
from tasks.models.table import FALLBACK, FAMILIES
from tests.families import REPLAYABLE, tokens
from tests.tasks.models.capturing import Document, assert_near, shared
from tests.tasks.models.replaying import captured, losses, replayer, starts

IDS = tokens(21, 10)
UNLIKE = ("bloom-post", "opt-350m", "falcon_h1")
"""Decoders whose residual stream is normed or comes from a norm, or to which more than attention and MLP is added."""


@cache
def known(name: str) -> tuple[LoadedModel, list[Document], Replayer]:
    """A tiny model, its capture of the documents and a replayer: made once, since no test changes them."""
    loaded = shared(name)
    return loaded, captured(loaded, IDS), replayer(loaded)


def family(name: str) -> str:
    """The model_type of a tiny model, which its name begins with."""
    found = [model_type for model_type in FAMILIES if name == model_type or name.startswith(f"{model_type}-")]
    return max(found, key=len, default="llama")


def every_entry(loaded: LoadedModel, *, gone: bool) -> HeldTensors:
    shape = loaded.anatomy.n_heads
    return HeldTensors.of_documents({d: torch.full((shape, len(x), len(x)), gone) for d, x in enumerate(IDS)})


def zeros(loaded: LoadedModel) -> HeldTensors:
    return HeldTensors.of_documents({d: torch.zeros(len(x), loaded.anatomy.d_model) for d, x in enumerate(IDS)})


def all_heads(loaded: LoadedModel) -> tuple[int, ...]:
    return tuple(range(loaded.anatomy.n_heads))


def nothing(loaded: LoadedModel) -> Condition:
    """One intervention of each kind that the family's code allows, none of which changes anything."""
    none: list[Intervention] = [Perturb(layer, zeros(loaded)) for layer in range(loaded.anatomy.n_layers)]
    for layer in loaded.anatomy.attended:
        none += [ScaleHeads(layer, all_heads(loaded), 1.0), DropKeys(layer, ())]
        if loaded.tap_method != FALLBACK:
            none += [MaskEntries(layer, every_entry(loaded, gone=False)), DropKeys(layer, (), heads=(0,))]
    return tuple(none)


def everything_masked(loaded: LoadedModel) -> list[Condition]:
    """Ways to take all that attention gives, of every layer."""
    attended = loaded.anatomy.attended
    keys = HeldTensors.of_documents({d: torch.ones(len(x), dtype=torch.bool) for d, x in enumerate(IDS)})
    by_head = HeldTensors.of_documents(
        {d: torch.ones(loaded.anatomy.n_heads, len(x), dtype=torch.bool) for d, x in enumerate(IDS)}
    )
    ways: list[Condition] = [
        tuple(ScaleHeads(layer, all_heads(loaded)) for layer in attended),
        tuple(DropKeys(layer, keys) for layer in attended),
    ]
    if loaded.tap_method != FALLBACK:
        ways.append(tuple(MaskEntries(layer, every_entry(loaded, gone=True)) for layer in attended))
        ways.append(tuple(DropKeys(layer, by_head, by_head=True) for layer in attended))
    return ways


@pytest.mark.parametrize("name", REPLAYABLE)
def test_what_changes_nothing_changes_no_loss(name: str) -> None:
    loaded, documents, run = known(name)
    clean = losses(list(run.run(0, starts(documents, IDS, 0))))
    assert torch.equal(losses(list(run.run(0, starts(documents, IDS, 0), [nothing(loaded)]))), clean)


@pytest.mark.parametrize("name", REPLAYABLE)
def test_masking_everything_leaves_the_bias_alone(name: str) -> None:
    loaded, documents, run = known(name)
    given = starts(documents, IDS, 0)
    want = without_attention(loaded)
    for condition in everything_masked(loaded):
        assert_near(losses(list(run.run(0, given, [condition]))), want)
    assert (want - losses(list(run.run(0, given)))).abs().max() > 1e-3


def without_attention(loaded: LoadedModel) -> Tensor:
    """The plain model, whose output projections are given zeros."""
    model, found = loaded.model, []
    tapped = model.config._attn_implementation
    model.set_attn_implementation("eager")
    hooks = [
        projection.register_forward_pre_hook(lambda _m, args: (torch.zeros_like(args[0]),))
        for projection in dict.fromkeys(loaded.anatomy.output_projections.values())
    ]
    with torch.inference_mode():
        for ids in IDS:
            batch = torch.from_numpy(ids).long()[None]
            logits = model(input_ids=batch, use_cache=False).logits[0]
            found.append(torch.nn.functional.cross_entropy(logits[:-1].float(), batch[0, 1:], reduction="none"))
    for hook in hooks:
        hook.remove()
    model.set_attn_implementation(tapped)
    return torch.cat(found)


def broken(loaded: LoadedModel) -> Condition:
    """Every layer's output perturbed, and heads scaled."""
    generator = torch.Generator().manual_seed(2)
    noise = HeldTensors.of_documents(
        {d: torch.randn(len(x), loaded.anatomy.d_model, generator=generator) for d, x in enumerate(IDS)}
    )
    scaled = [ScaleHeads(layer, (1,), 0.3) for layer in loaded.anatomy.attended]
    return (*(Perturb(layer, noise) for layer in range(loaded.anatomy.n_layers)), *scaled)


@pytest.mark.parametrize("name", REPLAYABLE)
def test_restoring_everything_gives_the_clean_loss_exactly(name: str) -> None:
    loaded, documents, run = known(name)
    given = starts(documents, IDS, 0)
    clean = run.parts(0, given, {"residual": frozenset(range(loaded.anatomy.n_layers))})
    restored = (*broken(loaded), *(Restore(layer, part, held) for (part, layer), held in clean.items()))
    want, damaged, got = (losses(list(run.run(0, given, [condition]))) for condition in ((), broken(loaded), restored))
    assert torch.equal(got, want)
    assert (damaged - want).abs().max() > 1e-2


@pytest.mark.parametrize("name", REPLAYABLE)
def test_each_part_restored_alone_is_what_ran(name: str) -> None:
    """A clean run in which a part's clean values are put back is the clean run, and zeros in their place are not."""
    loaded, documents, run = known(name)
    given = starts(documents, IDS, 0)
    want = losses(list(run.run(0, given)))
    for part in PARTS:
        layers = layers_of(loaded, part)
        if not layers:
            continue
        clean = run.parts(0, given, {part: frozenset(layers)})
        assert sorted(layer for _, layer in clean) == layers
        back = tuple(Restore(layer, part, held) for (_, layer), held in clean.items())
        assert_near(losses(list(run.run(0, given, [back]))), want)
        gone = tuple(Restore(layer, part, zeroed(held)) for (_, layer), held in clean.items())
        assert (losses(list(run.run(0, given, [gone]))) - want).abs().max() > 1e-3, part


def zeroed(held: HeldTensors) -> HeldTensors:
    return HeldTensors.of_documents({d: torch.zeros_like(tensor) for d, tensor in held.tensors.items()})


def layers_of(loaded: LoadedModel, part: str) -> list[int]:
    """The layers that have the part: by the families' papers, not by what replay found."""
    family, layers = loaded.anatomy.family, list(range(loaded.anatomy.n_layers))
    if part == "attention_weights" and loaded.tap_method == FALLBACK:
        return []
    if part in ("attention_output", "attention_weights"):
        return list(loaded.anatomy.attended)
    if part == "mlp_output":
        own = {"nemotron_h": [2], "zamba": [1, 2], "zamba2": [1, 2]}
        return own.get(family, layers)
    if part == "norm_output":  # OLMo 2's norms stand after its sub-layers, in the hybrid where there is attention
        own = {"olmo2": [], "olmo3": [], "exaone4": [], "olmo_hybrid": [0, 2]}
        return own.get(family, layers)
    return layers


ADDITIVE = [name for name in REPLAYABLE if not FAMILIES[family(name)].hybrid and name not in UNLIKE]
"""Where each layer adds what attention and MLP give to the residual stream."""


@pytest.mark.parametrize("name", ADDITIVE)
def test_with_all_sub_layers_restored_a_perturbation_stays_as_it_was(name: str) -> None:
    """Layer 0's output is moved by a vector, all that the later layers add is the clean run's: it arrives unchanged.

    So the parts found are all that a layer adds, and the norms all that its sub-layers read.
    """
    loaded, documents, run = known(name)
    n_layers, width = loaded.anatomy.n_layers, loaded.anatomy.d_model
    given = starts(documents, IDS, 1)
    noise = HeldTensors.of_documents({d: torch.linspace(-1, 1, width).expand(len(x), width) for d, x in enumerate(IDS)})
    last = starts(documents, IDS, n_layers)
    want = losses(list(run.run(n_layers, last, [(Perturb(n_layers - 1, noise),)])))
    ways: list[tuple[Part, ...]] = [("attention_output", "mlp_output")]
    if layers_of(loaded, "norm_output"):
        ways.append(("norm_output",))
    for parts in ways:
        clean = run.parts(1, given, dict.fromkeys(parts, frozenset(range(1, n_layers))))
        back = tuple(Restore(layer, part, held) for (part, layer), held in clean.items())
        assert_near(losses(list(run.run(1, given, [(Perturb(0, noise), *back)]))), want)
    assert (losses(list(run.run(1, given, [(Perturb(0, noise),)]))) - want).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["llama", "gpt_oss", "qwen3_next", "deepseek_v3"])
def test_restored_weights_meet_the_values_as_they_are(name: str) -> None:
    """Zeroed keys with the clean weights put back beside: the same as the keys zeroed under the clean weights."""
    loaded, documents, run = known(name)
    given = starts(documents, IDS, 0)
    at = loaded.anatomy.attended[0]
    ((_, held),) = run.parts(0, given, {"attention_weights": frozenset({at})}).items()
    uniform = HeldTensors.of_documents({d: torch.ones_like(a).tril() / 8 for d, a in held.tensors.items()})
    drop, both = DropKeys(at, (0, 2), heads=(1,)), []
    for order in ((drop, Restore(at, "attention_weights", uniform)), (Restore(at, "attention_weights", uniform), drop)):
        both.append(losses(list(run.run(0, given, [order]))))
    masked = HeldTensors.of_documents({d: a.clone() for d, a in uniform.tensors.items()})
    for alpha in masked.tensors.values():
        alpha[1, :, [0, 2]] = 0
    want = losses(list(run.run(0, given, [(Restore(at, "attention_weights", masked),)])))
    assert_near(both[0], want)
    assert_near(both[1], want)
