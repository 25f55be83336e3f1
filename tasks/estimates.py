"""What a capture will cost, from the model's configuration alone: bytes, operations, memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from storage.errors import ModelError
from tasks.models.families import POSITIONS, first_position
from tasks.models.table import FALLBACK, FAMILIES, INTERFACE

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_UNGATED = {
    *("gpt2", "gpt_neox", "gpt_neo", "gptj", "gpt_bigcode", "codegen", "opt", "bloom", "falcon", "mpt", "phi"),
    *("persimmon", "nemotron", "starcoder2", "arcee", "apertus"),
    *("bert", "roberta", "xlm-roberta", "albert", "distilbert"),
}
"""Families whose MLP has two matrices; the others gate it and have three."""


@dataclass(frozen=True)
class ConfigShape:
    """The sizes that a configuration declares."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_model: int
    d_value: int
    d_mlp: int
    vocab: int
    positions: int | None
    gated_mlp: bool
    causal: bool
    way: str

    @classmethod
    def of(cls, config: Mapping[str, Any], where: str) -> ConfigShape:
        """Read the sizes under the names that families use.

        ModelError names the size that is missing or is no size, and `where`, the file.
        """
        inner = config.get("text_config") or config
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
        head = size("head_dim", default=width // heads)
        family, first = FAMILIES.get(str(inner.get("model_type"))), first_position(inner)
        return cls(
            n_layers=size("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
            n_heads=heads,
            n_kv_heads=_n_kv_heads(inner, heads) or size("num_key_value_heads", default=heads),
            d_model=width,
            d_value=size("v_head_dim", default=head),
            d_mlp=size("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "hidden_dim", default=4 * width),
            vocab=size("vocab_size"),
            positions=size(*POSITIONS, default=first, least=0) - first or None,
            gated_mlp=inner.get("model_type") not in _UNGATED,
            causal=family is None or family.causal,
            way=INTERFACE if family is None else family.way,
        )

    def entries(self, length: int) -> int:
        """Attention weights kept of one head for a document: the lower triangle, or all."""
        return length * (length + 1) // 2 if self.causal else length * length


def _n_kv_heads(config: Mapping[str, Any], heads: int) -> int | None:
    """Key/value heads of the families that do not say num_key_value_heads, or mean something else by it."""
    match config.get("model_type"):
        case "falcon" if config.get("new_decoder_architecture"):
            return int(config.get("num_kv_heads") or heads)
        case "falcon" | "gpt_bigcode":
            return 1 if config.get("multi_query", True) else heads
        case "deepseek_v2" | "deepseek_v3":  # the compressed keys and values are expanded for every head
            return heads
        case _:
            return None


def _size(name: str, value: Any, least: int, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ModelError(
            f"an integer of at least {least} for '{name}' in the model's configuration",
            got=repr(value),
            where=where,
            remedy="The configuration is damaged: fetch or save the model again.",
        )
    return value


def stored_bytes(shape: ConfigShape, lengths: list[int], dtype: str) -> dict[str, int]:
    """Bytes of each kind of tensor before compression, which then saves more the sparser attention is."""
    tokens, entries, width = sum(lengths), sum(shape.entries(t) for t in lengths), BYTES[dtype]
    layers = shape.n_layers
    return {
        "attention": layers * shape.n_heads * entries * width,
        "value": layers * tokens * shape.n_kv_heads * shape.d_value * width,
        "output_input": layers * tokens * shape.n_heads * shape.d_value * width,
        "residual": (layers + 1) * tokens * shape.d_model * width,
        "output_projection": layers * shape.n_heads * shape.d_value * shape.d_model * 4,
    }


def parameters(shape: ConfigShape) -> int:
    """Weights of all layers, without embeddings."""
    attention = shape.d_model * shape.d_value * (2 * shape.n_heads + 2 * shape.n_kv_heads)
    mlp = shape.d_model * shape.d_mlp * (3 if shape.gated_mlp else 2)
    return shape.n_layers * (attention + mlp)


def operations(shape: ConfigShape, lengths: list[int]) -> int:
    """Floating-point operations of one forward pass over the corpus: two a weight and token, plus attention."""
    tokens, squares = sum(lengths), sum(t * t for t in lengths)
    dense = 2 * (parameters(shape) + shape.vocab * shape.d_model) * tokens
    return dense + 4 * shape.n_layers * shape.n_heads * shape.d_value * squares


def memory_peak(shape: ConfigShape, lengths: list[int], batch: list[int], dtype: str, query_block: int) -> int:
    """Bytes of the model and of the largest forward batch: one layer's tensors, never all layers'."""
    width, longest, n = BYTES[dtype], max(lengths[i] for i in batch), len(batch)
    tokens = longest * n
    weights = (parameters(shape) + shape.vocab * shape.d_model) * width
    hidden = tokens * (6 * shape.d_model + 3 * shape.d_mlp) * width
    scores = 3 * n * shape.n_heads * min(query_block, longest) * longest * 4
    kept = 3 * n * shape.n_heads * shape.entries(longest) * 4
    if shape.way == FALLBACK:  # its code computes all queries at once
        scores = 3 * n * shape.n_heads * longest * longest * 4
    return weights + hidden + scores + kept + 128 * shape.vocab * 8
