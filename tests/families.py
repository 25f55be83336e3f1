"""Tiny random models, one a family (and one for what a family may vary), built from their configurations.

Weights are drawn large enough that attention is far from uniform, and biases, norms and sinks are drawn too, so that a
test can see each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from tasks.models.ega import EgaConfig
from tasks.models.table import FAMILIES
from tests.configurations import COMMON, EXPERTS, GQA, MIXTURE, MOSTLY_WINDOWS, VOCABULARY, configured
from tests.hybrids import HYBRIDS

# RoBERTa gives the padding token no position: the last of the vocabulary is not among the tokens that are drawn
_PAD_LAST = {**COMMON, "vocab_size": 62, "pad_token_id": 61, "max_position_embeddings": 64 + 62}
_ROUTED: dict[str, Any] = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_LATENT: dict[str, Any] = {
    **COMMON,
    "intermediate_size": 48,
    "num_key_value_heads": 4,
    "q_lora_rank": 12,
    "kv_lora_rank": 10,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
}
_SPECIAL = {name: COMMON[name] for name in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}
_MPT: dict[str, Any] = {**_SPECIAL, "d_model": 32, "n_heads": 4, "n_layers": 3, "max_seq_len": 64, "expansion_ratio": 2}
_DISTIL: dict[str, Any] = {
    **_SPECIAL,
    "dim": 32,
    "n_heads": 4,
    "n_layers": 3,
    "hidden_dim": 48,
    "max_position_embeddings": 64,
}


CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: configured("LlamaConfig", **GQA),
    "smollm2": lambda: configured(
        "LlamaConfig", **{**GQA, "num_attention_heads": 6, "hidden_size": 24}, tie_word_embeddings=True
    ),
    "deepseek-llm": lambda: configured("LlamaConfig", **{**GQA, "num_key_value_heads": 4}, attention_bias=True),
    "mistral": lambda: configured("MistralConfig", **GQA, sliding_window=None, head_dim=12),
    "mistral-window": lambda: configured("MistralConfig", **GQA, sliding_window=5),
    "qwen2": lambda: configured("Qwen2Config", **GQA),
    "qwen2-window": lambda: configured(
        "Qwen2Config", **GQA, use_sliding_window=True, sliding_window=4, max_window_layers=1
    ),
    "qwen3": lambda: configured("Qwen3Config", **GQA, head_dim=16),
    "gpt_neox": lambda: configured("GPTNeoXConfig", **COMMON, intermediate_size=48),
    "gpt_neox-serial": lambda: configured(
        "GPTNeoXConfig", **COMMON, intermediate_size=48, use_parallel_residual=False, attention_bias=False
    ),
    "gpt2": lambda: configured("GPT2Config", **COMMON),
    "ega_gpt2": lambda: EgaConfig(**COMMON),
    "ega_gpt2-published": lambda: EgaConfig(**COMMON, gate_statistics="published"),
    "gpt2-layer-scaled": lambda: configured("GPT2Config", **COMMON, scale_attn_by_inverse_layer_idx=True),
    "gemma2": lambda: configured(
        "Gemma2Config",
        **GQA,
        head_dim=16,
        sliding_window=6,
        query_pre_attn_scalar=20,
        attn_logit_softcapping=3.0,
        final_logit_softcapping=2.0,
    ),
    "gemma3_text": lambda: configured(
        "Gemma3TextConfig",
        **GQA,
        head_dim=16,
        sliding_window=6,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        query_pre_attn_scalar=20,
    ),
    "gemma3n_text": lambda: configured(
        "Gemma3nTextConfig",
        **GQA,
        head_dim=8,
        layer_types=["sliding_attention", "full_attention", "full_attention"],
        sliding_window=6,
        num_kv_shared_layers=1,
        altup_num_inputs=3,
        altup_active_idx=0,
        laurel_rank=4,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=VOCABULARY,
        activation_sparsity_pattern=[0.5, 0.0, 0.0],
        final_logit_softcapping=5.0,
    ),
    "phi": lambda: configured("PhiConfig", **GQA, partial_rotary_factor=0.5, qk_layernorm=True),
    "olmo2": lambda: configured("Olmo2Config", **GQA),
    "gpt_oss": lambda: configured(
        "GptOssConfig",
        **GQA,
        head_dim=16,
        sliding_window=6,
        num_local_experts=4,
        num_experts_per_tok=2,
        rope_parameters={"rope_type": "default", "rope_theta": 150000.0},
    ),
    "gemma": lambda: configured("GemmaConfig", **GQA, head_dim=16),
    "mixtral": lambda: configured("MixtralConfig", **GQA, **MIXTURE, sliding_window=None),
    "qwen2_moe": lambda: configured("Qwen2MoeConfig", **GQA, **EXPERTS, shared_expert_intermediate_size=16),
    "qwen3_moe": lambda: configured("Qwen3MoeConfig", **GQA, **EXPERTS, head_dim=16),
    "olmo": lambda: configured("OlmoConfig", **GQA, clip_qkv=1.0),
    "olmo3": lambda: configured("Olmo3Config", **GQA, sliding_window=6),
    "olmoe": lambda: configured("OlmoeConfig", **GQA, num_experts=4, num_experts_per_tok=2),
    "phi3": lambda: configured("Phi3Config", **GQA),
    "phi3-window": lambda: configured("Phi3Config", **GQA, sliding_window=5),
    "phimoe": lambda: configured("PhimoeConfig", **GQA, **MIXTURE, attention_bias=True),
    "glm": lambda: configured("GlmConfig", **GQA, head_dim=8, attention_bias=True),
    "glm4": lambda: configured("Glm4Config", **GQA, head_dim=8),
    "glm4_moe": lambda: configured("Glm4MoeConfig", **GQA, **_ROUTED, head_dim=8),
    "cohere": lambda: configured("CohereConfig", **GQA, use_qk_norm=True, logit_scale=0.5),
    "cohere2": lambda: configured("Cohere2Config", **GQA, sliding_window=6, layer_types=MOSTLY_WINDOWS),
    "granite": lambda: configured(
        "GraniteConfig", **GQA, residual_multiplier=0.4, attention_multiplier=0.3, logits_scaling=2.0
    ),
    "granitemoe": lambda: configured("GraniteMoeConfig", **GQA, **MIXTURE, residual_multiplier=0.4),
    "deepseek_v2": lambda: configured(
        "DeepseekV2Config", **_LATENT, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=16
    ),
    "deepseek_v3": lambda: configured("DeepseekV3Config", **_LATENT, **_ROUTED),
    "helium": lambda: configured("HeliumConfig", **GQA, head_dim=8),
    "smollm3": lambda: configured("SmolLM3Config", **GQA, no_rope_layers=[1, 0, 1]),
    "ernie4_5": lambda: configured("Ernie4_5Config", **GQA, head_dim=8, use_bias=True),
    "exaone4": lambda: configured("Exaone4Config", **GQA, sliding_window=6, layer_types=MOSTLY_WINDOWS),
    "arcee": lambda: configured("ArceeConfig", **GQA),
    "seed_oss": lambda: configured("SeedOssConfig", **GQA, head_dim=8),
    "hunyuan_v1_dense": lambda: configured("HunYuanDenseV1Config", **GQA, head_dim=8),
    "apertus": lambda: configured("ApertusConfig", **GQA, rope_parameters={"rope_type": "default", "rope_theta": 1e4}),
    "dots1": lambda: configured("Dots1Config", **GQA, **_ROUTED, n_shared_experts=1),
    **HYBRIDS,
    "stablelm": lambda: configured("StableLmConfig", **GQA, use_qkv_bias=True),
    "stablelm-parallel": lambda: configured("StableLmConfig", **GQA, use_parallel_residual=True),
    "nemotron": lambda: configured("NemotronConfig", **GQA),
    "starcoder2": lambda: configured("Starcoder2Config", **GQA, sliding_window=None),
    "starcoder2-window": lambda: configured("Starcoder2Config", **GQA, sliding_window=5),
    "persimmon": lambda: configured("PersimmonConfig", **COMMON, intermediate_size=48),
    "opt": lambda: configured("OPTConfig", **COMMON, ffn_dim=48, word_embed_proj_dim=32),
    "opt-350m": lambda: configured(
        "OPTConfig", **COMMON, ffn_dim=48, word_embed_proj_dim=16, do_layer_norm_before=False
    ),
    "gptj": lambda: configured("GPTJConfig", **COMMON, rotary_dim=4),
    "codegen": lambda: configured("CodeGenConfig", **COMMON, rotary_dim=4),
    "codegen-large": lambda: configured("CodeGenConfig", **{**COMMON, "num_attention_heads": 8}, rotary_dim=4),
    "gpt_bigcode": lambda: configured("GPTBigCodeConfig", **COMMON),
    "gpt_bigcode-heads": lambda: configured("GPTBigCodeConfig", **COMMON, multi_query=False),
    "gpt_neo": lambda: configured(
        "GPTNeoConfig",
        **COMMON,
        num_layers=3,
        num_heads=4,
        intermediate_size=48,
        window_size=5,
        attention_types=[[["global", "local", "global"], 1]],
    ),
    "bloom": lambda: configured("BloomConfig", **COMMON),
    "bloom-post": lambda: configured("BloomConfig", **COMMON, apply_residual_connection_post_layernorm=True),
    "mpt": lambda: configured("MptConfig", **_MPT),
    "mpt-clipped": lambda: configured("MptConfig", **_MPT, attn_config={"clip_qkv": 0.5}),
    "falcon-7b": lambda: configured("FalconConfig", **COMMON, multi_query=True, new_decoder_architecture=False),
    "falcon-40b": lambda: configured("FalconConfig", **COMMON, num_kv_heads=2, new_decoder_architecture=True),
    "falcon-rw": lambda: configured(
        "FalconConfig", **COMMON, multi_query=False, new_decoder_architecture=False, parallel_attn=False, alibi=True
    ),
    "bert": lambda: configured("BertConfig", **COMMON, intermediate_size=48),
    "roberta": lambda: configured("RobertaConfig", **_PAD_LAST, intermediate_size=48),
    "xlm-roberta": lambda: configured("XLMRobertaConfig", **_PAD_LAST, intermediate_size=48),
    "albert": lambda: configured("AlbertConfig", **COMMON, intermediate_size=48, embedding_size=16),
    "albert-groups": lambda: configured(
        "AlbertConfig", **{**COMMON, "num_hidden_layers": 3}, intermediate_size=48, num_hidden_groups=2
    ),
    "distilbert": lambda: configured("DistilBertConfig", **_DISTIL, sinusoidal_pos_embds=False),
}
"""Name → configuration; a name begins with the family's model_type, except two that are Llama under other names."""

_PATCHES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 24, "patch_size": 4}
IMAGE_CONFIGS: dict[str, Callable[[], Any]] = {
    "vit": lambda: configured("ViTConfig", **_PATCHES, intermediate_size=48),
    "deit": lambda: configured("DeiTConfig", **_PATCHES, intermediate_size=48),
    "dinov2": lambda: configured("Dinov2Config", **_PATCHES, mlp_ratio=2),
    "dinov2-gated": lambda: configured("Dinov2Config", **_PATCHES, mlp_ratio=2, use_swiglu_ffn=True, qkv_bias=False),
    "dinov2_with_registers": lambda: configured("Dinov2WithRegistersConfig", **_PATCHES, num_register_tokens=2),
}
"""Models that read images of 24 × 24 pixels in patches of 4 × 4."""

NAMES = tuple(CONFIGS)
IMAGE_NAMES = tuple(IMAGE_CONFIGS)
ENCODERS = tuple(name for name in NAMES if name.split("-")[0] in ("bert", "roberta", "xlm", "albert", "distilbert"))
DECODERS = tuple(name for name in NAMES if name not in ENCODERS)
REPLAYABLE = tuple(name for name in DECODERS if name != "gemma3n_text")
"""Gemma 3n's later layers need the keys and values of earlier ones."""


_SPREAD = {"zamba": 1.0, "zamba2": 1.0}
"""Where weights as large as the others' would multiply rounding by hundreds."""


def tiny_model(name: str, *, dtype: torch.dtype = torch.float32, **changes: Any) -> nn.Module:
    """A random causal LM, or encoder, of that name with plain eager attention, the same on every call.

    `changes` are attributes of its configuration.
    """
    family = FAMILIES.get(name, FAMILIES.get(name.split("-", maxsplit=1)[0]))
    if family is not None and int(transformers.__version__.split(".")[0]) < family.since:
        pytest.skip(f"{family.name} is refused on transformers {transformers.__version__}")
    torch.manual_seed(7)
    auto = transformers.AutoModel if name in (*ENCODERS, *IMAGE_NAMES) else transformers.AutoModelForCausalLM
    pooler = {"add_pooling_layer": False} if name in ("vit", "deit") else {}
    config = (CONFIGS | IMAGE_CONFIGS)[name]()
    config.update(changes)
    model = auto.from_config(config, attn_implementation="eager", **pooler)
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.add_(0.2 * noise)
            else:
                parameter.copy_(_SPREAD.get(name, 1.5) * noise / parameter.shape[-1] ** 0.5)
    return model.to(dtype).eval()


def pixels(count: int, size: tuple[int, int] = (24, 24), seed: int = 3) -> list[np.ndarray]:
    """Random images as a model is given them, (3, height, width) float32."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((3, *size)).astype(np.float32) for _ in range(count)]


def tokens(*lengths: int, seed: int = 3) -> list[np.ndarray]:
    """Random documents of these lengths."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCABULARY, n).astype(np.int32) for n in lengths]
