"""Whether a capture is an ensemble of attention fields: most windows of one length, and causal attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from storage.errors import UsageError

if TYPE_CHECKING:
    from storage.store_shape import StoreShape

LEAST_TOKENS = 16
"""Windows shorter than this have no scales to tell apart."""
LEAST_SNAPSHOTS = 3


def require_fields(parameters: Any, shape: StoreShape, lengths: Sequence[int]) -> None:
    """UsageError unless the capture is an ensemble, and scales and subsamples lie inside it."""
    n_tokens, whole = require_ensemble(shape, lengths)
    largest = (n_tokens - 1) // 2 / 2**0.5
    beyond = [scale for scale in parameters.scales if scale > largest]
    if beyond:
        raise UsageError(
            f"scales of at most {largest:.4g}, inside the cone of influence of {n_tokens} tokens",
            got=", ".join(f"{scale:g}" for scale in beyond),
            remedy="Ask for smaller scales, or capture with a larger --window.",
        )
    most = max(getattr(parameters, "n_snapshots", ()), default=0)
    if most > whole:
        raise UsageError(f"ensembles of at most the {whole} documents of {n_tokens} tokens", got=str(most))


def require_ensemble(shape: StoreShape, lengths: Sequence[int]) -> tuple[int, int]:
    """T, and how many documents have it. UsageError unless attention is causal, and most windows are of one length."""
    if not shape.causal:
        raise UsageError(
            "a model whose queries see no later key: the method goes along the causal lag", got="an encoder's store"
        )
    n_tokens = max(lengths, default=0)
    whole = sum(length == n_tokens for length in lengths)
    if whole < LEAST_SNAPSHOTS or 2 * whole < len(lengths):
        raise UsageError(
            f"at least {LEAST_SNAPSHOTS} windows, and most of all, of one length",
            got=f"{whole} of {n_tokens} tokens among {len(lengths)} of {min(lengths, default=0)} to {n_tokens}",
            remedy="Capture more text, or with a --window that nearly every document fills.",
        )
    if n_tokens < LEAST_TOKENS:
        raise UsageError(
            f"windows of at least {LEAST_TOKENS} tokens", got=str(n_tokens), remedy="Capture with a larger --window."
        )
    return n_tokens, whole
