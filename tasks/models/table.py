"""The families that can be captured, one row each, and those that are refused, with the reason.

Read without torch or transformers, so that `plan` and `models` answer at once. Adding a family: one row here, one tiny
model in tests/families.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

INTERFACE, FALLBACK = "interface", "fallback"


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
    """Positions count from the padding token's id + 1, not from 0 (RoBERTa)."""
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
        **{"layers": "layers", "leading": ("[CLS]",), **more},
    )


_TRAINED = "a tiny random model and a trained one"
_POST, _BESIDE, _SCALED = {"entry": "after a norm"}, {"entry": "beside the MLP"}, {"entry": "scaled"}
_LAYER_NORM = {"norm": "layernorm"}
_LATENT = {"value": "kv_b_proj", "layout": "tail_of_head"}
_PER_HEAD = {"value": "query_key_value", "layout": "last_of_group", "projection": "dense"}


def _rms_families() -> Iterator[Family]:
    yield _llama_like("llama", "Llama", "Llama 2 and 3, SmolLM2, DeepSeek LLM", verified=_TRAINED)
    yield _llama_like("mistral", "Mistral", "Mistral 7B")
    yield _llama_like("mixtral", "Mixtral", "Mixtral 8x7B")
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
    yield _llama_like("granitemoe", "Granite MoE", "Granite 3 MoE", **_SCALED)
    yield _llama_like("deepseek_v2", "DeepSeek V2", "DeepSeek V2, V2-Lite", **_LATENT)
    yield _llama_like("deepseek_v3", "DeepSeek V3", "DeepSeek V3, R1", **_LATENT)
    yield _llama_like("helium", "Helium", "Helium 1")
    yield _llama_like("smollm3", "SmolLM3", "SmolLM3-3B")
    yield _llama_like("ernie4_5", "ERNIE 4.5", "ERNIE-4.5-0.3B")
    yield _llama_like("exaone4", "EXAONE 4", "EXAONE 4.0", **_POST)
    yield _llama_like("arcee", "Arcee", "AFM-4.5B")
    yield _llama_like("seed_oss", "Seed-OSS", "Seed-OSS-36B")
    yield _llama_like("hunyuan_v1_dense", "HunYuan", "HunYuan dense")
    yield _llama_like("apertus", "Apertus", "Apertus 8B and 70B")
    yield _llama_like("dots1", "dots.llm1", "dots.llm1")


def _hybrids() -> Iterator[Family]:
    some: dict[str, Any] = {"hybrid": True}
    halves = {"gate": "q_proj", "gate_layout": "tail_of_head"}
    yield _llama_like("qwen3_next", "Qwen3-Next", "Qwen3-Next-80B-A3B", **some, **halves)
    yield _llama_like("qwen3_5_text", "Qwen3.5", "Qwen3.5 (text)", **some, **halves)
    yield _llama_like("qwen3_5_moe_text", "Qwen3.5 MoE", "Qwen3.5 MoE (text)", **some, **halves)
    yield _llama_like("afmoe", "AFMoE", "Trinity", gate="gate_proj", **_POST)
    yield _llama_like("lfm2", "LFM2", "LFM2", **some, projection="out_proj")
    yield _llama_like("lfm2_moe", "LFM2 MoE", "LFM2-8B-A1B", **some, projection="out_proj")
    yield _llama_like("jamba", "Jamba", "Jamba", **some)
    yield _llama_like("bamba", "Bamba", "Bamba 9B", **some)
    yield _llama_like("granitemoehybrid", "Granite MoE Hybrid", "Granite 4", **some, **_SCALED)
    yield _llama_like("minimax", "MiniMax", "MiniMax-Text-01", **some, **_SCALED, since=5)
    yield _llama_like("olmo_hybrid", "OLMo Hybrid", "OLMo Hybrid", **some, **_POST)
    yield _llama_like("falcon_h1", "Falcon-H1", "Falcon-H1", entry="beside a state-space part")
    for model_type, name, attention, entry, more in (
        ("nemotron_h", "Nemotron-H", "mixer", "direct", {}),
        ("recurrent_gemma", "RecurrentGemma", "temporal_block", "direct", {"left_padding": False, "since": 5}),
        ("zamba", "Zamba", "shared_transf.self_attn", "into a state-space part", {}),
        ("zamba2", "Zamba2", "shared_transformer.self_attn", "into a state-space part", {"since": 5}),
    ):
        parts: dict[str, Any] = {"layers": "model.layers", "projection": "o_proj", "value": "v_proj", **some, **more}
        yield _family(model_type, name, attention, norm="rmsnorm", entry=entry, examples=name, **parts)


def _layer_norm_families() -> Iterator[Family]:
    yield _llama_like("olmo", "OLMo", "OLMo 1", **_LAYER_NORM)
    yield _llama_like("cohere", "Cohere", "Command R", **_LAYER_NORM, **_BESIDE)
    yield _llama_like("cohere2", "Cohere 2", "Command R7B", **_LAYER_NORM, **_BESIDE)
    yield _llama_like("stablelm", "StableLM", "StableLM 2, StableLM 3B", **_LAYER_NORM)
    yield _llama_like("nemotron", "Nemotron", "Nemotron-4, Minitron", **_LAYER_NORM)
    yield _llama_like("starcoder2", "StarCoder2", "StarCoder2", **_LAYER_NORM)
    yield _llama_like("phimoe", "Phi-3.5 MoE", "Phi-3.5-MoE", **_LAYER_NORM)
    yield _llama_like("phi", "Phi", "Phi-1, Phi-1.5, Phi-2", **_LAYER_NORM, **_BESIDE, projection="dense")
    yield _llama_like("persimmon", "Persimmon", "Persimmon 8B", **_LAYER_NORM, **_PER_HEAD)
    yield _llama_like("opt", "OPT", "OPT", **_LAYER_NORM, layers="model.decoder.layers", projection="out_proj")
    neox = {**_PER_HEAD, **_BESIDE, "attention": "attention", "layers": "gpt_neox.layers"}
    yield _gpt_like("gpt_neox", "GPT-NeoX", "Pythia, GPT-NeoX-20B", verified=_TRAINED, **neox)
    conv = {"projection": "c_proj", "value": "c_attn", "layout": "last"}
    yield _gpt_like("gpt2", "GPT-2", "GPT-2, DistilGPT-2", verified=_TRAINED, **conv)
    gated = {**conv, "since": 5, "verified": _TRAINED}
    yield _gpt_like("ega_gpt2", "GPT-2 with energy gates", "theodolite train --variant ega", **gated)
    yield _gpt_like("gpt_bigcode", "GPT-BigCode", "StarCoder, SantaCoder", **{**conv, "layout": "last_of_group"})
    yield _gpt_like("gptj", "GPT-J", "GPT-J-6B", **_BESIDE)
    yield _gpt_like("codegen", "CodeGen", "CodeGen", **_BESIDE, value="qkv_proj", layout="middle_of_quarter")
    outside = {"way": FALLBACK}
    yield _gpt_like("gpt_neo", "GPT-Neo", "GPT-Neo", **outside, attention="attn.attention")
    wide = {"attention": "self_attention", **_PER_HEAD, **outside}
    yield _gpt_like("falcon", "Falcon", "Falcon 7B, 40B, RW", **wide, **_BESIDE)
    yield _gpt_like("bloom", "BLOOM", "BLOOM, BLOOMZ", **wide, returns="more")
    yield _gpt_like("mpt", "MPT", "MPT-7B", **outside, layers="transformer.blocks", value="Wqkv", layout="last")


def _encoders() -> Iterator[Family]:
    yield _bert_like("bert", "BERT", "BERT, MiniLM, BGE")
    yield _bert_like("roberta", "RoBERTa", "RoBERTa", positions_after_padding=True)
    yield _bert_like("xlm-roberta", "XLM-RoBERTa", "XLM-R, multilingual-E5", positions_after_padding=True)
    norm_of_sum: dict[str, Any] = {"entry": "into a norm of the sum", "causal": False}
    albert = {"layers": "encoder.albert_layer_groups", "projection": "dense", "value": "value", "returns": "more"}
    yield _family("albert", "ALBERT", "attention", examples="ALBERT", **albert, **norm_of_sum)
    distil = {"layers": "transformer.layer", "projection": "out_lin", "value": "v_lin"}
    yield _family("distilbert", "DistilBERT", "attention", examples="DistilBERT", **distil, **norm_of_sum)


def _image_encoders() -> Iterator[Family]:
    yield _patch_like("vit", "ViT", "ViT, DINO (v1)")
    yield _patch_like("deit", "DeiT", "DeiT", leading=("[CLS]", "[DIST]"))
    dino: dict[str, Any] = {"layers": "encoder.layer", "interpolates": True, **_SCALED}
    yield _patch_like("dinov2", "DINOv2", "DINOv2", **dino)
    yield _patch_like("dinov2_with_registers", "DINOv2 with registers", "DINOv2 with registers", **dino)


FAMILIES: Mapping[str, Family] = {
    family.model_type: family
    for family in (*_rms_families(), *_hybrids(), *_layer_norm_families(), *_encoders(), *_image_encoders())
}

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
