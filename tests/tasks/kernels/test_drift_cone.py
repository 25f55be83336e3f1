"""Semantic drift and semantic cone against plain loops, in closed form, and at the edges of their domains."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tasks.kernels.cone import ROW_GROUPS, SINKS, SemanticCone, semantic_cone
from tasks.kernels.drift import SemanticDrift, semantic_drift
from tests.tasks.kernels.documents import Document, Sight, random_document, rotation, sights


def drift(document: Document, query_block: int = 5) -> SemanticDrift:
    return semantic_drift(
        document.attention,
        document.outputs(),
        document.weights,
        visibility=document.visibility,
        query_block=query_block,
    )


def cone(document: Document) -> SemanticCone:
    return semantic_cone(document.outputs(), document.weights)


@pytest.mark.parametrize("sight", sights(4), ids=str)
@pytest.mark.parametrize("query_block", [1, 5, 64])
@pytest.mark.parametrize("gated", [False, True])
def test_drift_equals_plain_loops(sight: Sight, query_block: int, gated: bool) -> None:
    document = random_document(1, gated=gated, **sight)
    result, oracle = drift(document, query_block), document.oracle()
    assert result.n == 12
    for h in range(4):
        norm, cosine = oracle.drift(h)
        assert result.norm[h] == pytest.approx(norm, rel=1e-4)
        assert result.cosine_sink[h] == pytest.approx(cosine, rel=1e-3, abs=1e-5)


def test_drift_opposed_by_the_sink() -> None:
    """Half on the sink (−1), the rest spread over tail values (+1) at less than the uniform weight: cosine −1."""
    n = 9
    attention = torch.zeros(1, n, n)
    for i in range(n):
        attention[0, i, 1 : i + 1] = 0.5 / (i + 1)
        attention[0, i, 0] = 1 - attention[0, i].sum()
    value = torch.ones(n, 1, 1)
    value[0] = -1
    result = drift(Document(attention, value, torch.ones(1, 1, 1)))
    assert result.cosine_sink.item() == pytest.approx(-1)
    assert result.norm.item() == pytest.approx(np.mean([0.5 * i / (i + 1) for i in range(1, n)]))


def test_uniform_attention_has_no_weak_entries() -> None:
    n = 8
    attention = torch.ones(2, n, n).tril() / torch.arange(1, n + 1)[:, None]
    document = random_document(2, n_heads=2, n_tokens=n)
    document.attention = attention
    result = drift(document)
    assert result.norm.tolist() == [0, 0] and result.cosine_sink.isnan().all()


def test_drift_without_a_sink_value_or_a_second_token() -> None:
    document = random_document(3)
    document.value[0] = 0
    result = drift(document)
    assert result.cosine_sink.isnan().all() and (result.norm > 0).all()
    single = drift(random_document(3, n_tokens=1))
    assert single.n == 0 and single.norm.isnan().all() and single.cosine_sink.isnan().all()


def test_drift_is_blind_to_rotation_and_not_to_scale() -> None:
    document, turned = random_document(4), random_document(4)
    turned.projection = 2 * document.projection @ rotation(11)
    assert torch.allclose(drift(turned).norm, 2 * drift(document).norm, rtol=1e-4)
    assert torch.allclose(drift(turned).cosine_sink, drift(document).cosine_sink, atol=1e-4)


@pytest.mark.parametrize("n_tokens", [2, 3, 13, 31])
@pytest.mark.parametrize("gated", [False, True])
def test_cone_equals_plain_loops(n_tokens: int, gated: bool) -> None:
    document = random_document(5, n_tokens=n_tokens, gated=gated)
    result, oracle = cone(document), document.oracle()
    for h in range(4):
        for (group, sink), (n, expected) in oracle.cone(h).items():
            at = h, ROW_GROUPS.index(group), SINKS.index(sink)
            assert result.n[at] == n
            assert result.cosine[at] == pytest.approx(expected, rel=1e-3, abs=1e-5, nan_ok=True)


def test_outputs_that_point_one_way_and_both_ways() -> None:
    """All values equal: cosine 1. A tail of opposite signs in equal halves of the rest: −1/(n−1)."""
    document = random_document(6, n_tokens=21)
    document.value = document.value[:1].expand_as(document.value).contiguous()
    assert torch.allclose(cone(document).cosine, torch.ones(4, 2, 2, dtype=torch.float64), atol=1e-5)
    alternating = Document(torch.eye(21)[None], torch.ones(21, 1, 1), torch.ones(1, 1, 1))
    alternating.value[1::2] = -1
    result = cone(alternating)
    assert result.n[0].tolist() == [[4, 4], [16, 16]]  # equal norms: the earliest four are the smallest fifth
    assert result.cosine[0, 1].tolist() == pytest.approx([-1 / 15] * 2)


def test_rows_that_only_the_sink_fills_have_no_direction_without_it() -> None:
    document = random_document(7, n_tokens=21)
    document.attention[0, 5:9] = 0
    document.attention[0, 5:9, 0] = 1
    result = cone(document)
    assert result.n[0, :, 0].sum() == 20 and result.n[0, :, 1].sum() == 16
    assert result.n[1, :, 1].sum() == 20


def test_rows_that_write_nothing_are_in_no_group() -> None:
    document = random_document(8, n_tokens=21)
    document.attention[0, 7] = 0
    result = cone(document)
    assert result.n[0, :, 0].tolist() == [3, 16] and result.n[1, :, 0].tolist() == [4, 16]
    document.projection.zero_()
    assert cone(document).cosine.isnan().all() and cone(document).n.sum() == 0


def test_cone_is_blind_to_rotation_and_sees_the_sink() -> None:
    """A long sink value that most queries read pulls all outputs one way, and only where it is kept."""
    document, turned = random_document(9, n_tokens=31), random_document(9, n_tokens=31)
    turned.projection = document.projection @ rotation(11)
    assert torch.allclose(cone(turned).cosine, cone(document).cosine, atol=1e-4)
    document.value[0] *= 1000
    sinking = cone(document).cosine
    assert (sinking[:, 1, 0] > 0.9).all() and (sinking[:, 1, 1] < 0.9).all()
