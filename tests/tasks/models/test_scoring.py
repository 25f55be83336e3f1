"""Likelihoods a few positions at a time equal the plain model's full logits."""

from __future__ import annotations

import pytest
import torch

from tasks.models import scoring
from tests.families import DECODERS, VOCABULARY, tokens
from tests.tasks.models.capturing import assert_near, capture, nll_of, plain_of, shared, tiny


@pytest.mark.parametrize("name", DECODERS)
def test_nll_is_the_cross_entropy_of_the_plain_models_logits(name: str) -> None:
    loaded, ids = shared(name), tokens(29, 5)
    for document, got in zip(ids, capture(loaded, ids), strict=True):
        assert got.nll.dtype == torch.float32 and torch.isnan(got.nll[0])
        want = nll_of(plain_of(loaded, document).logits, document)
        assert_near(got.nll[1:].double(), want)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
def test_logits_are_never_made_for_more_positions_than_allowed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, ids = tiny(name), tokens(29, 8)
    whole = capture(loaded, ids)
    monkeypatch.setattr(scoring, "_LOGIT_BYTES", 4 * VOCABULARY * 5)
    rows: list[int] = []
    head = loaded.model.get_output_embeddings()
    head.register_forward_hook(lambda _m, _a, out: rows.append(out.shape[:-1].numel()))
    for got, want in zip(capture(loaded, ids), whole, strict=True):
        assert_near(got.nll[1:], want.nll[1:])
    assert max(rows) == 5 and sum(rows) == 28 + 7  # the last token of a document predicts nothing


def test_the_final_softcap_is_applied() -> None:
    """Gemma 2 caps its logits at ±2 here: no token can be less likely than e^-4 times the most likely."""
    loaded = tiny("gemma2")
    loaded.model.get_output_embeddings().weight.mul_(100)
    nll = capture(loaded, tokens(29))[0].nll[1:]
    assert nll.max() <= 4 + torch.tensor(float(VOCABULARY)).log()


def test_a_document_of_one_token_has_no_likelihood() -> None:
    got = capture(tiny("llama"), tokens(1, 4))
    assert torch.isnan(got[0].nll).tolist() == [True]
    assert torch.isnan(got[1].nll).tolist() == [True, False, False, False]


def test_the_model_itself_is_left_as_it_was() -> None:
    loaded, ids = tiny("llama"), tokens(12)[0]
    before = plain_of(loaded, ids).logits
    capture(loaded, [ids])
    assert loaded.model.model is loaded.anatomy.body
    assert torch.equal(plain_of(loaded, ids).logits, before)
