"""A hidden state taken apart: which way it points, and how long it is."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64


def direction_and_magnitude(
    states: Float64[np.ndarray, "n D"],
) -> tuple[Float64[np.ndarray, "n D"], Float64[np.ndarray, "n 1"]]:
    """ĥ = h/‖h‖ and ‖h‖ of each hidden state, which together are the state: h = ‖h‖ ĥ.

    states: (n, D), finite. Returns unit vectors (n, D), NaN where ‖h‖ = 0 and so no direction exists, and lengths
    (n, 1), ≥ 0. Scaling a state moves its length alone, turning it its direction alone.
    Vardhan & Teja 2026 (arXiv 2602.11169), probes.
    """
    norm = np.linalg.norm(states, axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        return states / norm, norm
