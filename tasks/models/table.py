"""The families that can be captured, one row each. refused.py has those that are refused, with the reason.

Read without torch or transformers, so that `plan` and `models` answer at once. Adding a family: one row here, one tiny
model in tests/families.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

INTERFACE, FALLBACK = "interface", "fallback"


def _unprinted(default: Any) -> Any:
    """A field that `theodolite models` does not print."""
    return field(default=default, metadata={"printed": False})


@dataclass(frozen=True)
class Family:
    """One model_type of transformers: its names for the parts, and how its attention enters the residual stream."""

    model_type: str
    name: str
    norm: str
    """layernorm | rmsnorm: the norm before attention, or after it where the family norms the sum."""
    layers: str
    """Path from the model to its list of layers."""
    attention: str
    """Path from a layer to the module that computes the weights."""
    projection: str
    """Path from a layer to the output projection W_O: `weight.T` of a Linear, `weight` of a Conv1D."""
    value: str
    """Path from a layer to the projection that makes the value, alone or beside other things."""
    layout: str
    """Where in that projection's output the value lies: own (all of it) | last (after query and key) | last_of_group
    (per key/value head its queries, key, value) | tail_of_head (per head a key, then the value) | middle_of_quarter."""
    entry: str
    """How attention enters the residual: direct | scaled | after a norm | beside the MLP | into a norm of the sum."""
    way: str = INTERFACE
    """interface: its code calls transformers' attention function | fallback: hooks take the weights it returns."""
    returns: str = "projection"
    """What the attention module returns: projection (W_O's output, as it is) | more (residual or norm come with it)."""
    causal: bool = True
    positions_after_padding: bool = False
    """Positions count from the padding token's id + 1, not from 0, and that token has none (RoBERTa)."""
    left_padding: bool = True
    """Whether padding before a document leaves its numbers alone."""
    since: int = 4
    """The first major version of transformers whose code of it can be captured."""
    sinks: str | None = None
    """Attribute of the attention module with one learned sink logit a head."""
    streams: str = ""
    """What the configuration calls its number of residual streams; empty where there is one."""
    shares_values: bool = False
    """Later layers reuse the keys and values of an earlier one, and have no projection of their own for them."""
    hybrid: bool = False
    """Some layers have no attention: the configuration says which (attended.py)."""
    gate: str = ""
    """Path from a layer to the projection whose sigmoid multiplies each head's output before W_O; empty for none."""
    gate_layout: str = "own"
    """Where in that projection's output the gate lies: own (all of it) | tail_of_head (per head its query, then it)."""
    reads: str = "text"
    """text: token ids | images: pixels, whose tokens are patches."""
    leading: tuple[str, ...] = ()
    """Of a family that reads images, the tokens before its registers and patches."""
    interpolates: bool = False
    """Position embeddings are fitted to the size of the image; else it must be the configuration's."""
    older: tuple[tuple[str, str], ...] = ()
    """Paths that are others in older versions of transformers, by the name of the field."""
    examples: str = ""
    verified: str = "a tiny random model"
    """What the tests hold it against, besides the plain model's own logits and attention."""
    mlp: tuple[str, ...] = _unprinted(("mlp",))
    """Paths from a layer to the modules whose outputs, together, are the MLP's: those of them that the layer has."""
    block: str = _unprinted("")
    """Path from a layer to the block of attention, MLP and norms that layers share (Zamba); empty for the layer."""
    gated_mlp: bool = _unprinted(True)
    """Whether the MLP has three matrices, one of them a gate; else two. `use_swiglu_ffn` in a configuration adds it."""
    multi_query: bool = _unprinted(False)
    """Its configuration says by `multi_query`, not by `num_key_value_heads`, that heads share one key and value."""
    group: str = _unprinted("")
    """Where what `layers` lists are groups that run several times in a row (ALBERT): what they call their layers."""
    pooler: bool = _unprinted(False)
    """Whether its class makes a pooling layer, which checkpoints may lack, unless it is asked not to."""
    registers: int = _unprinted(0)
    """Of a family that reads images, its registers where the configuration does not say; 0 for none."""
    counts_padding: bool = _unprinted(False)
    """In transformers 4 its positions count from the start of the row, padding included, and cannot be given."""
    not_rebuilt: str = _unprinted("")
    """Why attention cannot be rebuilt from query and key; empty where it can, or where `way` is fallback."""

    def printed(self) -> dict[str, Any]:
        """What `theodolite models` prints of it."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.metadata.get("printed", True)}

    @property
    def body(self) -> str:
        """Path to the part that ends with the final norm; empty where it is the model itself."""
        return self.layers.rpartition(".")[0] if self.causal else ""


def _family(model_type: str, name: str, attention: str, *, projection: str, value: str, **more: Any) -> Family:
    parts: dict[str, Any] = {"norm": "layernorm", "layout": "own", "entry": "direct", **more}
    projection, value = f"{attention}.{projection}", f"{attention}.{value}"
    if "gate" in parts:
        parts["gate"] = f"{attention}.{parts['gate']}"
    return Family(model_type, name, attention=attention, projection=projection, value=value, **parts)


def _llama_like(model_type: str, name: str, examples: str, **more: Any) -> Family:
    parts = {"norm": "rmsnorm", "layers": "model.layers", "projection": "o_proj", "value": "v_proj", **more}
    return _family(model_type, name, "self_attn", examples=examples, **parts)


def _gpt_like(model_type: str, name: str, examples: str, **more: Any) -> Family:
    parts = {"attention": "attn", "layers": "transformer.h", "projection": "out_proj", "value": "v_proj", **more}
    parts.setdefault("gated_mlp", False)
    return _family(model_type, name, examples=examples, **parts)


def _bert_like(model_type: str, name: str, examples: str, **more: Any) -> Family:
    return Family(
        model_type,
        name,
        norm="layernorm",
        layers="encoder.layer",
        attention="attention.self",
        projection="attention.output.dense",
        value="attention.self.value",
        layout="own",
        entry="into a norm of the sum",
        returns="more",
        causal=False,
        examples=examples,
        gated_mlp=False,
        pooler=True,
        **more,
    )


def _patch_like(model_type: str, name: str, examples: str, **more: Any) -> Family:
    older = {
        "layers": "encoder.layer",
        "attention": "attention.attention",
        "projection": "attention.output.dense",
        "value": "attention.attention.value",
    }
    return _family(
        model_type,
        name,
        "attention",
        projection="o_proj",
        value="v_proj",
        returns="more",
        causal=False,
        reads="images",
        older=tuple(older.items()),
        examples=examples,
        gated_mlp=False,
        **{"layers": "layers", "leading": ("[CLS]",), "pooler": True, **more},
    )


ALIBI = "ALiBi adds to each score a term for the distance, which neither query nor key holds"
_GATED = "a gate multiplies its weights, which is no part of the scores"
_TRAINED = "a tiny random model and a trained one"
_POST, _BESIDE, _SCALED = {"entry": "after a norm"}, {"entry": "beside the MLP"}, {"entry": "scaled"}
_LAYER_NORM = {"norm": "layernorm"}
_TWO_MATRICES: dict[str, Any] = {"gated_mlp": False}
_EXPERTS: dict[str, Any] = {"mlp": ("mlp", "block_sparse_moe")}  # the second in transformers 4
_LATENT = {"value": "kv_b_proj", "layout": "tail_of_head"}
_PER_HEAD = {"value": "query_key_value", "layout": "last_of_group", "projection": "dense"}


def _rms_families() -> Iterator[Family]:
    yield _llama_like("llama", "Llama", "Llama 2 and 3, SmolLM2, DeepSeek LLM", verified=_TRAINED)
    yield _llama_like("mistral", "Mistral", "Mistral 7B")
    yield _llama_like("mixtral", "Mixtral", "Mixtral 8x7B", **_EXPERTS)
    yield _llama_like("qwen2", "Qwen2", "Qwen2, Qwen2.5, DeepSeek-R1-Distill-Qwen")
    yield _llama_like("qwen2_moe", "Qwen2 MoE", "Qwen1.5-MoE, Qwen2-57B-A14B")
    yield _llama_like("qwen3", "Qwen3", "Qwen3")
    yield _llama_like("qwen3_moe", "Qwen3 MoE", "Qwen3-30B-A3B")
    yield _llama_like("olmo2", "OLMo 2", "OLMo 2", **_POST)
    yield _llama_like("olmo3", "OLMo 3", "OLMo 3", **_POST)
    yield _llama_like("olmoe", "OLMoE", "OLMoE-1B-7B")
    yield _llama_like("gemma", "Gemma", "Gemma 2B and 7B")
    yield _llama_like("gemma2", "Gemma 2", "Gemma 2", **_POST)
    yield _llama_like("gemma3_text", "Gemma 3", "Gemma 3 (text)", **_POST)
    streams: dict[str, Any] = {"streams": "altup_num_inputs", "shares_values": True, "since": 5}
    yield _llama_like("gemma3n_text", "Gemma 3n", "Gemma 3n (text)", **_POST, **streams)
    yield _llama_like("gpt_oss", "GPT-OSS", "gpt-oss-20b", sinks="sinks")
    yield _llama_like("phi3", "Phi-3", "Phi-3, Phi-3.5-mini, Phi-4", value="qkv_proj", layout="last")
    yield _llama_like("glm", "GLM", "GLM-4-9B")
    yield _llama_like("glm4", "GLM-4", "GLM-4-0414", **_POST)
    yield _llama_like("glm4_moe", "GLM-4 MoE", "GLM-4.5, GLM-4.6")
    yield _llama_like("granite", "Granite", "Granite 3", **_SCALED)
    yield _llama_like("granitemoe", "Granite MoE", "Granite 3 MoE", **_SCALED, mlp=("block_sparse_moe",))
    yield _llama_like("deepseek_v2", "DeepSeek V2", "DeepSeek V2, V2-Lite", **_LATENT)
    yield _llama_like("deepseek_v3", "DeepSeek V3", "DeepSeek V3, R1", **_LATENT)
    yield _llama_like("helium", "Helium", "Helium 1")
    yield _llama_like("smollm3", "SmolLM3", "SmolLM3-3B")
    yield _llama_like("ernie4_5", "ERNIE 4.5", "ERNIE-4.5-0.3B")
    yield _llama_like("exaone4", "EXAONE 4", "EXAONE 4.0", **_POST)
    yield _llama_like("arcee", "Arcee", "AFM-4.5B", **_TWO_MATRICES)
    yield _llama_like("seed_oss", "Seed-OSS", "Seed-OSS-36B")
    yield _llama_like("hunyuan_v1_dense", "HunYuan", "HunYuan dense")
    yield _llama_like("apertus", "Apertus", "Apertus 8B and 70B", **_TWO_MATRICES)
    yield _llama_like("dots1", "dots.llm1", "dots.llm1")


def _hybrids() -> Iterator[Family]:
    some: dict[str, Any] = {"hybrid": True}
    forward: dict[str, Any] = {"mlp": ("feed_forward",)}
    moe = ("block_sparse_moe", "shared_mlp")
    halves = {"gate": "q_proj", "gate_layout": "tail_of_head"}
    yield _llama_like("qwen3_next", "Qwen3-Next", "Qwen3-Next-80B-A3B", **some, **halves)
    yield _llama_like("qwen3_5_text", "Qwen3.5", "Qwen3.5 (text)", **some, **halves)
    yield _llama_like("qwen3_5_moe_text", "Qwen3.5 MoE", "Qwen3.5 MoE (text)", **some, **halves)
    yield _llama_like("afmoe", "AFMoE", "Trinity", gate="gate_proj", **_POST)
    yield _llama_like("lfm2", "LFM2", "LFM2", **some, **forward, projection="out_proj")
    yield _llama_like("lfm2_moe", "LFM2 MoE", "LFM2-8B-A1B", **some, **forward, projection="out_proj")
    yield _llama_like("jamba", "Jamba", "Jamba", **some, **forward)
    yield _llama_like("bamba", "Bamba", "Bamba 9B", **some, **forward)
    yield _llama_like("granitemoehybrid", "Granite MoE Hybrid", "Granite 4", **some, **_SCALED, mlp=moe)
    yield _llama_like("minimax", "MiniMax", "MiniMax-Text-01", **some, **_SCALED, since=5)
    yield _llama_like("olmo_hybrid", "OLMo Hybrid", "OLMo Hybrid", **some, **_POST)
    yield _llama_like("falcon_h1", "Falcon-H1", "Falcon-H1", **forward, entry="beside a state-space part")
    recurrent: dict[str, Any] = {"left_padding": False, "since": 5, "mlp": ("mlp_block",)}
    into = "into a state-space part"
    rows: tuple[tuple[str, str, str, str, dict[str, Any]], ...] = (
        ("nemotron_h", "Nemotron-H", "mixer", "direct", {"mlp": ("mixer",)}),
        ("recurrent_gemma", "RecurrentGemma", "temporal_block", "direct", recurrent),
        ("zamba", "Zamba", "shared_transf.self_attn", into, _in_block("shared_transf")),
        ("zamba2", "Zamba2", "shared_transformer.self_attn", into, {**_in_block("shared_transformer"), "since": 5}),
    )
    for model_type, name, attention, entry, more in rows:
        parts: dict[str, Any] = {"layers": "model.layers", "projection": "o_proj", "value": "v_proj", **some, **more}
        yield _family(model_type, name, attention, norm="rmsnorm", entry=entry, examples=name, **parts)


def _in_block(path: str) -> dict[str, Any]:
    return {"block": path, "mlp": (f"{path}.feed_forward",)}


def _layer_norm_families() -> Iterator[Family]:
    yield _llama_like("olmo", "OLMo", "OLMo 1", **_LAYER_NORM)
    yield _llama_like("cohere", "Cohere", "Command R", **_LAYER_NORM, **_BESIDE)
    yield _llama_like("cohere2", "Cohere 2", "Command R7B", **_LAYER_NORM, **_BESIDE)
    yield _llama_like("stablelm", "StableLM", "StableLM 2, StableLM 3B", **_LAYER_NORM)
    yield _llama_like("nemotron", "Nemotron", "Nemotron-4, Minitron", **_LAYER_NORM, **_TWO_MATRICES)
    yield _llama_like("starcoder2", "StarCoder2", "StarCoder2", **_LAYER_NORM, **_TWO_MATRICES)
    yield _llama_like("phimoe", "Phi-3.5 MoE", "Phi-3.5-MoE", **_LAYER_NORM, **_EXPERTS)
    yield _llama_like(
        "phi", "Phi", "Phi-1, Phi-1.5, Phi-2", **_LAYER_NORM, **_BESIDE, **_TWO_MATRICES, projection="dense"
    )
    yield _llama_like("persimmon", "Persimmon", "Persimmon 8B", **_LAYER_NORM, **_TWO_MATRICES, **_PER_HEAD)
    opt: dict[str, Any] = {"layers": "model.decoder.layers", "projection": "out_proj", "mlp": ("fc2",)}
    yield _llama_like("opt", "OPT", "OPT", **_LAYER_NORM, **_TWO_MATRICES, **opt)
    neox = {**_PER_HEAD, **_BESIDE, "attention": "attention", "layers": "gpt_neox.layers"}
    yield _gpt_like("gpt_neox", "GPT-NeoX", "Pythia, GPT-NeoX-20B", verified=_TRAINED, **neox)
    conv = {"projection": "c_proj", "value": "c_attn", "layout": "last"}
    yield _gpt_like("gpt2", "GPT-2", "GPT-2, DistilGPT-2", verified=_TRAINED, **conv)
    gated: dict[str, Any] = {**conv, "since": 5, "verified": _TRAINED, "not_rebuilt": _GATED}
    yield _gpt_like("ega_gpt2", "GPT-2 with energy gates", "theodolite train --variant ega", **gated)
    bigcode: dict[str, Any] = {**conv, "layout": "last_of_group", "multi_query": True}
    yield _gpt_like("gpt_bigcode", "GPT-BigCode", "StarCoder, SantaCoder", **bigcode)
    yield _gpt_like("gptj", "GPT-J", "GPT-J-6B", **_BESIDE)
    yield _gpt_like("codegen", "CodeGen", "CodeGen", **_BESIDE, value="qkv_proj", layout="middle_of_quarter")
    outside = {"way": FALLBACK}
    yield _gpt_like("gpt_neo", "GPT-Neo", "GPT-Neo", **outside, attention="attn.attention")
    wide = {"attention": "self_attention", **_PER_HEAD, **outside}
    yield _gpt_like("falcon", "Falcon", "Falcon 7B, 40B, RW", **wide, **_BESIDE, multi_query=True)
    # the MLPs of these two add the residual inside: the last projection is what the MLP itself gives
    alibi = {"not_rebuilt": ALIBI}
    yield _gpt_like("bloom", "BLOOM", "BLOOM, BLOOMZ", **wide, returns="more", **alibi, mlp=("mlp.dense_4h_to_h",))
    mpt: dict[str, Any] = {"layers": "transformer.blocks", "value": "Wqkv", "layout": "last", "mlp": ("ffn.down_proj",)}
    yield _gpt_like("mpt", "MPT", "MPT-7B", **outside, **alibi, **mpt)


def _encoders() -> Iterator[Family]:
    yield _bert_like("bert", "BERT", "BERT, MiniLM, BGE")
    yield _bert_like("roberta", "RoBERTa", "RoBERTa", positions_after_padding=True)
    yield _bert_like("xlm-roberta", "XLM-RoBERTa", "XLM-R, multilingual-E5", positions_after_padding=True)
    norm_of_sum: dict[str, Any] = {"entry": "into a norm of the sum", "causal": False, "mlp": ("ffn",)}
    norm_of_sum |= _TWO_MATRICES
    groups: dict[str, Any] = {"group": "albert_layers", "pooler": True}
    albert = {"layers": "encoder.albert_layer_groups", "projection": "dense", "value": "value", "returns": "more"}
    yield _family("albert", "ALBERT", "attention", examples="ALBERT", **albert, **groups, **norm_of_sum)
    distil = {"layers": "transformer.layer", "projection": "out_lin", "value": "v_lin"}
    rows: dict[str, Any] = {"counts_padding": True, **norm_of_sum}
    yield _family("distilbert", "DistilBERT", "attention", examples="DistilBERT", **distil, **rows)


def _image_encoders() -> Iterator[Family]:
    yield _patch_like("vit", "ViT", "ViT, DINO (v1)")
    yield _patch_like("deit", "DeiT", "DeiT", leading=("[CLS]", "[DIST]"))
    dino: dict[str, Any] = {"layers": "encoder.layer", "interpolates": True, "pooler": False, **_SCALED}
    yield _patch_like("dinov2", "DINOv2", "DINOv2", **dino)
    yield _patch_like("dinov2_with_registers", "DINOv2 with registers", "DINOv2 with registers", **dino, registers=4)


FAMILIES: Mapping[str, Family] = {
    family.model_type: family
    for family in (*_rms_families(), *_hybrids(), *_layer_norm_families(), *_encoders(), *_image_encoders())
}

TOKENIZER_OF_ITS_OWN = frozenset({"qwen2", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen4_exp"})
"""Types of models for which transformers 5 takes a tokenizer of its own, whatever tokenizer_config.json names."""
