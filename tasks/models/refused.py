"""The families that are refused, with the reason; table.py has those that can be captured."""

from __future__ import annotations

from collections.abc import Mapping

_NO_ATTENTION = "its layers have no attention matrix"
_TWO_PARTS = "an encoder and a decoder with attention between them, not one stack"
_TEXT_PART = "text and images in one model; capture its text model alone"

REFUSED: Mapping[str, str] = {
    "mamba": _NO_ATTENTION,
    "mamba2": _NO_ATTENTION,
    "falcon_mamba": _NO_ATTENTION,
    "rwkv": _NO_ATTENTION,
    "xlstm": _NO_ATTENTION,
    "gemma3n": _TEXT_PART,
    "gemma4_text": "heads of its global layers differ in width from the others, and later layers may reuse values",
    "gemma3": _TEXT_PART,
    "llava": _TEXT_PART,
    "qwen2_vl": _TEXT_PART,
    "qwen2_5_vl": _TEXT_PART,
    "mllama": _TEXT_PART,
    "llama4_text": "its chunked attention begins anew after so many tokens, which the store's windows do not say",
    "diffllama": "its attention runs twice a layer, with values of two halves, and a norm stands between α·v and W_O",
    "swin": "attention within windows of patches, whose weights are not a matrix of all positions",
    "t5": _TWO_PARTS,
    "mt5": _TWO_PARTS,
    "bart": _TWO_PARTS,
    "marian": _TWO_PARTS,
    "pegasus": _TWO_PARTS,
    "whisper": _TWO_PARTS,
    "longformer": "sparse attention, whose weights are not a matrix of all positions",
    "big_bird": "sparse attention, whose weights are not a matrix of all positions",
    "reformer": "hashed attention, whose weights are not a matrix of all positions",
    "deberta": "a bias is added to its values outside the projection that makes them",
    "deberta-v2": "relative positions that enter the scores apart from query and key; not verified",
    "modernbert": "its local layers see keys on both sides of a query, and the store's windows end at the query",
    "xlnet": "its projections are bare parameters used inside a layer, which no hook sees",
}
"""model_type → why it cannot be captured, for those that are asked for; any other is refused as unknown."""
