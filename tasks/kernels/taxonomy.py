"""Head taxonomy: does a head's heaviest contribution come from the query itself, from the sink, or from elsewhere?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from tasks.kernels.values import Values
from tasks.kernels.visibility import CAUSAL, Visibility

WINNERS = ("sink", "self", "other")
"""Where the winner may stand, in the order in which ties between classes are settled."""
CLASSES = ("mixer", "retriever", "reset")
"""The class that each winner makes."""
RULES = ("plurality", "majority", "final_query")
SPLITS = 100
"""Random halvings of the documents behind `agreement`."""


def winners(
    attention: Float[Tensor, "H T T"],
    values: Values,
    *,
    gate: Float[Tensor, "T H d_v"] | None = None,
    visibility: Visibility = CAUSAL,
) -> Int64[np.ndarray, "H n"]:
    """Of each query i = 1 … T−1 where argmax_j α‖v_j‖ stands, as an index of WINNERS; −1 where all of them are 0.

    The products are compared as float32; ties go to the smaller key. A gate multiplies v as it does for that query.
    Reference: Mudarisov et al. 2026, arXiv 2602.01893.
    """
    n_heads, n_tokens, _ = attention.shape
    group = n_heads // len(values.vector)
    found = torch.full((n_heads, n_tokens), -1)
    square_gate = None if gate is None else gate.double().square_().transpose(0, 1)
    for block in visibility.blocks(n_tokens):
        norm = values.norm.repeat_interleave(group, 0)[:, None, block.keys]
        if square_gate is not None:
            square = values.vector[:, block.keys].square().transpose(1, 2).repeat_interleave(group, 0)
            norm = torch.bmm(square_gate[:, block.rows], square).sqrt_()
        score = (attention[:, block.rows, block.keys].double() * norm).float()
        best = score.max(-1)
        key = (score == best.values[..., None]).int().argmax(-1) + block.first_key
        own = key == torch.arange(block.start, block.stop)
        place = torch.where(own, WINNERS.index("self"), WINNERS.index("other"))
        place[key == 0] = WINNERS.index("sink")
        found[:, block.rows] = place.masked_fill_(best.values == 0, -1)
    return found[:, 1:].numpy()


def tally(found: Int64[np.ndarray, "H n"]) -> Int64[np.ndarray, "H 3"]:
    """How often each of WINNERS won, per head."""
    return np.stack([(found == at).sum(1) for at in range(len(WINNERS))], 1)


def classify(counts: Int64[np.ndarray, "*cells 3"] | Float64[np.ndarray, "*cells 3"], rule: str) -> np.ndarray:
    """Index into CLASSES of each tally: the most frequent, ties in the order of WINNERS; −1 where nothing was tallied.

    `majority` makes a head whose most frequent winner has no more than half of the queries a Reset.
    """
    total = counts.sum(-1)
    found = counts.argmax(-1)
    if rule == "majority":
        found = np.where(2 * counts.max(-1) > total, found, CLASSES.index("reset"))
    return np.where(total > 0, found, -1)


def margin(counts: Int64[np.ndarray, "*cells 3"]) -> Float64[np.ndarray, "*cells"]:
    """Share of the most frequent winner less that of the next, 0 … 1; NaN where nothing was tallied."""
    ordered, total = np.sort(counts, axis=-1), counts.sum(-1)
    return (ordered[..., 2] - ordered[..., 1]) / np.where(total > 0, total, np.nan)


def agreement(
    by_document: Int64[np.ndarray, "n *cells 3"], rules: Sequence[str], seed: int
) -> dict[str, Float64[np.ndarray, "*cells"]]:
    """Per rule, in what share of SPLITS seeded halvings of the documents both halves give the same class.

    A halving in which a half has nothing tallied does not count; NaN with fewer than two documents, or where none
    counts. Of an odd number of documents one is left out of each halving.
    """
    n, cells = len(by_document), by_document.shape[1:]
    half = n // 2
    random = np.random.Generator(np.random.Philox(seed))
    same = {rule: np.zeros(cells[:-1]) for rule in rules}
    counted = {rule: np.zeros(cells[:-1]) for rule in rules}
    flat = by_document.reshape(n, -1).astype(np.float64)
    for _ in range(SPLITS if half else 0):
        order = random.permutation(n)
        halves = [flat[part].sum(0).reshape(cells) for part in (order[:half], order[half : 2 * half])]
        for rule in rules:
            left, right = (classify(part, rule) for part in halves)
            both = (left >= 0) & (right >= 0)
            counted[rule] += both
            same[rule] += both & (left == right)
    return {rule: same[rule] / np.where(counted[rule] > 0, counted[rule], np.nan) for rule in rules}
