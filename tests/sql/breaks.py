"""Data that break what a check looks for: which check, in which table, and how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tasks.stages.registry import tables
from tests.sql.direction_breaks import direction_breaks
from tests.sql.made_up import Columns

Break = Callable[[Columns], None]


def put(column: str, row: int, value: object) -> Break:
    """Data with another value in one cell."""

    def change(columns: Columns) -> None:
        columns[column] = np.asarray(columns[column]).copy()
        columns[column][row] = value

    change.__name__ = f"{column}={value}"
    return change


def add(column: str, row: int, amount: float) -> Break:
    def change(columns: Columns) -> None:
        columns[column] = np.asarray(columns[column]).copy()
        columns[column][row] += amount

    change.__name__ = f"{column}+{amount}"
    return change


def alter(column: str, value: Any, **where: Any) -> Break:
    """The first row that is `where` says, with an amount added, or with another word."""

    def change(columns: Columns) -> None:
        row = np.flatnonzero(np.all([columns[name] == wanted for name, wanted in where.items()], axis=0))[0]
        (put if isinstance(value, str) else add)(column, row, value)(columns)

    change.__name__ = f"{column}:{value} of {'-'.join(map(str, where.values()))}"
    return change


def drop(row: int | slice) -> Break:
    def change(columns: Columns) -> None:
        for name in columns:
            columns[name] = np.delete(columns[name], row)

    change.__name__ = f"without row {row}"
    return change


def repeat(row: int) -> Break:
    def change(columns: Columns) -> None:
        for name in columns:
            columns[name] = np.append(columns[name], columns[name][row : row + 1])

    change.__name__ = f"row {row} twice"
    return change


def scale(column: str, row: int, factor: float) -> Break:
    def change(columns: Columns) -> None:
        columns[column] = np.asarray(columns[column]).copy()
        columns[column][row] *= factor

    change.__name__ = f"{column}*{factor}"
    return change


def no_dominant(columns: Columns) -> None:
    columns["dominant"] = np.zeros(len(columns["dominant"]), bool)


def flip(row: int, column: str = "interior") -> Break:
    def change(columns: Columns) -> None:
        columns[column][row] = not columns[column][row]

    change.__name__ = f"{column} flipped"
    return change


def swap_ranks(columns: Columns) -> None:
    """Rows 5 and 6 are ranks 2 and 3 of one query row."""
    columns["rank"][[4, 5]] = columns["rank"][[5, 4]]


def another_class(columns: Columns) -> None:
    columns["class"][0] = "reset" if columns["class"][0] == "mixer" else "mixer"


def other_margin(columns: Columns) -> None:
    columns["margin"][4] *= -1


PERTURBED: list[tuple[str, str, Break]] = [
    ("changed_losses", "perturbation", put("nll_sum", 1, np.nan)),
    ("changed_losses", "repair", put("nll_perturbed_sum", 1, np.nan)),
    ("changed_losses", "repair", put("nll_repaired_sum", 1, -1.0)),
    ("clean_losses", "perturbation", add("nll_clean_sum", 1, 1e-4)),
    ("clean_losses", "repair", add("n_predicted", 1, 1)),
    ("perturbation_complete", "perturbation", drop(3)),
    ("repair_complete", "repair", drop(3)),
    ("propagation_complete", "propagation", drop(3)),
    ("propagation_complete", "propagation", alter("layer", -1, layers="1")),
    ("propagation_start", "propagation", alter("distance_mean", 0.5, delta=0.5, protocol="exact", layer=0)),
    ("propagation_start", "propagation", alter("distance_first_token", 0.1, first_token="exclude", layer=0)),
    ("propagation_start", "propagation", alter("distance_mean", np.nan, protocol="published", layer=0)),
    ("perturbation_displacement", "perturbation", alter("displacement_max_error", 2e-3, protocol="exact")),
    ("perturbation_displacement", "perturbation", put("displacement_mean", 0, np.nan)),
    ("perturbation_displacement", "perturbation", alter("displacement_max_error", np.nan, protocol="published")),
    ("perturbation_unmoved", "perturbation", add("unmoved", 0, -1)),
    ("perturbation_unmoved", "perturbation", alter("unmoved", 1, layers="1", protocol="exact")),
    ("perturbation_unmoved", "perturbation", put("flagged", 0, True)),
    ("displacement_mean", "displacement", add("displacement", 1, 0.1)),
    ("displacement_mean", "displacement", put("displacement", 1, np.nan)),
    ("displacement_mean", "perturbation", add("displacement_mean", 0, 0.1)),
    ("repair_first_layer", "repair", alter("nll_repaired_sum", 0.1, repaired_layers="0")),
]


BREAKS: list[tuple[str, str, Break]] = [
    ("captures_totals", "captures", add("n_docs", 0, 1)),
    ("choices_clean", "choices", drop(0)),
    ("choices_clean", "choices", drop(3)),
    ("choices_picked", "choices", put("picked", 4, 2)),
    ("choices_picked", "choices", put("picked_normalised", 4, -1)),
    ("choices_picked", "choices", put("label", 4, 2)),
    ("choices_picked", "choices", put("n_choices", 4, 1)),
    ("choices_picked", "choices", put("margin", 4, np.nan)),
    ("choices_picked", "choices", other_margin),
    ("captures_totals", "captures", add("n_tokens", 0, -1)),
    ("captures_totals", "documents", drop(3)),
    ("changed_losses", "masking", put("nll_sum", 9, np.nan)),
    ("changed_losses", "masking", put("nll_sum", 9, -1.0)),
    ("changed_losses", "sink_removal", put("nll_sum", 1, np.nan)),
    ("clean_losses", "masking", add("nll_clean_sum", 9, 1e-4)),
    ("clean_losses", "masking", put("nll_clean_sum", 9, np.nan)),
    ("clean_losses", "masking", add("n_predicted", 9, 1)),
    ("changed_losses", "head_ablation", put("nll_sum", 1, np.nan)),
    ("clean_losses", "head_ablation", add("nll_clean_sum", 1, 1e-4)),
    ("clean_losses", "head_ablation", put("nll_clean_sum", 1, np.nan)),
    ("changed_losses", "pruning", put("nll_sum", 1, np.nan)),
    ("clean_losses", "pruning", add("nll_clean_sum", 1, 1e-4)),
    ("clean_losses", "pruning", add("n_predicted", 1, 1)),
    ("pruning_complete", "pruning", drop(4)),
    ("pruning_complete", "pruning", drop(slice(0, 42))),
    ("pruning_kept", "pruning", add("heads_kept", 1, 1)),
    ("pruning_kept", "pruning", add("heads_kept", 0, -1)),
    ("pruning_kept", "pruning", put("retention", 0, 0.0)),
    ("pruning_kept", "pruning", put("retention", 1, np.nan)),
    ("pruning_kept", "pruning", put("seed", 1, 1)),
    ("pruning_kept", "pruning", put("seed", -1, -1)),
    ("pruning_kept", "pruning", alter("nll_sum", 1e-3, retention=1.0, strategy="f_score")),
    ("head_ablation_complete", "head_ablation", drop(3)),
    ("related_head_ablation", "head_ablation", put("head", 3, 4)),
    ("clean_losses", "sink_removal", add("nll_clean_sum", 1, 1e-4)),
    ("clean_losses", "sink_removal", add("n_predicted", 1, -1)),
    ("contribution_edges_factors", "contribution_edges", add("cosine", 7, 1e-3)),
    ("contribution_edges_factors", "contribution_edges", put("cw_intra", 7, np.nan)),
    ("contribution_edges_ranks", "contribution_edges", swap_ranks),
    ("contribution_edges_ranks", "contribution_edges", put("rank", 7, 9)),
    ("contribution_edges_ranks", "contribution_edges", drop(3)),
    ("contribution_factors_sum", "contribution_factors", add("share_norm", 2, 1e-3)),
    ("contribution_factors_sum", "contribution_factors", put("share_norm", 2, np.nan)),
    ("contribution_rows_complete", "contribution_rows", drop(10)),
    ("contribution_rows_sum_inter", "contribution_rows", add("sum_cw_inter", 3, 1e-4)),
    ("contribution_rows_sum_inter", "contribution_rows", put("sum_cw_inter", 3, np.nan)),
    ("contribution_rows_sum_intra", "contribution_rows", add("sum_cw_intra", 3, 1e-4)),
    ("contribution_rows_sum_intra", "contribution_rows", put("sum_cw_intra", 3, np.nan)),
    ("contribution_rows_undefined", "contribution_rows", put("sum_cw_intra", 3, np.nan)),
    ("contribution_rows_undefined", "contribution_rows", put("sum_cw_inter", 3, np.nan)),
    ("contribution_rows_undefined", "contribution_rows", put("negative_share", 3, np.nan)),
    ("contribution_rows_undefined", "contribution_rows", put("output_norm", 3, 0.0)),
    ("contribution_rows_undefined", "contribution_rows", put("layer_output_norm", 3, 0.0)),
    ("contribution_rows_undefined", "contribution_rows", put("sum_alpha", 3, np.nan)),
    ("documents_predicted", "documents", add("n_predicted", 1, 1)),
    ("documents_predicted", "tokens", drop(2)),
    ("documents_predicted", "documents", add("n_tokens", 0, 1)),
    ("heads_complete", "heads", drop(7)),
    ("heads_complete", "heads", put("kv_head", 1, 1)),
    ("heads_complete", "captures", add("n_layers", 0, 1)),
    ("masking_alike", "masking", alter("nll_sum", 1e-6, scope="row", score="vwon")),
    ("masking_alike", "masking", alter("masked_fraction", 0.05, scope="row", score="vw")),
    ("masking_alike", "masking", alter("nll_sum", 1e-6, scope="entry", score="raw", sign="signed")),
    ("masking_alike", "masking", alter("nll_sum", 1e-6, scope="token", score="random", reduce="mean", draw=1)),
    ("masking_complete", "masking", drop(9)),
    ("masking_complete", "masking", drop(slice(0, 30))),
    ("masking_conditions", "masking", put("rate", 9, 0.0)),
    ("masking_conditions", "masking", put("rate", 9, 1.5)),
    ("masking_conditions", "masking", put("rate", 9, np.nan)),
    ("masking_conditions", "masking", put("reduce", 0, "sum")),
    ("masking_conditions", "masking", alter("scope", "token", scope="layer_token", score="norm")),
    ("masking_conditions", "masking", put("draw", 0, 1)),
    ("masking_everything", "masking", alter("nll_sum", 1e-3, rate=1.0, score="cw_inter")),
    ("masking_everything", "masking", alter("masked_fraction", -0.05, rate=1.0, score="cw_inter")),
    ("masking_fraction", "masking", put("masked_fraction", 0, 0.11)),
    ("masking_fraction", "masking", alter("masked_fraction", 0.1, rate=1.0, scope="token")),
    ("masking_fraction", "masking", put("masked_fraction", 9, -0.01)),
    ("masking_fraction", "masking", put("masked_fraction", 9, np.nan)),
    ("sink_geometry_formula", "sink_geometry", add("a_star", 5, 1e-3)),
    ("sink_geometry_formula", "sink_geometry", add("min_norm", 5, 1e-3)),
    ("sink_geometry_formula", "sink_geometry", put("a_star", 5, np.nan)),
    ("sink_geometry_formula", "sink_geometry", put("min_norm", 5, np.nan)),
    ("sink_geometry_formula", "sink_geometry", flip(5)),
    ("sink_geometry_minimum", "sink_geometry", put("output_norm", 5, 1e-3)),
    ("sink_removal_complete", "sink_removal", drop(0)),
    ("sink_removal_complete", "sink_removal", drop(2)),
    ("sink_removal_complete", "sink_removal", put("layers", 1, "0,1")),
    ("selection_bounds", "selection", put("precision", 0, 0.01)),
    ("selection_bounds", "selection", put("inversions", 0, 1)),
    ("selection_bounds", "selection", put("margin", 0, 0.0)),
    ("selection_bounds", "selection", put("recall", 0, np.nan)),
    ("selection_certificate", "selection", put("certified_precision", 0, 1.1)),
    ("selection_certificate", "selection", put("certified_recall", 0, np.nan)),
    ("selection_certificate", "selection", put("certified_recall", 1, 0.5)),
    ("selection_f_score", "selection", put("f_score", 0, 0.9)),
    ("selection_f_score", "selection", put("precision", 0, 0.0)),
    ("selection_one_key", "selection", put("f_score", 0, 0.5)),
    ("selection_one_key", "selection", put("margin", 0, -0.1)),
    ("sink_statistics_ranges", "sink_statistics", put("coherence_max", 0, 0.0)),
    ("sink_statistics_ranges", "sink_statistics", put("mean_cosine", 0, -1.1)),
    ("taxonomy_classes", "taxonomy", drop(0)),
    ("taxonomy_classes", "taxonomy", another_class),
    ("taxonomy_shares", "taxonomy", add("share_self", 0, 1e-3)),
    ("taxonomy_shares", "taxonomy", add("margin", 0, 1e-3)),
    ("taxonomy_shares", "taxonomy", put("agreement_halves", 0, 1.1)),
    ("taxonomy_shares", "taxonomy", put("share_sink", 0, np.nan)),
    ("related_selection", "selection", put("query", 0, 6)),
    *PERTURBED,
    *direction_breaks(put, drop),
    ("scalogram_shares", "scalogram", add("energy_share", 0, 1e-3)),
    ("scalogram_shares", "scalogram", put("energy", 0, -1.0)),
    ("scalogram_shares", "scalogram", put("energy_share", 0, np.nan)),
    ("scalogram_shares", "scalogram", no_dominant),
    ("lag_mass_sum", "lag_mass", add("mass", 0, 0.5)),
    ("lag_mass_sum", "lag_mass", put("lag_lo", 1, 2)),
    ("lag_mass_sum", "lag_mass", put("mass", 1, -0.1)),
    ("pod_sorted", "pod_spectrum", add("eigenvalue", 1, 5.0)),
    ("pod_sorted", "pod_spectrum", put("eigenvalue", 3, -1e-9)),
    ("pod_sorted", "pod_spectrum", drop(1)),
    ("pod_energy", "pod_spectrum", add("energy_share", 0, 1e-6)),
    ("pod_energy", "pod_spectrum", add("cumulative", 3, 1e-6)),
    ("pod_energy", "pod_spectrum", add("eigenvalue", 0, 1e-3)),
    ("pod_energy", "pod_summary", add("total_energy", 3, 1e-3)),
    ("pod_theorem", "pod_summary", scale("reconstruction_error", 3, 1 + 1e-5)),
    ("pod_theorem", "pod_summary", put("reconstruction_error", 3, np.nan)),
    ("pod_rank", "pod_summary", put("h_star", 3, 4)),
    ("pod_rank", "pod_summary", put("h_star", 3, 0)),
    ("pod_rank", "pod_summary", flip(3, "saturated")),
    ("pod_rank", "pod_summary", put("draw", 0, 1)),
    ("pod_rank", "pod_summary", put("t_spec", 3, np.nan)),
    ("coherency_ranges", "coherency", put("gamma", 0, 0.9)),
    ("coherency_ranges", "coherency", put("gamma_null", 0, 1.1)),
    ("coherency_ranges", "coherency", put("query_i", 0, 4)),
    ("coherency_ranges", "coherency", put("lag", 0, 2)),
    ("unique_scalogram", "scalogram", put("scale", 0, np.nan)),
    ("related_pod_summary", "pod_summary", put("head", 0, 9)),
    ("token_scores_reduce", "token_scores", add("raw", 0, 1e-2)),
    ("token_scores_reduce", "token_scores", add("cw_inter_abs", 1, 1e-2)),
    ("token_scores_reduce", "token_scores", put("cw_intra", 1, np.nan)),
    ("token_scores_reduce", "token_scores", add("n_queries", 0, 1)),
    ("token_scores_reduce", "token_scores", drop(0)),
    ("tokens_nll", "documents", add("nll_sum", 1, 1e-3)),
    ("tokens_nll", "tokens", put("nll", 1, np.nan)),
    ("tokens_nll", "tokens", put("nll", 0, 0.5)),
    *((f"unique_{name}", name, repeat(0)) for name in tables() if name not in ("stages",)),
    *(
        (f"related_{name}", name, put("layer", 0, 99))
        for name, spec in tables().items()
        if "layer" in spec.grain and name != "heads"
    ),
    *(
        (f"related_{name}", name, put("doc", 0, 99))
        for name in ("tokens", "semantic_drift", "token_scores", "masking", "sink_removal", "head_ablation", "pruning")
    ),
    *(("related_" + name, name, put("doc", 0, 99)) for name in ("perturbation", "repair")),
    ("related_displacement", "displacement", put("position", 1, 6)),
    ("related_tokens", "tokens", put("position", 1, 6)),
    ("related_token_scores", "token_scores", put("position", 1, 6)),
    ("related_contribution_rows", "contribution_rows", put("query", 1, 6)),
    ("related_contribution_edges", "contribution_edges", put("key", 1, -1)),
]
