"""Replay from any layer gives the full pass's loss, for every family that predicts tokens."""

from __future__ import annotations

import pytest
import torch

from storage.errors import CorpusError, ModelError, UsageError
from tasks.models.replay import Start
from tests.families import DECODERS, tokens
from tests.models.capturing import assert_near, tiny
from tests.models.replaying import captured, losses, replayer, starts


@pytest.mark.parametrize("name", DECODERS)
def test_a_replay_from_any_layer_gives_the_full_passs_loss(name: str) -> None:
    loaded, ids = tiny(name), tokens(29, 7, 18)
    documents = captured(loaded, ids)
    want = torch.cat([document.nll[1:] for document in documents])
    for layer in range(loaded.anatomy.n_layers + 1):
        got = list(replayer(loaded).run(layer, starts(documents, ids, layer)))
        assert [(one.document, one.condition, one.n_predicted) for one in got] == [(0, 0, 28), (1, 0, 6), (2, 0, 17)]
        assert_near(losses(got), want)
        assert got[0].nll_sum == pytest.approx(documents[0].nll[1:].double().sum().item(), rel=1e-5)
