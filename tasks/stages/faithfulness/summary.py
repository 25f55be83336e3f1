"""What the stages that mask found, in a few lines, from the named queries."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from duckdb import DuckDBPyConnection

from storage.warehouse import query

_CONDITION = ("scope", "reduce", "direction", "sign", "keep_first", "layers")
_PUBLISHED = ("raw", "vw", "vwon", "cw_intra")
_SURE = 0.975


def masking_lines(connection: DuckDBPyConnection, capture: str) -> Iterator[str]:
    """Scores by the damage that masking does, for each way of masking in which all layers are masked at once."""
    rows = query(connection, "score_hierarchy", {"capture": capture}).to_pylist()
    for condition, group in groupby(rows, key=lambda row: tuple(row[name] for name in _CONDITION)):
        of_condition = dict(zip(_CONDITION, condition, strict=True))
        defined = [row for row in group if row["nll_area"] is not None]
        if of_condition["layers"] == "all" and defined:
            ranked = sorted(defined, key=lambda row: row["faithfulness_rank"])
            told = ", ".join(f"{row['score']} {row['nll_area']:.3f}" for row in ranked)
            yield f"{_way(of_condition)}: {told} nats a token, mean over rates{_lead(defined)}{_order(defined)}."


def _way(condition: dict[str, Any]) -> str:
    what = "highest" if condition["direction"] == "comprehensiveness" else "lowest"
    more = [condition["reduce"]] if condition["reduce"] != "none" else []
    more += [condition["sign"]] if condition["sign"] != "absolute" else []
    more += ["first token kept"] if condition["keep_first"] else []
    beside = f" ({', '.join(more)})" if more else ""
    return f"Masking what ranks {what} by {condition['scope']}{beside}, the most faithful score first"


def _lead(rows: list[dict[str, Any]]) -> str:
    """What the contribution weight does more than attention, with its interval over documents."""
    row = next((row for row in rows if row["score"] == "cw_intra"), None)
    if row is None or row.get("nll_area_minus_raw_lo") is None:
        return ""
    low, high = row["nll_area_minus_raw_lo"], row["nll_area_minus_raw_hi"]
    return f"; cw_intra less raw {row['nll_area_minus_raw']:+.4f} (95 % interval {low:+.4f} to {high:+.4f})"


def _order(rows: list[dict[str, Any]]) -> str:
    """Whether the published order holds among the scores that were run, by how often resamples agree."""
    steps = {row["score"]: row for row in rows if row["score"] in _PUBLISHED}
    shares = [row["beats_previous_share"] for row in steps.values() if row["beats_previous_share"] is not None]
    if len(steps) < len(_PUBLISHED) or not shares:
        return ""
    if all(share >= _SURE for share in shares):
        return " (published order raw < vw < vwon < cw: holds)"
    shares_of = {name: row["beats_previous_share"] for name, row in steps.items()}
    failing = [name for name, share in shares_of.items() if share is not None and share <= 1 - _SURE]
    if failing:
        return f" (published order raw < vw < vwon < cw: broken at {', '.join(failing)})"
    return " (published order raw < vw < vwon < cw: not told apart by these documents)"


def sink_lines(connection: DuckDBPyConnection, capture: str) -> Iterator[str]:
    """What zeroing the first token's values does to the loss: in all layers, and in the layer where it does most."""
    rows = query(connection, "sink_removal_effect", {"capture": capture}).to_pylist()
    defined = [row for row in rows if row["nll_change"] is not None]
    whole = next((row for row in defined if row["layers"] == "all"), None)
    alone = [row for row in defined if row["layers"].isdecimal()]
    if whole is not None:
        most = max(alone, key=lambda row: abs(row["nll_change"]), default=None)
        one = ""
        if most is not None:
            one = f"; alone most in layer {most['layers']}, {most['nll_change']:+.3f}{_interval(most)}"
        yield (
            f"Without the first token's values the loss changes by {whole['nll_change']:+.3f} nats a token"
            f"{_interval(whole)}{one}."
        )


def _interval(row: dict[str, Any]) -> str:
    low, high = row["nll_change_lo"], row["nll_change_hi"]
    return "" if low is None else f" (95 % interval {low:+.3f} to {high:+.3f})"


def choices_lines(connection: DuckDBPyConnection, capture: str) -> Iterator[str]:
    """Accuracy of the clean model on each task, with chance, and the condition that lowers it most."""
    rows = query(connection, "choice_accuracy", {"capture": capture}).to_pylist()
    for task, group in groupby(rows, key=lambda row: row["task"]):
        clean, *masked = group
        told = (
            f"{task}: {clean['accuracy']:.0%} of {clean['n_items']} items right (95 % interval "
            f"{clean['accuracy_lo']:.0%} to {clean['accuracy_hi']:.0%}; chance {clean['chance']:.0%}, the commonest "
            f"label {clean['majority_share']:.0%})"
        )
        worst = min(masked, key=lambda row: row["accuracy_change"] or 0, default=None)
        if worst is not None and (worst["accuracy_change"] or 0) < 0:
            what = "highest" if worst["direction"] == "comprehensiveness" else "lowest"
            told += f"; {worst['accuracy']:.0%} with the {worst['rate']:.0%} that {worst['score']} ranks {what} masked"
        yield f"{told}."
