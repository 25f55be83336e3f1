"""Output length against sink rate, as its mean in equal bins."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from tasks.kernels.moments import Moments


def bin_moments(sink_rate: Float[np.ndarray, "H n"], output_norm: Float[np.ndarray, "H n"], bins: int) -> Moments:
    """Moments of ‖o‖ (co-moment too) and of a in `bins` equal bins of a over [0, 1]: cells (H, bins).

    Variables: output norm, sink rate, one sample per query. A bin holds its lower edge; the last one holds 1 too, and
    what rounding puts above it.
    """
    n_heads = len(sink_rate)
    a, y = sink_rate.astype(np.float64).ravel(), output_norm.astype(np.float64).ravel()
    at = np.clip(np.floor(a * bins), 0, bins - 1).astype(np.int64)
    at += np.repeat(np.arange(n_heads), sink_rate.shape[1]) * bins
    n = np.bincount(at, minlength=n_heads * bins)
    mean = np.stack([np.bincount(at, weights=x, minlength=len(n)) for x in (y, a)], -1)
    mean = np.divide(mean, n[:, None], out=np.zeros_like(mean), where=n[:, None] > 0)
    spread = np.bincount(at, weights=np.square(y - mean[at, 0]), minlength=len(n))
    cells = (n_heads, bins)
    return Moments(n.reshape(cells), mean.reshape(*cells, 2), spread.reshape(*cells, 1, 1))
