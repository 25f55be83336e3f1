"""`theodolite verify` on a capture: what it prints of the documents that it runs again, and how it ends."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from flows.checks import checks_told
from flows.commands.inspect import verify
from storage.checks import CheckResult
from tasks.capture import verify_sample as verify_rerun
from tasks.capture.plan import prepare_capture
from tasks.capture.run import capture_shards, shards_left
from tasks.capture.settings import CaptureSettings
from tasks.capture.verify_sample import LayerErrors, Rerun
from tests.flows.command import Answer
from tests.tasks.capture.made_captures import Made, make, save_model

Call = Callable[..., Answer]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    (folder / "text.txt").write_text("A text of some lines,\nto be captured and verified.\n" * 3)
    return make(save_model(folder / "model"), [folder / "text.txt"], folder / "runs", window=40)


def test_a_sample_is_run_again_and_told(made: Made, call_here: Call) -> None:
    answer = call_here("verify", "--runs", made.runs, "--documents", "3", "--seed", "5", "--json")
    assert answer.code == 0, answer.err
    sample = answer.content["verify"]["sample"]
    assert (len(sample["documents"]), sample["problems"], sample["note"]) == (3, [], "")
    assert [layer["layer"] for layer in sample["layers"]] == [0, 1, 2, 3]
    assert all(layer["residual"] < 1e-4 for layer in sample["layers"])
    assert sample["layers"][3]["attention"] is None and sample["layers"][3]["nll"] < 1e-4
    assert re.search(r"layer +attention +output_input +residual +nll", answer.err)
    assert "run again through the plain model: documents " in answer.err


def test_checks_without_rows_are_counted_apart(made: Made, call_here: Call) -> None:
    """Of a capture alone most tables are empty: their checks hold nothing, and are listed only where all is asked."""
    quiet = call_here("verify", "--runs", made.runs, "--documents", "0", "--json")
    checks = quiet.content["verify"]["checks"]
    held = [check for check in checks if check["rows_checked"]]
    assert 0 < len(held) < len(checks) and all(check["passed"] for check in checks)
    rows = sum(check["rows_checked"] for check in held)
    told = f"{len(held)} checks of {rows:,} rows hold; {len(checks) - len(held)} had nothing to check"
    assert told in quiet.err.splitlines()
    assert "masking_complete" not in quiet.err and re.search(r"^tokens_nll +holds", quiet.err, re.MULTILINE)
    everything = call_here("verify", "--runs", made.runs, "--documents", "0", "--verbose").out
    assert re.search(r"^masking_complete +no rows", everything, re.MULTILINE) and told in everything


def test_a_capture_is_told_apart_and_named_by_its_beginning(made: Made, call_here: Call) -> None:
    status = call_here("status", "--runs", made.runs, "--capture", made.capture[:4])
    assert status.code == 0, status.err
    name, what, *stages = status.out.splitlines()
    assert name == made.capture and re.search(r"over .*text\.txt, window 40, \d documents, attention \w+", what)
    assert [line.split()[2] for line in stages[1:]] == ["done"]
    cost = call_here("query", "capture_cost", f"capture={made.capture[:4]}", "--runs", made.runs, "--json")
    assert [row["capture"] for row in cost.content["rows"]] == [made.capture]


def test_broken_checks_are_counted() -> None:
    results = [
        CheckResult("a", "x", True, 1500, 0, 0.0, ""),
        CheckResult("b", "x", False, 10, 2, 1.0, ""),
        CheckResult("c", "x", True, 0, 0, None, ""),
    ]
    assert checks_told(results) == "1 check of 1,500 rows holds; 1 broken; 1 had nothing to check"
    assert checks_told(results[:1]) == "1 check of 1,500 rows holds"


def test_errors_beyond_tolerance_end_with_1(
    made: Made, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[object] = []

    def wrong(*given: object) -> Rerun:
        asked.append(given)
        return Rerun([4], [LayerErrors(0, attention=0.5)], ["attention of layer 0, document 4, head 1: wrong"])

    monkeypatch.setattr(verify_rerun, "rerun_sample", wrong)
    for documents, code in ((1, 1), (0, 0)):
        with pytest.raises(typer.Exit) as ended:
            verify(capture=None, documents=documents, runs=made.runs, seed=None, as_json=False, verbose=False)
        assert ended.value.exit_code == code
    assert asked == [(made.runs, made.capture, 1, 0)]
    told = capsys.readouterr().out
    assert "attention of layer 0, document 4, head 1: wrong" in told
    assert "documents 4; 1 error beyond tolerance" in told


def test_a_wrong_number_of_documents_is_wrong_usage(call_here: Call) -> None:
    answer = call_here("verify", "--documents", "-1", "--json")
    assert (answer.code, "--documents" in answer.err) == (2, True)


@pytest.mark.parametrize("corpus", ["s3://bucket/texts", "hf:owner/name"])
def test_corpora_whose_package_is_absent_are_wrong_usage(corpus: str, call_here: Call) -> None:
    package = {"s3": "obstore", "hf": "datasets"}[corpus[:2]]
    if importlib.util.find_spec(package) is not None:
        pytest.skip(f"the optional package {package} is installed")
    answer = call_here("plan", "--corpus", corpus, "--json")
    assert (answer.code, f"the package {package}" in answer.err) == (2, True), answer.err


def test_what_is_not_captured_yet_is_told_and_ends_with_3(tmp_path: Path, call_here: Call) -> None:
    model, text, runs = save_model(tmp_path / "model"), tmp_path / "text.txt", str(tmp_path / "runs")
    text.write_text("A text of some lines,\nto be captured and verified.\n" * 6)
    settings = CaptureSettings(str(model), (str(text),), window=40, batch_tokens=80, shard_tokens=80)
    capture = prepare_capture(settings, runs)
    shards = len(shards_left(runs, capture))
    capture_shards(runs, capture, [0])
    answer = call_here("verify", "--runs", runs, "--documents", "1", "--json")
    assert answer.code == 3, answer.err
    assert answer.content["shards"] == {"total": shards, "left": shards - 1}
    assert f"1 of {shards} shards captured: the command that captured goes on" in answer.err
