"""Masked entries and dropped keys against hooks on the plain model, and conditions side by side in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.models.llama import modeling_llama

from tasks.models.intervention_tensors import End, HeldTensors, RankedShare
from tasks.models.interventions import Condition, DropKeys, MaskEntries, Perturb, ScaleHeads, deepest_start
from tasks.models.loading import LoadedModel
from tasks.models.replay import Start
from tests.families import tokens
from tests.oracles.masking import masked_losses
from tests.tasks.models.capturing import assert_near, shared, tiny
from tests.tasks.models.replaying import captured, losses, replayer, starts

IDS = tokens(21, 10)
VARIED = ["llama", "qwen3", "gpt2", "gpt_neox", "gemma2", "gpt_oss", "deepseek_v3", "qwen3_next", "cohere2"]
VARIED += ["mistral-window", "phi", "mixtral", "opt", "lfm2"]


def drawn(loaded: LoadedModel, seed: int, n_heads: int | None = None) -> dict[int, HeldTensors]:
    """A third of the entries of every layer, drawn per document."""
    generator = torch.Generator().manual_seed(seed)
    n_heads = loaded.anatomy.n_heads if n_heads is None else n_heads
    return {
        layer: HeldTensors.of_documents(
            {d: torch.rand(n_heads, len(x), len(x), generator=generator) < 1 / 3 for d, x in enumerate(IDS)}
        )
        for layer in loaded.anatomy.attended
    }


def oracle(loaded: LoadedModel, masks: dict[int, HeldTensors], ids: Sequence[np.ndarray] = IDS) -> Tensor:
    return torch.cat(
        [masked_losses(loaded, x, {layer: held.tensors[d] for layer, held in masks.items()}) for d, x in enumerate(ids)]
    )


@pytest.mark.parametrize("name", VARIED)
def test_masked_entries_are_those_of_hooks_on_the_plain_model(name: str) -> None:
    loaded = shared(name)
    masks, given = drawn(loaded, 5), starts(captured(loaded, IDS), IDS, 0)
    condition = tuple(MaskEntries(layer, held) for layer, held in masks.items())
    got, clean = (losses(list(replayer(loaded).run(0, given, [one]))) for one in (condition, ()))
    want = oracle(loaded, masks)
    assert_near(got.double(), want)
    assert (clean - want).abs().max() > 1e-2


def test_a_family_that_scales_its_scores_by_the_values_width_is_masked_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the GPT-2 of transformers 4 does: one column of values would not do."""
    given_scaling = modeling_llama.eager_attention_forward

    def by_width(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **options: Any) -> Any:
        return given_scaling(module, q, k, v, mask, **{**options, "scaling": v.shape[-1] ** -0.5})

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", by_width)
    test_masked_entries_are_those_of_hooks_on_the_plain_model("llama")


@pytest.mark.parametrize(
    "name", ["llama", "gpt_oss", "qwen3_next", "deepseek_v3", "falcon-7b", "bloom", "gpt_neo", "mpt"]
)
def test_dropped_keys_are_whole_columns_of_entries(name: str) -> None:
    loaded = shared(name)
    given = starts(captured(loaded, IDS), IDS, 0)
    masks, condition = {}, list[DropKeys]()
    for layer in loaded.anatomy.attended:
        columns = {d: torch.zeros(loaded.anatomy.n_heads, len(x), len(x), dtype=torch.bool) for d, x in enumerate(IDS)}
        for mask in columns.values():
            mask[:, :, [0, 3]] = True
        masks[layer] = HeldTensors.of_documents(columns)
        condition.append(DropKeys(layer, (0, 3)))
    assert_near(losses(list(replayer(loaded).run(0, given, [tuple(condition)]))).double(), oracle(loaded, masks))


def test_chosen_heads_alone_lose_their_entries_and_keys() -> None:
    loaded = tiny("llama")
    given = starts(captured(loaded, IDS), IDS, 0)
    chosen, of_two = (3, 1), drawn(loaded, 6, n_heads=2)
    whole: dict[int, HeldTensors] = {}
    for layer, held in of_two.items():
        full = {d: torch.zeros(4, len(x), len(x), dtype=torch.bool) for d, x in enumerate(IDS)}
        for d, mask in full.items():
            mask[list(chosen)] = held.tensors[d]
            mask[0, :, 2] = True  # a key of one of the two heads that share it
        whole[layer] = HeldTensors.of_documents(full)
    condition = [MaskEntries(layer, held, heads=chosen) for layer, held in of_two.items()]
    keys = [DropKeys(layer, (2,), heads=(0,)) for layer in of_two]
    assert_near(losses(list(replayer(loaded).run(0, given, [(*condition, *keys)]))).double(), oracle(loaded, whole))


def test_a_key_dropped_by_the_value_is_one_dropped_by_the_weights() -> None:
    loaded = tiny("llama")
    given = starts(captured(loaded, IDS), IDS, 0)
    one_by_one = [DropKeys(1, (4,), heads=(h,)) for h in range(4)]
    conditions: list[Condition] = [(DropKeys(1, (4,)),), tuple(one_by_one), ()]
    a, b, clean = (losses(list(replayer(loaded).run(1, starts_at(loaded, 1), [one]))) for one in conditions)
    assert_near(a, b)
    assert given and (a - clean).abs().max() > 1e-3


def starts_at(loaded: LoadedModel, layer: int) -> list[Start]:
    return starts(captured(loaded, IDS), IDS, layer)


@pytest.mark.parametrize("batch_tokens", [1, 50, 4096])
@pytest.mark.parametrize("name", ["llama", "gpt_oss", "qwen3_next", "bloom"])
def test_conditions_in_one_batch_are_those_one_by_one(name: str, batch_tokens: int) -> None:
    loaded = shared(name)
    noise = HeldTensors.of_documents({d: torch.full((len(x), 32), 0.1 * (d + 1)) for d, x in enumerate(IDS)})
    at = loaded.anatomy.attended[0]
    conditions: list[Condition] = [
        (),
        (ScaleHeads(at, (2,)),),
        (DropKeys(at, (1,)), Perturb(at, noise)),
        (Perturb(1, noise),),
    ]
    if name != "bloom":
        conditions.append((MaskEntries(at, drawn(loaded, 8)[at]),))
    given = starts_at(loaded, 0)
    together = list(replayer(loaded, batch_tokens=batch_tokens).run(0, given, conditions))
    assert [(one.document, one.condition) for one in together] == [
        (d, c) for d in range(2) for c in range(len(conditions))
    ]
    for c, condition in enumerate(conditions):
        alone = losses(list(replayer(loaded).run(0, given, [condition])))
        assert_near(losses([one for one in together if one.condition == c]), alone)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "qwen3_next", "zamba", "falcon-7b"])
def test_a_condition_is_the_same_from_its_deepest_start(name: str) -> None:
    loaded = shared(name)
    noise = HeldTensors.of_documents({d: torch.full((len(x), 32), 0.1) for d, x in enumerate(IDS)})
    at = loaded.anatomy.attended[-1]
    conditions: list[Condition] = [(Perturb(layer, noise),) for layer in range(3)]
    conditions += [(ScaleHeads(at, (2,)),), (DropKeys(at, (0,)), Perturb(2, noise))]
    for condition in conditions:
        deep = deepest_start(condition, 3)
        assert deep > 0
        got = losses(list(replayer(loaded).run(deep, starts_at(loaded, deep), [condition])))
        assert_near(got, losses(list(replayer(loaded).run(0, starts_at(loaded, 0), [condition]))))


@pytest.mark.parametrize("end", ["highest", "lowest"])
@pytest.mark.parametrize("rate", ["0.01", "0.3", "0.7", "1"])
def test_a_share_of_ranks_is_the_entries_it_counts(rate: str, end: str) -> None:
    generator = torch.Generator().manual_seed(4)
    scores = torch.rand(2, 6, 6, generator=generator)
    candidates = torch.tril(torch.ones(6, 6, dtype=torch.bool)).expand(2, 6, 6)
    n = int(candidates[0].sum())
    ranks = torch.full((2, 6, 6), -1)
    for h in range(2):
        order = scores[h][candidates[h]].argsort(descending=True)
        ranks[h][candidates[h]] = order.argsort()
    share = RankedShare(
        HeldTensors.of_documents({7: ranks}), HeldTensors.of_documents({7: torch.tensor([[[n]], [[n]]])}), rate, end
    )
    got = share.of(7)
    k = round(float(rate) * 1000) * n // 1000
    assert got.sum(dim=(1, 2)).tolist() == [k, k] and not (got & ~candidates).any()
    for h in range(2):
        kept, gone = scores[h][candidates[h] & ~got[h]], scores[h][got[h]]
        if len(kept) and len(gone):
            assert gone.min() > kept.max() if end == "highest" else gone.max() < kept.min()
    assert torch.equal(in_blocks(share), got)
    by_row = RankedShare(share.ranks, HeldTensors.of_documents({7: torch.arange(1, 7)[None, :, None]}), rate, end)
    assert torch.equal(in_blocks(by_row), by_row.of(7))


def in_blocks(share: RankedShare) -> Tensor:
    """The mask of document 7, put together from blocks of queries and keys."""
    halves = [[share.block(7, q, k) for k in (slice(0, 2), slice(2, 6))] for q in (slice(0, 4), slice(4, 6))]
    return torch.cat([torch.cat(row, dim=2) for row in halves], dim=1)


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("end", ["highest", "lowest"])
@pytest.mark.parametrize("rate", ["0.01", "0.3", "1"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zeroing_in_place_is_the_mask(by_row: bool, end: End, rate: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    ranks = torch.stack([torch.randperm(36, generator=generator).view(6, 6) for _ in range(2)]).int()
    ranks[:, torch.ones(6, 6, dtype=torch.bool).triu(1)] = -1
    sizes = torch.arange(31, 37)[None, :, None] if by_row else torch.tensor([[[36]], [[30]]])
    share = RankedShare(HeldTensors.of_documents({7: ranks}), HeldTensors.of_documents({7: sizes}), rate, end)
    padded = torch.rand(2, 5, 7, generator=generator, dtype=dtype) + 1
    values, block = padded[:, :3, 1:6], (slice(2, 5), slice(1, 6))
    want = values.masked_fill(share.block(7, *block), 0)
    assert share.zero(7, values, *block) and torch.equal(values, want)
    assert share.chooses(7) == bool(share.of(7).any()) == (rate != "0.01")


def test_zeroing_in_place_is_refused_where_it_cannot_be_done() -> None:
    ranks, sizes = torch.arange(4).view(1, 2, 2).int(), torch.tensor([[[4]]])
    share = RankedShare(HeldTensors.of_documents({7: ranks}), HeldTensors.of_documents({7: sizes}), "0.5")
    values = torch.ones(1, 2, 2, dtype=torch.bfloat16)
    assert not share.zero(7, values, slice(0, 2), slice(0, 2)) and values.all()


def test_values_are_equal_where_they_do_the_same() -> None:
    a, b, c = (HeldTensors.of_documents({0: torch.arange(3) + n}) for n in (0, 0, 1))
    assert a == b and hash(a) == hash(b) and a != c
    assert (
        HeldTensors.of_documents({1: torch.arange(3)}) != a
        and HeldTensors.of_documents({0: torch.arange(3).int()}) != a
    )
    assert {MaskEntries(0, a), MaskEntries(0, b)} == {MaskEntries(0, a)} != {MaskEntries(0, c)}
    assert RankedShare(a, a, "0.1") == RankedShare(b, b, "0.1") != RankedShare(b, b, "0.2")
    assert RankedShare(a, a, "0.1", "lowest") != RankedShare(a, a, "0.1")
