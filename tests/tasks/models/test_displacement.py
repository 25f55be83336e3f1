"""`Displace` in replays against the plain float64 model moved by hooks, and what it must leave as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from storage.errors import UnknownName, UsageError
from tasks.kernels import perturbation
from tasks.models import interventions
from tasks.models.displacement import noise_seed
from tasks.models.interventions import Condition, Displace, Restore, deepest_start
from tests.families import REPLAYABLE, tokens
from tests.oracles import perturbation as oracle
from tests.oracles.displaced_model import DisplacedModel, Rule
from tests.tasks.models.capturing import assert_near, shared, tiny
from tests.tasks.models.replaying import captured, losses, replayer, starts

IDS = tokens(21, 10)
RULES = [(protocol, arm) for protocol in perturbation.PROTOCOLS for arm in perturbation.ARMS]


def together(layers: tuple[int, ...], **values: Any) -> tuple[Displace, ...]:
    return tuple(Displace(layer, **{"delta": 0.7, "arm": "angle", **values}) for layer in layers)


def rules(condition: Condition, document: int, shape: tuple[int, int]) -> dict[int, Rule]:
    """The same in plain loops, with the same noise."""
    found: dict[int, Rule] = {}
    for one in condition:
        assert isinstance(one, Displace)
        drawn = perturbation.noise(one.arm, *shape, noise_seed(one, document)).numpy()

        def rule(h: np.ndarray, one: Displace = one, drawn: np.ndarray = drawn) -> np.ndarray:
            return oracle.moved(h, one.delta, one.protocol, one.arm, drawn, first_token=one.first_token)

        found[one.layer] = rule
    return found


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "gemma2", "falcon-7b", "bloom", "lfm2"])
@pytest.mark.parametrize("first_token", [True, False])
def test_layers_moved_together(name: str, first_token: bool) -> None:
    loaded = shared(name)
    plain, run, documents = DisplacedModel(loaded), replayer(loaded), captured(loaded, IDS)
    clean = losses(list(run.run(1, starts(documents, IDS, 1))))
    for protocol, arm in RULES:
        condition = together((0, 1), protocol=protocol, arm=arm, first_token=first_token, seed=4)
        assert deepest_start(condition, 3) == 1
        got = losses(list(run.run(1, starts(documents, IDS, 1), [condition])))
        want = [
            plain.passed(ids, rules(condition, d, (len(ids), loaded.anatomy.d_model))).losses
            for d, ids in enumerate(IDS)
        ]
        assert_near(got, torch.from_numpy(np.concatenate(want)).float())
        assert (got - clean).abs().max() > 1e-3


@pytest.mark.parametrize("name", REPLAYABLE)
def test_the_residual_restored_gives_the_clean_loss_exactly(name: str) -> None:
    loaded = shared(name)
    run, given = replayer(loaded), starts(captured(loaded, IDS), IDS, 1)
    clean = run.parts(1, given, {"residual": frozenset((1,))})
    moved = together((1,))
    restored = (*moved, *(Restore(layer, part, held) for (part, layer), held in clean.items()))
    want, damaged, got = (losses(list(run.run(1, given, [condition]))) for condition in ((), moved, restored))
    assert torch.equal(got, want)
    assert not torch.equal(damaged, want)


def test_what_moves_no_token_changes_no_loss() -> None:
    """δ above every norm, where `exact` leaves all alone; and a step far below the dtype's."""
    loaded = tiny("llama")
    run, given = replayer(loaded), starts(captured(loaded, IDS), IDS, 1)
    want = losses(list(run.run(1, given)))
    for arm in perturbation.ARMS:
        for delta in (1e9, 1e-12):
            assert torch.equal(losses(list(run.run(1, given, [together((0, 1, 2), arm=arm, delta=delta)]))), want)


def test_noise_follows_from_seed_document_layer_and_arm_alone() -> None:
    base = Displace(3, 1.0, "angle")
    same = [Displace(3, 2.0, "angle"), Displace(3, 1.0, "angle", first_token=False)]
    assert {noise_seed(one, 5) for one in same} == {noise_seed(base, 5)}
    others = [Displace(4, 1.0, "angle"), Displace(3, 1.0, "magnitude"), Displace(3, 1.0, "angle", seed=1)]
    assert len({noise_seed(base, 5), noise_seed(base, 6), *(noise_seed(one, 5) for one in others)}) == 5
    pair = Displace(3, 1.0, "magnitude", sharing=2)
    assert noise_seed(pair, 6) == noise_seed(pair, 7) != noise_seed(pair, 8)
    assert (interventions.ARMS, interventions.PROTOCOLS) == (perturbation.ARMS, perturbation.PROTOCOLS)


def test_published_shares_its_vectors_and_redraws_its_signs() -> None:
    vectors = {noise_seed(Displace(layer, 1.0, "angle", "published"), d) for layer in range(4) for d in range(4)}
    signs = {noise_seed(Displace(layer, 1.0, "magnitude", "published"), d) for layer in range(4) for d in range(4)}
    assert (len(vectors), len(signs)) == (1, 16)


def test_documents_and_conditions_in_other_batches_give_the_same() -> None:
    loaded = tiny("llama")
    documents = captured(loaded, IDS)
    conditions = [together((0, 1), seed=seed) for seed in (0, 1, 2)]
    whole, single = replayer(loaded), replayer(loaded, batch_tokens=1)
    assert_near(
        losses(list(whole.run(1, starts(documents, IDS, 1), conditions))),
        losses(list(single.run(1, starts(documents, IDS, 1), conditions))),
    )
    backwards = list(reversed(conditions))
    first = losses(list(single.run(1, starts(documents, IDS, 1), [backwards[2]])))
    assert torch.equal(losses(list(single.run(1, starts(documents, IDS, 1), [conditions[0]]))), first)


@pytest.mark.parametrize(
    ("change", "error", "told"),
    [
        ({"arm": "phase"}, UnknownName, "arm.*'phase'"),
        ({"protocol": "paper"}, UnknownName, "protocol.*'paper'"),
        ({"delta": 0.0}, UsageError, "a δ above 0, got 0.0"),
        ({"delta": float("inf")}, UsageError, "a δ above 0, got inf"),
        ({"sharing": 0}, UsageError, "1 document or more, got 0"),
    ],
)
def test_what_is_refused(change: dict[str, Any], error: type[Exception], told: str) -> None:
    loaded = tiny("llama")
    with pytest.raises(error, match=told):
        list(replayer(loaded).run(1, starts(captured(loaded, IDS), IDS, 1), [together((0,), **change)]))


def test_a_layer_that_is_not_there_is_refused() -> None:
    loaded = tiny("llama")
    with pytest.raises(UsageError, match="a layer from 0 to 2, got 3"):
        list(replayer(loaded).run(1, starts(captured(loaded, IDS), IDS, 1), [together((3,))]))
