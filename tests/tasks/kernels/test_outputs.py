"""Outputs and norms of heads against plain loops, and the shapes that kernels promise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from jaxtyping import TypeCheckError

from tasks.kernels.outputs import head_outputs, read_by_query_heads, root
from tasks.kernels.visibility import ALL_KEYS, CAUSAL, Visibility
from tasks.kernels.weights import LayerWeights
from tests.tasks.kernels.documents import Sight, random_document, rotation, sights


def test_shapes_are_enforced() -> None:
    """A control: without the import hook every shape annotation would be decoration."""
    document = random_document(0)
    with pytest.raises(TypeCheckError):
        head_outputs(document.attention[:, :-1], document.value, document.weights)


@pytest.mark.parametrize("sight", sights(4), ids=str)
@pytest.mark.parametrize("query_block", [1, 5, 64])
@pytest.mark.parametrize("gated", [False, True])
def test_outputs_equal_plain_loops(sight: Sight, query_block: int, gated: bool) -> None:
    document = random_document(1, gated=gated, **sight)
    outputs, oracle = document.outputs(query_block), document.oracle()
    assert np.allclose(outputs.norm, np.linalg.norm(oracle.output, axis=-1), rtol=1e-5)
    assert np.allclose(outputs.layer_norm, np.linalg.norm(oracle.output.sum(0), axis=-1), rtol=1e-5)
    lengths, own = np.linalg.norm(oracle.projected, axis=-1), np.arange(oracle.T)  # (H, T, T)
    assert np.allclose(outputs.value_norm, lengths[:, own, own], rtol=1e-5)
    assert np.allclose(outputs.first_norm.expand(-1, oracle.T), lengths[:, :, 0], rtol=1e-5)
    for block in document.visibility.blocks(oracle.T, query_block):
        expected = lengths[:, block.rows, block.keys]
        assert np.allclose(outputs.lengths(block).expand(expected.shape), expected, rtol=1e-5)
    tail = torch.einsum("htd,hdm->htm", outputs.tail, document.projection).numpy()
    sink = oracle.attention[:, :, 0, None] * oracle.projected[:, :, 0]
    assert np.allclose(tail, oracle.output - sink, atol=1e-5)


@pytest.mark.parametrize("gated", [False, True])
def test_products_with_values_are_products_in_the_models_width(gated: bool) -> None:
    document = random_document(2, gated=gated)
    outputs, oracle = document.outputs(), document.oracle()
    value = read_by_query_heads(outputs.value, 4).double().numpy()
    intra = np.einsum("hid,hjd->hij", outputs.projected.double().numpy(), value)
    inter = np.einsum("ihd,hjd->hij", outputs.crossed.double().numpy(), value)
    assert np.allclose(intra, np.einsum("him,hijm->hij", oracle.output, oracle.projected), atol=1e-4)
    assert np.allclose(inter, np.einsum("im,hijm->hij", oracle.output.sum(0), oracle.projected), atol=1e-4)


def test_a_rotation_of_the_output_space_changes_nothing_and_a_scaling_does() -> None:
    document = random_document(3)
    turned = random_document(3)
    turned.projection = document.projection @ rotation(11)
    assert torch.allclose(turned.outputs().norm, document.outputs().norm, rtol=1e-4)
    turned.projection = 2 * document.projection
    assert torch.allclose(turned.outputs().norm, 2 * document.outputs().norm, rtol=1e-5)


def test_the_input_is_left_as_it_was() -> None:
    document = random_document(4, n_kv_heads=4)
    before = document.attention.clone(), document.value.clone()
    document.outputs()
    assert torch.equal(document.attention, before[0]) and torch.equal(document.value, before[1])


def test_one_token_and_a_silent_head() -> None:
    document = random_document(5, n_tokens=1)
    document.projection[0] = 0
    outputs = document.outputs()
    assert outputs.norm[0, 0] == 0 and (outputs.norm[1:] > 0).all()
    assert torch.equal(outputs.tail, torch.zeros_like(outputs.tail))


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="query heads in equal groups, got 4 over 3 key/value heads"):
        read_by_query_heads(torch.zeros(3, 2, 1), 4)


def test_root_of_rounding_noise_is_zero_and_of_nan_is_nan() -> None:
    assert root(torch.tensor([-1e-12, 0.0, 1e-40, 4.0])).tolist() == [0, 0, 0, 2]
    assert root(torch.tensor([torch.nan])).isnan().all()


def test_weights_are_the_inner_products_of_the_heads_slices() -> None:
    projection = random_document(6).projection
    weights = LayerWeights.of(projection)
    stacked = projection.double().reshape(-1, projection.shape[-1])
    assert torch.allclose(weights.cross.double(), stacked @ stacked.T, atol=1e-4)
    assert torch.allclose(weights.gram[2].double(), projection[2].double() @ projection[2].double().T, atol=1e-4)


@pytest.mark.parametrize("visibility", [CAUSAL, *(Visibility(w) for w in (1, 3, 50)), ALL_KEYS])
@pytest.mark.parametrize("size", [1, 4, 7, 100])
@pytest.mark.parametrize("n_tokens", [1, 2, 11])
def test_blocks_cover_exactly_the_visible_keys(visibility: Visibility, size: int, n_tokens: int) -> None:
    i, j = np.indices((n_tokens, n_tokens))
    expected = (j <= i) & (i - j < (visibility.window or n_tokens)) | (not visibility.causal)
    seen = np.zeros((n_tokens, n_tokens), bool)
    for block in visibility.blocks(n_tokens, size):
        part = seen[block.rows, block.keys]
        assert not part.any()
        part[...] = visibility.inside(block, n_tokens)
        assert expected[block.rows, block.keys].any(0).all()  # no key that nobody sees
        hidden = np.zeros(part.shape, bool)
        last = visibility.hidden_last(block, n_tokens)
        hidden[:, part.shape[1] - last.shape[1] :] = last
        assert (hidden == ~part).all()
    assert (seen == expected).all()


@pytest.mark.parametrize("visibility", [CAUSAL, *(Visibility(w) for w in (1, 3, 50)), ALL_KEYS])
@pytest.mark.parametrize("n_tokens", [1, 2, 11])
def test_who_sees_a_key_and_who_counts(visibility: Visibility, n_tokens: int) -> None:
    """The last position of a causal model predicts nothing; of an encoder no query does, and all count."""
    i, j = np.indices((n_tokens, n_tokens))
    seen = (j <= i) & (i - j < (visibility.window or n_tokens)) | (not visibility.causal)
    n = n_tokens - 1 if visibility.causal else n_tokens
    assert visibility.counted(n_tokens) == n
    first, last = visibility.seers(n_tokens)
    for key in range(n):
        assert list(range(int(first[key]), int(last[key]))) == list(np.flatnonzero(seen[:n, key]))
    assert list(range(n_tokens))[visibility.sink_queries(n_tokens)] == [q for q in np.flatnonzero(seen[:, 0]) if q]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Visibility(0), "a window of at least 1, of causal attention, got 0 of causal attention"),
        (lambda: Visibility(3, causal=False), "a window .*, got 3 of bidirectional attention"),
        (lambda: list(CAUSAL.blocks(5, 0)), "a block of at least 1, got 0"),
    ],
)
def test_what_is_no_window_or_block_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
