"""Ranks against plain sorting, and what each rate takes of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tasks.kernels.ranking import entry_ranks, row_ranks, token_ranks, token_scores_of, undefined_scores
from tasks.kernels.visibility import ALL_KEYS, CAUSAL, Visibility
from tasks.models.intervention_tensors import HeldTensors, RankedShare
from tests.oracles import masking_scores as oracle

SIGHTS = st.sampled_from([CAUSAL, Visibility(1), Visibility(3), ALL_KEYS])


def drawn(seed: int, n_heads: int, n_tokens: int, levels: int, nan: float = 0.1) -> Tensor:
    """Few levels make many ties, and zeros of both signs; some scores are not defined."""
    random = np.random.default_rng(seed)
    scores = random.integers(-levels, levels, (n_heads, n_tokens, n_tokens), endpoint=True) / levels
    scores[random.random(scores.shape) < nan] = np.nan
    scores[random.random(scores.shape) < 0.1] = -0.0
    return torch.from_numpy(scores.astype(np.float32))


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n_heads=st.integers(1, 3),
    n_tokens=st.integers(1, 14),
    levels=st.sampled_from([1, 3, 10**6]),
    visibility=SIGHTS,
    absolute=st.booleans(),
    keep_first=st.booleans(),
)
def test_entries_and_rows_equal_to_sorting(
    seed: int, n_heads: int, n_tokens: int, levels: int, visibility: Visibility, absolute: bool, keep_first: bool
) -> None:
    scores = drawn(seed, n_heads, n_tokens, levels)
    before = scores.clone()
    places = oracle.candidates(n_tokens, visibility.window, visibility.causal, keep_first)
    rows = [[place for place in places if place[0] == i] for i in range(n_tokens)]
    choice = {"absolute": absolute, "keep_first": keep_first}
    entries, n_entries = entry_ranks(scores, visibility, **choice)
    inside, n_inside = row_ranks(scores, visibility, **choice)
    assert entries.dtype == inside.dtype == torch.int32
    assert n_entries.dtype == n_inside.dtype == torch.int64
    for h in range(n_heads):
        assert (entries[h].numpy() == oracle.ranks(scores[h].numpy(), [places], absolute)).all()
        assert (inside[h].numpy() == oracle.ranks(scores[h].numpy(), rows, absolute)).all()
    assert n_entries.tolist() == [[[len(places)]]] * n_heads
    assert n_inside.tolist() == [[[len(row)] for row in rows]] * n_heads
    assert torch.equal(scores.isnan(), before.isnan()) and torch.equal(scores.nan_to_num(), before.nan_to_num())
    undefined = sum(bool(scores[h, i, j].isnan()) for h in range(n_heads) for i, j in places)
    assert undefined_scores(scores, visibility, keep_first=keep_first) == undefined


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n_tokens=st.integers(1, 14),
    levels=st.sampled_from([1, 10**6]),
    visibility=SIGHTS,
    absolute=st.booleans(),
    keep_first=st.booleans(),
    reduce=st.sampled_from(["mean", "sum"]),
)
def test_tokens_equal_to_sorting(
    seed: int, n_tokens: int, levels: int, visibility: Visibility, absolute: bool, keep_first: bool, reduce: str
) -> None:
    scores = drawn(seed, 2, n_tokens, levels, nan=0.01)
    options = {"reduce": reduce, "absolute": absolute}
    for h in range(2):  # a hidden entry is 0 by contract
        for i in range(n_tokens):
            hidden = set(range(n_tokens)) - set(oracle.visible(n_tokens, visibility.window, visibility.causal, i))
            scores[h, i, sorted(hidden)] = 0
    tokens = token_scores_of(scores, visibility, **options)
    expected = [oracle.token_scores(s.numpy(), visibility.window, visibility.causal, **options) for s in scores]
    np.testing.assert_allclose(tokens.numpy(), np.array(expected), rtol=1e-6, atol=1e-6)
    ranks, sizes = token_ranks(tokens, n_tokens, keep_first=keep_first)
    n = visibility.counted(n_tokens)
    places = [(j,) for j in range(1 if keep_first else 0, n)]
    for h in range(2):
        assert (ranks[h, :n].numpy() == oracle.ranks(tokens[h].numpy(), [places], absolute=False)).all()
        assert (ranks[h, n:] == -1).all()
    assert ranks.dtype == torch.int32 and sizes.tolist() == [[len(places)]] * 2


@pytest.mark.parametrize("end", ["highest", "lowest"])
def test_a_rate_takes_its_share(end: str) -> None:
    """The 0.3 highest or lowest entries of each head, and of each row, all strictly beyond what stays."""
    scores = torch.randn(2, 12, 12, generator=torch.Generator().manual_seed(0))
    for ranked in (entry_ranks, row_ranks):
        ranks, sizes = ranked(scores, CAUSAL, absolute=False, keep_first=False)
        mask = RankedShare(HeldTensors.of_documents({0: ranks}), HeldTensors.of_documents({0: sizes}), "0.3", end).of(0)
        for h in range(2):
            groups = [(ranks[h] >= 0)] if ranked is entry_ranks else [(ranks[h, i] >= 0) for i in range(11)]
            chosen = [mask[h]] if ranked is entry_ranks else list(mask[h, :11])
            values = [scores[h]] if ranked is entry_ranks else list(scores[h, :11])
            for group, gone, value in zip(groups, chosen, values, strict=True):
                assert int(gone.sum()) == 3 * int(group.sum()) // 10
                assert not bool((gone & ~group).any())
                if bool(gone.any()):
                    kept = value[group & ~gone]
                    highest = end == "highest"
                    assert value[gone].min() > kept.max() if highest else value[gone].max() < kept.min()


def test_an_undefined_score_ranks_with_zero() -> None:
    ranks, _ = token_ranks(torch.tensor([[1.0, torch.nan, 0.0, -1.0]]), 5, keep_first=False)
    assert ranks.tolist() == [[0, 1, 2, 3, -1]]


def test_infinite_scores_have_their_place() -> None:
    ranks, _ = token_ranks(torch.tensor([[1.0, torch.inf, -torch.inf, 3e38]]), 4, keep_first=False)
    assert ranks.tolist() == [[2, 0, 3, 1]]


def test_the_mean_favours_late_keys_and_the_sum_early_ones() -> None:
    scores = torch.ones(1, 6, 6).tril()
    scores[0, :, 4] *= 2
    assert token_scores_of(scores, CAUSAL, reduce="mean", absolute=False).tolist() == [[1, 1, 1, 1, 2]]
    assert token_scores_of(scores, CAUSAL, reduce="sum", absolute=False).tolist() == [[5, 4, 3, 2, 2]]


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="expected mean or sum, got 'max'"):
        token_scores_of(torch.zeros(1, 3, 3), CAUSAL, reduce="max", absolute=False)
    with pytest.raises(ValueError, match="expected scores of at most 3 keys, got 4"):
        token_ranks(torch.zeros(1, 4), 3, keep_first=False)
