"""Tiny random models, one a family (and one for what a family may vary), built from their configurations.

Weights are drawn large enough that attention is far from uniform, and biases, norms and sinks are drawn too, so that a
test can see each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn

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


def _config(name: str, **options: Any) -> Any:
    return getattr(transformers, name)(**options)


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
}
"""Name → configuration; a name begins with the family's model_type, except two that are Llama under other names."""

NAMES = tuple(CONFIGS)


def tiny_model(name: str, *, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A random causal LM of that name with plain eager attention, the same on every call."""
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name](), attn_implementation="eager")
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.add_(0.2 * noise)
            else:
                parameter.copy_(1.5 * noise / parameter.shape[-1] ** 0.5)
    return model.to(dtype).eval()


def tokens(*lengths: int, seed: int = 3) -> list[np.ndarray]:
    """Random documents of these lengths."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCABULARY, n).astype(np.int32) for n in lengths]
