"""The models whose attention cannot be rebuilt from query and key, and why. Read without torch, before any work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from storage.errors import ModelError
from tasks.models.table import FALLBACK, FAMILIES

_DISTANCE = "ALiBi adds to each score a term for the distance, which neither query nor key holds"
_INSIDE = "its attention is computed inside its own module, which shows the weights but not query and key"
_GATED = "a gate multiplies its weights, which is no part of the scores"

_WHY = {"bloom": _DISTANCE, "mpt": _DISTANCE, "ega_gpt2": _GATED}


def why_not(config: Mapping[str, Any]) -> str | None:
    """Why attention of a model with this configuration cannot be rebuilt; None if it can."""
    if config.get("alibi") or (config.get("attn_config") or {}).get("alibi"):
        return _DISTANCE
    family = FAMILIES.get(str(config.get("model_type")))
    if family is None:
        return None
    return _WHY.get(family.model_type, _INSIDE if family.way == FALLBACK else None)


def require_rebuildable(config: Mapping[str, Any], where: str) -> None:
    """ModelError, naming the family and the reason, unless its attention can be rebuilt."""
    reason = why_not(config)
    if reason is not None:
        raise ModelError(
            "a family whose attention can be rebuilt from query and key",
            got=f"'{config.get('model_type')}': {reason}",
            where=where,
            remedy="Use --attention stored.",
        )
