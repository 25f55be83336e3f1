"""Replay from any layer gives the full pass's loss, for every family that predicts tokens."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from storage.errors import CaptureCheckError, CorpusError, ModelError, UsageError
from tasks.models.intervention_tensors import HeldTensors, RankedShare
from tasks.models.interventions import (
    Condition,
    DropKeys,
    Intervention,
    MaskEntries,
    Perturb,
    Restore,
    ScaleHeads,
)
from tasks.models.replay import Start
from tests.families import REPLAYABLE, tokens
from tests.tasks.models.capturing import assert_near, shared, tiny
from tests.tasks.models.replaying import captured, losses, replayer, starts


@pytest.mark.parametrize("name", REPLAYABLE)
def test_a_replay_from_any_layer_gives_the_full_passs_loss(name: str) -> None:
    loaded, ids = shared(name), tokens(29, 7, 18)
    documents = captured(loaded, ids)
    want = torch.cat([document.nll[1:] for document in documents])
    for layer in range(loaded.anatomy.n_layers + 1):
        got = list(replayer(loaded).run(layer, starts(documents, ids, layer)))
        assert [(one.document, one.condition, one.n_predicted) for one in got] == [(0, 0, 28), (1, 0, 6), (2, 0, 17)]
        assert_near(losses(got), want)
        assert got[0].nll_sum == pytest.approx(documents[0].nll[1:].double().sum().item(), rel=1e-5)


def test_only_the_residual_stream_and_the_layers_above_decide() -> None:
    """Weights below the layer may be anything, and the capture's own model is as it was."""
    loaded, ids = tiny("llama"), tokens(29, 7)
    documents = captured(loaded, ids)
    run = replayer(loaded)
    want = losses(list(run.run(2, starts(documents, ids, 2))))
    with torch.no_grad():
        for layer in loaded.anatomy.layers[:2]:
            for weight in layer.parameters():
                weight.fill_(torch.nan)
    assert torch.equal(losses(list(run.run(2, starts(documents, ids, 2)))), want)
    others = starts(documents, ids, 1)
    assert not torch.equal(losses(list(run.run(2, others))), want)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bloom", "qwen3_next"])
def test_a_replay_leaves_the_model_and_its_captures_as_they_were(name: str) -> None:
    loaded, ids = shared(name), tokens(29, 7)
    hooks = {part: (len(part._forward_hooks), len(part._forward_pre_hooks)) for part in loaded.model.modules()}
    before = captured(loaded, ids)
    run = replayer(loaded)
    given = starts(before, ids, 1)
    list(run.run(1, given, [(), (ScaleHeads(loaded.anatomy.attended[-1], (0,)),)]))
    after = captured(loaded, ids)
    assert all(
        torch.equal(a, b)
        for x, y in zip(before, after, strict=True)
        for a, b in zip(x.residual, y.residual, strict=True)
    )
    assert hooks == {part: (len(part._forward_hooks), len(part._forward_pre_hooks)) for part in loaded.model.modules()}
    own = {weight.data_ptr() for weight in loaded.model.parameters()}
    assert {weight.data_ptr() for weight in run._partial.loaded.model.parameters()} == own


def test_two_threads_may_run_one_model_under_other_conditions() -> None:
    loaded, ids = tiny("llama"), tokens(29, 7)
    documents = captured(loaded, ids)
    run = replayer(loaded)
    conditions = [(ScaleHeads(1, (head,)),) for head in range(4)] * 4

    def one(condition: Condition) -> torch.Tensor:
        return losses(list(run.run(0, starts(documents, ids, 0), [condition])))

    want = [one(condition) for condition in conditions]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(one, conditions))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


HELD = HeldTensors.of_documents({0: torch.zeros(29, 29, dtype=torch.bool)})


@pytest.mark.parametrize(
    ("layer", "condition", "message"),
    [
        (4, (), "expected a layer from 0 to 3 to replay from, got 4, in tiny-llama"),
        (-1, (), "expected a layer from 0 to 3 to replay from, got -1"),
        (0, (ScaleHeads(3, (0,)),), "expected a layer from 0 to 2, got 3, in ScaleHeads, tiny-llama"),
        (2, (ScaleHeads(1, (0,)),), "expected a layer that a replay from layer 2 computes, got 1"),
        (2, (ScaleHeads(1, (0,)),), "Replay from layer 1, or an earlier one"),
        (2, (Perturb(0, HELD),), "Replay from layer 1, or an earlier one"),
        (0, (ScaleHeads(0, (1, 4)),), "expected heads from 0 to 3, got 4"),
        (0, (MaskEntries(0, HELD, heads=(-1,)),), "expected heads from 0 to 3, got -1"),
        (0, (ScaleHeads(0, (1, 1)),), r"expected different heads, at least one, got \[1, 1\]"),
        (0, (ScaleHeads(0, ()),), "at least one"),
        (0, (DropKeys(0, (29,)),), "expected positions from 0 to 28, got 29, in document 0"),
        (0, (DropKeys(0, (-1,)),), "expected positions from 0 to 28, got -1"),
        (0, (Restore(0, "values", HELD),), "expected a part: attention_output, .* got 'values'"),
        (0, (MaskEntries(0, HeldTensors.of_documents({9: torch.zeros(1)})),), "given a tensor for, got 0, in 9"),
    ],
)
def test_what_is_not_there_is_refused(layer: int, condition: Condition, message: str) -> None:
    loaded, ids = tiny("llama"), tokens(29)
    documents = captured(loaded, ids)
    with pytest.raises(UsageError, match=message):
        list(replayer(loaded).run(layer, starts(documents, ids, 0), [condition]))


@pytest.mark.parametrize(
    ("name", "called"), [("bloom", "BLOOM"), ("mpt", "MPT"), ("falcon-7b", "Falcon"), ("gpt_neo", "GPT-Neo")]
)
def test_what_lies_inside_a_familys_own_attention_is_refused_by_name(name: str, called: str) -> None:
    loaded, ids = shared(name), tokens(29)
    given = starts(captured(loaded, ids), ids, 0)
    within: list[Intervention] = [MaskEntries(0, HELD), Restore(0, "attention_weights", HELD)]
    within.append(DropKeys(0, HELD, by_head=True))
    for intervention in within:
        with pytest.raises(ModelError, match=f"got {called}, which computes attention inside its own module"):
            list(replayer(loaded).run(0, given, [(intervention,)]))


def test_layers_that_reuse_keys_and_values_are_refused_by_name() -> None:
    with pytest.raises(ModelError, match="to begin a replay at, got Gemma 3n, whose later layers reuse those"):
        replayer(tiny("gemma3n_text"))


def test_layers_without_attention_and_parts_that_are_not_there_are_refused() -> None:
    loaded, ids = tiny("lfm2"), tokens(29)
    given = starts(captured(loaded, ids), ids, 0)
    with pytest.raises(UsageError, match=r"expected a layer that has attention \(1\), got 0"):
        list(replayer(loaded).run(0, given, [(ScaleHeads(0, (0,)),)]))
    with pytest.raises(UsageError, match="expected a layer from 0 that has a attention_output, got 0"):
        replayer(loaded).parts(0, given, {"attention_output": frozenset({0, 1})})
    other = tiny("olmo2")
    given = starts(captured(other, ids), ids, 0)
    with pytest.raises(UsageError, match="that has a norm_output, got 1"):
        replayer(other).parts(0, given, {"norm_output": frozenset({1})})
    clean = HeldTensors.of_documents({0: torch.zeros(2, 29, 32)})
    with pytest.raises(CaptureCheckError, match="expected Restore to find the place that it changes"):
        list(replayer(other).run(0, given, [(Restore(1, "norm_output", clean),)]))


def test_documents_that_do_not_fit_the_model_are_refused() -> None:
    loaded = tiny("llama")
    wrong = Start(3, tokens(5)[0], torch.zeros(4, 32))
    with pytest.raises(UsageError, match=r"residual stream of shape \(5, 32\), got \(4, 32\), in document 3"):
        list(replayer(loaded).run(0, [wrong]))
    with pytest.raises(CorpusError, match="below the vocabulary's 61, got 99, in document 3"):
        list(replayer(loaded).run(0, [Start(3, np.array([1, 99]), torch.zeros(2, 32))]))
    with pytest.raises(ModelError, match="expected a model that predicts the next token, got BERT"):
        replayer(tiny("bert"))
    for setting in ("query_block", "batch_tokens"):
        with pytest.raises(UsageError, match="of at least 1, got 0"):
            replayer(loaded, **{setting: 0})
    for rate in ("0", "1.5", "-0.1", "much"):
        with pytest.raises(UsageError, match=rf"a rate in \(0, 1\], as a decimal, got '{rate}'"):
            RankedShare(HELD, HELD, rate)
