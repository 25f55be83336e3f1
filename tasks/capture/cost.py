"""What a capture will cost, from the model's configuration alone: bytes, operations, memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from storage.errors import ModelError
from storage.kept import Kept, bytes_of
from tasks.capture.kept import ATTENTION_KINDS, kept_of
from tasks.models.attention_layers import LAYERS, attended_layers
from tasks.models.families import POSITIONS, first_position, n_streams, stretch
from tasks.models.table import FALLBACK, FAMILIES, INTERFACE, Family


@dataclass(frozen=True)
class ConfigShape:
    """The sizes that a configuration declares."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_model: int
    d_value: int
    d_qk: int
    """Width of one head's query and key."""
    n_key_heads: int
    d_mlp: int
    vocab: int
    positions: int | None
    gated_mlp: bool
    causal: bool
    tap_method: str
    attended: tuple[int, ...] | None = None
    """The layers that have attention; None for all."""
    streams: int = 1
    """Residual streams side by side."""
    gated: bool = False
    """Whether each head's output is multiplied by a gate."""

    @classmethod
    def of(cls, config: Mapping[str, Any], where: str) -> ConfigShape:
        """Read the sizes under the names that families use.

        ModelError names the size that is missing or is no size, and `where`, the file.
        """
        inner = config.get("text_config") or config
        if isinstance(inner, Mapping) and isinstance(widths := inner.get("intermediate_size"), list):  # one a layer
            inner = {
                **inner,
                "intermediate_size": max([_size("intermediate_size", n, 1, where) for n in widths] or [0]),
            }
        if not isinstance(inner, Mapping):
            raise ModelError("an object for 'text_config' in the model's configuration", got=repr(inner), where=where)

        def size(*names: str, default: int | None = None, least: int = 1) -> int:
            for name in names:
                if inner.get(name) is not None:
                    return _size(name, inner[name], least, where)
            if default is None:
                raise ModelError(
                    f"'{names[0]}' in the model's configuration",
                    where=where,
                    remedy="`theodolite models` lists the families that can be captured.",
                )
            return default

        heads = size("num_attention_heads", "n_head", "n_heads", "num_heads")
        width = size("hidden_size", "n_embd", "d_model", "dim", "n_embed")
        head = size("head_dim", "attention_head_dim", default=width // heads)
        family, first = FAMILIES.get(str(inner.get("model_type"))), first_position(inner)
        latent = inner.get("qk_nope_head_dim") is not None  # DeepSeek V2, V3: keys are made per head from a latent
        d_qk = size("qk_nope_head_dim") + size("qk_rope_head_dim") if latent else head
        n_kv_heads = _n_kv_heads(family, inner, heads) or size("num_key_value_heads", default=heads)
        return cls(
            n_layers=size(*LAYERS, default=len(inner.get("layers_block_type") or ()) or None),
            n_heads=heads,
            n_kv_heads=n_kv_heads,
            d_model=width,
            d_value=size("v_head_dim", default=head),
            d_qk=d_qk,
            n_key_heads=heads if latent else n_kv_heads,
            d_mlp=size("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "hidden_dim", default=4 * width),
            vocab=size("vocab_size", default=0 if family is not None and family.reads == "images" else None),
            positions=int(size(*POSITIONS, default=first, least=0) * stretch(inner)) - first or None,
            gated_mlp=family is None or family.gated_mlp or bool(inner.get("use_swiglu_ffn")),
            causal=family is None or family.causal,
            tap_method=INTERFACE if family is None else family.way,
            attended=attended_layers(inner, where),
            gated=family is not None and bool(family.gate),
            streams=1 if family is None else n_streams(family, inner),
        )

    def entries(self, length: int) -> int:
        """Attention weights kept of one head for a document: the lower triangle, or all."""
        return length * (length + 1) // 2 if self.causal else length * length


def _n_kv_heads(family: Family | None, config: Mapping[str, Any], heads: int) -> int | None:
    """Key/value heads of the families that do not say num_key_value_heads, or mean something else by it."""
    if family is not None and family.layout == "tail_of_head":  # a compressed key and value is expanded for every head
        return heads
    if family is None or not family.multi_query:
        return None
    if config.get("new_decoder_architecture"):
        return int(config.get("num_kv_heads") or heads)
    return 1 if config.get("multi_query", True) else heads


def _size(name: str, value: Any, least: int, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ModelError(
            f"an integer of at least {least} for '{name}' in the model's configuration",
            got=repr(value),
            where=where,
            remedy="The configuration is damaged: fetch or save the model again.",
        )
    return value


def stored_bytes(shape: ConfigShape, lengths: list[int], kept: Kept) -> dict[str, int]:
    """Bytes of each kind of tensor before compression, which then saves more the sparser attention is."""
    tokens, layers = sum(lengths), len(attention_layers(shape, kept.layers))
    streams = shape.n_layers if kept.layers is None else len(kept.layers)
    following = 1 if kept.layers is None else len({layer + 1 for layer in kept.layers} - {*kept.layers})
    n_heads = (shape.n_heads, shape.n_kv_heads, shape.n_key_heads)
    heads, kv_heads, key_heads = (len(kept.heads_of(n, shape.n_heads)) for n in n_heads)
    values = {
        "attention": layers * heads * sum(_entries(shape, kept, t) for t in lengths),
        "query": layers * sum(kept.n_rows(t) for t in lengths) * heads * shape.d_qk,
        "key": layers * tokens * key_heads * shape.d_qk,
        "value": layers * tokens * kv_heads * shape.d_value,
        "output_input": layers * tokens * heads * shape.d_value,
        "gate": layers * tokens * heads * shape.d_value,
        "residual": (streams + following) * tokens * shape.streams * shape.d_model,
    }
    return {
        **{kind: values[kind] * bytes_of(dtype) for kind, dtype in kept.dtypes.items()},
        "output_projection": len(attention_layers(shape, None)) * shape.n_heads * shape.d_value * shape.d_model * 4,
    }


def attention_bytes(shape: ConfigShape, lengths: list[int], settings: Mapping[str, Any]) -> dict[str, int]:
    """Bytes before compression of attention `stored` and `rebuilt`: all else being the same, what to choose between."""
    return {
        storage: sum(stored_bytes(shape, lengths, kept_of(settings, attention=storage))[kind] for kind in kinds)
        for storage, kinds in ATTENTION_KINDS.items()
        if kinds
    }


def attention_layers(shape: ConfigShape, chosen: tuple[int, ...] | None) -> tuple[int, ...]:
    """Of the chosen layers, None for all, those that have attention."""
    there = tuple(range(shape.n_layers)) if shape.attended is None else shape.attended
    return there if chosen is None else tuple(layer for layer in chosen if layer in there)


def _entries(shape: ConfigShape, kept: Kept, length: int) -> int:
    """Attention weights kept of one head for a document."""
    if kept.positions is None:
        return shape.entries(length)
    return kept.n_rows(length) * length if not shape.causal else sum(row + 1 for row in kept.rows(length))


def parameters(shape: ConfigShape) -> int:
    """Weights of all layers, without embeddings; a layer without attention counts as if it had it."""
    attention = shape.d_model * shape.d_value * (2 * shape.n_heads + 2 * shape.n_kv_heads)
    mlp = shape.d_model * shape.d_mlp * (3 if shape.gated_mlp else 2)
    return shape.n_layers * (attention + mlp)


def operations(shape: ConfigShape, lengths: list[int]) -> int:
    """Floating-point operations of one forward pass over the corpus: two a weight and token, plus attention."""
    tokens, squares = sum(lengths), sum(t * t for t in lengths)
    dense = 2 * (parameters(shape) + shape.vocab * shape.d_model) * tokens
    return dense + 4 * len(attention_layers(shape, None)) * shape.n_heads * shape.d_value * squares


def memory_peak(
    shape: ConfigShape,
    lengths: list[int],
    batch: list[int],
    dtype: str,
    query_block: int,
    kept: Kept,
) -> int:
    """Bytes of the model and of the largest forward batch: one layer's tensors, never all layers'.

    A layer's triangle of attention, the chosen part of it, is held only where attention is `stored`.
    """
    width, longest, n = bytes_of(dtype), max(lengths[i] for i in batch), len(batch)
    tokens = longest * n
    weights = (parameters(shape) + shape.vocab * shape.d_model) * width
    hidden = tokens * (6 * shape.d_model + 3 * shape.d_mlp) * width
    scores = 3 * n * shape.n_heads * min(query_block, longest) * longest * 4
    packed = 3 * n * len(kept.query_heads(shape.n_heads)) * _entries(shape, kept, longest) * 4
    packed = packed if "attention" in kept.kinds else 0
    if shape.tap_method == FALLBACK:  # its code computes all queries at once
        scores = 3 * n * shape.n_heads * longest * longest * 4
    return weights + hidden + scores + packed + 128 * shape.vocab * 8
