"""What the configuration of a model says of it, by its family's row in table.py; without torch or transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from storage.errors import ModelError
from tasks.models.refused import REFUSED
from tasks.models.table import ALIBI, FALLBACK, FAMILIES, Family

if TYPE_CHECKING:
    pass

_LIST = "`theodolite models` lists the families that can be captured."
_INSIDE = "its attention is computed inside its own module, which shows the weights but not query and key"
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")
"""What configurations call the number of positions."""
_FIXED_ROPE = ("default", "linear", "yarn", "llama3", "proportional")
"""Types of rotary embedding whose frequencies are the same for every length."""

_ROTARY = 2
"""Since 2, frequencies that follow a document's length follow its own, and not its longest neighbour's."""
_POSITIONS = 2
"""Since 2, positions that count from behind the padding token's id pass over that token inside a document."""


def family_of(config: Mapping[str, Any], *, where: str) -> Family:
    """The family of a model's configuration, before anything is loaded; `where` is the model, for the message.

    Raises ModelError that names the family where it cannot be captured, and why if that is known: an unknown
    model_type, a decoder that looks both ways, an encoder made into a decoder, or layers without an attention matrix.
    """
    model_type = str(config.get("model_type") or "none")
    if model_type not in FAMILIES:
        why = f": {REFUSED[model_type]}" if model_type in REFUSED else ""
        expected = "a family whose attention can be captured"
        raise ModelError(expected, got=f"'{model_type}'{why}", where=where, remedy=_LIST)
    family = FAMILIES[model_type]
    both_ways = config.get("use_bidirectional_attention") or config.get("is_causal") is False
    if family.causal and both_ways:
        raise ModelError(
            f"a causal {family.name}", got="one whose attention looks both ways", where=where, remedy="Use a decoder."
        )
    if not family.causal and config.get("is_decoder"):
        expected = f"{family.name} as the encoder it was made as"
        raise ModelError(expected, got="one that is a decoder (is_decoder)", where=where, remedy=_LIST)
    if config.get("use_shared_attention_adapter"):
        got = "one that adds an adapter's part to each projection"
        raise ModelError(f"a {family.name} without adapters of attention", got=got, where=where, remedy=_LIST)
    unknown = sorted(set(config.get("layer_types") or ()) - {"full_attention", "sliding_attention"})
    if unknown and not family.hybrid:
        raise ModelError("layers of full or sliding attention", got=", ".join(unknown), where=where, remedy=_LIST)
    return family


def max_positions(config: Mapping[str, Any]) -> int | None:
    """The longest document the model has positions for, in tokens; None where the configuration does not say."""
    limit = next((config[name] for name in POSITIONS if config.get(name) is not None), None)
    return None if limit is None else int(int(limit) * stretch(config)) - first_position(config)


def stretch(config: Mapping[str, Any]) -> float:
    """How many times its positions a model takes: dynamic NTK scales what lies beyond them, up to its factor."""
    factors = [rope.get("factor") for rope in ropes(config) if _rope_type(rope) == "dynamic"]
    return max([1.0, *(float(factor) for factor in factors if isinstance(factor, int | float))])


def ropes(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What a configuration says of its rotary embedding, one for all layers or one for each kind of layer; at least an
    empty one."""
    written = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kinds = [part for part in written.values() if isinstance(part, Mapping)] if isinstance(written, Mapping) else []
    return kinds or [written if isinstance(written, Mapping) else {}]


def _rope_type(rope: Mapping[str, Any]) -> str:
    return str(rope.get("rope_type") or rope.get("type") or "default")


def _follows_length(rope: Mapping[str, Any]) -> bool:
    """Whether rotary frequencies follow the length of what is read; HunYuan calls a fixed base dynamic."""
    fixed = _rope_type(rope) in _FIXED_ROPE or bool(rope.get("alpha"))
    return "long_factor" in rope or not fixed


def revisions(config: Mapping[str, Any]) -> dict[str, int]:
    """Version by part of the code that computes models like this one, of parts that were changed since their first.

    A part's version is raised where captures of such models get other numbers; CAPTURE_VERSION would make every
    model's anew.
    """
    found = {"rotary": _ROTARY} if any(map(_follows_length, ropes(config))) else {}
    if first_position(config):
        found["positions"] = _POSITIONS
    return found


def first_position(config: Mapping[str, Any]) -> int:
    """The position of a document's first token: 0, or the padding token's id + 1 where the family says so."""
    family = FAMILIES.get(str(config.get("model_type")))
    if family is None or not family.positions_after_padding:
        return 0
    return int(config.get("pad_token_id", 1)) + 1


def why_not(config: Mapping[str, Any]) -> str | None:
    """Why attention of a model with this configuration cannot be rebuilt; None if it can."""
    if config.get("alibi") or (config.get("attn_config") or {}).get("alibi"):
        return ALIBI
    family = FAMILIES.get(str(config.get("model_type")))
    if family is None:
        return None
    return family.not_rebuilt or (_INSIDE if family.way == FALLBACK else None)


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


def n_streams(family: Family, config: Mapping[str, Any]) -> int:
    """Residual streams side by side: 1, or what the configuration says."""
    return int(config[family.streams]) if family.streams else 1
