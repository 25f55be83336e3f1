"""Made-up figures of probes that obey what holds of them."""

from __future__ import annotations

from itertools import product

import numpy as np

from tests.sql.made_up import LAYERS, Columns

SCORES = {"direction": 0.7, "magnitude": 0.2, "both": 0.75}


def probes_columns() -> dict[str, Columns]:
    """The table `probes`: every layer, and what leaves the last."""
    rows = []
    for layer, target, (feature, score) in product(range(LAYERS + 1), ("pos", "depth"), SCORES.items()):
        own, of_depth = score + layer / 100, target == "depth"
        figures = {"score": own, "score_lo": own - 0.05, "score_hi": own + 0.05}
        figures |= {"score_majority": -0.01 if of_depth else 0.25, "score_shuffled": -0.02 if of_depth else 0.21}
        figures |= {"spearman": own if of_depth else np.nan, "metric": "r2" if of_depth else "accuracy"}
        counts = {"n_train": 80, "n_test": 20, "n_classes": 1 if of_depth else 17, "penalty": 0.01}
        rows.append({"layer": layer, "target": target, "feature": feature, **figures, **counts, "converged": True})
    columns = {name: np.asarray([row[name] for row in rows]) for name in rows[0]}
    return {"probes": {name: v.astype(object) if v.dtype.kind == "U" else v for name, v in columns.items()}}
