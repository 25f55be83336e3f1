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

from tasks.models.table import FAMILIES

VOCABULARY = 61
_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
_GQA: dict[str, Any] = {**_COMMON, "intermediate_size": 48, "num_key_value_heads": 2}
# RoBERTa gives the padding token no position: it must not be among the tokens of a document
_PAD_LAST = {**_COMMON, "vocab_size": 62, "pad_token_id": 61, "max_position_embeddings": 64 + 62}
_MOSTLY_WINDOWS = ["sliding_attention", "sliding_attention", "full_attention"]
_MIXTURE: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_ROUTED: dict[str, Any] = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_LATENT: dict[str, Any] = {
    **_COMMON,
    "intermediate_size": 48,
    "num_key_value_heads": 4,
    "q_lora_rank": 12,
    "kv_lora_rank": 10,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
}
_SPECIAL = {name: _COMMON[name] for name in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}
_MPT: dict[str, Any] = {**_SPECIAL, "d_model": 32, "n_heads": 4, "n_layers": 3, "max_seq_len": 64, "expansion_ratio": 2}
_DISTIL: dict[str, Any] = {
    **_SPECIAL,
    "dim": 32,
    "n_heads": 4,
    "n_layers": 3,
    "hidden_dim": 48,
    "max_position_embeddings": 64,
}


def _config(name: str, **options: Any) -> Any:
    if not hasattr(transformers, name):
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    return getattr(transformers, name)(**options)


_SOME = ["linear_attention", "full_attention", "linear_attention"]
_DELTA: dict[str, Any] = {
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_DELTA_GATED: dict[str, Any] = {**_GQA, **_DELTA, "head_dim": 8, "layer_types": [*_SOME[:2], "full_attention"]}
_STATE: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1}

CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: _config("LlamaConfig", **_GQA),
    "smollm2": lambda: _config(
        "LlamaConfig", **{**_GQA, "num_attention_heads": 6, "hidden_size": 24}, tie_word_embeddings=True
    ),
    "deepseek-llm": lambda: _config("LlamaConfig", **{**_GQA, "num_key_value_heads": 4}, attention_bias=True),
    "mistral": lambda: _config("MistralConfig", **_GQA, sliding_window=None, head_dim=12),
    "mistral-window": lambda: _config("MistralConfig", **_GQA, sliding_window=5),
    "qwen2": lambda: _config("Qwen2Config", **_GQA),
    "qwen2-window": lambda: _config(
        "Qwen2Config", **_GQA, use_sliding_window=True, sliding_window=4, max_window_layers=1
    ),
    "qwen3": lambda: _config("Qwen3Config", **_GQA, head_dim=16),
    "gpt_neox": lambda: _config("GPTNeoXConfig", **_COMMON, intermediate_size=48),
    "gpt_neox-serial": lambda: _config(
        "GPTNeoXConfig", **_COMMON, intermediate_size=48, use_parallel_residual=False, attention_bias=False
    ),
    "gpt2": lambda: _config("GPT2Config", **_COMMON),
    "gpt2-layer-scaled": lambda: _config("GPT2Config", **_COMMON, scale_attn_by_inverse_layer_idx=True),
    "gemma2": lambda: _config(
        "Gemma2Config",
        **_GQA,
        head_dim=16,
        sliding_window=6,
        query_pre_attn_scalar=20,
        attn_logit_softcapping=3.0,
        final_logit_softcapping=2.0,
    ),
    "gemma3_text": lambda: _config(
        "Gemma3TextConfig",
        **_GQA,
        head_dim=16,
        sliding_window=6,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        query_pre_attn_scalar=20,
    ),
    "gemma3n_text": lambda: _config(
        "Gemma3nTextConfig",
        **_GQA,
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
    "phi": lambda: _config("PhiConfig", **_GQA, partial_rotary_factor=0.5, qk_layernorm=True),
    "olmo2": lambda: _config("Olmo2Config", **_GQA),
    "gpt_oss": lambda: _config(
        "GptOssConfig",
        **_GQA,
        head_dim=16,
        sliding_window=6,
        num_local_experts=4,
        num_experts_per_tok=2,
        rope_parameters={"rope_type": "default", "rope_theta": 150000.0},
    ),
    "gemma": lambda: _config("GemmaConfig", **_GQA, head_dim=16),
    "mixtral": lambda: _config("MixtralConfig", **_GQA, **_MIXTURE, sliding_window=None),
    "qwen2_moe": lambda: _config("Qwen2MoeConfig", **_GQA, **_EXPERTS, shared_expert_intermediate_size=16),
    "qwen3_moe": lambda: _config("Qwen3MoeConfig", **_GQA, **_EXPERTS, head_dim=16),
    "olmo": lambda: _config("OlmoConfig", **_GQA, clip_qkv=1.0),
    "olmo3": lambda: _config("Olmo3Config", **_GQA, sliding_window=6),
    "olmoe": lambda: _config("OlmoeConfig", **_GQA, num_experts=4, num_experts_per_tok=2),
    "phi3": lambda: _config("Phi3Config", **_GQA),
    "phi3-window": lambda: _config("Phi3Config", **_GQA, sliding_window=5),
    "phimoe": lambda: _config("PhimoeConfig", **_GQA, **_MIXTURE, attention_bias=True),
    "glm": lambda: _config("GlmConfig", **_GQA, head_dim=8, attention_bias=True),
    "glm4": lambda: _config("Glm4Config", **_GQA, head_dim=8),
    "glm4_moe": lambda: _config("Glm4MoeConfig", **_GQA, **_ROUTED, head_dim=8),
    "cohere": lambda: _config("CohereConfig", **_GQA, use_qk_norm=True, logit_scale=0.5),
    "cohere2": lambda: _config("Cohere2Config", **_GQA, sliding_window=6, layer_types=_MOSTLY_WINDOWS),
    "granite": lambda: _config(
        "GraniteConfig", **_GQA, residual_multiplier=0.4, attention_multiplier=0.3, logits_scaling=2.0
    ),
    "granitemoe": lambda: _config("GraniteMoeConfig", **_GQA, **_MIXTURE, residual_multiplier=0.4),
    "deepseek_v2": lambda: _config(
        "DeepseekV2Config", **_LATENT, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=16
    ),
    "deepseek_v3": lambda: _config("DeepseekV3Config", **_LATENT, **_ROUTED),
    "helium": lambda: _config("HeliumConfig", **_GQA, head_dim=8),
    "smollm3": lambda: _config("SmolLM3Config", **_GQA, no_rope_layers=[1, 0, 1]),
    "ernie4_5": lambda: _config("Ernie4_5Config", **_GQA, head_dim=8, use_bias=True),
    "exaone4": lambda: _config("Exaone4Config", **_GQA, sliding_window=6, layer_types=_MOSTLY_WINDOWS),
    "arcee": lambda: _config("ArceeConfig", **_GQA),
    "seed_oss": lambda: _config("SeedOssConfig", **_GQA, head_dim=8),
    "hunyuan_v1_dense": lambda: _config("HunYuanDenseV1Config", **_GQA, head_dim=8),
    "apertus": lambda: _config("ApertusConfig", **_GQA, rope_parameters={"rope_type": "default", "rope_theta": 1e4}),
    "dots1": lambda: _config("Dots1Config", **_GQA, **_ROUTED, n_shared_experts=1),
    "qwen3_next": lambda: _config(
        "Qwen3NextConfig", **_DELTA_GATED, **_EXPERTS, shared_expert_intermediate_size=16, partial_rotary_factor=0.5
    ),
    "qwen3_5_text": lambda: _config("Qwen3_5TextConfig", **_DELTA_GATED),
    "qwen3_5_moe_text": lambda: _config(
        "Qwen3_5MoeTextConfig", **_DELTA_GATED, **_EXPERTS, shared_expert_intermediate_size=16
    ),
    "afmoe": lambda: _config(
        "AfmoeConfig",
        **{**_GQA, **_EXPERTS},
        head_dim=8,
        sliding_window=6,
        layer_types=_MOSTLY_WINDOWS,
        num_dense_layers=1,
        num_shared_experts=1,
    ),
    "lfm2": lambda: _config("Lfm2Config", **_GQA, layer_types=["conv", "full_attention", "conv"]),
    "lfm2_moe": lambda: _config(
        "Lfm2MoeConfig", **_GQA, **_EXPERTS, num_dense_layers=1, layer_types=["conv", "full_attention", "conv"]
    ),
    "jamba": lambda: _config(
        "JambaConfig",
        **_GQA,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=0,
        num_experts=2,
        num_experts_per_tok=1,
        use_mamba_kernels=False,
        mamba_d_state=8,
        mamba_dt_rank=4,
    ),
    "bamba": lambda: _config("BambaConfig", **_GQA, **_STATE, attn_layer_indices=[1], mamba_chunk_size=8),
    "granitemoehybrid": lambda: _config(
        "GraniteMoeHybridConfig",
        **_GQA,
        **_STATE,
        **_MIXTURE,
        layer_types=["mamba", "attention", "mamba"],
        shared_intermediate_size=16,
        residual_multiplier=0.4,
        attention_multiplier=0.3,
        mamba_chunk_size=8,
    ),
    "minimax": lambda: _config("MiniMaxConfig", **_GQA, **_MIXTURE, layer_types=_SOME, block_size=8, head_dim=8),
    "olmo_hybrid": lambda: _config("OlmoHybridConfig", **_GQA, **_DELTA, layer_types=_SOME),
    "falcon_h1": lambda: _config(
        "FalconH1Config", **_GQA, **_STATE, head_dim=8, mamba_d_ssm=64, mamba_chunk_size=8, key_multiplier=0.6
    ),
    "nemotron_h": lambda: _config(
        "NemotronHConfig",
        **{k: v for k, v in _GQA.items() if k != "num_hidden_layers"},
        layers_block_type=["linear_attention", "full_attention", "mlp"],
        head_dim=8,
        mamba_num_heads=8,
        mamba_head_dim=8,
        ssm_state_size=8,
        n_groups=1,
        chunk_size=8,
        use_mamba_kernels=False,
    ),
    "recurrent_gemma": lambda: _config(
        "RecurrentGemmaConfig", **_GQA, block_types=["recurrent", "attention"], attention_window_size=6, head_dim=8
    ),
    "zamba": lambda: _config(
        "ZambaConfig",
        **{**_GQA, "num_key_value_heads": 4},
        layers_block_type=["mamba", "hybrid", "hybrid"],
        mamba_d_state=8,
        mamba_dt_rank=4,
        n_mamba_heads=2,
        use_mamba_kernels=False,
    ),
    "zamba2": lambda: _config(
        "Zamba2Config",
        **{**_GQA, "num_key_value_heads": 4},
        layers_block_type=["mamba", "hybrid", "hybrid"],
        mamba_d_state=8,
        n_mamba_heads=8,
        mamba_ngroups=1,
        chunk_size=8,
        num_mem_blocks=1,
        use_shared_attention_adapter=False,
    ),
    "stablelm": lambda: _config("StableLmConfig", **_GQA, use_qkv_bias=True),
    "stablelm-parallel": lambda: _config("StableLmConfig", **_GQA, use_parallel_residual=True),
    "nemotron": lambda: _config("NemotronConfig", **_GQA),
    "starcoder2": lambda: _config("Starcoder2Config", **_GQA, sliding_window=None),
    "starcoder2-window": lambda: _config("Starcoder2Config", **_GQA, sliding_window=5),
    "persimmon": lambda: _config("PersimmonConfig", **_COMMON, intermediate_size=48),
    "opt": lambda: _config("OPTConfig", **_COMMON, ffn_dim=48, word_embed_proj_dim=32),
    "opt-350m": lambda: _config("OPTConfig", **_COMMON, ffn_dim=48, word_embed_proj_dim=16, do_layer_norm_before=False),
    "gptj": lambda: _config("GPTJConfig", **_COMMON, rotary_dim=4),
    "codegen": lambda: _config("CodeGenConfig", **_COMMON, rotary_dim=4),
    "codegen-large": lambda: _config("CodeGenConfig", **{**_COMMON, "num_attention_heads": 8}, rotary_dim=4),
    "gpt_bigcode": lambda: _config("GPTBigCodeConfig", **_COMMON),
    "gpt_bigcode-heads": lambda: _config("GPTBigCodeConfig", **_COMMON, multi_query=False),
    "gpt_neo": lambda: _config(
        "GPTNeoConfig",
        **_COMMON,
        num_layers=3,
        num_heads=4,
        intermediate_size=48,
        window_size=5,
        attention_types=[[["global", "local", "global"], 1]],
    ),
    "bloom": lambda: _config("BloomConfig", **_COMMON),
    "bloom-post": lambda: _config("BloomConfig", **_COMMON, apply_residual_connection_post_layernorm=True),
    "mpt": lambda: _config("MptConfig", **_MPT),
    "mpt-clipped": lambda: _config("MptConfig", **_MPT, attn_config={"clip_qkv": 0.5}),
    "falcon-7b": lambda: _config("FalconConfig", **_COMMON, multi_query=True, new_decoder_architecture=False),
    "falcon-40b": lambda: _config("FalconConfig", **_COMMON, num_kv_heads=2, new_decoder_architecture=True),
    "falcon-rw": lambda: _config(
        "FalconConfig", **_COMMON, multi_query=False, new_decoder_architecture=False, parallel_attn=False, alibi=True
    ),
    "bert": lambda: _config("BertConfig", **_COMMON, intermediate_size=48),
    "roberta": lambda: _config("RobertaConfig", **_PAD_LAST, intermediate_size=48),
    "xlm-roberta": lambda: _config("XLMRobertaConfig", **_PAD_LAST, intermediate_size=48),
    "albert": lambda: _config("AlbertConfig", **_COMMON, intermediate_size=48, embedding_size=16),
    "albert-groups": lambda: _config(
        "AlbertConfig", **{**_COMMON, "num_hidden_layers": 3}, intermediate_size=48, num_hidden_groups=2
    ),
    "distilbert": lambda: _config("DistilBertConfig", **_DISTIL, sinusoidal_pos_embds=False),
}
"""Name → configuration; a name begins with the family's model_type, except two that are Llama under other names."""

_PATCHES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 24, "patch_size": 4}
IMAGE_CONFIGS: dict[str, Callable[[], Any]] = {
    "vit": lambda: _config("ViTConfig", **_PATCHES, intermediate_size=48),
    "deit": lambda: _config("DeiTConfig", **_PATCHES, intermediate_size=48),
    "dinov2": lambda: _config("Dinov2Config", **_PATCHES, mlp_ratio=2),
    "dinov2-gated": lambda: _config("Dinov2Config", **_PATCHES, mlp_ratio=2, use_swiglu_ffn=True, qkv_bias=False),
    "dinov2_with_registers": lambda: _config("Dinov2WithRegistersConfig", **_PATCHES, num_register_tokens=2),
}
"""Models that read images of 24 × 24 pixels in patches of 4 × 4."""

NAMES = tuple(CONFIGS)
IMAGE_NAMES = tuple(IMAGE_CONFIGS)
ENCODERS = tuple(name for name in NAMES if name.split("-")[0] in ("bert", "roberta", "xlm", "albert", "distilbert"))
DECODERS = tuple(name for name in NAMES if name not in ENCODERS)
REPLAYABLE = tuple(name for name in DECODERS if name != "gemma3n_text")
"""Gemma 3n's later layers need the keys and values of earlier ones."""


_SPREAD = {"zamba": 1.0}
"""Where weights as large as the others' would multiply rounding by hundreds."""


def tiny_model(name: str, *, dtype: torch.dtype = torch.float32, **changes: Any) -> nn.Module:
    """A random causal LM, or encoder, of that name with plain eager attention, the same on every call.

    `changes` are attributes of its configuration.
    """
    family = FAMILIES.get(name)
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
