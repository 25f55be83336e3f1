"""Contribution weights: token scores, row sums and edges against plain loops, identities and edges of the domain."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tasks.kernels.contribution import Contributions, contributions
from tests.tasks.kernels.documents import Document, Sight, random_document, rotation, sights

SCORES = ("raw", "vw", "vwon", "cw_intra", "cw_intra_abs", "cw_inter", "cw_inter_abs")


def measured(document: Document, edges: int = 4, query_block: int = 5) -> Contributions:
    outputs = document.outputs(query_block)
    return contributions(
        document.attention, outputs, edges=edges, visibility=document.visibility, query_block=query_block
    )


@pytest.mark.parametrize("sight", sights(1, 4), ids=str)
@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("gated", [False, True])
def test_token_scores_and_rows_equal_plain_loops(sight: Sight, n_kv_heads: int, gated: bool) -> None:
    document = random_document(1, n_kv_heads=n_kv_heads, gated=gated, **sight)
    result, oracle = measured(document), document.oracle()
    assert len(result.tokens.n_queries) == (oracle.T - 1 if oracle.causal else oracle.T)
    for h in range(oracle.H):
        for j in range(len(result.tokens.n_queries)):
            n, sums = oracle.token_scores(h, j)
            assert result.tokens.n_queries[j] == n
            for name in SCORES:
                assert getattr(result.tokens, name)[h, j] == pytest.approx(sums[name], rel=1e-4, abs=1e-5), name
        for i in range(oracle.T):
            for name, value in oracle.row(h, i).items():
                assert getattr(result.rows, name)[h, i] == pytest.approx(value, rel=1e-4, abs=1e-5), name


@pytest.mark.parametrize("sight", sights(3), ids=str)
@pytest.mark.parametrize("gated", [False, True])
def test_edges_equal_plain_loops(sight: Sight, gated: bool) -> None:
    document = random_document(2, gated=gated, **sight)
    edges, oracle = measured(document).edges, document.oracle()
    for h in range(oracle.H):
        for i in range(oracle.T):
            expected = oracle.edges(h, i, 4)
            assert edges.key[h, i].tolist() == [j for j, _ in expected] + [-1] * (4 - len(expected))
            for rank, (_, entry) in enumerate(expected):
                for name in ("relative_norm", "cosine", "cw_intra", "cw_inter"):
                    assert getattr(edges, name)[h, i, rank] == pytest.approx(entry[name], rel=1e-4, abs=1e-5)
                assert edges.alpha[h, i, rank] == pytest.approx(entry["raw"])
            assert edges.cosine[h, i, len(expected) :].isnan().all()


def test_factors_of_an_edge_multiply_to_its_weight() -> None:
    edges = measured(random_document(3)).edges
    product = edges.alpha * edges.relative_norm * edges.cosine
    there = edges.key >= 0
    assert torch.allclose(product[there], edges.cw_intra[there], atol=1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 1e-3)])
@pytest.mark.parametrize("learned_sink", [False, True])
@pytest.mark.parametrize("gated", [False, True])
def test_rows_sum_to_one(dtype: torch.dtype, tolerance: float, learned_sink: bool, gated: bool) -> None:
    """Σ_j cw_intra = 1 and Σ_h Σ_j cw_inter = 1 for what was stored, whatever the attention rows sum to."""
    document = random_document(4, 6, 3, 300, 16, 48, learned_sink=learned_sink, gated=gated)
    document.attention, document.value = document.attention.to(dtype).float(), document.value.to(dtype).float()
    rows = measured(document, query_block=64).rows
    assert (rows.cw_intra - 1).abs().max() < tolerance
    assert (rows.cw_inter.sum(0) - 1).abs().max() < tolerance


def test_sums_come_from_the_entries() -> None:
    """A control: attention that is not the one behind the outputs must break the identity."""
    document = random_document(5)
    result = contributions(1.1 * document.attention, document.outputs())
    assert (result.rows.cw_intra - 1.1).abs().max() < 1e-4


def test_one_head_is_the_layer() -> None:
    """With a single head cw_inter is cw_intra."""
    tokens = measured(random_document(6, n_heads=1, n_kv_heads=1)).tokens
    assert torch.allclose(tokens.cw_inter, tokens.cw_intra, atol=1e-5)
    assert torch.allclose(tokens.cw_inter_abs, tokens.cw_intra_abs, atol=1e-5)


def test_all_equal_values_make_the_weights_attention() -> None:
    """Closed form: if every value is the same vector, cw_intra = α / Σα, vwon likewise, and no entry is negative."""
    document = random_document(7)
    document.value = document.value[:1].expand_as(document.value).contiguous()
    result = measured(document)
    assert torch.allclose(result.tokens.cw_intra, result.tokens.raw, atol=1e-5)
    assert torch.allclose(result.tokens.vwon, result.tokens.raw, atol=1e-5)
    assert result.rows.negative_share.max() == 0


def test_two_opposed_values_in_closed_form() -> None:
    """α = (0.8, 0.2), v = (1, −1): o = 0.6, cw = (0.8/0.6, −0.2/0.6), share of the negative 0.2/(0.8+0.2)."""
    attention = torch.tensor([[[1.0, 0.0], [0.8, 0.2]]])
    document = Document(attention, torch.tensor([[[1.0]], [[-1.0]]]), torch.ones(1, 1, 1))
    result = measured(document, edges=2)
    assert result.edges.cw_intra[0, 1].tolist() == pytest.approx([4 / 3, -1 / 3])
    assert result.edges.cosine[0, 1].tolist() == pytest.approx([1, -1])
    assert result.rows.negative_share[0, 1] == pytest.approx(0.2)


def test_a_rotation_of_the_output_space_changes_no_score() -> None:
    document, turned = random_document(8), random_document(8)
    turned.projection = document.projection @ rotation(11)
    for name in SCORES:
        before, after = (getattr(measured(d).tokens, name) for d in (document, turned))
        assert torch.allclose(before, after, rtol=1e-3, atol=1e-5), name


def test_a_scaling_of_the_values_changes_vw_alone() -> None:
    document, scaled = random_document(9), random_document(9)
    scaled.value = 3 * document.value
    before, after = measured(document).tokens, measured(scaled).tokens
    assert torch.allclose(after.vw, 3 * before.vw, rtol=1e-4)
    for name in ("vwon", "cw_intra", "cw_inter"):
        assert torch.allclose(getattr(after, name), getattr(before, name), rtol=1e-3, atol=1e-5), name


def test_a_change_of_one_value_is_seen() -> None:
    document, changed = random_document(10), random_document(10)
    changed.value[3] += 1
    difference = (measured(document).tokens.cw_intra - measured(changed).tokens.cw_intra).abs()
    assert difference.max() > 1e-2


def test_blocks_equal_the_whole() -> None:
    document = random_document(11, n_tokens=70)
    whole = measured(document, query_block=100)
    for query_block in (1, 8, 64):
        part = measured(document, query_block=query_block)
        for name in SCORES:
            assert torch.allclose(getattr(part.tokens, name), getattr(whole.tokens, name), rtol=1e-3, atol=1e-4), name
        assert torch.equal(part.edges.key, whole.edges.key)


def test_the_last_position_predicts_nothing() -> None:
    """What the last query attends to enters rows and edges, never a token score."""
    document, changed = random_document(12), random_document(12)
    changed.attention[:, -1] = torch.eye(13)[0]
    before, after = measured(document), measured(changed)
    assert torch.equal(before.tokens.raw, after.tokens.raw)
    assert torch.allclose(before.tokens.cw_inter_abs, after.tokens.cw_inter_abs, atol=1e-6)
    assert not torch.allclose(before.rows.negative_share[:, -1], after.rows.negative_share[:, -1], atol=1e-3)


def test_one_token() -> None:
    result = measured(random_document(13, n_tokens=1))
    assert result.tokens.raw.shape == (4, 0) and len(result.tokens.n_queries) == 0
    assert result.edges.key[:, 0].tolist() == [[0, -1, -1, -1]] * 4
    assert torch.allclose(result.rows.cw_intra, torch.ones(4, 1))


@pytest.mark.parametrize("sight", sights(3), ids=str)
def test_a_row_that_writes_nothing_is_undefined_and_nothing_else_is(sight: Sight) -> None:
    document = random_document(14, **sight)
    document.attention[1, 6] = 0  # as where learned sinks take all of it
    result, oracle = measured(document), document.oracle()
    for name in ("cw_intra", "negative_share"):
        undefined = getattr(result.rows, name).isnan()
        assert undefined.nonzero().tolist() == [[1, 6]]
    assert (result.edges.key[1, 6] == -1).all() and (result.edges.key[0, 6, :3] >= 0).all()
    for h in range(4):
        for j in range(len(result.tokens.n_queries)):
            _, sums = oracle.token_scores(h, j)
            for name in SCORES:
                assert getattr(result.tokens, name)[h, j] == pytest.approx(sums[name], rel=1e-4, abs=1e-5, nan_ok=True)
    assert result.tokens.vwon.isnan().any() and not result.tokens.cw_inter.isnan().any()


def test_a_layer_that_writes_nothing_has_no_inter_weights() -> None:
    document = random_document(15)
    document.projection.zero_()
    result = measured(document)
    assert result.rows.cw_inter.isnan().all() and result.tokens.cw_inter.isnan().all()
    assert not result.tokens.vw.isnan().any() and (result.edges.key == -1).all()


def test_heads_that_cancel_leave_intra_defined() -> None:
    """Two heads that write the opposite of each other: ‖o[i]‖ = 0 while each ‖o[h,i]‖ is not."""
    document = random_document(16, n_heads=2, n_kv_heads=1)
    document.attention[1], document.projection[1] = document.attention[0], -document.projection[0]
    result = measured(document)
    assert result.rows.cw_inter.isnan().all() and result.edges.cw_inter.isnan().all()
    assert torch.allclose(result.rows.cw_intra, torch.ones(2, 13), atol=1e-5)


def test_an_edge_without_attention_keeps_its_angle() -> None:
    """Attention that underflowed to 0 leaves cw = 0; the angle between the two vectors is still defined."""
    document = random_document(17, n_tokens=3)
    document.attention[:, 2] = torch.tensor([1.0, 0.0, 0.0])
    edges, oracle = measured(document).edges, document.oracle()
    assert edges.key[0, 2].tolist() == [0, 1, 2, -1]
    for rank in (1, 2):
        assert edges.cw_intra[0, 2, rank] == 0
        assert edges.cosine[0, 2, rank] == pytest.approx(oracle.scores(0, 2, rank)["cosine"], abs=1e-5)


def test_float32_keeps_the_identity_on_a_peaked_row() -> None:
    document = random_document(18, 2, 2, 400, 8, 16)
    document.attention = (20 * document.attention.clamp_min(1e-30).log()).softmax(-1) * (document.attention > 0)
    rows = measured(document, query_block=64).rows
    assert np.abs(rows.cw_intra.numpy() - 1).max() < 1e-5


def test_no_edges_are_refused() -> None:
    document = random_document(19)
    with pytest.raises(ValueError, match="at least one edge a row, got 0"):
        contributions(document.attention, document.outputs(), edges=0)
