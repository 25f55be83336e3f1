"""Entries that go by their rank: compared and zeroed in one walk, where torch makes a mask in three passes first."""

from __future__ import annotations

import numpy as np

from tasks.kernels.compiled import compiled


@compiled
def zero_ranked(
    values: np.ndarray, ranks: np.ndarray, low: np.ndarray, high: np.ndarray, first_row: int, first_column: int
) -> None:
    """Zero values (H, q, K), in place, where low ≤ rank < high.

    ranks (H, T, T): of which the block's rows and columns begin at `first_row` and `first_column`; low and high (H, 1)
    or (H, T): of each head, or of each of its rows.
    """
    for h in range(values.shape[0]):
        for m in range(values.shape[1]):
            at = first_row + m if low.shape[1] > 1 else 0
            least, most = low[h, at], high[h, at]
            row, rank = values[h, m], ranks[h, first_row + m]
            for k in range(values.shape[2]):
                r = rank[first_column + k]
                row[k] = row[k] * 0 if (r >= least) & (r < most) else row[k]
