"""The tokens of a text that is tokenised in pieces are those of the whole, for every kind of tokenizer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from storage.errors import CorpusError
from tasks.corpora.files import expand
from tasks.corpora.pieces import AGREED, OVERLAP, PIECE, PieceTokenizer, pieces
from tasks.corpora.readers import read_files
from tasks.corpora.topics import python_topics
from tasks.models.sources import ModelSource, resolve
from tasks.models.tokenizer import Encoder, light_encoder, open_encoder

GPT_4O = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""GPT-4o's and gpt-oss' own splitting of punctuation, which takes line ends and slashes with it."""
ALPHABET = pre_tokenizers.ByteLevel.alphabet()
SPECIAL = ["<unk>", "<s>"]
PLAIN = {"show_progress": False, "vocab_size": 600, "special_tokens": SPECIAL}


def byte_level() -> Tokenizer:
    """GPT-2's: BPE over bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(texts(), trainers.BpeTrainer(initial_alphabet=ALPHABET, **PLAIN))
    return tokenizer


def byte_level_of_its_own_words() -> Tokenizer:
    """gpt-oss': BPE over bytes, whose words take line ends with them."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(Regex(GPT_4O), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.train_from_iterator(texts(), trainers.BpeTrainer(initial_alphabet=ALPHABET, **PLAIN))
    return tokenizer


def sentencepiece_bpe() -> Tokenizer:
    """Llama's: BPE over the whole text, with no words at all, falling back to bytes."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(?= )"), "isolated")  # to learn merges, not to cut
    tokenizer.train_from_iterator(
        (text.replace(" ", "▁") for text in texts()),
        trainers.BpeTrainer(initial_alphabet=[f"<0x{byte:02X}>" for byte in range(256)], **PLAIN),
    )
    content = json.loads(tokenizer.to_str())
    content["model"]["vocab"] |= {f"<0x{byte:02X}>": len(content["model"]["vocab"]) + byte for byte in range(256)}
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer


def unigram() -> Tokenizer:
    """T5's and XLM-RoBERTa's: Unigram over words that begin with their space."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(texts(), trainers.UnigramTrainer(unk_token="<unk>", **PLAIN))
    return tokenizer


def word_piece() -> Tokenizer:
    """BERT's: the longest piece first; a word of more than 100 letters is unknown."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(texts(), trainers.WordPieceTrainer(**PLAIN))
    return tokenizer


KINDS = (byte_level, byte_level_of_its_own_words, sentencepiece_bpe, unigram, word_piece)


@cache
def texts() -> tuple[str, ...]:
    """English that every Python carries."""
    return tuple(text for _, text in python_topics())[:40]


Kind = Callable[[], Tokenizer]


class Tokens(NamedTuple):
    ids: list[int]
    offsets: list[tuple[int, int]]
    words: list[int | None]


@cache
def known(kind: Kind, overlap: int) -> tuple[Callable[[str], list[int]], PieceTokenizer]:
    """What a text's ids are, and the same by pieces."""
    tokenizer = kind()

    def spans(text: str) -> Tokens:
        found = tokenizer.encode(text, add_special_tokens=False)
        return Tokens(found.ids, found.offsets, found.word_ids)

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    merges = isinstance(tokenizer.model, models.BPE) and not tokenizer.model.ignore_merges
    return encode, PieceTokenizer(encode, spans, merges, overlap)


def same(kind: Kind, text: str, size: int, overlap: int) -> int:
    """Assert that pieces give the ids of the whole; in how many parts they came."""
    encode, tokenize = known(kind, overlap)
    parts = list(tokenize(piece for piece, _ in pieces([text], size)))
    np.testing.assert_array_equal(np.concatenate(parts), encode(text))
    return len(parts)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [700, 1111, 5000])
def test_real_text(kind: Kind, size: int) -> None:
    text = "\n".join(texts())
    assert same(kind, text, size, 512) == -(-len(text) // size)


FRAGMENTS = st.one_of(
    st.sampled_from("\n".join(texts()).split(" ")),
    st.text(alphabet=" \n\t/;.'aé1", max_size=8),
    st.text(max_size=4),
    st.builds(
        str.__mul__, st.sampled_from([" ", "\n", "a", "ab", "12", "// x(y);\n", "é", "=", "\u0301"]), st.integers(1, 60)
    ),
    st.sampled_from(["<s>", "<unk>", "x" * 130, "日本語東京", "👩‍👧", "don't", " I'll "]),
)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)
@given(
    words=st.lists(FRAGMENTS, min_size=1, max_size=40),
    times=st.integers(1, 6),
    by=st.sampled_from(["", " ", "\n"]),
    size=st.integers(400, 900),
)
@example(words=["// see call(beta);\n"], times=120, by="", size=700)
@example(words=["x" * 130], times=12, by="", size=400)
@example(words=[" "], times=2000, by="", size=400)
def test_any_text(kind: Kind, words: list[str], times: int, by: str, size: int) -> None:
    """Wherever the pieces end: in words that are unknown since they are long, in blanks, before an accent."""
    same(kind, by.join(words * times), size, 256)


def test_a_line_end_that_is_of_the_token_before(tmp_path: Path) -> None:
    """A text of a million characters in lines that end in `;\\n` and begin with `//`, one token together."""
    text = "// see call(beta);\n" * 57_000
    (tmp_path / "code.txt").write_text(text)
    encode, tokenize = known(byte_level_of_its_own_words, OVERLAP)
    parts = list(tokenize(t.text for t in read_files(expand([str(tmp_path / "code.txt")]), None)))
    assert len(parts) == 2 == -(-len(text) // PIECE)
    np.testing.assert_array_equal(np.concatenate(parts), encode(text))


def test_where_there_is_no_place_to_cut_the_pieces_become_one() -> None:
    assert same(word_piece, "x" * 5000, 700, 256) == 1
    assert same(word_piece, "x" * 5000 + " the end" * 400, 700, 256) > 1
    assert same(byte_level_of_its_own_words, "ab" * 2500, 700, 256) == 1  # one word, which no piece has as a whole
    assert same(byte_level, "ab" * 2500, 700, 256) == 8  # BPE alone: a word may be cut, too
    encode, _ = known(byte_level, 256)
    parts = list(PieceTokenizer(encode)(["one ", "two", " three"]))
    assert [part.tolist() for part in parts] == [encode("one two three")]


def test_tokens_that_depend_on_text_far_away_are_refused() -> None:
    def spans(text: str) -> Tokens:
        ids = [ord(letter) + 1000 * ("!" in text) for letter in text]
        return Tokens(ids, [(i, i + 1) for i in range(len(text))], [*range(len(text))])

    tokenize = PieceTokenizer(lambda text: spans(text).ids, spans, overlap=8 * AGREED)
    with pytest.raises(CorpusError, match="tokens depend on the text near them, got tokens that change with text far"):
        list(tokenize(["a" * 200, "b" * 200, "c" * 100 + "!", "d"]))


@pytest.mark.parametrize("model", ["stories260K", "shakespeare-char-llama", "shakespeare-char-neox"])
@pytest.mark.parametrize("opened", [open_encoder, light_encoder])
def test_real_models(model: str, opened: Callable[[ModelSource], Encoder], fixtures: Path) -> None:
    """Also of a tokenizer that puts a blank in front of what it is given."""
    encoder = opened(resolve(str(fixtures / "models" / model)))
    text = (fixtures / "data" / "tinyshakespeare" / "input.txt").read_text()[:40_000]
    tokenize = PieceTokenizer(encoder.encode, encoder.spans, encoder.merges, 512)
    parts = list(tokenize(piece for piece, _ in pieces([text], 1500)))
    assert len(parts) == 27
    np.testing.assert_array_equal(np.concatenate(parts), encoder.encode(text))


def test_spans_of_transformers_are_those_of_the_file(fixtures: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(fixtures / "models" / "stories260K", tmp_path / "m")
    whole = light_encoder(ModelSource("tiny", str(folder)))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "a_setting": "nobody knows"}))
    loaded = light_encoder(ModelSource("tiny", str(folder)))
    assert whole.spans is not None and loaded.spans is not None and whole.merges and loaded.merges
    assert whole.spans("Once upon a time,\n é") == loaded.spans("Once upon a time,\n é")
