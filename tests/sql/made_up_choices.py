"""Made-up answers to multiple-choice questions, clean and masked, that obey the identities of their table."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from tests.sql.made_up import Columns

TASKS = {"boolq": (2, 12), "mmlu": (4, 8)}
"""Task → choices of a question, questions."""
SCORES, DIRECTIONS, RATES, DRAWS = ("raw", "random"), ("comprehensiveness", "sufficiency"), (0.1, 0.5), 2


def choices_columns() -> dict[str, Columns]:
    """The table `choices`: of every question the clean model, then each condition."""
    clean = dict.fromkeys(("scope", "reduce", "direction", "sign", "layers", "score"), "none")
    conditions: list[dict[str, Any]] = [{**clean, "draw": 0, "rate": 0.0}]
    masked = {"scope": "entry", "reduce": "none", "sign": "absolute", "layers": "all"}
    for score, direction, rate in product(SCORES, DIRECTIONS, RATES):
        for draw in range(DRAWS if score == "random" else 1):
            conditions.append({**masked, "score": score, "direction": direction, "rate": rate, "draw": draw})
    random, rows = np.random.default_rng(11), []
    for task, (n_choices, n_items) in TASKS.items():
        for item, condition in product(range(n_items), conditions):
            label, logs, tokens = item % n_choices, random.normal(size=n_choices), random.integers(1, 5, n_choices)
            logs[label] += 0.5
            answer = {
                "label": label,
                "picked": logs.argmax(),
                "picked_normalised": (logs / tokens).argmax(),
                "margin": logs[label] - np.delete(logs, label).max(),
                "n_choices": n_choices,
            }
            rows.append({"task": task, "item": item, "keep_first": False, **condition, **answer})
    columns = {name: np.asarray([row[name] for row in rows]) for name in rows[0]}
    return {"choices": {name: v.astype(object) if v.dtype.kind == "U" else v for name, v in columns.items()}}
