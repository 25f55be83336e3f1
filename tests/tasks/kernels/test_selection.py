"""Token selection against plain loops: random documents, and rows on which a careless kernel goes wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.kernels import selection as kernel
from tasks.kernels.selection import DISTANCES, RANKINGS, SINKS, Selection, Selections
from tasks.kernels.values import Values, coherence
from tests.oracles.selection import Oracle
from tests.tasks.kernels.documents import Document, Sight, random_document, sights

SIZES = (1, 2, 4, 8)


def oracle(document: Document) -> Oracle:
    gate = None if document.gate is None else document.gate.numpy()
    return Oracle(document.attention.numpy(), document.value.numpy(), document.window, document.causal, gate)


def selections(document: Document, sizes: tuple[int, ...] = SIZES) -> Selections:
    values = Values.of(document.value)
    return Selections(
        document.attention,
        values,
        gate=document.gate,
        visibility=document.visibility,
        sizes=sizes,
        coherence=coherence(values, document.visibility),
    )


def check(document: Document, found: Selection, ranking: str, sink: str, queries: list[int]) -> int:
    """Every figure against the oracle's, certificate and bounds included; returns how many selections there were."""
    expected, seen = oracle(document), 0
    for at, i in enumerate(queries):
        for h in range(expected.H):
            row = expected.row(h, i, sink)
            order = row.order(ranking)
            for place, n in enumerate(SIZES):
                assert found.defined[at, place] == (n < len(row.keys))
                if not found.defined[at, place]:
                    continue
                seen += 1
                for distance in DISTANCES:
                    separation, figures = found.by_distance[distance], row.select(order, n, distance)
                    assert found.mass[h, at, place] == pytest.approx(figures.pop("mass"), rel=1e-6, abs=1e-30)
                    assert separation.inversions[h, at, place] == figures.pop("inversions"), (h, i, n, distance)
                    for name, value in figures.items():
                        got = getattr(separation, name)[h, at, place]
                        assert got == pytest.approx(value, rel=1e-5, abs=1e-6), (name, h, i, n, distance)
                    hold_bounds(separation, (h, at, place), n)
                if document.gate is None:
                    hold_certificate(found, row.certified(order, n), (h, at, place))
    return seen


def hold_bounds(separation: kernel.Separation, at: tuple[int, int, int], n: int) -> None:
    """P ≥ N/(N + GInv), R ≥ 1 − GInv/N; margin > 0 ⇔ GInv = 0 ⇔ P = R = F = 1."""
    precision, recall, f = (float(getattr(separation, x)[at]) for x in ("precision", "recall", "f_score"))
    pairs, margin = int(separation.inversions[at]), float(separation.margin[at])
    assert precision >= n / (n + pairs) - 1e-6
    assert recall >= 1 - pairs / n - 1e-6
    assert (margin > 0) == (pairs == 0) == (precision == recall == f == 1)


def hold_certificate(found: Selection, expected: tuple[float, float], at: tuple[int, int, int]) -> None:
    certified = (found.certified_precision[at], found.certified_recall[at])
    assert certified == pytest.approx(expected, abs=1e-6)
    actual = found.by_distance["euclidean"]
    assert certified[0] <= actual.precision[at] and certified[1] <= actual.recall[at]


@pytest.mark.parametrize("sight", sights(2, 5), ids=str)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("sink", SINKS)
def test_selections_equal_plain_loops(sight: Sight, gated: bool, sink: str) -> None:
    document = random_document(1, gated=gated, learned_sink=True, **sight)
    queries = list(range(13))
    for ranking in RANKINGS:
        found = selections(document).select(torch.tensor(queries), ranking, sink)
        assert check(document, found, ranking, sink, queries)


def test_blocks_of_queries_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    document, queries = random_document(2, n_tokens=23), torch.tensor([0, 3, 4, 9, 22])
    whole = selections(document).select(queries, "contribution", "included")
    monkeypatch.setattr(kernel, "_QUERIES", 2)
    parts = selections(document).select(queries, "contribution", "included")
    assert (whole.defined == parts.defined).all()
    for name in ("precision", "recall", "inversions"):
        pair = (getattr(x.by_distance["euclidean"], name)[:, whole.defined] for x in (whole, parts))
        np.testing.assert_array_equal(*pair)


SMALL = st.integers(-2, 2)


@st.composite
def adversarial(draw: st.DrawFn) -> Document:
    """Values and weights out of few numbers: repeated, collinear, opposite and zero vectors, ties, silent rows."""
    n_tokens = draw(st.integers(1, 9))
    vectors = draw(st.lists(st.lists(SMALL, min_size=2, max_size=2), min_size=n_tokens, max_size=n_tokens))
    weights = draw(st.lists(st.integers(0, 3), min_size=n_tokens**2, max_size=n_tokens**2))
    attention = torch.tensor(weights, dtype=torch.float32).view(1, n_tokens, n_tokens).tril() / 8
    value = torch.tensor(vectors, dtype=torch.float32)[:, None]
    return Document(attention, value, torch.eye(2)[None])


@settings(max_examples=60, deadline=None)
@given(adversarial(), st.sampled_from(RANKINGS), st.sampled_from(SINKS))
def test_adversarial_rows(document: Document, ranking: str, sink: str) -> None:
    queries = list(range(len(document.value)))
    check(document, selections(document).select(torch.tensor(queries), ranking, sink), ranking, sink, queries)


def test_one_visible_key_is_no_selection() -> None:
    document = random_document(3, n_tokens=1)
    for sink in SINKS:
        assert not selections(document).select(torch.tensor([0]), "attention", sink).defined.any()


def test_one_key_is_at_distance_zero_unless_vectors_repeat() -> None:
    document = random_document(4)
    found = selections(document).select(torch.arange(13), "attention", "included")
    f = found.by_distance["euclidean"].f_score[:, :, 0][:, found.defined[:, 0]]
    assert (f == 1).all()
    document.attention = document.attention.new_ones(4, 13, 13).tril() / 13
    document.value = document.value[:1].expand_as(document.value).contiguous()
    found = selections(document).select(torch.tensor([12]), "attention", "included")
    separation = found.by_distance["euclidean"]
    assert separation.precision[0, 0, 0] == pytest.approx(1 / 13) and separation.recall[0, 0, 0] == 0
    assert (separation.inversions[0, 0, :4] == [n * (13 - n) for n in SIZES]).all()
    assert (separation.margin[0, 0] == 0).all()


def test_a_sum_that_cancels_has_no_direction() -> None:
    """s = 0: every cosine distance is 1, and the Euclidean ones are the lengths."""
    value = torch.tensor([[1.0, 0], [-1, 0], [0, 0.5], [0, 0]])[:, None]
    attention = torch.zeros(1, 4, 4)
    attention[0, 3] = torch.tensor([0.3, 0.3, 0.2, 0.1])
    document = Document(attention, value, torch.eye(2)[None])
    found = selections(document).select(torch.tensor([3]), "attention", "included")
    cosine, euclidean = found.by_distance["cosine"], found.by_distance["euclidean"]
    assert (cosine.inversions[0, 0, 1], cosine.recall[0, 0, 1], cosine.margin[0, 0, 1]) == (4, 0, 0)
    assert euclidean.margin[0, 0, 1] == pytest.approx(0 - 0.3) and euclidean.recall[0, 0, 1] == 0


def test_random_rankings_equal_plain_loops() -> None:
    """The same draws in an order that the oracle is given: by hand the first block's."""
    document, queries = random_document(5), [4, 12]
    found = selections(document).random_f(torch.tensor(queries), "included", 6, np.random.default_rng(7))
    scores = np.random.default_rng(7).random((2, 6 * 2 * 2, 13), dtype=np.float32).reshape(2, 6, 2, 2, 13)
    expected = oracle(document)
    for h in range(4):
        for at, i in enumerate(queries):
            row = expected.row(h, i)
            for draw in range(6):
                order = sorted(range(i + 1), key=lambda j: -scores[h // 2, draw, h % 2, at, j])
                for place, n in enumerate(SIZES):
                    if n < i + 1:
                        for distance in DISTANCES:
                            f = row.select(order, n, distance)["f_score"]
                            assert found[distance][draw, h, at, place] == pytest.approx(f, abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_the_certificate_is_sound_and_not_empty_on_short_values(seed: int) -> None:
    """High dimension makes κ small, and fast-falling attention makes bounds that separate."""
    random = torch.Generator().manual_seed(seed)
    attention = torch.zeros(1, 12, 12)
    attention[0, 11] = 0.5 ** torch.arange(1, 13)[torch.randperm(12, generator=random)]
    document = Document(attention, torch.randn(12, 1, 4000, generator=random), torch.eye(4000)[None])
    found = selections(document).select(torch.tensor([11]), "attention", "included")
    actual = found.by_distance["euclidean"]
    assert (found.certified_precision[0, 0, :4] <= actual.precision[0, 0, :4]).all()
    assert found.certified_precision[0, 0, 0] == 1 and found.certified_recall[0, 0, 0] == 1


def test_heads_that_do_not_divide_are_refused() -> None:
    document = random_document(6)
    with pytest.raises(ValueError, match="expected query heads in equal groups, got 3 over 2"):
        Selections(document.attention[:3], Values.of(document.value))
