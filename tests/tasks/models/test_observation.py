"""What a replay is watched for, against the plain float64 model: displacements, distances and entropies."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tasks.kernels.entropy import row_entropy
from tasks.models.interventions import CLEAN, Displace, Restore
from tasks.models.observation import Observables
from tasks.models.replay import Replayed
from tests.families import tokens
from tests.oracles.displaced_model import DisplacedModel
from tests.tasks.models.capturing import shared, tiny
from tests.tasks.models.replaying import captured, losses, replayer, starts
from tests.tasks.models.test_displacement import rules, together

IDS = tokens(21, 10)


def watched(name: str, observables: Observables, **values: object) -> tuple[DisplacedModel, list[Replayed]]:
    loaded = shared(name)
    conditions = [CLEAN, together((0, 1), **values)]
    given = starts(captured(loaded, IDS), IDS, 1)
    return DisplacedModel(loaded), list(replayer(loaded).run(1, given, conditions, observables))


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "gemma2", "qwen3_next", "gpt_oss"])
def test_entropy_of_every_layer_that_runs(name: str) -> None:
    plain, found = watched(name, Observables(entropy=True), arm="angle", delta=0.8)
    for one in found:
        ids, condition = IDS[one.document], together((0, 1), delta=0.8) if one.condition else CLEAN
        passed = plain.passed(ids, rules(condition, one.document, (len(ids), plain.anatomy.d_model)))
        assert one.seen is not None and not one.seen.displacements and not one.seen.distances
        assert set(one.seen.entropy) == {layer for layer in plain.anatomy.attended if layer >= 1}
        for layer, entropy in one.seen.entropy.items():
            want = row_entropy(torch.from_numpy(passed.attention[layer])).mean()
            assert entropy == pytest.approx(float(want), rel=1e-4)
        assert np.mean(list(one.seen.entropy.values())) == pytest.approx(passed.entropy(0), rel=1e-4)


@pytest.mark.parametrize("name", ["falcon-7b", "bloom"])
def test_attention_inside_its_own_module_has_no_entropy_here(name: str) -> None:
    _, found = watched(name, Observables(entropy=True))
    assert [one.seen.entropy for one in found if one.seen] == [{}] * 4


@pytest.mark.parametrize("protocol", ["exact", "published"])
@pytest.mark.parametrize("first_token", [True, False])
@pytest.mark.parametrize("name", ["llama", "gpt2", "bloom"])
def test_displacements_and_distances(name: str, protocol: str, first_token: bool) -> None:
    """Of layer 0, whose output is held, and of layer 1 in the perturbed run; distances up to the last layer."""
    loaded = shared(name)
    documents, plain = captured(loaded, IDS), DisplacedModel(loaded)

    def clean(document: int, layer: int) -> Tensor:
        return documents[document].residual[layer + 1]

    condition = together((0, 1), protocol=protocol, first_token=first_token, delta=1.2, arm="angle")
    given = starts(documents, IDS, 1)
    for one in replayer(loaded).run(1, given, [condition], Observables(displaced=True, clean=clean)):
        ids, seen = IDS[one.document], one.seen
        passed = plain.passed(ids, rules(condition, one.document, (len(ids), plain.anatomy.d_model)))
        base = plain.passed(ids, {})
        assert seen is not None and set(seen.displacements) == {0, 1} and set(seen.distances) == {0, 1, 2}
        for layer, displacement in seen.displacements.items():
            before, after = passed.before[layer], passed.after[layer]
            np.testing.assert_allclose(displacement.norm, np.linalg.norm(before, axis=1), rtol=1e-4)
            np.testing.assert_allclose(
                displacement.displacement, np.linalg.norm(after - before, axis=1), rtol=1e-4, atol=1e-6
            )
            longer = np.linalg.norm(before, axis=1) > (1.2 if protocol == "exact" else 0)
            longer[: displacement.first] = False
            assert displacement.moved.tolist() == longer.tolist() and displacement.delta == 1.2
        assert seen.displacements[0].first == (not first_token)
        for layer, distance in seen.distances.items():
            want = np.linalg.norm(passed.after[layer] - base.after[layer], axis=1)
            np.testing.assert_allclose(distance, want, rtol=1e-3, atol=1e-5)


def test_watching_changes_no_loss() -> None:
    _, found = watched("llama", Observables(displaced=True, entropy=True))
    _, plain = watched("llama", Observables())
    assert torch.equal(losses(found), losses(plain))


def test_restored_weights_are_those_whose_entropy_is_seen() -> None:
    loaded = tiny("llama")
    run, given = replayer(loaded), starts(captured(loaded, IDS), IDS, 1)
    clean = run.parts(1, given, {"attention_weights": frozenset({1})})
    back = tuple(Restore(layer, part, held) for (part, layer), held in clean.items())
    moved = (Displace(0, 1.0, "angle"),)
    found = list(run.run(1, given, [CLEAN, moved, (*moved, *back)], Observables(entropy=True)))
    for document in range(2):
        of = [one.seen.entropy[1] for one in found if one.document == document and one.seen]
        assert of[2] == pytest.approx(of[0], rel=1e-6) and abs(of[1] - of[0]) > 1e-5
