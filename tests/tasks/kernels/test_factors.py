"""Moments and factor attribution: against plain samples, closed forms, and merging."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tasks.kernels.factors import TOKEN_GROUPS, factor_moments, factor_shares
from tasks.kernels.moments import Moments
from tests.tasks.kernels.documents import Document, Sight, random_document, rotation, sights


def sample_moments(samples: np.ndarray, c: int) -> Moments:
    """Moments of one cell, from all samples at once (n, p)."""
    centred = (samples - samples.mean(0))[:, :c]
    return Moments(np.array([len(samples)]), samples.mean(0)[None], (centred.T @ centred)[None])


def test_merged_parts_equal_the_whole() -> None:
    samples = 1e6 + np.random.default_rng(0).normal(size=(101, 3))
    whole = sample_moments(samples, 2)
    merged = Moments.zeros((1,), 3, 2)
    for part in np.split(samples, [1, 17, 50]):
        merged = merged.merge(sample_moments(part, 2))
    assert merged.n == 101
    assert np.allclose(merged.mean, whole.mean, rtol=1e-14)
    assert np.allclose(merged.comoment, whole.comoment, rtol=1e-8)
    assert np.allclose(merged.variance(), samples[:, :2].var(0, ddof=1), rtol=1e-8)


def test_merging_an_empty_side_changes_nothing() -> None:
    moments, empty = sample_moments(np.random.default_rng(1).normal(size=(9, 3)), 2), Moments.zeros((1,), 3, 2)
    for merged in (moments.merge(empty), empty.merge(moments)):
        assert np.array_equal(merged.mean, moments.mean) and np.array_equal(merged.comoment, moments.comoment)
    nothing = empty.merge(empty)
    assert nothing.n == 0 and np.isnan(nothing.means()).all() and np.isnan(nothing.variance()).all()


def test_one_sample_has_no_variance() -> None:
    assert np.isnan(sample_moments(np.ones((1, 2)), 1).variance()).all()


def moments_of(document: Document, query_block: int = 5) -> tuple[Moments, int]:
    return factor_moments(
        document.attention, document.outputs(), visibility=document.visibility, query_block=query_block
    )


@pytest.mark.parametrize("sight", sights(4), ids=str)
@pytest.mark.parametrize("query_block", [1, 5, 64])
@pytest.mark.parametrize("gated", [False, True])
def test_moments_and_shares_equal_plain_samples(sight: Sight, query_block: int, gated: bool) -> None:
    document = random_document(1, n_tokens=17, gated=gated, **sight)
    document.attention[2, 9, 7] = 0
    moments, left_out = moments_of(document, query_block)
    shares, oracle, missing = factor_shares(moments), document.oracle(), 0
    for h in range(4):
        for g, group in enumerate(TOKEN_GROUPS):
            samples, without = oracle.factor_entries(h, group)
            missing += without
            assert moments.n[h, g] == len(samples)
            assert np.allclose(moments.mean[h, g], samples.mean(0), rtol=1e-4, atol=1e-5)
            logs = samples[:, :3]
            covariance = np.cov(np.c_[logs, logs.sum(1)].T)
            assert np.allclose(moments.comoment[h, g] / (len(samples) - 1), covariance[:3, :3], rtol=1e-3, atol=1e-5)
            assert np.allclose(shares[h, g], covariance[:3, 3] / covariance[3, 3], rtol=1e-3, atol=1e-4)
    assert left_out == missing == 1


def test_shares_sum_to_one() -> None:
    shares = factor_shares(moments_of(random_document(2, n_tokens=40))[0])
    assert np.allclose(shares.sum(-1), 1, rtol=1e-12)


def test_attention_explains_all_where_values_are_equal() -> None:
    """Closed form: equal values leave ‖ṽ‖/‖o‖ = 1 (rows sum to 1) and cos = 1, so log|cw| = log α."""
    document = random_document(3, n_tokens=30)
    document.value = document.value[:1].expand_as(document.value).contiguous()
    moments, _ = moments_of(document)
    assert np.allclose(factor_shares(moments), [1, 0, 0], atol=1e-4)
    assert np.allclose(moments.means()[..., 4:6], 1, atol=1e-5)


def test_direction_explains_all_where_attention_and_length_are_equal() -> None:
    """Two queries with one α and one ‖ṽ‖/‖o‖ cannot be had exactly; scaled covariances say the same."""
    comoment = np.zeros((1, 3, 3))
    comoment[0, 2, 2] = 5
    moments = Moments(np.array([9]), np.zeros((1, 7)), comoment)
    assert factor_shares(moments)[0].tolist() == [0, 0, 1]


def test_no_variance_or_one_entry_has_no_shares() -> None:
    """Self entries of a diagonal attention all have cw = 1; two tokens leave one entry a group, or none."""
    diagonal = Document(torch.eye(6)[None], torch.ones(6, 1, 1), torch.ones(1, 1, 1))
    shares = factor_shares(moments_of(diagonal)[0])
    assert np.isnan(shares).all()
    moments, left_out = moments_of(random_document(4, n_tokens=2))
    assert moments.n.tolist() == [[1, 1, 0]] * 4 and left_out == 0
    assert np.isnan(factor_shares(moments)).all()


def test_entries_of_a_silent_row_are_left_out() -> None:
    document = random_document(5)
    document.attention[1, 6] = 0
    moments, left_out = moments_of(document)
    assert left_out == 7 and moments.n[1].tolist() == [11, 11, 61] and moments.n[0].tolist() == [12, 12, 66]


def test_a_rotation_changes_nothing_and_sharper_attention_does() -> None:
    document, turned, sharper = (random_document(6, n_tokens=30) for _ in range(3))
    turned.projection = document.projection @ rotation(11)
    before = factor_shares(moments_of(document)[0])
    assert np.allclose(factor_shares(moments_of(turned)[0]), before, atol=1e-3)
    sharper.attention = document.attention**3 / (document.attention**3).sum(-1, keepdim=True)
    assert (factor_shares(moments_of(sharper)[0])[:, 2, 0] > before[:, 2, 0]).all()
