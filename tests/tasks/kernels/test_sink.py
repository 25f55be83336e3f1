"""Sink geometry against plain loops, a planted sink in closed form, and the edges of its domain."""

from __future__ import annotations

import pytest
import torch

from tasks.kernels.sink import SinkGeometry, sink_geometry, tail_mass
from tests.tasks.kernels.documents import Document, Sight, random_document, rotation, sights

FIELDS = ("sink_rate", "output_norm", "sink_norm", "tail_norm", "cosine_sink_tail", "a_star", "min_norm")


def measured(document: Document) -> SinkGeometry:
    rest = tail_mass(document.attention, visibility=document.visibility)
    if document.sink_mass is not None:
        rest = rest + document.sink_mass.T
    return sink_geometry(document.outputs(), document.weights, rest, visibility=document.visibility)


@pytest.mark.parametrize("sight", sights(2, 5), ids=str)
@pytest.mark.parametrize("learned_sink", [False, True])
@pytest.mark.parametrize("gated", [False, True])
def test_geometry_equals_plain_loops(sight: Sight, learned_sink: bool, gated: bool) -> None:
    document = random_document(1, learned_sink=learned_sink, gated=gated, **sight)
    geometry, oracle = measured(document), document.oracle()
    queries = [i for i in range(1, oracle.T) if 0 in oracle.visible(i)]
    assert geometry.a_star.shape == (4, len(queries))
    for h in range(oracle.H):
        for at, i in enumerate(queries):
            expected = oracle.sink(h, i)
            for name in FIELDS:
                assert getattr(geometry, name)[h, at] == pytest.approx(expected[name], rel=1e-3, abs=1e-5), name


def planted(sink_rates: list[float]) -> Document:
    """Sink value (−1, 0) against tail values (2, 1): the two pull apart."""
    n = len(sink_rates) + 1
    attention = torch.zeros(1, n, n)
    attention[0, 0, 0] = 1
    for i, a in enumerate(sink_rates, start=1):
        attention[0, i, 0], attention[0, i, i] = a, 1 - a
    value = torch.tensor([[-1.0, 0.0]] + [[2.0, 1.0]] * (n - 1))
    return Document(attention, value[:, None], torch.eye(2)[None])


def test_a_planted_sink_that_points_away_from_the_tail() -> None:
    """s = (−1, 0), m = (2, 1): a* = (‖m‖² − ⟨s,m⟩)/‖s−m‖² = 7/10, least length √(1·5 − 4)/√10 = 1/√10."""
    geometry = measured(planted([0.1, 0.5, 0.7, 0.9]))
    assert geometry.a_star[0].tolist() == pytest.approx([0.7] * 4, abs=1e-5)
    assert geometry.min_norm[0].tolist() == pytest.approx([10**-0.5] * 4, abs=1e-5)
    assert geometry.cosine_sink_tail[0].tolist() == pytest.approx([-2 / 5**0.5] * 4, abs=1e-5)
    assert geometry.output_norm[0, 2] == pytest.approx(10**-0.5, abs=1e-5)  # the third query sits at a*
    assert geometry.output_norm[0].argmin() == 2


def test_the_output_lies_on_the_parabola() -> None:
    """‖o(a)‖² = min² + ‖s−m‖² (a − a*)² wherever a + r = 1."""
    document = random_document(2)
    geometry, oracle = measured(document), document.oracle()
    for h in range(4):
        for i in range(1, 13):
            r = oracle.attention[h, i, 1:].sum()
            m = oracle.attention[h, i, 1:] @ oracle.projected[h, i, 1:] / r
            gap = ((oracle.projected[h, i, 0] - m) ** 2).sum()
            a, a_star, least, norm = (
                float(getattr(geometry, f)[h, i - 1]) for f in ("sink_rate", "a_star", "min_norm", "output_norm")
            )
            assert norm**2 == pytest.approx(least**2 + gap * (a - a_star) ** 2, rel=1e-3)


def test_a_learned_sink_is_mass_without_value() -> None:
    """Mass given to a learned sink shortens m, and leaves the output as it is."""
    document = planted([0.5])
    document.attention[0, 1] = torch.tensor([0.5, 0.25])
    document.sink_mass = torch.tensor([[0.0], [0.25]])
    geometry = measured(document)
    assert geometry.tail_norm.item() == pytest.approx(5**0.5 / 2)
    document.sink_mass = None
    assert measured(document).tail_norm.item() == pytest.approx(5**0.5)


def test_a_rotation_changes_nothing_and_turning_the_sink_does() -> None:
    document, turned = random_document(3), random_document(3)
    turned.projection = document.projection @ rotation(11)
    for name in FIELDS:
        assert torch.allclose(getattr(measured(document), name), getattr(measured(turned), name), atol=1e-3), name
    turned.value[0] *= -1
    assert torch.allclose(measured(turned).cosine_sink_tail, -measured(document).cosine_sink_tail, atol=1e-3)
    assert not torch.allclose(measured(turned).a_star, measured(document).a_star, atol=0.1)


def test_all_attention_on_the_sink_leaves_no_tail() -> None:
    geometry = measured(planted([0.5, 1.0]))
    for name in ("tail_norm", "cosine_sink_tail", "a_star", "min_norm"):
        assert getattr(geometry, name)[0].isnan().tolist() == [False, True], name
    assert geometry.sink_norm[0].tolist() == [1, 1]


def test_equal_values_have_no_minimum() -> None:
    """s = m: ‖o(a)‖ is constant, a* is 0/0 even when rounding leaves a trace of s − m."""
    document = random_document(4, n_tokens=40)
    document.value = document.value[:1].expand_as(document.value).contiguous()
    geometry = measured(document)
    assert geometry.a_star.isnan().all() and geometry.min_norm.isnan().all()
    assert torch.allclose(geometry.cosine_sink_tail, torch.ones(4, 39), atol=1e-5)


def test_a_sink_without_value_has_no_angle_and_its_minimum_at_one() -> None:
    document = random_document(5)
    document.value[0] = 0
    geometry = measured(document)
    assert geometry.cosine_sink_tail.isnan().all()
    assert torch.allclose(geometry.a_star, torch.ones(4, 12)) and torch.allclose(
        geometry.min_norm, torch.zeros(4, 12), atol=1e-3
    )


@pytest.mark.parametrize(("n_tokens", "window"), [(1, None), (5, 1)])
def test_no_query_that_sees_the_sink(n_tokens: int, window: int | None) -> None:
    assert measured(random_document(6, n_tokens=n_tokens, window=window)).a_star.shape == (4, 0)


def test_tail_mass_keeps_digits_that_one_minus_a_would_lose() -> None:
    attention = torch.tensor([[[1.0, 0.0], [1.0, 1e-12]]])
    assert tail_mass(attention)[0].tolist() == pytest.approx([0, 1e-12])
