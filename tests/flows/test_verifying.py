"""`theodolite verify` on a capture: what it prints of the documents that it runs again, and how it ends."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from flows.commands.asking import verify
from tasks import verify_rerun
from tasks.capture import capture_shards, shards_left
from tasks.identity import CaptureSettings
from tasks.planning import prepare_capture
from tasks.verify_rerun import LayerErrors, Rerun
from tests.flows.command import Answer
from tests.tasks.made_captures import Made, make, save_model

Call = Callable[..., Answer]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    (folder / "text.txt").write_text("A text of some lines,\nto be captured and verified.\n" * 3)
    return make(save_model(folder / "model"), [folder / "text.txt"], folder / "runs", window=40)


def test_a_sample_is_run_again_and_told(made: Made, call: Call) -> None:
    answer = call("verify", "--runs", made.runs, "--documents", "3", "--seed", "5", "--json")
    assert answer.code == 0, answer.err
    sample = answer.content["verify"]["sample"]
    assert (len(sample["documents"]), sample["problems"], sample["note"]) == (3, [], "")
    assert [layer["layer"] for layer in sample["layers"]] == [0, 1, 2, 3]
    assert all(layer["residual"] < 1e-4 for layer in sample["layers"])
    assert sample["layers"][3]["attention"] is None and sample["layers"][3]["nll"] < 1e-4
    assert re.search(r"layer +attention +output_input +residual +nll", answer.err)
    assert "run again through the plain model: documents " in answer.err


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
    assert "documents 4; 1 errors beyond tolerance" in told


def test_a_wrong_number_of_documents_is_wrong_usage(call: Call) -> None:
    answer = call("verify", "--documents", "-1", "--json")
    assert (answer.code, "--documents" in answer.err) == (2, True)


@pytest.mark.parametrize("corpus", ["s3://bucket/texts", "hf:owner/name"])
def test_corpora_whose_package_is_absent_are_wrong_usage(corpus: str, call: Call) -> None:
    package = {"s3": "obstore", "hf": "datasets"}[corpus[:2]]
    if importlib.util.find_spec(package) is not None:
        pytest.skip(f"the optional package {package} is installed")
    answer = call("plan", "--corpus", corpus, "--json")
    assert (answer.code, f"the package {package}" in answer.err) == (2, True), answer.err


def test_what_is_not_captured_yet_is_told_and_ends_with_3(tmp_path: Path, call: Call) -> None:
    model, text, runs = save_model(tmp_path / "model"), tmp_path / "text.txt", str(tmp_path / "runs")
    text.write_text("A text of some lines,\nto be captured and verified.\n" * 6)
    settings = CaptureSettings(str(model), (str(text),), window=40, batch_tokens=80, shard_tokens=80)
    capture = prepare_capture(settings, runs)
    shards = len(shards_left(runs, capture))
    capture_shards(runs, capture, [0])
    answer = call("verify", "--runs", runs, "--documents", "1", "--json")
    assert answer.code == 3, answer.err
    assert answer.content["shards"] == {"total": shards, "left": shards - 1}
    assert f"1 of {shards} shards are captured: the command that captured goes on" in answer.err
