"""Models that read images: the tap against the plain model, and pixels that cannot be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from storage.errors import CaptureCheckError, CorpusError, ModelError
from tasks.models.anatomy import output_weights, value_weight_norms
from tasks.models.patches import PatchGrid
from tasks.models.plain import run_plain
from tasks.models.run import attention_calls
from tests.families import IMAGE_CONFIGS, IMAGE_NAMES, pixels
from tests.tasks.models.capturing import assert_near, capture, plain_of, tiny

IMAGE = 36
"""Patches of a tiny image."""


@pytest.mark.parametrize("name", IMAGE_NAMES)
def test_a_capture_is_what_the_plain_model_computes(name: str) -> None:
    loaded, images = tiny(name), pixels(2)
    leading = {"deit": 2, "dinov2_with_registers": 3}.get(name, 1)
    for document, image in zip(capture(loaded, images), images, strict=True):
        plain = plain_of(loaded, image)
        assert document.attention[0].shape == (4, leading + IMAGE, leading + IMAGE)
        assert torch.isnan(document.nll).all() and len(document.nll) == leading + IMAGE
        for layer, attention in enumerate(document.attention):
            assert_near(attention, plain.attentions[layer])
            assert_near(document.residual[layer], plain.hidden_states[layer])
            w_o, bias = output_weights(loaded.anatomy, layer)
            summed = torch.einsum("thd,hdm->tm", document.output_input[layer].double(), w_o.double())
            assert_near(summed if bias is None else summed + bias, plain.projected[layer])
            mixed = torch.einsum("hij,jhd->ihd", attention, document.value[layer])
            assert_near(mixed, document.output_input[layer])


@pytest.mark.parametrize("name", IMAGE_NAMES)
def test_an_image_does_not_depend_on_its_batch(name: str) -> None:
    loaded, images = tiny(name), pixels(3)
    together, alone = capture(loaded, images), capture(loaded, images[1:2], query_block=128)
    assert_near(together[1].residual[3], alone[0].residual[3])
    assert not torch.allclose(together[0].residual[3], together[1].residual[3], atol=1e-2)


@pytest.mark.parametrize("name", IMAGE_NAMES)
def test_the_plain_model_runs_the_image_by_another_path(name: str) -> None:
    loaded, (image,) = tiny(name), pixels(1)
    captured = capture(loaded, [image])[0]
    loaded.model.set_attn_implementation("eager")
    plain = run_plain(loaded, image)
    assert plain.nll is None
    assert_near(captured.attention[2], plain.attention[2])
    assert_near(captured.output_input[2], plain.output_input[2])
    assert_near(captured.residual[3], plain.residual[3])


@pytest.mark.parametrize("name", ["vit", "dinov2"])
def test_value_norms_and_what_attention_is_called_with(name: str) -> None:
    loaded = tiny(name)
    weight = loaded.anatomy.value_projections[1].weight.detach().reshape(4, 8, 32)
    assert_close(value_weight_norms(loaded.anatomy, 1), weight.norm(dim=(1, 2)))
    assert [calls.scaling for calls in attention_calls(loaded).values()] == [pytest.approx(8**-0.5)] * 3


def test_layer_scale_stands_between_attention_and_the_residual() -> None:
    """DINOv2's entry is `scaled`: what W_O gives is not what is added, unlike ViT's."""
    for name, direct in (("vit", True), ("dinov2", False)):
        loaded, images = tiny(name), pixels(1)
        layer, seen = loaded.anatomy.layers[0], list[torch.Tensor]()
        norm = layer.layernorm_after if direct else layer.norm2
        hook = norm.register_forward_pre_hook(lambda _m, args, seen=seen: seen.append(args[0][0]))
        captured = capture(loaded, images)[0]
        hook.remove()
        w_o, bias = output_weights(loaded.anatomy, 0)
        added = torch.einsum("thd,hdm->tm", captured.output_input[0], w_o) + bias
        assert torch.allclose(seen[0] - captured.residual[0], added, atol=1e-4) is direct
        assert loaded.anatomy.kind.entry == ("direct" if direct else "scaled")


def test_dinov2_takes_images_of_another_size() -> None:
    loaded = tiny("dinov2")
    document = capture(loaded, pixels(1, (20, 12)))[0]
    assert document.residual[0].shape == (1 + 5 * 3, 32)
    assert_near(document.residual[3], run_plain_of(loaded, pixels(1, (20, 12))[0]))


def run_plain_of(loaded: object, image: np.ndarray) -> torch.Tensor:
    loaded.model.set_attn_implementation("eager")
    return run_plain(loaded, image).residual[3]


def test_pixels_that_the_model_cannot_take_are_refused_by_document() -> None:
    wanted = r"pixels of shape \(3, 24, 24\), got \(3, 20, 24\), in document 11\. Prepare all images alike"
    with pytest.raises(CorpusError, match=wanted):
        capture(tiny("vit"), [*pixels(1), *pixels(1, (20, 24))])
    with pytest.raises(CorpusError, match=r"pixels of shape \(3, 24, 24\), got \(3, 20, 24\), in document 11"):
        capture(tiny("dinov2"), [*pixels(1), *pixels(1, (20, 24))])
    broken = pixels(2)
    broken[1][0, 3, 4] = np.nan
    with pytest.raises(CorpusError, match="finite pixels, got NaN or infinity, in document 11"):
        capture(tiny("vit"), broken)


def test_the_checks_see_a_model_that_is_not_its_family() -> None:
    loaded = tiny("vit")
    loaded.anatomy.output_projections[1].register_forward_hook(lambda _m, _a, out: out * 1.01, prepend=True)
    with pytest.raises(CaptureCheckError, match=r"Σ α v W_O \+ b equal .*layer 1, document 10"):
        capture(loaded, pixels(1))


def test_tokens_of_an_image_are_named_in_the_models_order() -> None:
    grids = {name: PatchGrid.of(config().to_dict(), "m") for name, config in IMAGE_CONFIGS.items()}
    assert grids["vit"].tokens((8, 12))[:4] == ["[CLS]", "patch 0,0", "patch 0,1", "patch 0,2"]
    assert grids["vit"].tokens((8, 12))[-1] == "patch 1,2"
    assert grids["deit"].tokens((4, 4)) == ["[CLS]", "[DIST]", "patch 0,0"]
    assert grids["dinov2_with_registers"].tokens((4, 4)) == ["[CLS]", "[REG 0]", "[REG 1]", "patch 0,0"]
    assert [grids[name].length((24, 24)) for name in IMAGE_NAMES] == [37, 38, 37, 37, 39]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_channels": 1}, "a model of images with 3 channels, got 1, in m"),
        ({"patch_size": 0}, "one or two sizes in pixels for 'patch_size' .* got 0, in m"),
        ({"image_size": [24, "a"]}, r"one or two sizes in pixels for 'image_size' .* got \[24, 'a'\]"),
    ],
)
def test_a_configuration_without_patches_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        PatchGrid.of({**IMAGE_CONFIGS["vit"]().to_dict(), **change}, "m")
