"""Questions as token ids: each choice's context, and the tokens of its continuation that are scored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from storage.errors import CorpusError
from tasks.corpora.choices import Question


@dataclass(frozen=True)
class Choice:
    """One choice of an item."""

    context: int
    """Which of the item's contexts it continues."""
    token_ids: np.ndarray
    """(n,) int32, n ≥ 1: what is scored."""


@dataclass(frozen=True)
class Item:
    """A question as the model is given it."""

    task: str
    item: int
    label: int
    contexts: tuple[np.ndarray, ...]
    """Each (T,) int32, T ≥ 1, its BOS token included; one for all choices, but where the contexts differ by choice."""
    choices: tuple[Choice, ...]
    cut: bool
    """Whether a context lost its beginning, since it did not fit into the model's positions."""

    @property
    def documents(self) -> list[np.ndarray]:
        """Each choice's context and continuation."""
        return [np.concatenate([self.contexts[c.context], c.token_ids]) for c in self.choices]

    @property
    def alike(self) -> bool:
        """Whether two choices or more are the same tokens in the same context: no model decides between them."""
        return len({ids.tobytes() for ids in self.documents}) < len(self.choices)


@dataclass(frozen=True)
class ItemEncoder:
    """Turns questions into items, as lm-evaluation-harness does.

    Context and continuation are tokenised together and split behind as many tokens as the context has alone; white
    space at its end counts to the continuation. A context that does not fit loses its beginning, as much for every
    choice, and keeps its BOS token.
    """

    encode: Callable[[str], list[int]]
    """Text → token ids, no special token among them."""
    bos: int | None
    positions: int | None
    """Of the model; None for no end."""

    def item(self, question: Question) -> Item:
        """Raises CorpusError, naming file and line, for choices that tokenise to nothing or fill all positions."""
        alone: dict[str, np.ndarray] = {}
        choices = []
        for at, (context, continuation) in enumerate(question.prompts):
            ids, continued = self._split(context, continuation)
            alone.setdefault(context, ids)
            if not len(continued) or not len(ids):
                what, text = ("a choice", continuation) if len(ids) else ("a context", context)
                raise CorpusError(
                    f"{what} of at least one token",
                    got=f"{text!r}, which tokenises to nothing",
                    where=f"{question.place}, choice {at}",
                    remedy="Mend or remove that line.",
                )
            choices.append(Choice(list(alone).index(context), continued))
        contexts = [self._fitting(question, ids, at, choices) for at, ids in enumerate(alone.values())]
        cut = any(was_cut for _, was_cut in contexts)
        return Item(
            question.task, question.item, question.label, tuple(ids for ids, _ in contexts), tuple(choices), cut
        )

    def _split(self, context: str, continuation: str) -> tuple[np.ndarray, np.ndarray]:
        shown = context.rstrip()
        alone, whole = self.encode(shown), self.encode(context + continuation)
        return np.array(alone, np.int32), np.array(whole[len(alone) :], np.int32)

    def _fitting(self, question: Question, ids: np.ndarray, at: int, choices: list[Choice]) -> tuple[np.ndarray, bool]:
        """A context with its BOS token in front, and whether its beginning was cut."""
        head = [] if self.bos is None or ids[0] == self.bos else [self.bos]
        longest = max(len(choice.token_ids) for choice in choices if choice.context == at)
        room = len(ids) if self.positions is None else self.positions - longest - len(head)
        if room < 1:
            raise CorpusError(
                f"choices of fewer tokens than the model's {self.positions} positions",
                got=f"{longest} tokens",
                where=question.place,
                remedy="Leave that line out.",
            )
        return np.concatenate([np.array(head, np.int32), ids[-room:]]), len(ids) > room
