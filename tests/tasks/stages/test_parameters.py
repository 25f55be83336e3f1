"""`--set stage.parameter=value`: typed, and refused by name."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from storage.errors import UnknownName, UsageError
from tasks.stages.parameters import stage_parameters
from tasks.stages.registry import stage

CONTRIBUTIONS = stage("contributions")


@dataclass(frozen=True)
class Several:
    scores: tuple[str, ...] = ("raw",)
    rates: tuple[float, ...] = (0.1,)
    keep: bool = False


def test_text_becomes_the_parameter_type() -> None:
    parameters = stage_parameters(CONTRIBUTIONS, {"edges": "4"})
    assert (parameters.edges, parameters.bins) == (4, 20)


def test_lists_are_given_with_commas() -> None:
    declared = replace(CONTRIBUTIONS, parameters=Several)
    parameters = stage_parameters(declared, {"scores": "raw, vw", "rates": "0.1,0.5", "keep": "true"})
    assert parameters == Several(("raw", "vw"), (0.1, 0.5), keep=True)


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        ({"edge": "4"}, UnknownName, "'edge', in stage contributions. Did you mean 'edges'"),
        ({"edges": "many"}, UsageError, "contributions.edges"),
        ({"edges": "0"}, UsageError, "^expected edges from 1 to 65,536, got 0, in contributions.edges"),
        ({"edges": "9" * 20}, UsageError, "^expected edges from 1 to 65,536, got 9{20}, in contributions.edges"),
        ({"bins": 5000}, UsageError, "bins from 1 to 4,096, got 5000, in contributions.bins"),
        ({"resamples": 100_001}, UsageError, "resamples from 2 to 100,000, got 100001, in contributions.resamples"),
        ({"edges": True}, UsageError, "^expected a number, got True, in contributions.edges"),
        ({"resamples": "1"}, UsageError, "from 2 to 100,000, got 1, in contributions.resamples"),
    ],
)
def test_what_cannot_be(overrides: dict[str, str], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        stage_parameters(CONTRIBUTIONS, overrides)
