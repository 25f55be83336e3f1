"""The stages that perturb on stories260K: what holds by construction in a trained model, and what its loss says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tasks.capture import made_captures
from tests.tasks.capture.made_captures import Made
from tests.tasks.stages.running import run

TEXT = "Once upon a time there was a cat. It sat on a mat and slept. The cat saw a big dog and ran away.\n" * 2
SETTINGS = {"deltas": "2", "relative_deltas": "0.1", "seeds": "1", "layers": "1-3"}


@pytest.fixture(scope="module")
def made(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("stories")
    (folder / "text.txt").write_text(TEXT)
    model = fixtures / "models" / "stories260K"
    return made_captures.make(model, [folder / "text.txt"], folder / "runs", window=24, device="cpu")


def test_perturbation(made: Made) -> None:
    """Exact moves by δ; the loss is hurt; published, with its shared vectors, hurts more by angle than exact."""
    rows = run(made, "perturbation", SETTINGS).rows("perturbation")
    change = {}
    for protocol in ("exact", "published"):
        for arm in ("magnitude", "angle"):
            of = [r for r in rows if (r["protocol"], r["arm"], r["delta_kind"]) == (protocol, arm, "absolute")]
            change[protocol, arm] = sum(r["nll_sum"] - r["nll_clean_sum"] for r in of)
            assert all(np.isfinite(r["entropy"]) and r["entropy"] > 0 for r in of)
            if protocol == "exact":
                assert all(r["displacement_max_error"] < 1e-4 for r in of)
                assert all(r["displacement_mean"] == pytest.approx(2, rel=1e-5) for r in of)
    assert all(total > 0 for total in change.values())
    assert change["published", "angle"] > change["exact", "angle"]


def test_what_the_first_token_is_spared_reaches_it_nowhere(made: Made) -> None:
    """Attention looks back alone: where position 0 is left as it was, it is the clean run's in every layer."""
    rows = run(made, "propagation", SETTINGS).rows("propagation")
    spared = [row["distance_first_token"] for row in rows if row["first_token"] == "exclude"]
    assert max(spared) < 1e-4 < min(row["distance_first_token"] for row in rows if row["first_token"] == "include")
    assert {row["layer"] for row in rows} == {1, 2, 3, 4}


def test_repair(made: Made) -> None:
    """What is put back in the first perturbed layer alone is what it computed anyway."""
    rows = run(made, "repair", {**SETTINGS, "sets": "all,each"}).rows("repair")
    for row in rows:
        if row["repaired_layers"] == "1":
            assert row["nll_repaired_sum"] == pytest.approx(row["nll_perturbed_sum"], rel=1e-6)
    apart = [abs(r["nll_repaired_sum"] - r["nll_perturbed_sum"]) for r in rows if r["repaired_layers"] == "1-3"]
    assert min(apart) > 1e-4


@pytest.mark.parametrize("name", ["perturbation", "propagation", "repair"])
def test_sets_of_layers_with_one_end_and_size_are_apart(name: str, made: Made) -> None:
    grid = {"deltas": "2", "relative_deltas": "", "protocols": "exact", "arms": "angle", "first_token": "include"}
    more = {"targets": "mlp_output", "sets": "all"} if name == "repair" else {}

    def rows(layers: str) -> list[dict[str, Any]]:
        found = run(made, name, {**grid, **more, "seeds": "1", "layers": layers}).rows(name)
        figures = ("nll_sum", "nll_perturbed_sum", "nll_repaired_sum", "distance_mean")
        return [{key: row[key] for key in ("doc", "layers", "layer", *figures) if key in row} for row in found]

    together, alone = rows("0+1+3,0+2+3"), rows("0+2+3")
    assert [row for row in together if row["layers"] == "0,2-3"] == alone
    assert [{**row, "layers": ""} for row in together if row["layers"] == "0-1,3"] != [
        {**row, "layers": ""} for row in alone
    ]
