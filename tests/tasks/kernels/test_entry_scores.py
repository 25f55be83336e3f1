"""Entry scores against the definitions, and against the sums of the kernel that adds them up."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tasks.kernels.contribution import contributions
from tasks.kernels.entry_scores import ENTRY_SCORES, entry_scores
from tasks.kernels.visibility import CAUSAL
from tests.oracles import masking_scores as oracle
from tests.tasks.kernels.documents import Document, Sight, random_document, sights


def scores_of(document: Document, score: str, query_block: int = 4) -> torch.Tensor:
    outputs = document.outputs(query_block)
    visibility = document.visibility
    return entry_scores(document.attention, outputs, score, visibility=visibility, query_block=query_block)


@pytest.mark.parametrize("score", ENTRY_SCORES)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("sight", sights(4))
def test_equal_to_the_definition(score: str, gated: bool, sight: Sight) -> None:
    document = random_document(3, gated=gated, **sight)
    expected = oracle.entry_scores(document.oracle(), score)
    found = scores_of(document, score)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)
    hidden = ~document.visibility.inside(next(document.visibility.blocks(13, 13)), 13)
    assert (found[:, hidden] == 0).all()


def test_contribution_weights_are_signed_and_sum_to_one() -> None:
    document = random_document(5, learned_sink=True)
    intra, inter = scores_of(document, "cw_intra"), scores_of(document, "cw_inter")
    assert (intra < 0).any() and (inter < 0).any()
    torch.testing.assert_close(intra.sum(-1), torch.ones(4, 13), rtol=0, atol=1e-4)
    torch.testing.assert_close(inter.sum((0, 2)), torch.ones(13), rtol=0, atol=1e-4)


@pytest.mark.parametrize("score", ENTRY_SCORES)
def test_blocks_do_not_matter(score: str) -> None:
    document = random_document(8, gated=True, window=5)
    torch.testing.assert_close(scores_of(document, score, 1), scores_of(document, score, 64), rtol=1e-4, atol=1e-5)


def test_column_sums_are_the_token_scores() -> None:
    document = random_document(9, n_tokens=40)
    tokens = contributions(document.attention, document.outputs()).tokens
    for score in ENTRY_SCORES:
        sums = scores_of(document, score)[:, :-1, :-1].sum(1)
        torch.testing.assert_close(sums, getattr(tokens, score), rtol=1e-4, atol=1e-4)


def test_a_head_that_writes_nothing_has_no_scores() -> None:
    document = random_document(2, n_heads=2, n_kv_heads=1)
    document.projection[0] = 0
    for score in ("vwon", "cw_intra"):
        found = scores_of(document, score)
        seen = torch.ones(13, 13).tril().bool()
        assert found[0, seen].isnan().all() and (found[0, ~seen] == 0).all() and found[1].isfinite().all()
    for score in ("raw", "vw", "cw_inter"):
        assert scores_of(document, score).isfinite().all()
    document.projection[1] = 0
    assert scores_of(document, "cw_inter")[:, 3, :4].isnan().all()


def test_an_unknown_score_is_refused() -> None:
    document = random_document(0)
    with pytest.raises(ValueError, match=r"expected one of raw, vw, vwon, cw_intra, cw_inter, got 'cw'"):
        entry_scores(document.attention, document.outputs(), "cw", visibility=CAUSAL)
