"""What a run found, told in a few lines from the named queries; where it lies; and what to ask next."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from importlib import import_module

from duckdb import DuckDBPyConnection

from flows.captures import standings
from flows.checks import checks_told
from flows.console import output, plain
from flows.empty_answers import place
from flows.outcome import Outcome
from storage.filesystem import open_runs
from storage.layout import WAREHOUSE, Layout
from storage.numbers import counted
from storage.warehouse import CheckResult, connect, query, run_sql
from tasks.stages.registry import stages, tables

_SUMS = ("contribution_rows_sum_intra", "contribution_rows_sum_inter")


_LEADING = (
    "select token, count(*) as queries, avg(cw_intra) as weight from contribution_edges as e "
    "join tokens as t on t.capture = e.capture and t.doc = e.doc and t.position = e.key "
    "where e.capture = '{capture}' and rank = 1 group by token order by queries desc limit 10"
)
"""The tokens that take the largest contribution of most queries, in one capture."""


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
    ran = [name for name in stages() if name in done]
    found = [line for name in ran for line in _lines_of(name)(connection, capture)]
    return [*found, *_left_out_lines(connection, capture, ran)]


def _lines_of(stage: str) -> Callable[[DuckDBPyConnection, str], Iterable[str]]:
    """The function that the stage's declaration names for its summary; one without any lines where it names none."""
    module, _, function = stages()[stage].summary.partition(":")
    lines: Callable[[DuckDBPyConnection, str], Iterable[str]]
    lines = getattr(import_module(module), function) if module else lambda _connection, _capture: ()
    return lines


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
        f"{row['model']} {does} ({counted(row['n_docs'], 'document')}{capped(row['n_docs'], cap)}, "
        f"{row['n_tokens']:,} tokens)."
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


def _check_lines(checks: Sequence[CheckResult]) -> Iterator[str]:
    worst = {check.name: check.worst for check in checks if check.worst is not None}
    sums = [worst[name] for name in _SUMS if name in worst]
    told = f"; contribution weights sum to 1 within {max(sums):.1g}" if sums else ""
    yield f"{checks_told(checks)}{told}."


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
    commands = [f"{command}{place(runs)}" for command in next_commands(done, capture)]
    out.say()
    out.say("Try next", style="bold")
    for command in commands:
        out.say(f"  {command}")
    out.add(next=commands)


def next_commands(done: Collection[str], capture: str) -> list[str]:
    """At most three commands: what to query of these stages of a capture, and a stage that is not done."""
    asked = [f"theodolite query {s.query}" for s in stages().values() if s.name in done and s.query]
    if "contributions" in done:
        asked.insert(1, f"theodolite sql {shlex.quote(_LEADING.format(capture=capture))}")
        if "masking" not in done:
            more = "theodolite stage masking --set masking.scopes=entry --set masking.scores=raw,cw_intra"
            return [*asked[:2], more]
    return asked[:3] or ["theodolite query capture_cost"]
