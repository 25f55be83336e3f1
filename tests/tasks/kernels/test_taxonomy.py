"""The taxonomy of heads: winners against plain loops, classes by the three rules, agreement of halves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tasks.kernels.taxonomy import CLASSES, RULES, WINNERS, agreement, classify, margin, tally, winners
from tasks.kernels.values import Values
from tests.oracles.selection import Oracle
from tests.tasks.kernels.documents import Document, Sight, random_document, sights


def found(document: Document) -> np.ndarray:
    return winners(document.attention, Values.of(document.value), gate=document.gate, visibility=document.visibility)


@pytest.mark.parametrize("sight", sights(1, 5), ids=str)
@pytest.mark.parametrize("gated", [False, True])
def test_winners_equal_plain_loops(sight: Sight, gated: bool) -> None:
    document = random_document(1, n_tokens=70, gated=gated, **sight)
    document.attention[2, 9] = 0
    gate = None if document.gate is None else document.gate.numpy()
    expected = Oracle(document.attention.numpy(), document.value.numpy(), document.window, document.causal, gate)
    names = [None if at < 0 else WINNERS[at] for at in found(document).ravel()]
    assert names == [expected.winner(h, i) for h in range(4) for i in range(1, 70)]
    assert names[2 * 69 + 8] is None


def test_ties_go_to_the_smaller_key() -> None:
    attention = torch.full((1, 3, 3), 0.25).tril()
    assert found(Document(attention, torch.ones(3, 1, 2), torch.eye(2)[None])).tolist() == [[WINNERS.index("sink")] * 2]


def test_three_heads_that_are_what_they_were_made() -> None:
    """All look at position 0 with 0.8, at themselves with 0.15, at the token before with 0.05; the values decide.

    A sink whose value is as long as the others' wins; one whose value is 10 times shorter loses to the query itself;
    and where the query's own value is short too, to the token before.
    """
    n = 40
    attention = 0.15 * torch.eye(n) + 0.05 * torch.diag(torch.ones(n - 1), -1)
    attention[:, 0] += 0.8
    value = torch.ones(n, 3, 2)
    value[0, 1:] = 0.1
    value[2::2, 2] = 0.01
    document = Document(attention.repeat(3, 1, 1), value, torch.eye(2).repeat(3, 1, 1))
    won = found(document)[:, 1:]  # the second token's neighbour is the sink itself
    assert [CLASSES[at] for at in classify(tally(won[:, ::2]), "majority")] == ["mixer", "retriever", "mixer"]
    value[0, 2] = 0.01
    won = found(document)[:, 1:]
    assert [CLASSES[at] for at in classify(tally(won[:, ::2]), "majority")] == ["mixer", "retriever", "reset"]


def test_one_token_has_no_winner() -> None:
    assert found(random_document(2, n_tokens=1)).shape == (4, 0)


@pytest.mark.parametrize(
    ("counts", "plurality", "majority", "share"),
    [
        ((5, 3, 2), "mixer", "reset", 0.2),
        ((6, 3, 1), "mixer", "mixer", 0.3),
        ((4, 4, 2), "mixer", "reset", 0.0),
        ((2, 4, 4), "retriever", "reset", 0.0),
        ((1, 7, 2), "retriever", "retriever", 0.5),
        ((1, 2, 7), "reset", "reset", 0.5),
    ],
)
def test_classes(counts: tuple[int, int, int], plurality: str, majority: str, share: float) -> None:
    """(sink, self, other)"""
    array = np.array([counts])
    assert CLASSES[classify(array, "plurality")[0]] == CLASSES[classify(array, "final_query")[0]] == plurality
    assert CLASSES[classify(array, "majority")[0]] == majority
    assert margin(array)[0] == pytest.approx(share)


def test_nothing_tallied_is_no_class() -> None:
    empty = np.zeros((1, 3), int)
    assert classify(empty, "majority")[0] == classify(empty, "plurality")[0] == -1
    assert np.isnan(margin(empty)[0])
    assert tally(np.array([[-1, -1]])).tolist() == [[0, 0, 0]]


def test_agreement_of_halves() -> None:
    """A head of one class in every document agrees always; one with as many documents of each of two, seldom."""
    steady, torn = np.tile([9, 1, 0], (8, 1)), np.array([[9, 0, 1], [1, 0, 9]] * 4)
    found = agreement(np.stack((steady, torn), 1), RULES, seed=3)
    assert (found["plurality"][0], found["majority"][0]) == (1, 1)
    assert found["plurality"][1] < 0.8
    again = agreement(np.stack((steady, torn), 1), RULES, seed=3)
    assert all((found[rule] == again[rule]).all() for rule in RULES)


def test_agreement_needs_two_documents_with_winners() -> None:
    assert np.isnan(agreement(np.array([[[1, 0, 0]]]), RULES, seed=0)["plurality"]).all()
    assert np.isnan(agreement(np.array([[[1, 0, 0]], [[0, 0, 0]]]), RULES, seed=0)["plurality"]).all()
