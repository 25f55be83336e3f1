"""Batches of unequal documents: padding on either side changes no number and reaches nobody."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

from storage.errors import CorpusError, ModelError, UsageError
from tasks.models.run import TapSettings
from tests.families import NAMES, tokens
from tests.tasks.models.capturing import assert_near, capture, plain_of, shared, tiny


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("name", NAMES)
def test_a_padded_batch_equals_its_documents_alone(name: str, padding: str) -> None:
    loaded, ids = shared(name), tokens(13, 29, 1, 7)
    if (name, padding) == ("distilbert", "left") and int(transformers.__version__.split(".")[0]) < 5:
        with pytest.raises(ModelError, match=r"positions that can be given to DistilBERT.*--padding right"):
            capture(loaded, ids, padding=padding)
        return
    older = int(transformers.__version__.split(".")[0]) < 5
    kind = loaded.anatomy.kind
    if padding == "left" and (not kind.left_padding or (kind.hybrid and older)):
        with pytest.raises(ModelError, match=rf"{kind.name}, whose layers without attention mix padding in.*right"):
            capture(loaded, ids, padding=padding)
        return
    rounding = 3e-5 if kind.hybrid else 1e-5  # a scan over chunks adds up in another order where there is padding
    together = capture(loaded, ids, padding=padding)
    for document, got in zip(ids, together, strict=True):
        alone = capture(loaded, [document])[0]
        assert len(got.nll) == len(document) and torch.isnan(got.nll[0])
        if loaded.anatomy.causal:
            assert_near(got.nll[1:], alone.nll[1:])
        for kind in ("attention", "value", "output_input", "residual", "sink_mass", "gate"):
            for a, b in zip(getattr(got, kind), getattr(alone, kind), strict=True):
                assert_near(a, b, rounding)


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("name", NAMES)
def test_the_padding_tokens_id_in_a_document_is_what_the_plain_model_makes_of_it(name: str, padding: str) -> None:
    """RoBERTa reads positions off token ids, and gives that token none; every other family takes it as any token."""
    loaded = tiny(name)
    kind, older = loaded.anatomy.kind, int(transformers.__version__.split(".")[0]) < 5
    if padding == "left" and (not kind.left_padding or (older and (kind.hybrid or kind.counts_padding))):
        pytest.skip(f"{kind.name} takes no padding on the left")
    (first, second), pad = tokens(13, 9), loaded.model.config.pad_token_id
    first[[0, 4, 5, 12]], second[3] = pad, pad
    for ids, got in zip((first, second), capture(loaded, [first, second], padding=padding), strict=True):
        want = plain_of(loaded, ids)
        for at in range(len(loaded.anatomy.attended)):
            assert_near(got.attention[at], want.attentions[at], 3e-5)
        for layer in range(loaded.anatomy.n_layers):
            assert_near(got.residual[layer], want.hidden_states[layer], 3e-5)


@pytest.mark.parametrize("padding", ["right", "left"])
def test_padding_is_not_a_token_of_any_document(padding: str) -> None:
    """The control: the ids that fill up a batch are real tokens, and would be seen if they were not masked."""
    loaded = tiny("llama")
    filled = np.concatenate([np.zeros(4, np.int32), tokens(9)[0]])
    seen = capture(loaded, [filled])[0]
    masked = capture(loaded, [tokens(9)[0], tokens(13, seed=5)[0]], padding=padding)[0]
    assert (seen.nll[5:] - masked.nll[1:]).abs().max() > 1e-2


def test_a_batch_that_cannot_be_run_is_refused_by_name() -> None:
    loaded = tiny("gpt2")
    with pytest.raises(ModelError, match=r"at most the model's 64 positions, got 65 tokens, in document 10"):
        capture(loaded, tokens(65))
    with pytest.raises(CorpusError, match=r"below the vocabulary's 61, got 61, in document 11, position 2"):
        capture(loaded, [tokens(3)[0], np.array([1, 2, 61], np.int32)])
    with pytest.raises(CorpusError, match=r"at least one token, got none, in document 10"):
        capture(loaded, [np.array([], np.int32)])


def test_settings_are_checked() -> None:
    with pytest.raises(UsageError, match="padding right or left, got 'middle'"):
        TapSettings(padding="middle")
    with pytest.raises(UsageError, match="query block of at least 1, got 0"):
        TapSettings(query_block=0)
    with pytest.raises(UsageError, match="float32, float16, bfloat16, got 'int8'"):
        TapSettings(dtypes={"attention": "int8"})
