"""Entropy of rows of attention: how evenly a head spreads a query's weight."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from tasks.kernels.visibility import CAUSAL, QUERY_BLOCK, Visibility


def row_entropy(
    attention: Float[Tensor, "H T T"], *, visibility: Visibility = CAUSAL, query_block: int = QUERY_BLOCK
) -> Float64[Tensor, "H T"]:
    """−Σ_j α log α of every row over the keys that the query sees, in nats; a weight of 0 adds nothing.

    Of α as it is: a row that sums to less than 1, as beside a learned sink, is not renormalised, and the mass that the
    sink takes is no key's. At most log of the number of keys for a row that sums to 1.
    """
    n_heads, n_tokens, _ = attention.shape
    found = torch.empty(n_heads, n_tokens, dtype=torch.float64)
    for block in visibility.blocks(n_tokens, query_block):
        found[:, block.rows] = torch.special.entr(attention[:, block.rows, block.keys].double()).sum(-1)
    return found
