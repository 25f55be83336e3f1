"""Entropy of rows against plain loops and closed forms."""

from __future__ import annotations

import math

import pytest
import torch

from tasks.kernels.entropy import row_entropy
from tasks.kernels.visibility import Visibility
from tests.tasks.kernels.documents import random_document


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("learned_sink", [True, False])
def test_as_plain_loops(causal: bool, learned_sink: bool) -> None:
    """In blocks of any size; a row beside a learned sink sums to less than 1, and stays so."""
    window = 4 if causal else None
    made = random_document(3, n_tokens=11, window=window, learned_sink=learned_sink, causal=causal)
    for block in (1, 5, 64):
        found = row_entropy(made.attention, visibility=Visibility(window, causal), query_block=block)
        for h, i in ((h, i) for h in range(len(found)) for i in range(11)):
            alpha = made.attention[h, i].double().tolist()
            assert float(found[h, i]) == pytest.approx(-sum(a * math.log(a) for a in alpha if a > 0), abs=1e-12)


def test_one_key_and_many() -> None:
    """Nothing is uncertain of one key; k even weights have log k; what does not sum to 1 is not made to."""
    attention = torch.tensor([[[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 1, 0], [0.25] * 4], [[0.5, 0, 0, 0]] * 4])
    found = row_entropy(attention)
    assert found[0].tolist() == pytest.approx([0, math.log(2), 0, math.log(4)])
    assert found[1].tolist() == pytest.approx([0.5 * math.log(2)] * 4)
