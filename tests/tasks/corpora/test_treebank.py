"""A treebank's words in their sentence's text, and the tokens that they end in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from storage.errors import CorpusError
from tasks.corpora.treebank import NONE, UPOS, TreebankSentence, depths, last_tokens, read_treebank, treebank_files
from tasks.models.sources import resolve
from tasks.models.tokenizer import open_encoder

ROWS = """# sent_id = made-1
# text = He don't go  home, du coup.
1\tHe\the\tPRON\t_\t_\t4\tnsubj\t_\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdo\tdo\tAUX\t_\t_\t4\taux\t_\t_
3\tn't\tnot\tPART\t_\t_\t4\tadvmod\t_\t_
4\tgo\tgo\tVERB\t_\t_\t0\troot\t_\t_
4.1\tgone\tgo\tVERB\t_\t_\t_\t_\t4:conj\t_
5\thome\thome\tNOUN\t_\t_\t4\tobj\t_\tSpaceAfter=No
6\t,\t,\tPUNCT\t_\t_\t5\tpunct\t_\t_
7-8\tdu\t_\t_\t_\t_\t_\t_\t_\t_
7\tde\tde\tADP\t_\t_\t9\tcase\t_\t_
8\tle\tle\tDET\t_\t_\t9\tdet\t_\t_
9\tcoup\tcoup\tNAME\t_\t_\t5\tobl\t_\tSpaceAfter=No
10\t.\t.\tPUNCT\t_\t_\t4\tpunct\t_\t_

"""


def read(tmp_path: Path, rows: str) -> list[TreebankSentence]:
    path = tmp_path / "made.conllu"
    path.write_text(rows, encoding="utf-8")
    return list(read_treebank(treebank_files([str(path)])))


def word(row: int, form: str, more: str = "_") -> str:
    return f"{row}\t{form}\t_\tNOUN\t_\t_\t0\troot\t_\t{more}\n"


def test_words_stand_where_they_are_written_and_parts_of_a_contraction_too(tmp_path: Path) -> None:
    (sentence,) = read(tmp_path, ROWS)
    assert sentence.place == "made.conllu:made-1"
    held = [sentence.text[a:b] for a, b in (span for span in sentence.spans if span is not None)]
    assert held == ["He", "do", "n't", "go", "home", ",", "du", "du", "coup", "."]
    assert [UPOS[p] if p != NONE else None for p in sentence.pos][:4] == ["PRON", "AUX", "PART", "VERB"]
    assert sentence.pos[8] == NONE  # NAME is no universal part of speech
    assert sentence.depths == (1, 1, 1, 0, 1, 2, 3, 3, 2, 1)


def test_no_word_is_guessed_a_place_behind_a_form_that_the_text_does_not_hold(tmp_path: Path) -> None:
    rows = "# text = a b a\n" + word(1, "a") + word(2, "x") + word(3, "a")
    (sentence,) = read(tmp_path, rows)
    assert sentence.spans == ((0, 1), None, None)


def test_a_form_with_a_space_is_found_where_the_text_has_a_no_break_one(tmp_path: Path) -> None:
    (sentence,) = read(tmp_path, "# text = 10\u00a0000 é\n" + word(1, "10 000") + word(2, "é"))
    assert sentence.spans == ((0, 6), (7, 8))


@pytest.mark.parametrize(
    ("heads", "found"),
    [
        (("0", "1", "2"), (0, 1, 2)),
        (("2", "0", "_"), (1, 0, NONE)),
        (("2", "1", "0"), (NONE, NONE, 0)),  # a ring
        (("9", "1", "0"), (NONE, NONE, 0)),
        (("1",), (NONE,)),
    ],
)
def test_depths_count_arcs_to_the_root(heads: tuple[str, ...], found: tuple[int, ...]) -> None:
    assert depths(heads) == found


def test_the_last_token_of_a_word_is_the_last_that_stands_for_any_of_it() -> None:
    #          ▁don   't    ␣␣    go home one token     é in two bytes      a mark
    offsets = [(0, 3), (3, 5), (5, 7), (7, 14), (14, 16), (15, 16), (16, 16)]
    spans = [(0, 2), (2, 5), (7, 9), (10, 14), (15, 16), (16, 17), None]
    last, shared = last_tokens(spans, offsets)
    assert last.tolist() == [0, 1, 3, 3, 5, NONE, NONE]
    assert shared.tolist() == [False, False, True, True, False, False, False]


@pytest.mark.parametrize("model", ["stories260K", "shakespeare-char-llama"])
def test_every_word_of_a_real_treebank_ends_in_a_token(fixtures: Path, model: str) -> None:
    encoder = open_encoder(resolve(str(fixtures / "models" / model)))
    words, shared, spans = 0, 0, encoder.spans
    assert spans is not None
    for sentence in read_treebank(treebank_files([str(fixtures / "data/ud_ewt/en_ewt-ud-dev.conllu")])):
        assert NONE not in sentence.depths
        ids, offsets, _ = spans(sentence.text)
        assert ids == encoder.encode(sentence.text)
        last, both = last_tokens(sentence.spans, offsets)
        assert (last != NONE).all()
        words, shared = words + len(last), shared + int(both.sum())
    assert words == 25_147
    assert shared == {"stories260K": 22, "shakespeare-char-llama": 0}[model]


def test_byte_level_tokens_end_where_their_characters_do() -> None:
    """Characters that the vocabulary lacks are single bytes, each of which stands for the whole character."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    text = "né 日本."
    spans = [(0, 2), (3, 5), (5, 6)]
    encoded = tokenizer.encode(text, add_special_tokens=False)
    last, shared = last_tokens(spans, encoded.offsets)
    assert not shared.any()
    n_bytes = np.cumsum([len(letter.encode()) for letter in text])
    assert last.tolist() == [n_bytes[1], n_bytes[4], n_bytes[5]]  # a space stands in front of all


def test_text_is_no_treebank(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a")
    with pytest.raises(CorpusError, match=r"a treebank in CoNLL-U .*, got text, in .*a\.txt.*annotated"):
        treebank_files([str(path)])


RANGE = "{}\tdont\t_\t_\t_\t_\t_\t_\t_\t_\n"


@pytest.mark.parametrize(
    ("rows", "line", "got"),
    [
        (RANGE.format("1-5") + word(1, "do") + word(2, "nt"), 1, "a sentence of 2 words"),
        (word(1, "go") + RANGE.format("2-3"), 2, "a sentence of 1 words"),
        (RANGE.format("1-2"), 1, "a sentence of 0 words"),
        (RANGE.format("7-8") + word(1, "do") + word(2, "nt"), 1, "7-8 after word 0"),
        (RANGE.format("0-1") + word(1, "dont"), 1, "0-1 after word 0"),
        (word(1, "go") + RANGE.format("2-1") + word(2, "dont"), 2, "2-1 after word 1"),
        (RANGE.format("1-2") + RANGE.format("1-2") + word(1, "do") + word(2, "nt"), 2, "1-2 after word 0"),
        (RANGE.format("1-2") + RANGE.format("3-4") + word(1, "do"), 2, "3-4 after word 0"),
        (
            RANGE.format("1-2") + word(1, "do") + RANGE.format("2-3") + word(2, "nt") + word(3, "go"),
            3,
            "2-3 after word 1",
        ),
    ],
)
@pytest.mark.parametrize("end", ["", "\n"])
def test_a_multi_word_token_not_followed_by_its_words_is_named(
    tmp_path: Path, rows: str, line: int, got: str, end: str
) -> None:
    with pytest.raises(CorpusError, match=rf"of the words that follow it, got {got}, in .*conllu, line {line + 2}\."):
        read(tmp_path, word(1, "Hi") + "\n" + rows + end)


@pytest.mark.parametrize("column", [0, 6])
def test_a_number_of_thousands_of_digits_is_named(tmp_path: Path, column: int) -> None:
    row = word(1, "Hi").split("\t")
    for damaged in ("1" * 5000, f"1-{'2' * 5000}") if column == 0 else ("1" * 5000,):
        row[column] = damaged
        with pytest.raises(CorpusError, match=r"of at most 9 digits, got 10 column.*conllu, line 1\. Mend") as caught:
            read(tmp_path, "\t".join(row))
        assert len(str(caught.value)) < 500
