"""A GPT-2 with a planted sink whose attention, outputs and losses are known in closed form.

One layer, one head. Token t is embedded as row t + 1 of a Hadamard matrix of size D = 64: entries ±1 of mean 0, so that
LayerNorm leaves it as it is, and any function of the token is a linear map of it. There are no positions and no MLP.
The key of BOS is 1, of every other token 0, and token t asks with strength β_t, so at position i the sink's weight is
a = e^β / (e^β + i) and the other keys share 1 − a evenly. The value of BOS is −c u, that of token t is b u + ε w_t,
with u a row of its own and w_t the token's own direction, of unit length: the sink is anti-aligned to what others say.
The head reads u with −γ for tokens that are written in the documents and +γ for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import transformers
from scipy.linalg import hadamard

from tests.families import VOCABULARY
from tests.tasks.capture.made_captures import LETTERS, save_tokenizer

D, B, C, EPS, GAMMA = 64, 1.0, 1.5, 0.3, 2.0
N_TEXT = 40
"""Letters of a document; with BOS, T = 41."""
A_STAR = B / (B + C)
"""Of ε = 0."""
FIRST = 3
"""The id of the first letter."""

_SPREAD = 0.3
RATES = A_STAR + _SPREAD * (2 * ((np.arange(N_TEXT) * 17) % N_TEXT) / (N_TEXT - 1) - 1)
"""The sink's weight at positions 1 … 40 of the first document: from a* − 0.3 to a* + 0.3, evenly, in a mixed order."""
STRENGTH = np.log(np.arange(1, N_TEXT + 1) * RATES / (1 - RATES))
"""β of the letters in their order."""

DOCUMENTS = (LETTERS[:N_TEXT], "".join(LETTERS[i ^ 1] for i in range(N_TEXT)))
"""The letters in order, and with neighbours exchanged."""


def save(folder: Path) -> Path:
    """The model and its tokenizer, as `--model` takes them."""
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=D,
        n_layer=1,
        n_head=1,
        n_positions=64,
        layer_norm_epsilon=1e-12,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
    )
    model = transformers.GPT2LMHeadModel(config)
    embedding = torch.from_numpy(hadamard(D)[1 : VOCABULARY + 1].astype(np.float32))
    block = model.transformer.h[0]
    query, key, value = (np.zeros((VOCABULARY, D), np.float32) for _ in range(3))
    query[FIRST : FIRST + N_TEXT, 0] = STRENGTH * np.sqrt(D)  # which the scores are divided by
    key[0, 0] = 1
    value[:] = B * _u() + EPS * embedding.numpy() / np.sqrt(D)
    value[0] = -C * _u()
    of_token = torch.from_numpy(np.concatenate([query, key, value], axis=1))
    reading = np.full((VOCABULARY, 1), GAMMA)
    reading[FIRST : FIRST + N_TEXT] = -GAMMA
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.transformer.wte.weight.copy_(embedding)
        block.attn.c_attn.weight.copy_(embedding.T @ of_token / D)
        block.attn.c_proj.weight.copy_(torch.eye(D))
        for norm in (block.ln_1, block.ln_2, model.transformer.ln_f):
            norm.weight.fill_(1)
        model.lm_head.weight.copy_(torch.from_numpy(reading * _u()))
    model.save_pretrained(folder)
    return save_tokenizer(folder)


def _u() -> np.ndarray:
    return hadamard(D)[D - 1] / np.sqrt(D)


@dataclass(frozen=True)
class Known:
    """What is known of one document's queries 0 … 40, arrays of its length."""

    rate: np.ndarray
    """a; 1 at position 0."""

    @classmethod
    def of(cls, text: str) -> Known:
        strength = STRENGTH[[LETTERS.index(letter) for letter in text]]
        positions = np.arange(1, len(text) + 1)
        return cls(np.concatenate([[1.0], np.exp(strength) / (np.exp(strength) + positions)]))

    def _along(self, *, kept: bool) -> np.ndarray:
        """⟨o, u⟩"""
        return (1 - self.rate) * B - self.rate * C * kept

    def _own(self, *, i: int) -> float:
        """What the output holds of w of each token so far."""
        return float((1 - self.rate[i]) * EPS / i) if i else 0.0

    def output_norm(self, i: int) -> float:
        return float(np.sqrt(self._along(kept=True)[i] ** 2 + i * self._own(i=i) ** 2))

    def tail_norm(self, i: int) -> float:
        """‖m‖, of the mean of i values b u + ε w."""
        return float(np.sqrt(B**2 + EPS**2 / i))

    def a_star(self, i: int) -> float:
        return float((B**2 + EPS**2 / i + B * C) / ((B + C) ** 2 + EPS**2 / i))

    def min_norm(self, i: int) -> float:
        return float(C * EPS / np.sqrt(i) / np.sqrt((B + C) ** 2 + EPS**2 / i))

    def mean_cosine(self, rows: Sequence[int], *, kept: bool) -> float:
        """Mean pairwise cosine of o: the means of the first i and j of orthonormal w's have the product 1/max(i, j)."""
        along = self._along(kept=kept)
        own = [(1 - self.rate[i]) * EPS for i in rows]
        product = np.array(
            [
                [along[i] * along[j] + own[p] * own[q] / max(i, j) for q, j in enumerate(rows)]
                for p, i in enumerate(rows)
            ]
        )
        length = np.sqrt(np.diag(product))
        cosines = product / np.outer(length, length)
        return float((cosines.sum() - len(rows)) / (len(rows) * (len(rows) - 1)))

    def nll_sum(self, *, kept: bool) -> float:
        """With the sink's value in the outputs or without, summed over what positions 0 … 39 predict.

        y = x + o, x the token's own row of length √D, which o adds its share of w to; the last norm gives it length
        √D. 40 tokens have the logit −z, the one that follows among them, and 21 have z.
        """
        total = 0.0
        for i, along in enumerate(self._along(kept=kept)[:-1]):
            own = self._own(i=i)
            square = along**2 + (np.sqrt(D) + own) ** 2 + max(0, i - 1) * own**2
            z = GAMMA * along * np.sqrt(D / square)
            total += np.log((VOCABULARY - N_TEXT) * np.exp(z) + N_TEXT * np.exp(-z)) + z
        return total
