"""Made-up log-probabilities of minimal pairs, clean and perturbed, that obey what holds of them."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from tests.sql.made_up import Columns

TASKS, ITEMS, SEEDS = ("det", "plural"), 8, 2
DELTAS = (1.0, 5.0)


def pair_columns() -> dict[str, Columns]:
    """The table `minimal_pairs`: of every pair the clean model, then each condition."""
    named = ("protocol", "arm", "pair_noise", "delta_kind", "layers", "first_token")
    conditions: list[dict[str, Any]] = [{**dict.fromkeys(named, "none"), "delta": 0.0, "seed": 0}]
    for arm, delta, noise, seed in product(("magnitude", "angle"), DELTAS, ("shared", "independent"), range(SEEDS)):
        words = ("exact", arm, noise, "absolute", "all", "include")
        conditions.append({**dict(zip(named, words, strict=True)), "delta": delta, "seed": seed})
    random, rows = np.random.default_rng(5), []
    for task, item, condition in product(TASKS, range(ITEMS), conditions):
        good, bad = -20 - 5 * random.random(2)
        good += 2.0 if condition["arm"] == "none" else 0.5
        moved = 0 if condition["arm"] == "none" else 60
        answer = {"logp_good": good, "logp_bad": bad, "correct": good > bad, "first_scored": True}
        counts = {"n_good": 5, "n_bad": 6, "n_tokens": moved, "unmoved": moved // 60}
        rows.append({"task": task, "item": item, **condition, **answer, **counts})
    columns = {name: np.asarray([row[name] for row in rows]) for name in rows[0]}
    return {"minimal_pairs": {name: v.astype(object) if v.dtype.kind == "U" else v for name, v in columns.items()}}
