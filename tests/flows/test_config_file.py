"""Configuration: the file, the options over it, and every mistake named with its nearest."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from flows.config import Config
from flows.config_file import chosen_stages, configure, preset_names, require_kept, stage_changes
from storage.errors import CorpusError, UnknownName, UsageError
from tasks.capture.settings import CaptureSettings
from tasks.stages.parameters import stage_parameters
from tasks.stages.registry import default_stages, stage, stages


def made(source: str | None = None, capture: Mapping[str, Any] | None = None, **run: Any) -> Config:
    changes = run.pop("changes", ())
    return configure(source, {"capture": capture or {}, "run": run}, changes)


def written(tmp_path: Path, text: str) -> str:
    file = tmp_path / "config.toml"
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_no_file_is_the_default_preset() -> None:
    config = made()
    assert (config.capture.model, config.capture.corpus) == ("sample", ("python-topics",))
    assert (config.capture.window, config.capture.max_documents, config.run.runs) == (256, 48, "runs")
    assert chosen_stages(config) == default_stages()  # those that run the model again wait until they are named


def test_every_preset_is_valid() -> None:
    assert preset_names() == ["default", "everything", "smollm2"]
    for name in preset_names():
        assert made(name).capture


def test_everything_shows_the_defaults() -> None:
    """The preset that lists every setting lists its default."""
    assert made("everything").capture == CaptureSettings()
    text = (Path(__file__).parents[2] / "presets" / "everything.toml").read_text(encoding="utf-8")
    assert all(name in text for name in CaptureSettings.model_fields)
    shown = tomllib.loads(re.sub(r"^# (?=\[stages|\w+ = )", "", text, flags=re.MULTILINE))["stages"]
    assert list(shown) == [name for name, known in stages().items() if known.parameter_names()]
    for name, values in shown.items():
        assert set(values) == set(stage(name).parameter_names())
        required = {"files": tuple(values["files"])} if "files" in values else {}
        assert stage_parameters(stage(name), values) == stage(name).parameters(**required)


def test_another_model_has_its_own_window() -> None:
    assert made(capture={"model": "other"}).capture.window is None
    assert made(capture={"model": "other", "window": 64}).capture.window == 64
    assert made(capture={"corpus": ["a.txt"]}).capture.window == 256


def test_zero_lifts_the_cap() -> None:
    assert made(capture={"max_documents": 0}).capture.max_documents is None
    assert made(capture={"max_documents": 5}).capture.max_documents == 5


def test_options_stand_over_the_file(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        '[capture]\nmodel = "a"\ncorpus = "t.txt"\nwindow = 64\n[stages.contributions]\nedges = 4\nbins = 10\n'
        '[run]\nseed = 3\nstages = "contributions"\n',
    )
    config = made(file, {"model": "b", "window": None}, seed=None, workers=2, changes=["contributions.edges=16"])
    assert (config.capture.model, config.capture.window, config.capture.corpus) == ("b", 64, ("t.txt",))
    assert config.stages == {"contributions": {"edges": "16", "bins": 10}}
    assert (config.run.seed, config.run.workers, config.run.stages) == (3, 2, ("contributions",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[capture]\nmodle = "a"',
            "expected the name of a setting, got 'modle', in {file} [capture]. Did you mean 'model'?",
        ),
        ("[captures]\n", "expected the name of a section, got 'captures', in {file}. Did you mean 'capture'?"),
        ("[stages.contribution]\n", "expected the name of a stage, got 'contribution'. Did you mean 'contributions'?"),
        (
            "[stages.contributions]\nedge = 1",
            "expected the name of a parameter, got 'edge', in stage contributions. Did you mean 'edges'?",
        ),
        ('[capture]\nwindow = "wide"', "got 'wide', in {file}: capture.window"),
        ("[run]\nworkers = 0", "got 0, in {file}: run.workers"),
        ("capture = 3", "expected a section [capture] with settings, got capture = 3, in {file}"),
        ("[stages]\ncontributions = 3", "expected a section [stages.contributions] with settings, got "),
        ("captures = 3", "expected the name of a section, got 'captures', in {file}. Did you mean 'capture'?"),
        ("[run]\nruns = 3", "expected a valid string, got 3, in {file}: run.runs"),
        ("[run]\nseed = -1", "expected greater than or equal to 0, got -1, in {file}: run.seed"),
        ("[run]\nseed = true", "expected a valid integer, got True, in {file}: run.seed"),
        (
            '[run]\nstages = ","',
            "expected names of stages, got ',', in stages. Leave it out for those that are quick",
        ),
        ("[capture]\nwindow = true", "expected a valid integer, got True, in {file}: capture.window"),
        ('[capture]\nwindow = "64"', "expected a valid integer, got '64', in {file}: capture.window"),
        ("[capture]\nmax_documents = false", "expected a valid integer, got False, in {file}: capture.max_documents"),
        ("[capture]\nwindow = 0", "expected a window of at least 2 tokens, got 0, in window"),
        ("[capture]\nstride = 0", "expected a number of at least 1, got 0, in stride"),
        ('[capture]\ndevice = "tpu"', "expected one of auto, cpu, cuda, mps, got 'tpu', in device"),
        ("[capture", "expected a configuration in TOML, got "),
        ('[capture]\ndtype = "float8"', "expected one of float32, float16, bfloat16, got 'float8', in dtype"),
        ('[capture]\nattention = "packed"', "expected one of stored, rebuilt, none, auto, got 'packed', in attention"),
        ("[capture]\nlayers = [0, -1]", "expected layers as numbers and ranges, such as 0-5,10, got '0,-1', in layers"),
        (
            "[run]\nstages = []\n[stages.contributions]\nedges = 2",
            "expected parameters of stages that run (none), got parameters of contributions, in {file}. "
            "Add contributions to --stages, or leave its parameters out.",
        ),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, message: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        made(file)
    assert message.format(file=file) in str(caught.value)


def test_wrong_parameter_value_is_named() -> None:
    with pytest.raises(UsageError, match=r"got .many., in contributions\.edges"):
        made(changes=["contributions.edges=many"])
    with pytest.raises(UsageError, match="edges from 1 to 65,536, got 0"):
        made(changes=["contributions.edges=0"])


def test_no_such_file_or_preset(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"got no such file, in absent\.toml"):
        made("absent.toml")
    with pytest.raises(UnknownName, match=r"Did you mean 'smollm2'"):
        made("smolm2")


@pytest.mark.parametrize("change", ["edges=3", "contributions.edges", ".edges=3", "contributions.=3"])
def test_set_needs_its_three_parts(change: str) -> None:
    with pytest.raises(UsageError, match=r"expected stage\.parameter=value"):
        stage_changes([change])


def test_set_keeps_an_equals_sign_in_its_value() -> None:
    assert stage_changes(["a.b=c=d", "a.e= 1 "]) == {"a": {"b": "c=d", "e": "1"}}


@pytest.mark.parametrize(("name", "value"), [("seed", -1), ("workers", 0)])
@pytest.mark.parametrize("flow", ["flows.stage_run.stage_run", "flows.full_run.full_run"])
def test_a_deployment_refuses_what_the_command_refuses(flow: str, name: str, value: int) -> None:
    from prefect.exceptions import ParameterTypeError

    module, _, function = flow.rpartition(".")
    with pytest.raises(ParameterTypeError, match=name):
        getattr(import_module(module), function).validate_parameters({name: value})


def test_lists_and_text_say_the_same_of_what_is_kept(tmp_path: Path) -> None:
    listed = '[capture]\nlayers = [2, 0, 1]\nkeep = ["residual", "value"]\nstore_dtype = ["attention=float16"]'
    text = '[capture]\nlayers = "0-2"\nkeep = "value,residual"\nstore_dtype = "attention=float16"'
    chosen = [configure(written(tmp_path, content), {}, ()).capture for content in (listed, text)]
    assert chosen[0] == chosen[1]
    assert (chosen[0].layers, chosen[0].keep) == ("0-2", "value,residual")


def test_all_stages_need_their_files_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"files of multiple-choice questions, got none, in choices\.files"):
        made(stages="all")
    with pytest.raises(CorpusError, match=r"not there"):
        made(stages="all", changes=[f"choices.files={tmp_path / 'gone.jsonl'}"])
    file = tmp_path / "sky.jsonl"
    file.write_text('{"context": "The sky is", "choices": ["blue", "loud"]}\n')
    with pytest.raises(CorpusError, match=r"a label \(0 or 1\) in the field 'label', got none.*line 1"):
        made(stages="all", changes=[f"choices.files={file}"])
    file.write_text('{"context": "The sky is", "choices": ["blue", "loud"], "label": 0}\n')
    with pytest.raises(UsageError, match=r"files of minimal pairs, got none, in minimal_pairs\.files"):
        made(stages="all", changes=[f"choices.files={file}"])
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text('{"sentence_good": "It is", "sentence_bad": "It are"}\n')
    changes = [f"choices.files={file}", f"minimal_pairs.files={pairs}"]
    of_text = tuple(name for name in stages() if name != "probes")  # which is about treebanks
    assert chosen_stages(made(stages="all", changes=changes)) == of_text
    treebank = tmp_path / "bank.conllu"
    treebank.write_text("1\tGo\tgo\tVERB\t_\t_\t0\troot\t_\t_\n")
    config = made(capture={"corpus": [str(treebank)]}, stages="all", changes=changes)
    assert chosen_stages(config) == tuple(stages())


def test_a_stage_about_treebanks_is_refused_before_a_capture_of_text() -> None:
    config = made(stages="probes")
    with pytest.raises(CorpusError, match=r"a treebank in CoNLL-U .* got topics"):
        require_kept(config.capture, chosen_stages(config))
