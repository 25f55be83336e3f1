"""What a run found, told in a few lines from the named queries; where it lies; and what to ask next."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterator, Sequence
from statistics import fmean
from typing import Any

from duckdb import DuckDBPyConnection

from flows.captures import standings
from flows.checks import checks_told
from flows.console import output, plain
from flows.empty_answers import place
from flows.outcome import Outcome
from storage.filesystem import open_runs
from storage.layout import WAREHOUSE, Layout
from storage.warehouse import CheckResult, connect, query, run_sql
from tasks.stages.faithfulness.summary import (
    choices_lines,
    masking_lines,
    minimal_pairs_lines,
    probes_lines,
    sink_lines,
)
from tasks.stages.heads.summary import head_ablation_lines, pruning_lines, selection_lines, taxonomy_lines
from tasks.stages.multiscale.summary import coherency_lines, pod_lines, scalogram_lines
from tasks.stages.perturbation.summary import perturbation_lines, propagation_lines, repair_lines
from tasks.stages.registry import stages, tables

_GROUPS = {"sink": "the first token", "self": "the token itself", "tail": "the tokens between"}
_ENOUGH = 1000
"""Entries below which shares of variance are noise, and can leave 0 to 1 by far."""
_WEAK_SINK = 0.1
_SUMS = ("contribution_rows_sum_intra", "contribution_rows_sum_inter")
_FACTORS = {"share_alpha": "attention", "share_norm": "norm", "share_cosine": "direction"}


_ASKED = {
    "contributions": "sink_suppression",
    "masking": "score_hierarchy",
    "choices": "choice_accuracy",
    "sink": "sink_removal_effect",
    "selection": "separability",
    "taxonomy": "head_classes",
    "pruning": "pruning_curve",
    "head_ablation": "critical_heads",
    "perturbation": "dissociation",
    "minimal_pairs": "pair_accuracy",
    "repair": "repair_recovery",
    "propagation": "propagation_ratio",
    "probes": "probe_scores",
    "scalogram": "scale_by_layer",
    "pod": "effective_rank",
}
"""For a stage the query to begin with."""
_LEADING = (
    "select token, count(*) as queries, avg(cw_intra) as weight from contribution_edges as e "
    "join tokens as t on t.capture = e.capture and t.doc = e.doc and t.position = e.key "
    "where rank = 1 group by token order by queries desc limit 10"
)


def tell_account(runs: str, outcome: Outcome, cap: int | None = None) -> None:
    """Say what the tables of this run show, in the words of the paper; `cap` is the most documents it would take."""
    out, done = output(), {work.name for work in outcome.work}
    connection = connect(open_runs(runs), tables())
    try:
        lines = list(_capture_lines(connection, outcome.capture, cap))
        lines += _found(connection, outcome.capture, done)
        lines += _check_lines(outcome.checks)
    finally:
        connection.close()
    out.say()
    out.say(f"What was found in {outcome.capture}", style="bold")
    for line in lines:
        out.say(f"  {line}")
    out.add(found=plain(lines))


def tell_found(runs: str, outcome: Outcome) -> None:
    """Say what the stages of an outcome found, by themselves."""
    connection = connect(open_runs(runs), tables())
    try:
        lines = _found(connection, outcome.capture, {work.name for work in outcome.work})
    finally:
        connection.close()
    if lines:
        output().say()
    for line in lines:
        output().say(line)
    output().add(found=plain(lines))


def _found(connection: DuckDBPyConnection, capture: str, done: Collection[str]) -> list[str]:
    telling = {
        "contributions": _contribution_lines,
        "selection": selection_lines,
        "taxonomy": taxonomy_lines,
        "head_ablation": head_ablation_lines,
        "pruning": pruning_lines,
        "masking": masking_lines,
        "sink": sink_lines,
        "choices": choices_lines,
        "perturbation": perturbation_lines,
        "repair": repair_lines,
        "propagation": propagation_lines,
        "minimal_pairs": minimal_pairs_lines,
        "probes": probes_lines,
        "scalogram": scalogram_lines,
        "pod": pod_lines,
        "coherency": coherency_lines,
    }
    found = [line for stage, lines in telling.items() if stage in done for line in lines(connection, capture)]
    return [*found, *_left_out_lines(connection, capture, [stage for stage in telling if stage in done])]


def _left_out_lines(connection: DuckDBPyConnection, capture: str, stages: Sequence[str]) -> Iterator[str]:
    """What these stages left out or could not define, if anything: a mean is over the rest."""
    text = "select capture, stage, quality from stages where status <> 'stale'"
    counts = {
        row["stage"]: row["quality"] for row in run_sql(connection, text).to_pylist() if row["capture"] == capture
    }
    told = [
        f"{stage} {name} {count:,}"
        for stage in stages
        for name, count in json.loads(counts.get(stage) or "{}").items()
        if count
    ]
    if told:
        yield f"Left out or not defined, counted in stages.quality: {', '.join(told)}."


def _capture_lines(connection: DuckDBPyConnection, capture: str, cap: int | None) -> Iterator[str]:
    row = query(connection, "capture_cost", {"capture": capture}).to_pylist()[0]
    loss = _loss(connection, capture)
    does = "reads both ways" if loss is None else f"predicts the text with {loss:.3f} nats per token"
    yield (
        f"{row['model']} {does} ({row['n_docs']:,} documents{capped(row['n_docs'], cap)}, {row['n_tokens']:,} tokens)."
    )
    yield (
        f"The shards took {row['seconds']:.1f} s to capture ({row['tokens_per_second']:,.0f} tokens/s, loading aside) "
        f"and {row['bytes'] / 1e6:,.0f} MB."
    )


def capped(n_docs: int, cap: int | None) -> str:
    """What to add where the text may hold more documents than were taken."""
    return " at most; --max-documents 0 takes all" if n_docs == cap else ""


def _loss(connection: DuckDBPyConnection, capture: str) -> float | None:
    """Nats per predicted token; None of an encoder, which predicts none."""
    text = "select capture, sum(nll_sum) / nullif(sum(n_predicted), 0) as loss from documents group by capture"
    return next(row["loss"] for row in run_sql(connection, text).to_pylist() if row["capture"] == capture)


def _contribution_lines(connection: DuckDBPyConnection, capture: str) -> Iterator[str]:
    asked = {"capture": capture}
    sinks = [r for r in query(connection, "sink_suppression", asked).to_pylist() if _defined(r, "sink_rate_mean")]
    if sinks:
        yield _strongest(sinks)
        opposed = sum(r["cosine_sink_tail_mean"] < 0 for r in sinks)
        inside = sum(0 < r["a_star_median"] < 1 for r in sinks if _defined(r, "a_star_median"))
        yield (
            f"The first token's value points against the rest in {opposed} of {len(sinks)} heads (published: it does); "
            f"the output is shortest at a sink rate between 0 and 1 in {inside} (published: it is)."
        )
    fits = [r for r in query(connection, "convexity", asked).to_pylist() if _defined(r, "curvature")]
    if fits:
        convex = sum(bool(r["convex"]) for r in fits)
        yield (
            f"The output norm is convex in the sink rate, its 95 % interval above 0, in {convex} of {len(fits)} heads "
            "(published: convex)."
        )
    for row in query(connection, "factor_shares", asked).to_pylist():
        if row["n_entries"] >= _ENOUGH and all(_defined(row, name) for name in _FACTORS):
            shares = ", ".join(f"{word} {row[name]:.0%}" for name, word in _FACTORS.items())
            yield f"The weight of {_GROUPS[row['token_group']]} is decided by {shares}."


def _check_lines(checks: Sequence[CheckResult]) -> Iterator[str]:
    worst = {check.name: check.worst for check in checks if check.worst is not None}
    sums = [worst[name] for name in _SUMS if name in worst]
    told = f"; contribution weights sum to 1 within {max(sums):.1g}" if sums else ""
    yield f"{checks_told(checks)}{told}."


def _defined(row: dict[str, Any], name: str) -> bool:
    return plain(row[name]) is not None


def _strongest(sinks: list[dict[str, Any]]) -> str:
    top = sorted(sinks, key=lambda r: -r["sink_rate_mean"])[:3]
    heads = ", ".join(f"layer {r['layer']} head {r['head']} ({r['sink_rate_mean']:.0%})" for r in top)
    mean = fmean(r["sink_rate_mean"] for r in sinks)
    weak = "" if mean >= _WEAK_SINK else " This is hardly a sink: what follows about it says little."
    return f"Attention on the first token: {mean:.0%} on average, most in {heads}.{weak}"


def tell_place(runs: str, capture: str) -> None:
    """Where the results lie."""
    out, fs = output(), open_runs(runs)
    out.say()
    out.say("Where it lies", style="bold")
    out.say(f"  warehouse  {fs.absolute(WAREHOUSE)}  (any DuckDB client opens it)")
    out.say(f"  tables     {fs.absolute(Layout(capture).table_root)}")
    out.say(f"  store      {fs.absolute(Layout(capture).store)}")


def tell_next(runs: str, capture: str) -> None:
    """Three commands that show more of it, of what is done in this capture."""
    out = output()
    done = {s.stage for s in standings(runs, [capture]) if s.status == "done"}
    commands = [f"{command}{place(runs)}" for command in next_commands(done)]
    out.say()
    out.say("Try next", style="bold")
    for command in commands:
        out.say(f"  {command}")
    out.add(next=commands)


def next_commands(done: Collection[str]) -> list[str]:
    """What to ask of these stages, those of a run first, and a stage that is not done; three at most."""
    asked = [f"theodolite query {_ASKED[stage]}" for stage in stages() if stage in done and stage in _ASKED]
    if "contributions" in done:
        asked.insert(1, f"theodolite sql {shlex.quote(_LEADING)}")
        if "masking" not in done:
            more = "theodolite stage masking --set masking.scopes=entry --set masking.scores=raw,cw_intra"
            return [*asked[:2], more]
    return asked[:3] or ["theodolite query capture_cost"]
