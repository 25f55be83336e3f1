"""Token selection on a real model: bounds and certificate hold on every row, and the figures are the oracle's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tasks.kernels.selection import DISTANCES, RANKINGS, SINKS, SIZES, Selections
from tasks.kernels.values import Values, coherence
from tests.oracles.selection import Oracle

TOKENS = 160
Layer = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture(scope="module")
def layers(fixtures: Path) -> list[Layer]:
    """Attention (H, T, T) and values (T, H_kv, d_v) of every layer of stories260K, by transformers' own attention."""
    from transformers import AutoModelForCausalLM

    folder = str(fixtures / "models" / "stories260K")
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    tokens = torch.randint(3, model.config.vocab_size, (1, TOKENS), generator=torch.Generator().manual_seed(0))
    tokens[0, 0] = 1
    tokens[0, 40:80] = tokens[0, 80:120]  # repeated tokens give collinear values in layer 0
    values: list[torch.Tensor] = []
    for layer in model.model.layers:
        layer.self_attn.v_proj.register_forward_hook(lambda _m, _i, out: values.append(out[0]))
    with torch.inference_mode():
        attention = model(tokens, output_attentions=True).attentions
    heads = model.config.num_key_value_heads
    return [(a[0].clone(), v.unflatten(-1, (heads, -1)).clone()) for a, v in zip(attention, values, strict=True)]


@pytest.mark.parametrize("ranking", RANKINGS)
@pytest.mark.parametrize("sink", SINKS)
def test_bounds_and_certificate_hold_on_every_row(layers: list[Layer], ranking: str, sink: str) -> None:
    n, certified = np.array(SIZES), 0
    for attention, value in layers:
        values = Values.of(value)
        found = Selections(attention, values, coherence=coherence(values)).select(torch.arange(TOKENS), ranking, sink)
        there = np.broadcast_to(found.defined, found.mass.shape)
        for distance in DISTANCES:
            s = found.by_distance[distance]
            assert (s.precision >= n / (n + s.inversions) - 1e-6)[there].all()
            assert (s.recall >= 1 - s.inversions / n - 1e-6)[there].all()
            assert ((s.margin > 0) == (s.inversions == 0))[there].all()
            assert ((s.f_score == 1) == (s.inversions == 0))[there].all()
        s = found.by_distance["euclidean"]
        assert (found.certified_precision <= s.precision)[there].all()
        assert (found.certified_recall <= s.recall)[there].all()
        certified += int((found.certified_recall > 0)[there].sum())
    assert certified > 1000


@pytest.mark.parametrize("query", [TOKENS - 1, 79])
def test_real_rows_are_the_oracle_s(layers: list[Layer], query: int) -> None:
    for attention, value in layers[:2]:
        selections = Selections(attention, Values.of(value))
        oracle = Oracle(attention.numpy(), value.numpy())
        for ranking in RANKINGS:
            found = selections.select(torch.tensor([query]), ranking, "included")
            for h in range(oracle.H):
                row = oracle.row(h, query)
                order = row.order(ranking)
                for at, n in enumerate(SIZES):
                    if n < len(row.keys):
                        for distance in DISTANCES:
                            figures, s = row.select(order, n, distance), found.by_distance[distance]
                            assert s.inversions[h, 0, at] == figures["inversions"]
                            assert s.precision[h, 0, at] == np.float32(figures["precision"])
                            assert s.recall[h, 0, at] == np.float32(figures["recall"])
