"""Per-token negative log-likelihood, a few positions at a time: never logits for a whole document."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from tasks.models.anatomy import Anatomy

_LOGIT_BYTES = 24 * 2**20  # of logits at once, in float32: 128 positions of a vocabulary of 49,152
_CACHE_BYTES = 2 * 2**20


def token_nll(
    model: Any, anatomy: Anatomy, hidden: Tensor, ids: Tensor, lengths: Sequence[int], *, body_output: type
) -> list[Tensor]:
    """Negative log-likelihood of each token given those before it, in nats, float32; NaN at each document's position 0.

    hidden (N, D): the body's last hidden state without padding, documents one after the other; ids (N,): their tokens;
    lengths: their numbers of tokens; body_output: the class in which the body returns. One tensor (T,) a document, on
    CPU. The head is the family's own: the causal LM runs with a body that returns hidden states already computed, so
    its final scaling and softcap apply.
    """
    last = torch.tensor(lengths).cumsum(0) - 1
    predicts = torch.ones(len(ids), dtype=torch.bool)
    predicts[last] = False
    rows = predicts.nonzero().flatten().to(hidden.device)
    nll = torch.full((len(ids),), torch.nan, device=hidden.device)
    head = _Head(model, anatomy.kind.body, body_output)
    positions = max(1, _LOGIT_BYTES // (4 * int(model.config.vocab_size)))
    for chunk in rows.split(positions):
        nll[chunk + 1] = _nll(head.logits(hidden[chunk]), ids[chunk + 1])
    return list(nll.cpu().split(list(lengths)))


def _nll(logits: Tensor, targets: Tensor) -> Tensor:
    """−log softmax(logits)[target], (n, V) and (n,) → (n,) float32; a few rows at a time, which stay in the cache."""
    rows = max(1, _CACHE_BYTES // (4 * logits.shape[-1]))
    parts = zip(logits.split(rows), targets.split(rows), strict=True)
    return torch.cat([nn.functional.cross_entropy(part.float(), target, reduction="none") for part, target in parts])


class _Head:
    """The causal LM around a body that only gives back hidden states: a copy that shares every weight."""

    def __init__(self, model: Any, body: str, body_output: type) -> None:
        self._body = _Replay(body_output, attrgetter(body)(model))
        self._model = _with_part(model, body, self._body)

    def logits(self, hidden: Tensor) -> Tensor:
        """(n, D) → (n, V)."""
        self._body.hidden = hidden.unsqueeze(0)
        nothing = torch.zeros(1, len(hidden), dtype=torch.long, device=hidden.device)
        return self._model(input_ids=nothing, use_cache=False).logits[0]


def _with_part(module: Any, path: str, part: nn.Module) -> Any:
    """A copy of the module that shares every weight, with another part at the path."""
    name, _, rest = path.partition(".")
    changed = copy.copy(module)
    inner = _with_part(module._modules[name], rest, part) if rest else part
    changed._modules = {**module._modules, name: inner}
    return changed


class _Replay(nn.Module):
    """Stands for the body, with the numbers that the family's head reads off it (Falcon-H1's multiplier)."""

    def __init__(self, body_output: type, body: nn.Module) -> None:
        super().__init__()
        self.__dict__.update({name: v for name, v in vars(body).items() if isinstance(v, float)})
        self._kind = body_output
        self.hidden: Tensor | None = None

    def forward(self, *_args: Any, **_options: Any) -> Any:
        return self._kind(last_hidden_state=self.hidden)
