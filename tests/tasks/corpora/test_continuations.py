"""Contexts and continuations as tokens: where they are split, what stands in front, what does not fit."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from storage.errors import CorpusError
from tasks.corpora.choices import Prompt, Question
from tasks.corpora.continuations import ItemEncoder

BOS = 99
WORDS: dict[str, int] = {}


def words(text: str) -> list[int]:
    """A word with the blank before it is a token, as byte-pair encoders have it; so is other white space."""
    return [WORDS.setdefault(token, len(WORDS)) for token in re.findall(r" ?\S+|\s+", text)]


def question(*prompts: Prompt) -> Question:
    return Question("plain", 0, "f.jsonl, line 3", prompts, 0)


def encoder(
    encode: Callable[[str], list[int]] = words, bos: int | None = None, positions: int | None = None
) -> ItemEncoder:
    return ItemEncoder(encode, bos, positions)


def test_a_continuation_is_what_both_have_beyond_the_context() -> None:
    item = encoder().item(question(("the sky is", " blue"), ("the sky is", " a green one")))
    assert [ids.tolist() for ids in item.contexts] == [words("the sky is")]
    assert [c.token_ids.tolist() for c in item.choices] == [words(" blue"), words(" a green one")]
    assert [c.context for c in item.choices] == [0, 0]
    assert [ids.tolist() for ids in item.documents] == [words("the sky is blue"), words("the sky is a green one")]


def test_white_space_at_the_end_of_a_context_is_scored() -> None:
    item = encoder().item(question(("the sky is ", "blue"), ("the sky is ", "red")))
    assert item.contexts[0].tolist() == words("the sky is")
    assert item.choices[0].token_ids.tolist() == words(" blue")


def test_contexts_may_differ_by_choice() -> None:
    item = encoder().item(question(("so Ann", " fled"), ("so Bo Lee", " fled")))
    assert [c.context for c in item.choices] == [0, 1]
    assert [len(ids) for ids in item.contexts] == [2, 3]


def test_one_bos_token_stands_in_front() -> None:
    prompts = ("the sky", " is"), ("the sky", " was")
    assert encoder(bos=BOS).item(question(*prompts)).contexts[0].tolist() == [BOS, *words("the sky")]
    already = encoder(lambda text: [BOS, *words(text)], bos=BOS).item(question(*prompts))
    assert already.contexts[0].tolist() == [BOS, *words("the sky")]


@pytest.mark.parametrize(("positions", "kept"), [(9, 5), (8, 5), (7, 4), (4, 1)])
def test_what_does_not_fit_loses_its_beginning_alike_for_all_choices(positions: int, kept: int) -> None:
    """Five words of context, at most two of a choice, and a BOS token."""
    text = "one two three four five"
    item = encoder(bos=BOS, positions=positions).item(question((text, " a"), (text, " b c")))
    assert item.contexts[0].tolist() == [BOS, *words(text)[5 - kept :]]
    assert item.cut == (kept < 5)
    assert max(len(ids) for ids in item.documents) == min(positions, 8)


def test_choices_that_tokenise_to_nothing_are_refused() -> None:
    def deaf(text: str) -> list[int]:
        return words(text.replace(" blue", ""))

    with pytest.raises(CorpusError, match=r"a choice of at least one token, got ' blue', which tokenises to nothing"):
        encoder(deaf).item(question(("the sky", " red"), ("the sky", " blue")))
    with pytest.raises(CorpusError, match=r"a context of at least one token, got 'x'.*f\.jsonl, line 3, choice 0"):
        encoder(lambda text: words(text[1:])).item(question(("x", " red"), ("x", " blue")))


def test_choices_that_fill_all_positions_are_refused() -> None:
    with pytest.raises(
        CorpusError, match=r"fewer tokens than the model's 4 positions, got 3 tokens, in f\.jsonl, line 3"
    ):
        encoder(bos=BOS, positions=4).item(question(("the sky", " a b c"), ("the sky", " d")))
