"""The families that can be captured, and where each keeps what the tap needs.

The table is read without torch or transformers, so that `plan` and `models` answer at once. `anatomy_of` turns a row
and a loaded model into modules and widths. Adding a family: one row here, one tiny model in tests/families.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from storage.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Family:
    """One model_type of transformers: its names for the parts, and how its attention enters the residual stream."""

    model_type: str
    name: str
    norm: str
    """layernorm | rmsnorm: the norm before attention."""
    layers: str
    """Path from the causal LM to its list of layers; `attention` and `projection` go on from there."""
    attention: str
    projection: str
    """The output projection W_O: `weight.T` of a Linear, `weight` of a Conv1D."""
    value: str
    """Where W_V lies: v_proj (its own Linear) | last_third (of GPT-2's c_attn) | third_per_head (of NeoX's qkv)."""
    entry: str
    """How attention enters the residual: direct | after a norm | beside the MLP."""
    sinks: str | None = None
    """Attribute of the attention module with one learned sink logit a head."""
    examples: str = ""
    verified: str = "a tiny random model"
    """What the tests hold it against, besides the plain model's own logits and attention."""

    @property
    def body(self) -> str:
        """Name of the causal LM's part that ends with the final norm."""
        return self.layers.split(".")[0]


def _llama_like(model_type: str, name: str, **more: Any) -> Family:
    parts = {"norm": "rmsnorm", "layers": "model.layers", "attention": "self_attn", "projection": "o_proj"}
    return Family(model_type, name, **{**parts, "value": "v_proj", "entry": "direct", **more})


_TRAINED = "a tiny random model and a trained one"

FAMILIES: Mapping[str, Family] = {
    family.model_type: family
    for family in (
        _llama_like("llama", "Llama", examples="Llama 2 and 3, SmolLM2, DeepSeek LLM", verified=_TRAINED),
        _llama_like("mistral", "Mistral", examples="Mistral 7B"),
        _llama_like("qwen2", "Qwen2", examples="Qwen2, Qwen2.5, DeepSeek-R1-Distill-Qwen"),
        _llama_like("qwen3", "Qwen3", examples="Qwen3"),
        _llama_like("olmo2", "OLMo 2", entry="after a norm", examples="OLMo 2"),
        _llama_like("gemma2", "Gemma 2", entry="after a norm", examples="Gemma 2"),
        _llama_like("gemma3_text", "Gemma 3", entry="after a norm", examples="Gemma 3 (text)"),
        _llama_like("gpt_oss", "GPT-OSS", sinks="sinks", examples="gpt-oss-20b"),
        _llama_like(
            "phi", "Phi", norm="layernorm", projection="dense", entry="beside the MLP", examples="Phi-1, Phi-1.5, Phi-2"
        ),
        Family(
            "gpt_neox",
            "GPT-NeoX",
            norm="layernorm",
            layers="gpt_neox.layers",
            attention="attention",
            projection="dense",
            value="third_per_head",
            entry="beside the MLP",
            examples="Pythia, GPT-NeoX-20B",
            verified=_TRAINED,
        ),
        Family(
            "gpt2",
            "GPT-2",
            norm="layernorm",
            layers="transformer.h",
            attention="attn",
            projection="c_proj",
            value="last_third",
            entry="direct",
            examples="GPT-2, DistilGPT-2",
            verified=_TRAINED,
        ),
    )
}


@dataclass(frozen=True)
class Anatomy:
    """What a loaded model is made of, as the tap sees it."""

    kind: Family
    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_model: int
    d_value: int
    """Width of one head's value, which is what W_O is sliced by."""
    causal: bool
    windows: tuple[int | None, ...]
    """Per layer: a query sees itself and the window − 1 keys before it; None = all of them."""
    body: nn.Module
    """The causal LM without its head: ends with the final norm."""
    layers: tuple[nn.Module, ...]
    attentions: tuple[nn.Module, ...]
    output_projections: tuple[nn.Module, ...]

    @property
    def family(self) -> str:
        return self.kind.model_type

    @property
    def norm(self) -> str:
        """layernorm | rmsnorm: the norm before attention."""
        return self.kind.norm


def supported() -> str:
    """The families in words, for messages."""
    return ", ".join(sorted(f.name for f in FAMILIES.values()))


def family_of(config: Mapping[str, Any], *, where: str) -> Family:
    """The family of a model's configuration, before anything is loaded; `where` is the model, for the message.

    Raises ModelError that names the family where it cannot be captured: an unknown model_type, one that looks both
    ways, or layers of a kind that has no attention matrix.
    """
    model_type = str(config.get("model_type") or "none")
    if model_type not in FAMILIES:
        raise ModelError(
            "a family whose attention can be captured",
            got=f"'{model_type}'",
            where=where,
            remedy=f"Supported: {supported()}.",
        )
    family = FAMILIES[model_type]
    if config.get("use_bidirectional_attention") or config.get("is_causal") is False:
        raise ModelError(
            f"a causal {family.name}", got="one whose attention looks both ways", where=where, remedy="Use a decoder."
        )
    unknown = sorted(set(config.get("layer_types") or ()) - {"full_attention", "sliding_attention"})
    if unknown:
        raise ModelError(
            "layers of full or sliding attention", got=", ".join(unknown), where=where, remedy=f"Use {supported()}."
        )
    return family


def max_positions(config: Mapping[str, Any]) -> int | None:
    """The longest document the model has positions for, in tokens; None where the configuration does not say."""
    limit = config.get("max_position_embeddings", config.get("n_positions"))
    return None if limit is None else int(limit)


def anatomy_of(model: nn.Module) -> Anatomy:
    """Find the parts of a loaded causal LM. Raises ModelError naming the family if it cannot be captured."""
    config: Any = model.config
    where = config.name_or_path or type(model).__name__
    family = family_of(config.to_dict(), where=where)
    body = getattr(model, family.body, None)
    if body is None or model.get_output_embeddings() is None:  # type: ignore[operator]
        raise ModelError(f"a causal LM of the family {family.name}", got=type(model).__name__, where=where)
    layers = tuple(attrgetter(family.layers)(model))
    attentions = tuple(getattr(layer, family.attention) for layer in layers)
    projections = tuple(getattr(attention, family.projection) for attention in attentions)
    n_heads = int(config.num_attention_heads)
    return Anatomy(
        kind=family,
        n_layers=len(layers),
        n_heads=n_heads,
        n_kv_heads=int(getattr(config, "num_key_value_heads", None) or n_heads),
        d_model=int(config.hidden_size),
        d_value=_input_width(projections[0]) // n_heads,
        causal=True,
        windows=_windows(config, len(layers)),
        body=body,
        layers=layers,
        attentions=attentions,
        output_projections=projections,
    )


def output_weights(anatomy: Anatomy, layer: int) -> tuple[Tensor, Tensor | None]:
    """W_O per head as (H, d_v, D) float32, so that Σ_h z_h W_O[h] + b is the projection's output; and b (D,) or None.

    Sliced by the width of a head's value, which need not be that of its query and key.
    """
    projection = anatomy.output_projections[layer]
    weight = projection.get_parameter("weight").detach().float()
    if not _is_conv1d(projection):
        weight = weight.T
    bias: Any = getattr(projection, "bias", None)
    per_head = weight.reshape(anatomy.n_heads, anatomy.d_value, anatomy.d_model)
    return per_head, None if bias is None else bias.detach().float()


def value_weight_norms(anatomy: Anatomy, layer: int) -> Tensor:
    """‖W_V^h‖_F per key/value head, (H_kv,) float32: the largest a value's gain can be, over all directions."""
    attention, d_value = anatomy.attentions[layer], anatomy.d_value
    match anatomy.kind.value:
        case "v_proj":
            rows = attention.get_parameter("v_proj.weight").reshape(anatomy.n_kv_heads, d_value, -1)
        case "last_third":
            rows = attention.get_parameter("c_attn.weight").T[-anatomy.d_model :].reshape(anatomy.n_heads, d_value, -1)
        case "third_per_head":
            qkv = attention.get_parameter("query_key_value.weight").reshape(anatomy.n_heads, 3, d_value, -1)
            rows = qkv[:, 2]
        case other:
            raise AssertionError(f"unknown place of W_V: {other}")
    return rows.detach().float().flatten(1).norm(dim=1)


def _input_width(projection: nn.Module) -> int:
    weight = projection.get_parameter("weight")
    return weight.shape[0] if _is_conv1d(projection) else weight.shape[1]


def _is_conv1d(projection: nn.Module) -> bool:
    """GPT-2's Conv1D keeps its weight as (in, out), a Linear as (out, in)."""
    return type(projection).__name__ == "Conv1D"


def _windows(config: Any, n_layers: int) -> tuple[int | None, ...]:
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:  # without a list of kinds the window, if any, holds in every layer (Mistral)
        return (window,) * n_layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
