"""The commands that only read, and answer at once: plan, status, verify, models."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from flows import options as o
from flows.capture_options import CaptureOptions, with_capture_options
from flows.captures import Standing, described, nothing_captured, pick_capture, standings
from flows.checks import check_tables, checks_told
from flows.config_file import configure
from flows.console import FAILED, answering, output, plain
from flows.progress import display_for, shown_by, work
from flows.session import add_place, runs_folder
from flows.summary import capped
from storage.errors import INCOMPLETE, StoreError, UnknownName
from storage.filesystem import open_runs
from storage.manifest import list_captures
from storage.numbers import counted
from storage.warehouse import CheckResult
from tasks.capture.kept import store_dtypes

if TYPE_CHECKING:
    from tasks.capture.verify_sample import Rerun


@answering
@with_capture_options()
def plan(
    config: o.ConfigFile = None,
    *,
    options: CaptureOptions,
    runs: o.Runs = None,
    as_json: o.Json = False,
    verbose: o.Verbose = False,
) -> int | None:
    """What a capture will be and cost: bytes, operations, memory. Takes what `run` takes; nothing is captured."""
    from tasks.capture.plan import plan_capture, smaller

    chosen = configure(config, {"capture": options, "run": {"runs": runs}}, ())
    out = output()
    with shown_by(display_for(out.errors)):
        planned = plan_capture(chosen.capture, chosen.run.runs, work)
    left_out = ", ".join(f"{n:,} {why.replace('_', ' ')}" for why, n in planned.left_out.items() if n)
    out.say(f"{planned.capture}: {planned.model} ({planned.family})")
    cap = capped(planned.n_docs, chosen.capture.max_documents)
    out.say(f"  {counted(planned.n_docs, 'document')}{cap}")
    out.say(f"  {planned.n_tokens:,} tokens, at most {planned.window:,} in a document")
    if left_out:
        out.say(f"  left out: {left_out}")
    out.say(
        f"  {counted(planned.shards, 'shard')}, {planned.flops / 1e12:,.3g} Tflop, "
        f"batches of {planned.batch_tokens:,} tokens: {_size(planned.memory_peak_bytes)} of memory "
        f"on {planned.device}{_of(planned.memory_bytes)}"
    )
    kinds = ", ".join(f"{kind} {_size(n)}" for kind, n in planned.bytes_by_kind.items() if n)
    out.say(f"  {_size(planned.bytes_total)} before compression ({kinds}); {_size(planned.free_bytes)} are free")
    out.say(f"  attention {planned.attention}: {_storages(planned.attention, planned.attention_bytes)}")
    if "attention" in planned.bytes_by_kind and store_dtypes(chosen.capture.store_dtype)["attention"] == "float16":
        out.say("  float16 keeps no weight below 6e-8: means and shares over logarithms leave those entries out")
    if chosen.capture.device not in ("auto", "cpu"):
        out.say(
            f"  whether this machine has {chosen.capture.device} is seen when the run starts: a plan loads no torch"
        )
    out.add(capture=planned.capture, plan=asdict(planned))
    if planned.fits:
        return None
    out.say(f"  It does not fit. {smaller(planned)}")
    return FAILED


@answering
def status(capture: o.Capture = None, runs: o.Runs = None, as_json: o.Json = False, verbose: o.Verbose = False) -> None:
    """Captures with their settings, and their stages: done, stale or partial, and what the last run reused."""
    where, out = runs_folder(runs), output()
    known = [pick_capture(where, capture)] if capture is not None else list_captures(open_runs(where))
    found = standings(where, known)
    for number, name in enumerate(known):
        if number:
            out.say()
        out.say(name, style="bold")
        out.say(f"  {described(where, name)}")
        columns = ["stage", "key", "status", "shards", "reused in the last run"]
        out.table(columns, [_status_row(standing) for standing in found if standing.capture == name])
    if not known:
        out.say(nothing_captured(where))
    out.add(captures=known, status=[asdict(s) for s in found])
    if known:
        add_place(where, pick_capture(where, capture))


def _status_row(s: Standing) -> list[Any]:
    reused = f"{s.last_run['reused']} of {s.last_run['shards']}" if s.last_run else None
    return [s.stage, s.key[:16], s.status, f"{s.shards_done} of {s.shards_total}", reused]


@answering
def verify(
    capture: o.Capture = None,
    documents: o.Documents = 2,
    runs: o.Runs = None,
    seed: o.Seed = None,
    as_json: o.Json = False,
    verbose: o.Verbose = False,
) -> int | None:
    """Read every byte of a capture again, check every identity in SQL, and run a sample through the plain model."""
    from tasks.capture.verify import count_records, verify_capture

    where, out = runs_folder(runs), output()
    chosen = pick_capture(where, capture)
    with shown_by(display_for(out.errors)), work("verify", count_records(where, chosen), "parts"):
        parts, problems = verify_capture(where, chosen)
    left = _report_shards_left(where, chosen)
    try:
        checks = check_tables(where, [chosen])
    except (StoreError, UnknownName) as error:  # a table's file or a record is lost or damaged: the lines above name it
        checks = []
        if not (left and isinstance(error, UnknownName)):  # there are no tables before all is captured
            problems.append(f"the checks could not be done: {error}")
    for problem in problems:
        out.say(problem, style="red")
    out.say(f"{chosen}: {counted(parts, 'part')} read again, {counted(len(problems), 'problem')}")
    broken = _report_checks(checks, verbose=verbose)
    rerun = _report_sample(where, chosen, documents, seed or 0) if not problems else None
    with suppress(StoreError):  # a damaged record, which is among the problems: the tables cannot be counted
        add_place(where, chosen)
    found = {"parts": parts, "problems": problems, "checks": plain([asdict(c) for c in checks])}
    out.add(verify={**found, "sample": plain(asdict(rerun)) if rerun else None})
    if problems or broken or (rerun and rerun.problems):
        return FAILED
    return INCOMPLETE if left else None


def _report_shards_left(where: str, capture: str) -> bool:
    """Print how many shards are not captured yet; whether there are any. Damage is reported elsewhere."""
    from tasks.capture.folder import CaptureFolder

    with suppress(StoreError):
        prepared = CaptureFolder.open(where, capture)
        left, out = len(prepared.shards_left()), output()
        out.add(shards={"total": prepared.n_shards, "left": left})
        if left:
            done = prepared.n_shards - left
            out.say(f"{done:,} of {counted(prepared.n_shards, 'shard')} captured: the command that captured goes on")
        return left > 0
    return False


def _report_checks(checks: list[CheckResult], *, verbose: bool) -> bool:
    """Print the checks; whether one is broken. Those that had no rows check nothing, and are listed with `verbose`."""
    out = output()
    with_rows = [c for c in checks if c.rows_checked or not c.passed]
    rows = [
        [c.name, _word(c), c.rows_checked, c.worst, "" if c.passed else c.message]
        for c in (checks if verbose else with_rows)
    ]
    if rows:
        out.table(["check", "", "rows", "worst error", ""], rows)
    broken = [c for c in checks if not c.passed]
    for c in broken:
        out.say(f"{c.name}: {c.message}", style="red")
    out.say(checks_told(checks))
    return bool(broken)


def _word(check: CheckResult) -> str:
    if not check.passed:
        return "BROKEN"
    return "holds" if check.rows_checked else "no rows"


def _report_sample(where: str, capture: str, documents: int, seed: int) -> Rerun | None:
    """Run a sample of documents again and print the worst errors; None without documents."""
    if documents == 0:
        return None
    from tasks.capture.verify_sample import RERUN, rerun_sample

    out = output()
    with shown_by(display_for(out.errors)), work(RERUN, documents, "documents"):
        rerun = rerun_sample(where, capture, documents, seed)
    if rerun.layers:
        columns = ["layer", "attention", "output_input", "residual", "nll"]
        out.table(columns, [[getattr(errors, name) for name in columns] for errors in rerun.layers])
    for line in rerun.problems:
        out.say(line, style="red")
    if rerun.note:
        out.say(rerun.note)
    else:
        which = ", ".join(map(str, rerun.documents))
        errors = counted(len(rerun.problems), "error")
        out.say(f"run again through the plain model: documents {which}; {errors} beyond tolerance")
    return rerun


@answering
def models(as_json: o.Json = False, verbose: o.Verbose = False) -> None:
    """The families of models that can be captured, how each was verified, and why others are refused."""
    from tasks.models.refused import REFUSED
    from tasks.models.table import FAMILIES

    out = output()
    rows = [
        [
            f.name,
            f.model_type,
            "decoder" if f.causal else "encoder" if f.reads == "text" else "encoder of images",
            f.entry + (", in some layers" if f.hybrid else "") + (", gated" if f.gate else ""),
            f.way,
            f.examples,
            f.verified,
        ]
        for f in FAMILIES.values()
    ]
    out.table(["family", "model_type", "kind", "attention enters", "tapped by", "examples", "verified on"], rows)
    out.say("Give any of them to --model: a folder, a hub id, a .gguf file; or sample, smollm2-135m.")
    out.say()
    out.table(["refused", "because"], [[model_type, reason] for model_type, reason in REFUSED.items()])
    out.add(
        models=[f.printed() for f in FAMILIES.values()],
        refused=[{"model_type": model_type, "reason": reason} for model_type, reason in REFUSED.items()],
    )


def _storages(attention: str, sizes: Mapping[str, int]) -> str:
    """The two ways to keep attention side by side, and which is the smaller."""
    sides = ", ".join(f"{storage} {_size(n)}" for storage, n in sizes.items())
    if len(sizes) == 1:
        return f"{sides} before compression; it cannot be rebuilt"
    smallest = min(sizes, key=lambda storage: sizes[storage])
    hint = "" if attention in (smallest, "none") else f"; --attention {smallest} is the smaller"
    return f"{sides} before compression{hint}"


def _of(memory: int | None) -> str:
    return "" if memory is None else f", which has {_size(memory)}"


def _size(n: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if n < 1000:
            return f"{n:,.3g} {unit}"
        n /= 1000
    return f"{n:,.3g} TB"
