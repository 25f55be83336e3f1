"""GPT-2 with energy gates (EGA, Zeris 2026, arXiv 2606.06573): the class, and what registers it with transformers.

Importing this module is enough for `AutoModelForCausalLM` to load its folders; no code comes out of a folder.

Of a head, with x the layer's normalised input: e_j = w·x_j + b, z the same over the positions that the statistics
take, g = σ(a (z − τ)), and α ∝ softmax · g. The weights are renormalised, so α = softmax(scores + log g).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, GPT2Model, GPT2PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention

from tasks.models.ega_statistics import CAUSAL, PUBLISHED, STATISTICS, energy_statistics

MODEL_TYPE = "ega_gpt2"
STEEPNESS, THRESHOLD = 2.0, 0.0
"""a and τ before training."""


class EgaConfig(GPT2Config):
    """GPT-2's configuration, and over which positions energies are normalised: causal | published."""

    model_type = MODEL_TYPE

    gate_statistics: str = CAUSAL


def eager_attention_forward(
    module: EgaAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Gated attention of any block of queries and keys: (B, q, H, d), and its weights (B, H, q, K).

    query (B, H, q, d + 2) and key (B, H, K, d + 2) end with two columns whose product is the gate's logit a (z − τ):
    any block of them carries what its gates are made of.
    """
    width = module.head_dim
    scores = query[..., :width] @ key[..., :width].transpose(-1, -2)  # (B, H, q, K)
    scores = scores * (width**-0.5 if scaling is None else scaling)
    scores = scores + nn.functional.logsigmoid(query[..., width:] @ key[..., width:].transpose(-1, -2))
    scores = scores if attention_mask is None else scores + attention_mask
    weights = nn.functional.softmax(scores, dim=-1).type(value.dtype)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2), weights


class EgaAttention(GPT2Attention):
    """GPT-2's attention with an energy w·x + b, a steepness a and a threshold τ for every head."""

    def __init__(self, config: EgaConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx=layer_idx)
        if config.gate_statistics not in STATISTICS:
            raise ValueError(f"gate_statistics must be one of {STATISTICS}, got '{config.gate_statistics}'")
        self.statistics = config.gate_statistics
        self.energy = nn.Linear(self.embed_dim, self.num_heads)
        self.steepness = nn.Parameter(torch.full((self.num_heads,), STEEPNESS))
        self.threshold = nn.Parameter(torch.full((self.num_heads,), THRESHOLD))

    def forward(
        self,
        hidden_states: Tensor,
        cache: Any = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """hidden_states (B, T, D), normalised → (B, T, D), and the gated weights where the interface gives them.

        Keys go into the cache with their energies. Raises ValueError for a cache under published statistics, which
        need the whole window.
        """
        heads = (*hidden_states.shape[:-1], self.num_heads, self.head_dim)
        parts = self.c_attn(hidden_states).split(self.split_size, dim=2)
        query, key, value = (part.view(heads).transpose(1, 2) for part in parts)
        energy = self.energy(hidden_states).transpose(1, 2).unsqueeze(-1)  # (B, H, T, 1)
        key = torch.cat([key, energy, torch.ones_like(energy)], dim=-1)
        cache = past_key_values if cache is None else cache
        if cache is not None:
            if self.statistics == PUBLISHED:
                raise ValueError("published gate statistics see the whole window: call the model with use_cache=False")
            key, value = cache.update(key, value, self.layer_idx)
        query = torch.cat([query, self._gates(key[..., self.head_dim], attention_mask, query)], dim=-1)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        dropout = self.attn_dropout.p if self.training else 0.0
        given = {"dropout": dropout, "scaling": self.scaling, **options}
        mixed, weights = attend(self, query, key, value, attention_mask, **given)
        output = self.c_proj(mixed.reshape(*mixed.shape[:-2], -1).contiguous())
        return self.resid_dropout(output), weights

    def _gates(self, energy: Tensor, mask: Tensor | None, query: Tensor) -> Tensor:
        """What a key's (e, 1) is multiplied with: (a/s, −a (m/s + τ)) of each query, (B, H, q, 2), for a (z − τ)."""
        mean, inverse = energy_statistics(energy, _seen(mask), self.statistics)  # (B, H, K)
        steepness, threshold = self.steepness[:, None], self.threshold[:, None]
        gates = torch.stack([steepness * inverse, -steepness * (mean * inverse + threshold)], dim=-1)
        return gates[..., -query.shape[2] :, :].to(query.dtype)


def _seen(mask: Tensor | None) -> Tensor | None:
    """(B, 1, K): the keys of the window that are no padding. The last query sees each of them."""
    if mask is None:
        return None
    last = mask[:, :, -1]
    return last if last.dtype == torch.bool else last > torch.finfo(last.dtype).min


class _Gated(GPT2PreTrainedModel):
    """No other attention function than the eager one knows of gates."""

    _supports_sdpa = False
    _supports_flash_attn = False
    _supports_flex_attn = False

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, EgaAttention):
            nn.init.constant_(module.steepness, STEEPNESS)
            nn.init.constant_(module.threshold, THRESHOLD)


class EgaModel(_Gated, GPT2Model):
    """GPT-2 without its head, its attention gated."""

    config_class = EgaConfig

    def __init__(self, config: EgaConfig) -> None:
        super().__init__(config)
        if config.gate_statistics == PUBLISHED:  # what a cache holds of earlier queries would change with each token
            self.config.use_cache = False
        for layer, block in enumerate(self.h):
            block.attn = EgaAttention(config, layer)
        self.post_init()


class EgaLMHeadModel(_Gated, GPT2LMHeadModel):
    """GPT-2 as a causal LM, its attention gated."""

    config_class = EgaConfig

    def __init__(self, config: EgaConfig) -> None:
        super().__init__(config)
        self.transformer = EgaModel(config)
        self.post_init()


AutoConfig.register(MODEL_TYPE, EgaConfig, exist_ok=True)
AutoModelForCausalLM.register(EgaConfig, EgaLMHeadModel, exist_ok=True)
