"""The layer's baselines against the definitions, closed forms, and what they must ignore and see."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tasks.kernels import layer_scores
from tasks.kernels.layer_scores import Linearised, alti, kobayashi_norms, rollout
from tests.oracles import masking_scores as oracle
from tests.tasks.kernels.documents import Document, Sight, random_document, rotation, sights


def parts(document: Document) -> tuple[Tensor, Tensor, Tensor]:
    return document.attention, document.value, document.projection


def seeing(document: Document) -> dict[str, Any]:
    return {"gate": document.gate, "visibility": document.visibility}


def random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=[True, False], ids=["tiles", "whole"])
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 8 × 8 entries, or all 13 × 13 at once."""
    monkeypatch.setattr(layer_scores, "_TILE", 1 if request.param else 1 << 30)


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("sight", sights(4))
def test_norms_equal_to_the_definition(gated: bool, sight: Sight) -> None:
    document = random_document(1, gated=gated, **sight)
    found = kobayashi_norms(*parts(document), **seeing(document))
    np.testing.assert_allclose(found.numpy(), oracle.kobayashi_norms(document.oracle()), rtol=1e-5, atol=1e-6)


def test_norms_of_one_head_are_its_value_weighted_attention() -> None:
    document = random_document(4, n_heads=1, n_kv_heads=1)
    expected = document.attention[0] * document.outputs().value_norm
    torch.testing.assert_close(kobayashi_norms(*parts(document)), expected, rtol=1e-5, atol=1e-6)


def test_norms_of_heads_that_cancel_are_small() -> None:
    document = random_document(4, n_heads=2, n_kv_heads=1)
    document.attention[1] = document.attention[0]
    document.projection[1] = -document.projection[0]
    alone = kobayashi_norms(document.attention[:1], document.value, document.projection[:1])
    together = kobayashi_norms(*parts(document))
    assert (together <= 2e-6 * alone + 1e-9).all() and together.isfinite().all()


NORMS = [None, *((where, centres) for where in ("output", "sum") for centres in (False, True))]


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("sight", sights(4))
@pytest.mark.parametrize("norm", NORMS)
def test_alti_equal_to_the_definition(norm: tuple[Any, bool] | None, gated: bool, sight: Sight) -> None:
    document = random_document(2, gated=gated, **sight)
    residual, bias, weight = random(13, 11), 3 * random(11, seed=2), random(11, seed=3)
    linear = None if norm is None else Linearised(*norm, weight, 0.1)
    found = alti(*parts(document), residual, bias=bias, linear=linear, **seeing(document))
    plain = None if norm is None else (*norm, weight.double().numpy(), 0.1)
    x, b = residual.double().numpy(), bias.double().numpy()
    np.testing.assert_allclose(found.numpy(), oracle.alti(document.oracle(), x, b, plain), rtol=1e-4, atol=1e-6)
    defined = ~found.isnan().any(-1)
    assert defined.sum() >= 12  # two parts may each lead away from their sum
    torch.testing.assert_close(found[defined].sum(-1), torch.ones(int(defined.sum())))


def test_alti_ignores_a_permutation_and_sees_a_rotation() -> None:
    """The 1-norm belongs to the axes: their order is nothing to it, a rotation is."""
    document, residual = random_document(6), random(13, 11)
    found = alti(*parts(document), residual, bias=None, linear=None)
    order = torch.randperm(11, generator=torch.Generator().manual_seed(0))
    turned = (document.attention, document.value, document.projection[..., order])
    torch.testing.assert_close(alti(*turned, residual[:, order], bias=None, linear=None), found)
    q = rotation(11)
    rotated = alti(document.attention, document.value, document.projection @ q, residual @ q, bias=None, linear=None)
    assert not torch.allclose(rotated, found, atol=1e-2)


def test_alti_of_a_long_residual_keeps_its_digits() -> None:
    """A residual 10,000 times as long as what attention writes: float64 tells the shares of the other keys."""
    document, residual = random_document(7), 1e4 * random(13, 11)
    found = alti(*parts(document), residual, bias=None, linear=None).double().numpy()
    expected = oracle.alti(document.oracle(), residual.double().numpy())
    off = ~np.eye(13, dtype=bool) & (expected > 0)
    assert off.sum() > 20
    np.testing.assert_allclose(found[off], expected[off], rtol=2e-5)


def test_alti_without_attention_is_all_residual() -> None:
    document = random_document(3)
    document.projection.zero_()
    assert torch.equal(alti(*parts(document), random(13, 11), bias=None, linear=None), torch.eye(13))


def test_alti_of_nothing_is_undefined_at_the_keys_that_are_seen() -> None:
    document = random_document(3)
    document.projection.zero_()
    found = alti(*parts(document), torch.zeros(13, 11), bias=None, linear=None)
    seen = torch.ones(13, 13).tril().bool()
    assert found[seen].isnan().all() and (found[~seen] == 0).all()


@pytest.mark.parametrize("centres", [False, True])
def test_a_held_scale_gives_the_norm_back(centres: bool) -> None:
    y, weight = random(5, 8), random(8, seed=2)
    linear = Linearised("sum", centres, weight, 1e-3)
    if centres:
        expected = torch.nn.functional.layer_norm(y, (8,), weight, None, 1e-3)
    else:
        expected = torch.nn.functional.rms_norm(y, (8,), weight, 1e-3)
    torch.testing.assert_close(linear.unscaled(y) / linear.scale(y), expected)


@pytest.mark.parametrize("learned_sink", [False, True])
def test_rollout_over_three_layers(learned_sink: bool) -> None:
    layers = [random_document(seed, learned_sink=learned_sink).attention for seed in range(3)]
    found = None
    for attention in layers:
        found = rollout(attention, found)
    assert found is not None and found.dtype == torch.float32
    expected = oracle.rollout([layer.double().numpy() for layer in layers])
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(found.sum(-1), torch.ones(13))


def test_rollout_of_attention_to_oneself_is_the_identity() -> None:
    eye = torch.eye(4)
    assert torch.equal(rollout(eye.expand(3, 4, 4), rollout(eye.expand(3, 4, 4), None)), eye)


@pytest.mark.parametrize("measure", ["norm", "alti"])
def test_heads_in_unequal_groups_are_refused(measure: str) -> None:
    document = random_document(0, n_heads=3, n_kv_heads=1)
    value = torch.zeros(13, 2, 5)
    with pytest.raises(ValueError, match="query heads in equal groups, got 3 over 2 key/value heads"):
        if measure == "norm":
            kobayashi_norms(document.attention, value, document.projection)
        else:
            alti(document.attention, value, document.projection, torch.zeros(13, 11), bias=None, linear=None)
