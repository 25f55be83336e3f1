"""The tables of the stages `selection` and `taxonomy` (Mudarisov et al. 2026, arXiv 2602.01893), declared."""

from __future__ import annotations

from storage.tables import BIG, INT, REAL, one_of, table

RANKINGS = ("attention", "contribution")
DISTANCES = ("euclidean", "cosine")
SINKS = ("included", "excluded")
RULES = ("plurality", "majority", "final_query")
CLASSES = ("retriever", "mixer", "reset")

SELECTION_ROWS = table(
    "selection",
    {
        **{"doc": INT, "layer": INT, "head": INT, "query": INT},
        **{"ranking": one_of(*RANKINGS), "distance": one_of(*DISTANCES), "sink": one_of(*SINKS), "n": INT},
    },
    precision=REAL,
    recall=REAL,
    f_score=REAL,
    inversions=INT,
    margin=REAL,
    mass=REAL,
    random_f_mean=REAL,
    random_f_sd=REAL,
    certified_precision=REAL,
    certified_recall=REAL,
)
SINK_STATISTICS = table(
    "sink_statistics",
    {"doc": INT, "layer": INT, "head": INT},
    norm_ratio=REAL,
    mean_cosine=REAL,
    norm_cv=REAL,
    coherence_max=REAL,
    coherence_mean=REAL,
)
TAXONOMY_ROWS = table(
    "taxonomy",
    {"layer": INT, "head": INT, "rule": one_of(*RULES)},
    **{"class": one_of(*CLASSES)},
    share_self=REAL,
    share_sink=REAL,
    share_other=REAL,
    margin=REAL,
    n=BIG,
    agreement_halves=REAL,
)
