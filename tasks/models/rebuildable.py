"""The models whose attention cannot be rebuilt from query and key, and why. Read without torch, before any work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from storage.errors import ModelError

_DISTANCE = "ALiBi adds to each score a term for the distance, which neither query nor key holds"
_INSIDE = "its attention is computed inside its own module, which shows the weights but not query and key"

_REASONS: Mapping[str, str] = {
    "bloom": _DISTANCE,
    "mpt": _DISTANCE,
    "falcon": _INSIDE,
    "gpt_neo": _INSIDE,
    "gptj": _INSIDE,
    "codegen": _INSIDE,
    "stablelm": _INSIDE,
}
"""By model_type: families outside transformers' attention interface, and those whose scores are more than q·k."""


def why_not(config: Mapping[str, Any]) -> str | None:
    """Why attention of a model with this configuration cannot be rebuilt; None if it can."""
    if config.get("alibi") or (config.get("attn_config") or {}).get("alibi"):
        return _DISTANCE
    return _REASONS.get(str(config.get("model_type")))


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
