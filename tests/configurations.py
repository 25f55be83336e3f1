"""What the configurations of tiny models have in common: see tests/families.py."""

from __future__ import annotations

from typing import Any

import pytest
import transformers

VOCABULARY = 61
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
GQA: dict[str, Any] = {**COMMON, "intermediate_size": 48, "num_key_value_heads": 2}
MIXTURE: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
MOSTLY_WINDOWS = ["sliding_attention", "sliding_attention", "full_attention"]
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


def configured(name: str, **options: Any) -> Any:
    if not hasattr(transformers, name):
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    return getattr(transformers, name)(**options)
