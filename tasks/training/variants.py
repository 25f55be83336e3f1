"""The models that are trained, with their first weights: the sample's GPT-NeoX, and the reference models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tasks.training.settings import BASE, SAMPLE, TrainSettings
from tasks.training.text import BEGIN, SPECIAL

if TYPE_CHECKING:
    import torch


def new_model(settings: TrainSettings, vocabulary: int) -> Any:
    """A variant's model of that size with weights drawn from the seed.

    sample: GPT-NeoX (LayerNorm, attention and MLP side by side, rotary positions on a quarter of each head). base:
    GPT-2 (LayerNorm before each part, learned positions, embeddings tied). ega: base with energy gates; what the two
    share has the same first weights.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        if settings.variant == SAMPLE:
            return _sample(settings, vocabulary)
        base = _base(settings, vocabulary)
        return base if settings.variant == BASE else _gated(base, settings, vocabulary)


@contextmanager
def computing(settings: TrainSettings, step: int) -> Iterator[None]:
    """A step's forward pass: in the precision of the settings, and what torch draws (dropout) follows from (seed,
    step) alone; outside, nothing of it is seen."""
    import numpy as np
    import torch

    drawn = np.random.SeedSequence([settings.seed, step]).generate_state(1, np.uint64)[0]
    low = settings.variant != SAMPLE and settings.precision == "bfloat16"
    with torch.random.fork_rng(devices=[]), torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
        torch.manual_seed(int(drawn) >> 1)  # torch takes 63 bits
        yield


def weights_of(model: Any) -> dict[str, torch.Tensor]:
    """The model's weights by name, a tied one once: under the embedding's name, as transformers writes it."""
    return {name: tensor for name, tensor in model.state_dict().items() if name not in _tied(model)}


def load_weights(model: Any, weights: Mapping[str, torch.Tensor]) -> None:
    """Put back what `weights_of` gave, every one of them."""
    loaded = model.load_state_dict(weights, strict=False)
    assert not loaded.unexpected_keys
    assert set(loaded.missing_keys) <= _tied(model)


def _tied(model: Any) -> set[str]:
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    return {"lm_head.weight"} if tied else set()


def _sample(settings: TrainSettings, vocabulary: int) -> Any:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    begin = SPECIAL.index(BEGIN)
    config = GPTNeoXConfig(
        vocab_size=vocabulary,
        hidden_size=settings.width,
        intermediate_size=4 * settings.width,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        max_position_embeddings=settings.context,
        bos_token_id=begin,
        eos_token_id=begin,
        pad_token_id=begin,
        use_cache=True,
    )
    return GPTNeoXForCausalLM(config)


def _reference(settings: TrainSettings, vocabulary: int) -> dict[str, Any]:
    """What the configurations of both reference models say."""
    begin = SPECIAL.index(BEGIN)
    return {
        "vocab_size": vocabulary,
        "n_embd": settings.width,
        "n_layer": settings.layers,
        "n_head": settings.heads,
        "n_positions": settings.context,
        "activation_function": "gelu_pytorch_tanh",  # the numbers of GPT-2's own, in one operation
        "embd_pdrop": settings.dropout,
        "attn_pdrop": settings.dropout,
        "resid_pdrop": settings.dropout,
        "bos_token_id": begin,
        "eos_token_id": begin,
        "pad_token_id": begin,
    }


def _base(settings: TrainSettings, vocabulary: int) -> Any:
    from transformers import AutoModelForCausalLM, GPT2Config

    config = GPT2Config(**_reference(settings, vocabulary))
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager")


def _gated(base: Any, settings: TrainSettings, vocabulary: int) -> Any:
    from tasks.models.ega import EgaConfig, EgaLMHeadModel

    model = EgaLMHeadModel(EgaConfig(**_reference(settings, vocabulary), gate_statistics=settings.gate_statistics))
    model.load_state_dict(base.state_dict(), strict=False)
    return model
