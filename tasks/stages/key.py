"""What makes a stage run the same as another: the ingredients of its key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from storage.keys import digest

if TYPE_CHECKING:
    from tasks.stages.contract import Stage


def stage_key(stage: Stage, parameters: Any, capture_key: str, seed: int) -> str:
    """The key of a stage run: name, version, parameters and what lies in their files, seed, and the capture's key."""
    return digest(
        {
            "stage": stage.name,
            "version": stage.version,
            "parameters": stage.ingredients(parameters),
            "seed": seed,
            "capture": capture_key,
        }
    )
