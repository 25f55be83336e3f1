"""Which layers of a model have attention, from its configuration alone: in hybrids not all of them do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from storage.errors import ModelError
from tasks.models.table import FAMILIES

_LISTS = ("layer_types", "layers_block_type")
_ATTENTION = {"full_attention", "sliding_attention", "attention", "hybrid"}
"""What configurations call a layer with attention; hybrid: beside a state-space part."""
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
"""What configurations call the number of layers."""


def attended_layers(config: Mapping[str, Any], where: str) -> tuple[int, ...] | None:
    """The layers of a hybrid that have attention, in order; None where the family has it in every layer.

    Families say it in ways of their own: a kind per layer, the layers' numbers, a period, or a pattern of letters.
    Raises ModelError, with `where`, if the configuration says nothing, or that no layer has attention.
    """
    family = FAMILIES.get(str(config.get("model_type")))
    if family is None or not family.hybrid:
        return None
    n_layers = next((int(config[name]) for name in LAYERS if config.get(name) is not None), 0)
    found = _attended(config, n_layers)
    if found:
        return found
    raise ModelError(
        f"a {family.name} with at least one layer of attention",
        got="a configuration that does not say which layers have it" if found is None else "none",
        where=where,
    )


def _attended(config: Mapping[str, Any], n_layers: int) -> tuple[int, ...] | None:
    kinds = next((config[name] for name in _LISTS if config.get(name)), None)
    if kinds is None and config.get("block_types"):  # RecurrentGemma repeats them
        kinds = [config["block_types"][i % len(config["block_types"])] for i in range(n_layers)]
    if kinds is not None:
        return tuple(i for i, kind in enumerate(kinds) if kind in _ATTENTION)
    numbers = config.get("full_attn_idxs") or config.get("attn_layer_indices")
    if numbers is not None:
        return tuple(sorted(int(number) for number in numbers))
    if config.get("attn_layer_period") is not None:  # Jamba
        period, offset = int(config["attn_layer_period"]), int(config.get("attn_layer_offset", 0))
        return tuple(i for i in range(n_layers) if i % period == offset)
    if config.get("full_attention_interval") is not None:  # Qwen3-Next
        return tuple(i for i in range(n_layers) if (i + 1) % int(config["full_attention_interval"]) == 0)
    if config.get("hybrid_override_pattern"):  # Nemotron-H: * is attention
        return tuple(i for i, letter in enumerate(config["hybrid_override_pattern"]) if letter == "*")
    return None
