"""Words that columns of choices do not have."""

from __future__ import annotations

import numpy as np

from tasks.stages.registry import tables
from tests.sql.breaks import Break
from tests.sql.made_up import Columns

WRONG_WORDS: dict[str, dict[str, tuple[str, ...]]] = {
    **{
        table: {
            "protocol": ("paper",),
            "arm": ("none",),
            "delta_kind": ("share",),
            "layers": ("middle",),
            "first_token": ("yes",),
        }
        for table in ("perturbation", "displacement", "propagation")
    },
    "repair": {
        "protocol": ("paper",),
        "arm": ("none",),
        "delta_kind": ("share",),
        "layers": ("middle",),
        "first_token": ("yes",),
        "target": ("residual",),
        "repaired_layers": ("first_half",),
    },
    "minimal_pairs": {
        "protocol": ("ours",),
        "arm": ("phase",),
        "pair_noise": ("same",),
        "delta_kind": ("absolutely",),
        "first_token": ("yes",),
        "layers": ("10-",),
    },
    "probes": {"target": ("upos",), "feature": ("norm",), "metric": ("f1",)},
    "token_scores": {"reduce": ("Mean",)},
    "contribution_factors": {"token_group": ("first",)},
    "semantic_cone": {"row_group": ("high",), "sink": ("gone",)},
    "captures": {"norm": ("LayerNorm",)},
    "masking": {
        "scope": ("entries",),
        "reduce": ("max",),
        "direction": ("necessity",),
        "sign": ("signs",),
        "score": ("cw",),
        "layers": ("every", "3-"),
    },
    "sink_removal": {"layers": ("none",)},
    "choices": {"scope": ("clean",), "direction": ("highest",), "score": ("attention",)},
    "pruning": {"strategy": ("h_stars",)},
    "selection": {"ranking": ("norm",), "distance": ("Cosine",), "sink": ("kept",)},
    "taxonomy": {"rule": ("final",), "class": ("Mixer",)},
    "scalogram": {"protocol": ("printed",), "field": ("noise",)},
    "pod_spectrum": {"protocol": ("printed",), "field": ("mean",)},
    "pod_modes": {"protocol": ("printed",)},
    "pod_summary": {"protocol": ("Exact",), "field": ("mean",)},
}
"""Words that a column of choices does not have, such as the near ones; all others are given WRONG_WORD."""

WRONG_WORD = "no such word"


def wrong_words(table: str) -> dict[str, tuple[str, ...]]:
    """What each column of choices of a table is to refuse."""
    choices = [name for name, column in tables()[table].columns.items() if column.words or column.layer_set]
    return dict.fromkeys(choices, (WRONG_WORD,)) | WRONG_WORDS.get(table, {})


def put_words(table: str) -> Break:
    """Wrong words in every column of choices, in the first rows."""

    def change(columns: Columns) -> None:
        for name, words in wrong_words(table).items():
            columns[name] = np.asarray(columns[name], object)
            columns[name][: len(words)] = words

    return change
