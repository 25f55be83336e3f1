"""Commands that run no flow: what they load, what they say, and how they refuse."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.filesystem import open_runs
from tests.flows.command import ROOT, Answer, environment
from tests.sql.made_up_runs import MadeUp

Call = Callable[..., Answer]
COMMANDS = ("run", "plan", "capture", "stage", "train", "status", "verify", "sql", "query", "models")
ABSENT = "cuda" if sys.platform == "darwin" else "mps"
"""A device that no machine of this kind has."""
HEAVY = ("prefect", "torch", "transformers", "zarr", "scipy", "pandas", "numba", "sklearn")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["run", "--help"],
        ["models"],
        ["query"],
        ["status", "--runs", "."],
        ["sql", "select count(*) from captures", "--runs", "."],
        ["plan", "--model", "{model}", "--max-documents", "2"],
    ],
    ids=lambda arguments: arguments[0] if isinstance(arguments, list) else str(arguments),
)
def test_loads_nothing_heavy(arguments: list[str], home: Path, tmp_path: Path, fixtures: Path) -> None:
    """A command that runs no flow answers at once only if it imports neither Prefect nor torch."""
    model = str(fixtures / "models" / "shakespeare-char-llama")
    code = (
        "import sys\nfrom flows.cli import main\n"
        f"sys.argv = ['theodolite', *{[a.format(model=model) for a in arguments]!r}]\n"
        "try:\n    main()\n"
        f"finally:\n    print('loaded:', *[m for m in {HEAVY!r} if m in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(home),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "loaded:"


def test_help_names_every_command(call_here: Call) -> None:
    told = call_here("--help").out
    assert all(re.search(rf"\b{command}\b", told) for command in COMMANDS)
    assert call_here().code == 2  # no command is wrong usage


def test_docs_name_every_command_and_option(call_here: Call) -> None:
    """docs/running.md is a contract: what help offers, it explains."""
    text = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")
    for command in COMMANDS:
        assert f"`theodolite {command}" in text, command
        for option in re.findall(r"(--[a-z][a-z-]*)", call_here(command, "--help").out):
            assert f"`{option}" in text or option == "--help", (command, option)


def test_models_lists_families(call_here: Call) -> None:
    answer = call_here("models", "--json")
    known = {family["model_type"] for family in answer.content["models"]}
    assert {"llama", "gpt_neox", "gpt2", "falcon", "bert"} <= known
    ways = {family["model_type"]: family["way"] for family in answer.content["models"]}
    assert (ways["llama"], ways["bloom"]) == ("interface", "fallback")
    refused = {family["model_type"]: family["reason"] for family in answer.content["refused"]}
    assert refused["mamba"] == "its layers have no attention matrix" and not known & set(refused)
    assert answer.content["exit"] == 0
    assert "gpt_neox" in answer.err  # the table goes beside the object


def test_plan_tells_sizes_and_writes_nothing(call_here: Call, fixtures: Path, tmp_path: Path) -> None:
    model = str(fixtures / "models" / "stories260K")
    answer = call_here("plan", "--model", model, "--max-documents", "3", "--window", "64", "--json")
    planned = answer.content["plan"]
    assert (planned["n_docs"], planned["window"], planned["fits"]) == (3, 64, True)
    assert planned["attention_bytes"]["stored"] == 5 * 8 * 4 * sum([64 * 65 // 2] * 3)
    assert not list((tmp_path / "runs").rglob("*.json"))


def test_plan_shows_both_ways_to_keep_attention(call_here: Call) -> None:
    options = ("--max-documents", "1", "--window", "128")
    answer = call_here("plan", *options, "--layers", "0-2", "--attention", "stored", "--json")
    assert answer.content["plan"]["attention_bytes"] == {
        "stored": 3 * 8 * 4 * 128 * 129 // 2,
        "rebuilt": 3 * 8 * 4 * 128 * 2 * 16,
    }
    assert "attention stored: stored 793 KB, rebuilt 393 KB before compression; --attention rebuilt is" in answer.err
    answer = call_here("plan", *options, "--keep", "value")  # auto
    assert "attention rebuilt: stored 1.59 MB, rebuilt 786 KB before compression" in answer.out
    assert "is the smaller" not in answer.out and "residual" not in answer.out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "--stages", "contribution"], 2, "got 'contribution'. Did you mean 'contributions'?"),
        (["run", "--set", "contributions.edge=3"], 2, "got 'edge', in stage contributions. Did you mean 'edges'?"),
        (["run", "--set", "edges=3"], 2, "expected stage.parameter=value, got 'edges=3', in --set"),
        (["run", "--attention", "packed"], 2, "expected one of stored, rebuilt, none, auto, got 'packed'"),
        (["run", "--attention", "none"], 2, "got one without attention, in this capture, stage contributions"),
        (["run", "--keep", "residual"], 2, "got one without value, in this capture, stage contributions"),
        (["run", "--heads", "0-3"], 2, "got one without all heads, in this capture, stage contributions"),
        (["run", "--positions", "last"], 2, "got one without all query positions, in this capture"),
        (["plan", "--layers", "0-6"], 2, "expected layers from 0 to 5, got 6, in layers"),
        (["plan", "--heads", "3,8"], 2, "expected heads from 0 to 7, got 8, in heads"),
        (["plan", "--positions", "300"], 2, "in a window of 256 tokens, got '300', in positions"),
        (["plan", "--positions", "end"], 2, "last, last:8 or every:16, such as 0-31,last, got 'end', in positions"),
        (["run", "--dtype", "float8"], 2, "expected one of float32, float16, bfloat16, got 'float8'"),
        (["run", "absent.toml"], 2, "got no such file, in absent.toml"),
        (["stage", "contribution"], 2, "Did you mean 'contributions'?"),
        (
            ["stage", "contributions", "--set", "other.edges=3"],
            2,
            "expected the name of a stage to set here, got 'other'",
        ),
        (["query", "convexty", "--runs", "."], 2, "got 'convexty'. Did you mean 'convexity'?"),
        (["query", "convexity", "layer", "--runs", "."], 2, "expected parameter=value, got 'layer'"),
        (["sql", "select * from token_score", "--runs", "."], 2, "token_scores"),
        (
            ["sql", "select * from convexity", "--runs", "."],
            2,
            "got 'convexity'. It is a named query: `theodolite query convexity` asks it",
        ),
        (
            ["sql", "select 1", "--runs", ".", "--output", "rows.xlsx"],
            2,
            "expected a file that ends in .csv, .json, .parquet, got 'rows.xlsx', in --output.",
        ),
        (
            ["query", "convexity", "--output", "absent/rows.csv"],
            2,
            "expected a folder to write into, got nothing there, in absent. Make it, or name another place",
        ),
        (["sql", "drop view captures", "--runs", "."], 2, "expected a statement that reads"),
        (["status"], 1, "expected a folder of runs, got nothing there"),
        (["verify", "--runs", "."], 1, "expected a capture, got none"),
        (["verify", "--runs", "s3://bucket"], 2, "Object storage is not in this version"),
        (["plan", "--model", "absent-model/"], 1, "absent-model/"),
        (["plan", "--corpus", "absent.txt"], 1, "absent.txt"),
        (["plan", "--window", "0"], 2, "expected a window of at least 2 tokens, got 0"),
        (["run", "--window", "0"], 2, "expected a window of at least 2 tokens, got 0"),
        (["plan", "--model", ""], 2, "expected a model, got '', in --model"),
        (["plan", "--corpus", ""], 2, "expected a corpus, got '', in --corpus"),
        (["run", "--stages", ""], 2, "expected names of stages, got '', in stages"),
        (["status", "--runs", ""], 2, "expected a folder, got ''. Name a folder"),
        (["plan", "--device", "tpu"], 2, "expected one of auto, cpu, cuda, mps, got 'tpu', in device"),
        (["run", "--device", ABSENT], 2, f"expected a device of this machine, got '{ABSENT}'. There is"),
        (["train", "x", "--variant", "gpt"], 2, "expected a variant to train, got 'gpt', in training settings."),
        (
            ["train", "x", "--checkpoint-every", "0"],
            2,
            "expected a checkpoint every 1 or more steps, got 0, in training",
        ),
        (["train", "x", "--seed", "9" * 23], 2, f"expected a seed of 0 to 9223372036854775807, got {'9' * 23}, in"),
        (["train", "x", "--dropout", "0.2"], 2, "expected an option of the variant 'sample', got dropout, in training"),
        (["train", f"{__file__}/sub"], 2, f"expected a folder, got a file, in {__file__}. Name another folder."),
        (["run", "--runs", f"{__file__}/sub"], 2, f"expected a folder, got a file, in {__file__}. Name another"),
        (["run", "--seed", "-1"], 2, "--seed"),
        (["run", "--set", f"contributions.edges={'9' * 20}"], 2, "expected edges from 1 to 65,536, got 9999"),
        (
            ["plan", "--runs", f"{__file__}/sub"],
            2,
            f"expected a folder, got a file, in {__file__}. Name another folder.",
        ),
        (["status", "--runs", f"{__file__}/sub/sub"], 2, f"got a file, in {__file__}"),
        (["run", "--wndow", "3"], 2, "--wndow"),
        (["run", "--window", "wide"], 2, "--window"),
        (["capture", "--model", "sample"], 2, "--corpus"),
        (["stat"], 2, "stat"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_refusals(arguments: list[str], code: int, message: str, call_here: Call) -> None:
    """Every wrong use: its exit code, what it says, the same in the object, and never a traceback."""
    answer = call_here(*arguments, "--json")
    assert (answer.code, message in answer.err) == (code, True), answer.err
    assert "Traceback" not in answer.err
    assert answer.content["exit"] == code
    assert message in answer.content["error"]["message"]


def test_a_folder_without_captures_is_named_by_whatever_reads_it(call_here: Call, tmp_path: Path) -> None:
    """status printed nothing, SQL answered 0, and a query advised to start a second folder of runs."""
    for arguments in (["status"], ["sql", "select count(*) as n from documents"], ["query", "convexity"]):
        answer = call_here(*arguments, "--runs", ".", "--json")
        assert answer.code == 0 and f"Nothing is captured in {tmp_path}." in answer.err, arguments


def test_a_value_that_no_row_has_is_answered_with_those_there_are(tmp_path: Path, call_here: Call) -> None:
    MadeUp(open_runs(str(tmp_path), create=True), "alpha").publish()
    answer = call_here("query", "convexity", "layer=99", "--runs", ".")
    assert "No rows: sink_fit has no layer 99; it has 0, 1." in answer.out


def test_refusal_states_its_parts(call_here: Call) -> None:
    error = call_here("run", "--stages", "contribution", "--json").content["error"]
    assert (error["kind"], error["expected"], error["got"]) == ("UnknownName", "the name of a stage", "'contribution'")
    assert error["remedy"] == "Did you mean 'contributions'?"


def test_verbose_adds_the_traceback(call_here: Call) -> None:
    assert "Traceback" in call_here("run", "--stages", "contribution", "--verbose").err


def test_sql_may_begin_with_a_comment(call_here: Call) -> None:
    answer = call_here("sql", "-- one = two\nselect 1 as a, 2 as a", "--runs", ".", "--json")
    assert answer.code == 0, answer.err
    assert (answer.content["columns"], answer.content["rows"]) == (["a", "a_1"], [{"a": 1, "a_1": 2}])
    assert re.search(r"a +a_1\n", answer.err)  # as people are shown it


def test_query_without_a_name_lists_questions(call_here: Call) -> None:
    """One line each in a pipe, with the question alone and no padding."""
    lines = call_here("query").out.splitlines()
    listed = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines[: lines.index("")]}
    assert listed["convexity"] == "Is the output norm convex in the sink rate?"
    assert set(listed) == {query["name"] for query in call_here("query", "--json").content["queries"]}
    assert all(question.endswith("?") and question.count("?") == 1 for question in listed.values())
    assert lines == [line.rstrip() for line in lines]


def test_query_help_tells_the_parameters_with_their_defaults(call_here: Call) -> None:
    answer = call_here("query", "dissociation", "help", "--json")
    assert answer.code == 0, answer.err
    told = answer.content["query"]
    assert told["grain"].startswith("one row per (capture, protocol") and told["grain"] in answer.err
    assert told["summary"] in answer.err
    assert re.search(r"^pair_noise=shared +varchar: how the sentences of a minimal pair", answer.err, re.MULTILINE)
    assert {"name": "resamples", "type": "integer", "default": 2000}.items() <= told["parameters"][-1].items()
    assert "got 'disociation'. Did you mean 'dissociation'?" in call_here("query", "disociation", "help").err


AT_IMPORT = """
import os, sys
seen = 0
def watch(event, arguments):
    global seen
    if event == "import":
        seen += 1
        if seen == {moment}:
            os.kill(os.getpid(), {number})
sys.argv = ["theodolite", "status", "--runs", ".", "--json"]
from flows.__main__ import main
sys.addaudithook(watch)
try:
    main()
finally:
    sys.stderr.write(f"imports {{seen}}\\n")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_while_it_loads(number: int, tmp_path: Path, home: Path) -> None:
    """Before there is a command there is its answer all the same: exit code 3, one line, one object."""

    def start(moment: int) -> subprocess.CompletedProcess[str]:
        code = AT_IMPORT.format(moment=moment, number=int(number))
        command = [sys.executable, "-P", "-c", code]
        env = {**environment(home), "PYTHONPATH": str(ROOT)}
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    imports = int(start(0).stderr.splitlines()[-1].split()[1])
    for moment in (1, imports // 3, 2 * imports // 3, imports):
        done = start(moment)
        assert (done.returncode, "Traceback" in done.stderr) == (3, False), (moment, done.stderr)
        assert "interrupted; the same command resumes" in done.stderr
        assert json.loads(done.stdout.splitlines()[-1])["exit"] == 3


@pytest.mark.skipif(sys.platform == "win32", reason="signals end a process there")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_in_duckdb(number: signal.Signals, home: Path, tmp_path: Path) -> None:
    """One clear line and exit code 3, as everywhere, also while DuckDB works."""
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "tests.endless"],
        env=environment(home),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as started:
        assert started.stdout is not None and started.stdout.readline() == "begun\n", started.communicate()
        started.send_signal(number)
        try:
            out, err = started.communicate(timeout=60)
        finally:
            started.kill()
    assert (started.returncode, err.strip()) == (3, "theodolite: interrupted; the same command resumes")
    content = json.loads(out.splitlines()[-1])
    assert (content["exit"], content["error"]["kind"]) == (3, "Interrupted")


def test_plan_says_that_it_does_not_look_for_the_device(call_here: Call) -> None:
    answer = call_here("plan", "--max-documents", "2", "--device", ABSENT)
    assert answer.code == 0, answer.err
    assert f"whether this machine has {ABSENT} is seen when the run starts" in answer.out
