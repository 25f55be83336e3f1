"""Rows of the stage `repair` against the plain float64 model with clean outputs put back by hooks; what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from storage.errors import UsageError
from tasks.stages.parameters import stage_parameters
from tasks.stages.registry import stage
from tasks.stages.run import open_replay, prepare_stage
from tests.tasks.stages.perturbation.test_perturbation import Plain, condition
from tests.tasks.stages.running import Ran, captured, run

GRID = {"layers": "0-1", "deltas": "3", "relative_deltas": "0.3", "first_token": "include"}
VALUES = {**GRID, "sets": "all,first_half,each"}
MODULES = {"attention_output": "self_attn.o_proj", "mlp_output": "mlp"}
LAYERS = {"0-1": (0, 1), "0": (0,), "1": (1,)}


class Repaired(Plain):
    """Llama, of whose modules outputs are recorded in a clean pass, and put back in a perturbed one."""

    def __init__(self, ran: Ran) -> None:
        super().__init__(ran)
        self._kept: dict[str, torch.Tensor] = {}
        self._back: dict[str, torch.Tensor] = {}
        for layer, module in enumerate(self.model.anatomy.layers):
            for name in MODULES.values():
                module.get_submodule(name).register_forward_hook(self._leaves(f"{layer}.{name}"))

    def _leaves(self, name: str) -> Any:
        def hook(_module: Any, _args: Any, output: torch.Tensor) -> torch.Tensor:
            self._kept[name] = output
            return self._back.get(name, output)

        return hook

    def losses(self, row: dict[str, Any]) -> float:
        self.model.passed(self.documents[row["doc"]][0], {})
        names = [f"{layer}.{MODULES[row['target']]}" for layer in LAYERS[row["repaired_layers"]]]
        self._back = {name: self._kept[name].clone() for name in names}
        try:
            return float(self.passed(row).losses.sum())
        finally:
            self._back = {}


def test_rows_of_repair(tmp_path: Path) -> None:
    ran = run(captured(tmp_path), "repair", VALUES)
    plain, rows, known = Repaired(ran), ran.rows("repair"), dict[Any, float]()
    targets = {row["target"] for row in rows}
    assert targets == {"attention_output", "attention_weights", "norm_output", "mlp_output"}
    assert {row["repaired_layers"] for row in rows} == set(LAYERS)
    assert len(rows) == len(plain.documents) * 2 * 2 * 4 * 3
    helped = 0
    for row in rows:
        key = condition(row)
        if key not in known:
            known[key] = float(plain.passed(row).losses.sum())
        assert row["nll_perturbed_sum"] == pytest.approx(known[key], rel=1e-4)
        assert row["nll_clean_sum"] == pytest.approx(plain.clean[row["doc"]].losses.sum(), rel=1e-5)
        assert row["n_predicted"] == len(plain.clean[row["doc"]].losses)
        if row["repaired_layers"] == "0":  # its own parts are clean as it is
            assert row["nll_repaired_sum"] == pytest.approx(row["nll_perturbed_sum"], rel=1e-6)
        elif row["target"] in MODULES:
            assert row["nll_repaired_sum"] == pytest.approx(plain.losses(row), rel=1e-4)
        helped += abs(row["nll_repaired_sum"] - row["nll_perturbed_sum"]) > 1e-3
    assert helped > len(rows) / 3


def test_repair_perturbs_as_perturbation_does(tmp_path: Path) -> None:
    """By the same noise, so the perturbed loss is that stage's."""
    made = captured(tmp_path)
    values = {**GRID, "protocols": "exact", "seeds": "1"}
    perturbed = {condition(row): row["nll_sum"] for row in run(made, "perturbation", values).rows("perturbation")}
    repaired = {
        condition(r): r["nll_perturbed_sum"]
        for r in run(made, "repair", {**values, "targets": "mlp_output"}).rows("repair")
    }
    assert repaired.keys() == perturbed.keys()
    assert all(repaired[key] == pytest.approx(perturbed[key], rel=1e-5) for key in repaired)


def test_layers_without_a_part_are_left_out(tmp_path: Path) -> None:
    """Layer 1 alone of this model has attention."""
    made = captured(tmp_path, "lfm2")
    rows = run(made, "repair", {"layers": "all", "deltas": "3", "relative_deltas": "", "sets": "all,each"}).rows(
        "repair"
    )
    of_target = {(row["target"], row["repaired_layers"]) for row in rows}
    assert {layers for target, layers in of_target if target.startswith("attention")} == {"1"}
    assert {layers for target, layers in of_target if target == "mlp_output"} == {"all", "0", "1", "2"}


def test_a_part_that_the_code_does_not_show_is_refused(tmp_path: Path) -> None:
    made = captured(tmp_path, "falcon-7b")
    with pytest.raises(UsageError, match=r"got attention_weights.*Leave attention_weights out of repair\.targets"):
        run(made, "repair")
    rows = run(made, "repair", {"targets": "mlp_output", "deltas": "3"}).rows("repair")
    assert {row["target"] for row in rows} == {"mlp_output"}


def test_parts_of_every_layer(tmp_path: Path) -> None:
    made = captured(tmp_path, "lfm2")
    replayer = open_replay(made.runs, made.capture).replayer
    assert replayer.layers_with("attention_output") == replayer.layers_with("attention_weights") == (1,)
    assert replayer.layers_with("residual") == replayer.layers_with("norm_output") == (0, 1, 2)


@pytest.mark.parametrize("name", ["perturbation", "repair", "propagation"])
@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"arms": "phase"}, "the name of a arm, got 'phase'|got 'phase', in"),
        ({"protocols": "paper"}, "got 'paper', in"),
        ({"first_token": "both"}, "got 'both', in"),
        ({"deltas": "0"}, r"deltas in \(0, 1e\+15\], got 0.0, in"),
        ({"deltas": "-1"}, r"deltas in \(0, 1e\+15\], got -1.0, in"),
        ({"relative_deltas": "inf"}, r"relative deltas in \(0, 1e\+15\], got inf, in"),
        ({"deltas": "1,1.00000001"}, "δ that differ in float32, as the tables hold them, got 1.0, 1.00000001"),
        ({"deltas": "1e-320"}, "as float32 holds them, got 1e-320"),
        ({"relative_deltas": "3e38"}, r"in \(0, 1e\+15\]"),
        ({"deltas": "1e308"}, r"in \(0, 1e\+15\]"),
        ({"deltas": "", "relative_deltas": ""}, "deltas or relative_deltas, at least one, got none"),
        ({"arms": ""}, "some of magnitude, angle, each once, got none"),
        ({"layers": "middle,middle"}, "each once, got middle, middle, of which some are twice"),
        ({"layers": "last"}, "'last'"),
        ({"layers": "some:1-2"}, "layers such as middle, all, 10-19, 3\\+7, or each:10-19, got 'some:1-2'"),
        ({"seeds": "0"}, "seeds from 1 to 1,000, got 0"),
    ],
)
def test_values_outside_the_grid(name: str, values: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        stage_parameters(stage(name), values)


@pytest.mark.parametrize(
    ("name", "values", "told"),
    [
        ("repair", {"targets": "residual"}, "got 'residual', in repair.targets"),
        ("repair", {"sets": "third"}, "got 'third', in repair.sets"),
        ("repair", {"sets": "all,all"}, "each once.*in repair.sets"),
        ("perturbation", {"sampled": "-1"}, "sampled from 0 to 10,000, got -1, in perturbation.sampled"),
    ],
)
def test_values_of_one_stage_outside_its_choices(name: str, values: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        stage_parameters(stage(name), values)


@pytest.mark.parametrize(
    ("name", "values", "told"),
    [
        ("perturbation", {"layers": "1-3"}, "layers from 0 to 2, got 3, in layers"),
        ("perturbation", {"layers": "each:7"}, "layers from 0 to 2, got 7"),
        ("perturbation", {"layers": "2"}, "residual stream that layers 2 need, got one without that before layers 3"),
        ("repair", {"layers": "0-1"}, "got one without that before layers 0, in layers"),
        ("perturbation", {"layers": "1"}, ""),
        ("propagation", {"layers": "1"}, "got one without that before layers 3"),
    ],
)
def test_layers_that_are_not_there(name: str, values: dict[str, Any], told: str, tmp_path: Path) -> None:
    """Of a store of layer 1 alone, which keeps the residual stream before layers 1 and 2."""
    made = captured(tmp_path, layers="1", attention="none", keep="residual")
    if not told:
        assert prepare_stage(made.runs, made.capture, name, values)
        return
    with pytest.raises(UsageError, match=told):
        prepare_stage(made.runs, made.capture, name, values)


def test_layers_are_named() -> None:
    parameters = stage_parameters(stage("perturbation"), {"layers": "middle,all,each:middle,3+7,each:2-3"})
    assert parameters.layer_sets(24)[0] == tuple(range(8, 16))  # methods.md: 8–15 of 24
    assert parameters.layer_sets(30)[0] == tuple(range(10, 20))
    assert parameters.layer_sets(30)[1] == tuple(range(30))
    assert parameters.layer_sets(30)[2:] == [*((layer,) for layer in range(10, 20)), (3, 7), (2,), (3,)]
    assert [stage_parameters(stage("perturbation"), {}).layer_sets(n) for n in (1, 2, 3, 4)] == [
        [(0,)],
        [(0,)],
        [(1,)],
        [(1,)],
    ]
