"""The tables of the stages `scalogram`, `pod` and `coherency` (Zeris 2026, arXiv 2606.06573), declared."""

from __future__ import annotations

from storage.tables import DOUBLE, FLAG, INT, REAL, one_of, table

PROTOCOLS = ("exact", "published")
_PROTOCOL = one_of(*PROTOCOLS)

_OF_LAYER = {"layer": INT, "head": INT}
_FIELD = one_of("observed", "lag_shuffle", "gaussian")
_OF_RUN = {**_OF_LAYER, "protocol": _PROTOCOL, "filter_scale": REAL, "field": _FIELD, "draw": INT}

SCALOGRAM = table(
    "scalogram",
    {
        **{**_OF_LAYER, "protocol": _PROTOCOL, "omega0": REAL},
        **{"field": one_of("observed", "uniform", "doc_shuffle"), "scale": REAL},
    },
    energy=REAL,
    energy_share=REAL,
    dominant=FLAG,
)
LAG_MASS = table("lag_mass", {**_OF_LAYER, "lag_lo": INT, "lag_hi": INT}, mass=REAL)
POD_SPECTRUM = table("pod_spectrum", {**_OF_RUN, "k": INT}, eigenvalue=DOUBLE, energy_share=DOUBLE, cumulative=DOUBLE)
POD_SUMMARY = table(
    "pod_summary",
    {**_OF_RUN, "n_snapshots": INT, "epsilon": REAL},
    beta=REAL,
    beta_r2=REAL,
    beta_se=REAL,
    t_spec=REAL,
    h_star=INT,
    saturated=FLAG,
    total_energy=DOUBLE,
    reconstruction_error=DOUBLE,
)
POD_MODES = table(
    "pod_modes",
    {**_OF_LAYER, "protocol": _PROTOCOL, "filter_scale": REAL, "mode": INT, "lag": INT},
    profile=REAL,
)
COHERENCY = table(
    "coherency",
    {"layer": INT, "scale": REAL, "lag": INT, "query_i": INT, "query_j": INT},
    gamma=REAL,
    gamma_null=REAL,
)
