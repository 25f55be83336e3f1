"""Windows: what must hold for any text, any settings, and for real tokenizers on real text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from storage.errors import CorpusError, UnknownName, UsageError
from tasks.corpora.readers import Text, read_texts
from tasks.corpora.windows import TOO_SHORT, Document, WindowSettings
from tests.tasks.corpora.cutting import Cut, windows

BOS, VOCABULARY = 0, 12
DOCUMENTS = st.lists(st.lists(st.integers(0, VOCABULARY - 1), max_size=40), min_size=1, max_size=5)
POLICIES = st.sampled_from(["auto", "always", "never"])
HELLO = [Text("12345", "hello")]


@st.composite
def settings(draw: st.DrawFn) -> WindowSettings:
    window = draw(st.integers(2, 15))
    stride = draw(st.none() | st.integers(1, window))
    return WindowSettings(window, stride, draw(POLICIES), draw(st.none() | st.integers(1, 20)))


def run(ids: list[list[int]], chosen: WindowSettings, adds_bos: bool) -> Cut | None:
    """The windows of texts whose tokens are these ids; None if nothing is left."""
    texts = [Text("".join(chr(65 + i) for i in text), str(n)) for n, text in enumerate(ids)]

    def encode(text: str) -> list[int]:
        return [ord(c) - 65 for c in text]

    try:
        return windows(texts, encode, chosen, BOS, adds_bos, VOCABULARY)
    except CorpusError as error:
        assert "at least one document of two tokens" in str(error)
        return None


def content(document: Document, ids: list[int], wants_bos: bool) -> list[int]:
    """A document without the BOS token that was put in front of it."""
    tokens = document.token_ids.tolist()
    own = document.start < len(ids) and ids[document.start] == BOS
    return tokens[1:] if wants_bos and not own else tokens


@given(DOCUMENTS, settings(), st.booleans())
def test_windows_are_runs_of_the_text_within_the_window(
    ids: list[list[int]], chosen: WindowSettings, adds_bos: bool
) -> None:
    wants = chosen.bos == "always" or (chosen.bos == "auto" and adds_bos)
    for document in (run(ids, chosen, adds_bos) or Cut([], {}, 0)).documents:
        text = ids[int(document.source)]
        inside = content(document, text, wants)
        assert text[document.start : document.start + len(inside)] == inside
        assert 2 <= len(document.token_ids) <= chosen.window
        assert document.token_ids.dtype == np.int32
        if wants:
            assert document.token_ids[0] == BOS
            if document.token_ids[1] == BOS:
                assert inside[:2] == [BOS, BOS]  # the text itself says so twice


@given(DOCUMENTS, st.integers(2, 15), st.booleans(), POLICIES, st.booleans())
def test_without_overlap_the_windows_are_the_text(
    ids: list[list[int]], window: int, named: bool, policy: str, adds_bos: bool
) -> None:
    chosen = WindowSettings(window, window if named else None, policy)
    wants = policy == "always" or (policy == "auto" and adds_bos)
    result = run(ids, chosen, adds_bos)
    if result is None:
        return
    lost = 0
    for number, text in enumerate(ids):
        parts = [content(d, text, wants) for d in result.documents if int(d.source) == number]
        joined = [token for part in parts for token in part]
        assert joined == text[: len(joined)]
        assert len(text) - len(joined) <= 1  # a last window of one token alone
        lost += len(text) - len(joined) if joined else len(text) or 1
    assert result.left_out[TOO_SHORT] == lost


@given(DOCUMENTS, settings(), st.booleans())
def test_every_token_appears_and_counts_add_up(ids: list[list[int]], chosen: WindowSettings, adds_bos: bool) -> None:
    ids = [[token or 1 for token in text] for text in ids]  # no BOS of the text's own: then the count has a formula
    chosen = WindowSettings(chosen.window, chosen.stride, chosen.bos)
    wants = chosen.bos == "always" or (chosen.bos == "auto" and adds_bos)
    room = chosen.window - wants
    advance = min(chosen.stride or chosen.window, room)
    expected = sum(1 + max(0, math.ceil((len(text) - room) / advance)) for text in ids)
    result = run(ids, chosen, adds_bos)
    kept = len(result.documents) if result else 0
    if result is None:
        assert all(len(text) + wants < 2 for text in ids)
        return
    assert kept + result.left_out[TOO_SHORT] == expected
    for number, text in enumerate(ids):
        mine = [d for d in result.documents if int(d.source) == number]
        seen = {d.start + i for d in mine for i in range(len(d.token_ids) - wants)}
        assert len(set(range(len(text))) - seen) <= 1
        assert seen <= set(range(len(text)))


@given(DOCUMENTS, settings(), st.booleans())
def test_a_cap_takes_the_first_documents_and_reads_no_further(
    ids: list[list[int]], chosen: WindowSettings, adds_bos: bool
) -> None:
    capped = run(ids, chosen, adds_bos)
    whole = run(ids, WindowSettings(chosen.window, chosen.stride, chosen.bos), adds_bos)
    assert (capped is None) == (whole is None)
    if capped is None or whole is None:
        return
    most = chosen.max_documents or len(whole.documents)
    assert len(capped.documents) == min(most, len(whole.documents))
    for left, right in zip(capped.documents, whole.documents, strict=False):
        assert (left.source, left.start) == (right.source, right.start)
        np.testing.assert_array_equal(left.token_ids, right.token_ids)


def test_a_cap_stops_an_endless_corpus() -> None:
    def endless() -> Iterator[Text]:
        while True:
            yield Text("12345", "again")

    result = windows(endless(), encode_digits, WindowSettings(5, max_documents=3), None, False, 10)
    assert (len(result.documents), result.n_texts) == (3, 3)


def encode_digits(text: str) -> list[int]:
    return [int(c) for c in text]


def test_an_example_by_hand() -> None:
    def cut(stride: int | None, bos: str) -> list[list[int]]:
        found = windows(HELLO, encode_digits, WindowSettings(3, stride, bos), 0, False, 10)
        return [d.token_ids.tolist() for d in found.documents]

    assert cut(None, "auto") == [[1, 2, 3], [4, 5]]
    assert cut(1, "auto") == [[1, 2, 3], [2, 3, 4], [3, 4, 5]]
    assert cut(None, "always") == [[0, 1, 2], [0, 3, 4], [0, 5]]
    assert cut(3, "always") == cut(None, "always")
    assert cut(1, "always") == [[0, 1, 2], [0, 2, 3], [0, 3, 4], [0, 4, 5]]


@pytest.mark.parametrize("model", ["stories260K", "shakespeare-char-llama", "shakespeare-char-neox"])
@pytest.mark.parametrize("policy", ["auto", "always", "never"])
def test_real_tokenizers_give_the_text_back(fixtures: Path, model: str, policy: str) -> None:
    tokenizer = Tokenizer.from_file(str(fixtures / "models" / model / "tokenizer.json"))
    (text,) = read_texts([str(fixtures / "data/tinyshakespeare/input.txt")])
    text = Text(text.text[:20_000], text.source)
    bos = tokenizer.token_to_id("<s>")
    adds = tokenizer.encode("a").ids[0] == bos
    assert adds == (model != "shakespeare-char-neox")
    found = windows(
        [text],
        lambda t: tokenizer.encode(t, add_special_tokens=False).ids,
        WindowSettings(128, bos=policy),
        bos,
        adds,
        tokenizer.get_vocab_size(),
    ).documents
    begins = policy == "always" or (policy == "auto" and adds)
    assert all((d.token_ids[0] == bos) == begins and bos not in d.token_ids[1:] for d in found)
    assert {len(d.token_ids) for d in found[:-1]} == {128}
    joined = [i for d in found for i in d.token_ids[begins:].tolist()]
    assert tokenizer.decode(joined).strip() == text.text.strip()


def test_windows_of_real_rows_never_span_two(fixtures: Path) -> None:
    texts = list(islice(read_texts([str(fixtures / "data/gsm8k/test.jsonl")], "question"), 50))
    found = windows(texts, lambda t: list(t.encode()), WindowSettings(64), None, False, 256)
    for text in texts:
        mine = [d for d in found.documents if d.source == text.source]
        joined = b"".join(bytes(d.token_ids.tolist()) for d in mine)
        assert text.text.encode().startswith(joined)
        assert len(text.text.encode()) - len(joined) <= 1


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (WindowSettings(1), "a window of at least 2 tokens, got 1"),
        (WindowSettings(8, 0), r"a stride from 1 to the window \(8\), got 0"),
        (WindowSettings(8, 9), r"a stride from 1 to the window \(8\), got 9.*would skip text"),
        (WindowSettings(8, max_documents=0), "a cap of at least 1 document, got 0"),
        (WindowSettings(8, bos="alway"), "a BOS policy, got 'alway'.*Did you mean 'always'"),
        (WindowSettings(8, bos="always"), "a tokenizer with a BOS token, got one without.*--bos never"),
    ],
)
def test_wrong_settings(chosen: WindowSettings, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        windows(HELLO, encode_digits, chosen, None, False, 10)
    assert isinstance(caught.value, UnknownName) == (chosen.bos == "alway")


def test_an_empty_corpus_and_one_of_short_texts() -> None:
    with pytest.raises(CorpusError, match=r"got no text at all.*it is empty"):
        windows([], encode_digits, WindowSettings(8), None, False, 10)
    with pytest.raises(CorpusError, match="at least one document of two tokens, got 2 texts, each shorter"):
        windows([Text("", "a"), Text("1", "b")], encode_digits, WindowSettings(8), None, False, 10)


def test_short_documents_are_left_out_and_counted() -> None:
    texts = [Text("1", "a"), Text("12", "b"), Text("", "c"), Text("1234567890123", "d")]
    result = windows(texts, encode_digits, WindowSettings(4), None, False, 10)
    assert [d.source for d in result.documents] == ["b", "d", "d", "d"]
    assert result.left_out == {TOO_SHORT: 3}
    assert result.n_texts == 4


@pytest.mark.parametrize("wrong", [9, -1])
def test_a_token_that_the_model_does_not_have(wrong: int) -> None:
    with pytest.raises(CorpusError, match=rf"0 to 8.*got id {wrong}, in hello, token 3.*tokenizer is of another"):
        windows(HELLO, lambda _: [1, 2, 3, wrong], WindowSettings(8), None, False, 9)
