"""Which parameter is whose, the learning rate's way, and a state that can be taken up."""

from __future__ import annotations

import copy

import pytest
import torch

from storage.errors import UsageError
from tasks.training.optimiser import Optimiser, rate_factor
from tasks.training.settings import TrainSettings
from tasks.training.variants import new_model

SETTINGS = TrainSettings(steps=40, context=16, layers=2, heads=2, width=16)


def test_the_rate_rises_then_falls_to_nearly_nothing() -> None:
    factors = [rate_factor(step, SETTINGS) for step in range(40)]
    assert factors[:2] == [0.5, 1.0]
    assert factors[2:] == sorted(factors[2:], reverse=True)
    assert all(0 < f <= 1 for f in factors)
    assert factors[-1] < 0.01


def test_muon_takes_the_hidden_matrices_and_adam_the_rest() -> None:
    model = new_model(SETTINGS, 20)
    optimiser = Optimiser(model, SETTINGS)
    model(torch.zeros(1, 4, dtype=torch.long)).logits.sum().backward()
    optimiser.step(0)
    state = optimiser.state()
    muon = [v.shape for k, v in state.items() if k.startswith("muon.")]
    assert len(muon) == 2 * 4  # per layer: query-key-value, attention's output, the two of the MLP
    assert all(len(shape) == 2 for shape in muon)
    moved = {k.split(".")[1] for k in state if k.startswith("adam.")}
    assert len(muon) + len(moved) == len(list(model.parameters()))


def test_a_state_taken_up_steps_as_the_original() -> None:
    model = new_model(SETTINGS, 20)
    optimiser = Optimiser(model, SETTINGS)

    def step(m: torch.nn.Module, o: Optimiser, number: int) -> None:
        ids = torch.arange(10)[None] % 7 + number
        m(ids, labels=ids).loss.backward()
        o.step(number)

    for number in range(3):
        step(model, optimiser, number)
    twin = copy.deepcopy(model)
    other = Optimiser(twin, SETTINGS)
    other.load_state({k: v.clone() for k, v in optimiser.state().items()})
    step(model, optimiser, 3)
    step(twin, other, 3)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    fresh = copy.deepcopy(twin)
    step(twin, other, 4)
    step(fresh, Optimiser(fresh, SETTINGS), 4)
    assert not all(torch.equal(a, b) for a, b in zip(twin.parameters(), fresh.parameters(), strict=True))


def test_the_first_weights_follow_from_the_seed_and_leave_torch_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    left, right = new_model(SETTINGS, 20), new_model(SETTINGS, 20)
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(left.get_input_embeddings().weight, right.get_input_embeddings().weight)


def test_a_torch_without_muon_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(UsageError, match=r"torch 2\.9 or newer.*got torch .*everything but training runs"):
        Optimiser(new_model(SETTINGS, 20), SETTINGS)
