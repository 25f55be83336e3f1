"""Data that break the checks of minimal pairs and probes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.sql.made_up import Columns

Break = Callable[[Columns], None]


def other_verdict(columns: Columns) -> None:
    columns["correct"][1] = not columns["correct"][1]


def direction_breaks(put: Callable[..., Break], drop: Callable[[Any], Break]) -> list[tuple[str, str, Break]]:
    """Which check, in which table, and how; by the functions that make a break."""
    return [
        ("minimal_pairs_complete", "minimal_pairs", drop(0)),
        ("minimal_pairs_complete", "minimal_pairs", drop(3)),
        ("minimal_pairs_scores", "minimal_pairs", put("logp_good", 1, 0.5)),
        ("minimal_pairs_scores", "minimal_pairs", put("logp_bad", 1, np.nan)),
        ("minimal_pairs_scores", "minimal_pairs", other_verdict),
        ("minimal_pairs_scores", "minimal_pairs", put("n_bad", 1, 0)),
        ("minimal_pairs_scores", "minimal_pairs", put("unmoved", 1, 61)),
        ("minimal_pairs_scores", "minimal_pairs", put("n_tokens", 0, 3)),
        ("minimal_pairs_scores", "minimal_pairs", put("delta", 1, -5.0)),
        ("probes_complete", "probes", drop(0)),
        ("probes_scores", "probes", put("metric", 0, "r2")),
        ("probes_scores", "probes", put("score", 0, 1.1)),
        ("probes_scores", "probes", put("score_shuffled", 0, -0.1)),
        ("probes_scores", "probes", put("score_lo", 0, 0.9)),
        ("probes_scores", "probes", put("spearman", 0, 0.5)),
        ("probes_scores", "probes", put("spearman", 3, 1.5)),
        ("probes_scores", "probes", put("score_majority", 3, 0.1)),
    ]
