"""Tiny models in which some layers have no attention, or heads are gated, by name: see tests/families.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.configurations import EXPERTS, GQA, MIXTURE, MOSTLY_WINDOWS, configured

_SOME = ["linear_attention", "full_attention", "linear_attention"]
_DELTA: dict[str, Any] = {
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_DELTA_GATED: dict[str, Any] = {**GQA, **_DELTA, "head_dim": 8, "layer_types": [*_SOME[:2], "full_attention"]}
_STATE: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1}

HYBRIDS: dict[str, Callable[[], Any]] = {
    "qwen3_next": lambda: configured(
        "Qwen3NextConfig", **_DELTA_GATED, **EXPERTS, shared_expert_intermediate_size=16, partial_rotary_factor=0.5
    ),
    "qwen3_5_text": lambda: configured("Qwen3_5TextConfig", **_DELTA_GATED),
    "qwen3_5_moe_text": lambda: configured(
        "Qwen3_5MoeTextConfig", **_DELTA_GATED, **EXPERTS, shared_expert_intermediate_size=16
    ),
    "afmoe": lambda: configured(
        "AfmoeConfig",
        **{**GQA, **EXPERTS},
        head_dim=8,
        sliding_window=6,
        layer_types=MOSTLY_WINDOWS,
        num_dense_layers=1,
        num_shared_experts=1,
    ),
    "lfm2": lambda: configured("Lfm2Config", **GQA, layer_types=["conv", "full_attention", "conv"]),
    "lfm2_moe": lambda: configured(
        "Lfm2MoeConfig", **GQA, **EXPERTS, num_dense_layers=1, layer_types=["conv", "full_attention", "conv"]
    ),
    "jamba": lambda: configured(
        "JambaConfig",
        **GQA,
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
    "bamba": lambda: configured("BambaConfig", **GQA, **_STATE, attn_layer_indices=[1], mamba_chunk_size=8),
    "granitemoehybrid": lambda: configured(
        "GraniteMoeHybridConfig",
        **GQA,
        **_STATE,
        **MIXTURE,
        layer_types=["mamba", "attention", "mamba"],
        shared_intermediate_size=16,
        residual_multiplier=0.4,
        attention_multiplier=0.3,
        mamba_chunk_size=8,
    ),
    "minimax": lambda: configured("MiniMaxConfig", **GQA, **MIXTURE, layer_types=_SOME, block_size=8, head_dim=8),
    "olmo_hybrid": lambda: configured("OlmoHybridConfig", **GQA, **_DELTA, layer_types=_SOME),
    "falcon_h1": lambda: configured(
        "FalconH1Config", **GQA, **_STATE, head_dim=8, mamba_d_ssm=64, mamba_chunk_size=8, key_multiplier=0.6
    ),
    "nemotron_h": lambda: configured(
        "NemotronHConfig",
        **{k: v for k, v in GQA.items() if k != "num_hidden_layers"},
        layers_block_type=["linear_attention", "full_attention", "mlp"],
        head_dim=8,
        mamba_num_heads=8,
        mamba_head_dim=8,
        ssm_state_size=8,
        n_groups=1,
        chunk_size=8,
        use_mamba_kernels=False,
    ),
    "recurrent_gemma": lambda: configured(
        "RecurrentGemmaConfig", **GQA, block_types=["recurrent", "attention"], attention_window_size=6, head_dim=8
    ),
    "zamba": lambda: configured(
        "ZambaConfig",
        **{**GQA, "num_key_value_heads": 4},
        layers_block_type=["mamba", "hybrid", "hybrid"],
        mamba_d_state=8,
        mamba_dt_rank=4,
        n_mamba_heads=2,
        use_mamba_kernels=False,
    ),
    "zamba2": lambda: configured(
        "Zamba2Config",
        **{**GQA, "num_key_value_heads": 4},
        layers_block_type=["mamba", "hybrid", "hybrid"],
        mamba_d_state=8,
        n_mamba_heads=8,
        mamba_ngroups=1,
        chunk_size=8,
        num_mem_blocks=1,
        use_shared_attention_adapter=False,
    ),
}
