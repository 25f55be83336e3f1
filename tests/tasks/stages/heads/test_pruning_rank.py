"""The strategy h_star: heads per layer in proportion to the effective rank of its attention over documents."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from storage.errors import IncompleteRun, UsageError
from tasks.capture.folder import CaptureFolder
from tasks.run_record import StageRun
from tasks.stages.contract import StageContext
from tasks.stages.heads.pruning import cells_of
from tasks.stages.heads.pruning_parameters import PruningParameters
from tasks.stages.heads.pruning_survey import HeadStatistics
from tasks.stages.multiscale.pod_ranks import shard_ranks
from tasks.stages.parts import read_partial
from tasks.stages.run import SURVEY, prepare_stage
from tests.oracles import multiscale
from tests.oracles.pruning import HeadOracle
from tests.tasks.stages.running import captured, run

WINDOW = 20
TEXT = "The quick brown fox jumps over the lazy dog, and then it sleeps. " * 3
VALUES = {"strategies": "h_star", "retentions": "0.75,0.5"}


def test_heads_stay_in_proportion_to_the_ranks_of_plain_decompositions(tmp_path: Path) -> None:
    made = captured(tmp_path, text=TEXT[: 19 * 8], window=WINDOW, shard_tokens=40, batch_tokens=20)
    oracle, tensors = HeadOracle(made.store), made.tensors()
    ranks, best = [], []
    for layer in oracle.layers:
        fields = [
            x.double().numpy().mean(0) for (_, at, kind), x in tensors.items() if (at, kind) == (layer, "attention")
        ]
        ranks.append(multiscale.effective_rank(multiscale.spectrum(np.stack(fields))[0], 0.10))
        norms = [oracle.output_norm(layer, head) for head in range(4)]
        best.append(sorted(range(4), key=lambda head, norms=norms: -norms[head]))
    seats = sorted(
        ((rank / (k + 0.5), at, best[at][k]) for at, rank in enumerate(ranks) for k in range(4)), reverse=True
    )
    ran = run(made, "pruning", VALUES)
    assert {row["heads_kept"] for row in ran.rows("pruning")} == {9, 6}
    context = StageContext("key", 0, n_shards=len(made.store.shards))
    found = sum(shard_ranks(made.store, made.store.shard(shard), context) for shard in made.store.shards)
    assert np.asarray(found).tolist() == ranks
    alone = {}
    for stay in (9, 6):
        kept = {(layer, head) for _, layer, head in seats[:stay]}
        alone[stay] = {(layer, head) for layer in range(3) for head in range(4)} - kept
    prepared = CaptureFolder.open(made.runs, made.capture)
    survey = read_partial(prepared, StageRun.read(prepared, "pruning", ran.key), SURVEY)
    for cell in cells_of(made.store, PruningParameters(("h_star",), (0.75, 0.5)), HeadStatistics(survey), 0):
        assert {(i.layer, head) for i in cell.condition for head in i.heads} == alone[cell.heads_kept]


def test_captures_without_a_rank_are_refused(tmp_path: Path) -> None:
    made = captured(tmp_path, text="The quick brown fox")
    with pytest.raises(UsageError, match="at least 3 windows, and most of all, of one length"):
        prepare_stage(made.runs, made.capture, "pruning", VALUES)
    assert prepare_stage(made.runs, made.capture, "pruning", {"strategies": "taxonomy"})
    shard = made.store.shards[0]
    with pytest.raises(IncompleteRun, match=r"all 7 shards of the capture, for an effective rank.*, got 1"):
        shard_ranks(made.store, made.store.shard(shard), StageContext("key", 0, n_shards=7))
