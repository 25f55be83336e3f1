"""Whole runs on real models, as a user starts them: what they leave, what they reuse, how they end."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest

from tests.changes import WAITING
from tests.flows.command import THEODOLITE, Answer, environment

Call = Callable[..., Answer]
STAGES = ("contributions", "taxonomy")


@pytest.fixture
def capture_arguments(fixtures: Path) -> tuple[str, ...]:
    """One model over a real text."""
    model, corpus = fixtures / "models" / "stories260K", fixtures / "data" / "tinyshakespeare" / "input.txt"
    return ("--model", str(model), "--corpus", str(corpus))


def test_run_again_and_changed(call_flow: Call, capture_arguments: tuple[str, ...], tmp_path: Path) -> None:
    """From nothing to tables; again, where nothing is done; with another parameter, where only the stage is."""
    shutil.copytree(capture_arguments[1], tmp_path / "model")
    corpus = capture_arguments[2:]
    arguments = ("run", "--model", "model", *corpus, "--max-documents", "5", "--window", "96", "--json")
    first = call_flow(*arguments)
    assert first.code == 0, first.err
    content = first.content
    assert content["work"] == [
        {"name": "capture", "shards": 1, "reused": 0},
        *({"name": name, "shards": 1, "reused": 0} for name in STAGES),
    ]
    _tables_hold(Path(content["warehouse"]), content["tables"])
    assert Path(content["run"]) == tmp_path / "runs" / content["capture"]
    assert "What was found" in first.err
    assert len(content["next"]) == 3
    before = _tensor_times(tmp_path / "runs")

    again = call_flow(*arguments)
    assert "capture: 1 of 1 shard reused" in again.err
    assert [work["reused"] for work in again.content["work"]] == [1] * (1 + len(STAGES))
    assert (again.content["capture"], again.content["tables"]) == (content["capture"], content["tables"])
    assert _tensor_times(tmp_path / "runs") == before

    shutil.move(tmp_path / "model", tmp_path / "aside")  # a stage needs the store alone
    changed = call_flow("stage", "contributions", "--set", "contributions.edges=3", "--json")
    assert changed.code == 0, changed.err
    assert changed.content["work"] == [{"name": "contributions", "shards": 1, "reused": 0}]
    assert changed.content["tables"]["contribution_edges"] < content["tables"]["contribution_edges"]
    assert _tensor_times(tmp_path / "runs") == before

    standing = {(s["stage"], s["status"]): s for s in call_flow("status", "--json").content["status"]}
    done = {(name, "done") for name in ("capture", *STAGES)}
    assert set(standing) == {*done, ("contributions", "stale")}
    assert standing["capture", "done"]["last_run"]["reused"] == 1

    shutil.move(tmp_path / "aside", tmp_path / "model")
    for command in content["next"]:
        _works(command, call_flow)
    shutil.rmtree(tmp_path / "model")
    verified = call_flow("verify", "--json")
    assert verified.code == 0, verified.err
    assert verified.content["verify"]["problems"] == []
    assert all(check["passed"] for check in verified.content["verify"]["checks"])
    assert "the model is not there any more" in verified.content["verify"]["sample"]["note"]
    _one_damaged_record_stops_nothing(call_flow, Path(content["run"]), standing["contributions", "done"]["key"])


def _one_damaged_record_stops_nothing(call: Call, capture: Path, key: str) -> None:
    """It is told with what to do, and doing that mends it."""
    record = capture / "manifest" / "stages" / "contributions" / key[:16] / "stage.json"
    record.write_bytes(b"")
    answer = call("verify", "--json")
    problems = answer.content["verify"]["problems"]
    assert (answer.code, "Traceback" in answer.err) == (1, False), answer.err
    assert record.relative_to(capture.parent).as_posix() in problems[0]
    assert "delete this file and run the same command again" in problems[0]
    assert answer.content["verify"]["parts"] > 4
    assert "the checks could not be done" in problems[-1]
    record.unlink()
    assert call("stage", "contributions", "--set", "contributions.edges=3", "--json").content["work"][0]["reused"] == 1
    assert call("verify", "--json").code == 0


def _tables_hold(warehouse: Path, counted: dict[str, int]) -> None:
    """Every table is there with the rows that were told, and contribution weights sum to one."""
    with duckdb.connect(str(warehouse), read_only=True) as connection:
        for table, rows in counted.items():
            assert connection.execute(f"select count(*) from {table}").fetchall() == [(rows,)], table
        worst = "select max(abs(sum_cw_intra - 1)) from contribution_rows where not isnan(sum_cw_intra)"
        assert connection.execute(worst).fetchall()[0][0] < 1e-5
    assert all(counted[table] > 0 for table in ("token_scores", "sink_geometry", "semantic_cone", "tokens"))


def _tensor_times(runs: Path) -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for p in runs.rglob("activations.zarr/**/*") if p.is_file()}


def _works(command: str, call: Call) -> None:
    import shlex

    name, *arguments = shlex.split(command)
    answer = call(*arguments, "--json")
    assert (name, answer.code) == ("theodolite", 0), answer.err
    assert answer.content.get("rows", answer.content.get("work")), command


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (("--window", "513"), "expected a window of at most 512 tokens, the model's positions, got 513"),
        (("--window", "1"), "got 1"),
        (("--field", "body"), "body"),
        (("--bos", "sometimes"), "'sometimes'"),
    ],
)
def test_refused_before_any_work(
    extra: tuple[str, ...], message: str, call_flow: Call, capture_arguments: tuple[str, ...], tmp_path: Path
) -> None:
    answer = call_flow("capture", *capture_arguments, "--max-documents", "2", *extra, "--json")
    assert answer.code in (1, 2)
    assert message in answer.content["error"]["message"], answer.err
    assert "Traceback" not in answer.err
    assert not list(tmp_path.rglob("activations.zarr"))


def test_empty_corpus_and_missing_tokenizer(call_flow: Call, fixtures: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    model = str(fixtures / "models" / "stories260K")
    empty = call_flow("capture", "--model", model, "--corpus", "empty.txt", "--json")
    assert (empty.code, "expected a corpus with at least one document of two tokens" in empty.err) == (1, True), (
        empty.err
    )
    without = call_flow(
        "capture", "--model", str(fixtures / "models" / "induction-neox"), "--corpus", "python-topics", "--json"
    )
    assert (without.code, "tokenizer" in without.err) == (1, True), without.err
    assert without.content["error"]["kind"] == "ModelError"


@contextmanager
def _running(arguments: tuple[str, ...], home: Path, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """A command that waits before it publishes its second shard, until its standard input ends."""
    waits = (
        "import sys; from flows.cli import main; from tests.changes import Changes\n"
        "Changes(sys.argv[1], 'manifest/shards/.00001').watch(); del sys.argv[1]; main()"
    )
    started = subprocess.Popen(
        [sys.executable, "-P", "-c", waits, str(cwd / "runs"), *arguments],
        env=environment(home),
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert started.stdout is not None and started.stdout.readline().strip() == WAITING, started.communicate()
        yield started
    finally:
        started.kill()
        started.communicate()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_and_resumed(
    number: signal.Signals, call: Call, home: Path, capture_arguments: tuple[str, ...], tmp_path: Path
) -> None:
    """Ctrl-C, and SIGTERM: one clear line, exit code 3, what is done is kept; the same command does the rest."""
    arguments = ("capture", *capture_arguments, "--max-documents", "80", "--window", "128", "--json")
    with _running(arguments, home, tmp_path) as started:
        started.send_signal(number)
        out, err = started.communicate(timeout=60)
    assert (started.returncode, "interrupted; the same command resumes" in err) == (3, True), err
    assert "Traceback" not in err
    content = json.loads(out.splitlines()[-1])
    assert (content["exit"], content["error"]["kind"]) == (3, "Interrupted")
    status = call("status", "--json").content["status"][0]
    assert status["status"] == "partial"
    assert 0 < status["shards_done"] < status["shards_total"]
    resumed = call(*arguments)
    assert resumed.code == 0, resumed.err
    assert resumed.content["work"][0]["reused"] >= status["shards_done"]
    assert (resumed.content["capture"], resumed.content["tables"]["documents"]) == (content["capture"], 80)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="finds and awaits the child of a child as Linux does")
def test_killed_leaves_no_server(home: Path, capture_arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Prefect's own temporary server would stay for ever; ours ends with the command, however that ends."""
    arguments = ("capture", *capture_arguments, "--max-documents", "80", "--window", "128")
    with _running(arguments, home, tmp_path) as started:
        children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
        servers = [int(child) for child in children if "local_server" in Path(f"/proc/{child}/cmdline").read_text()]
        assert len(servers) == 1
        server = os.pidfd_open(servers[0])
        started.kill()
        ended, _, _ = select.select([server], [], [], 60)
        os.close(server)
    assert ended == [server]


@pytest.mark.slow
def test_prefect_home_that_cannot_be_made(capture_arguments: tuple[str, ...], tmp_path: Path) -> None:
    from tests.flows.command import theodolite

    (tmp_path / "file").write_text("")
    answer = theodolite(
        "capture", *capture_arguments, "--max-documents", "1", "--json", home=tmp_path / "file", cwd=tmp_path
    )
    assert answer.code == 1
    assert "Set PREFECT_HOME to a folder that can be written" in answer.content["error"]["remedy"], answer.err
    assert "Traceback" not in answer.err


def test_trained_model_can_be_captured(call_flow: Call, tmp_path: Path) -> None:
    sizes = ("--steps", "3", "--layers", "1", "--heads", "2", "--width", "16", "--context", "32", "--batch", "2")
    trained = call_flow("train", "model", *sizes, "--json")
    assert trained.code == 0, trained.err
    assert trained.content["train"]["steps"] == 3
    assert trained.content["train"]["resumed_at"] is None
    again = call_flow("train", "model", *sizes, "--json")
    assert (again.code, again.content["train"]["already_done"]) == (0, True), again.err
    captured = call_flow("capture", "--model", "model", "--corpus", "python-topics", "--max-documents", "2", "--json")
    assert captured.code == 0, captured.err
    assert captured.content["tables"]["documents"] == 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_at_once_share_the_work(capture_arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Two commands of one key, on one new Prefect home: both end well, and nothing is there twice."""
    arguments = ("capture", *capture_arguments, "--max-documents", "40", "--window", "128", "--json")
    two = [
        subprocess.Popen(
            [*THEODOLITE, *arguments],
            env=environment(tmp_path / "new-home"),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [started.communicate(timeout=240) for started in two]
    assert [started.returncode for started in two] == [0, 0], said
    contents = [json.loads(out.splitlines()[-1]) for out, _ in said]
    assert contents[0]["capture"] == contents[1]["capture"]
    assert contents[0]["tables"]["documents"] == contents[1]["tables"]["documents"] == 40
