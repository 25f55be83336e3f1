"""CoNLL-U: a sentence as it was written, from its comment or from its words."""

from __future__ import annotations

import re
from pathlib import Path

from tasks.corpora.conllu import read_sentences
from tasks.corpora.files import expand
from tasks.corpora.readers import Text, read_texts

ROWS = """# newdoc
# sent_id = made-1
1-2\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tdo\tdo\tAUX\t_\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\t_\t_\t3\tadvmod\t_\tSpaceAfter=No
3\tgo\tgo\tVERB\t_\t_\t0\troot\t_\t_
3.1\tgone\tgo\tVERB\t_\t_\t_\t_\t3:conj\t_
4\thome\thome\tNOUN\t_\t_\t3\tobj\t_\tSpaceAfter=No|X=1
5\t.\t.\tPUNCT\t_\t_\t3\tpunct\t_\t_

1\tBye\tbye\tINTJ\t_\t_\t0\troot\t_\t_
"""


def test_one_document_a_sentence_as_its_comment_says(fixtures: Path) -> None:
    path = fixtures / "data/ud_ewt/en_ewt-ud-dev.conllu"
    texts = list(read_texts([str(path)]))
    said = re.findall(r"^# text = (.*)$", path.read_text(), re.MULTILINE)
    assert [t.text for t in texts] == said
    assert len(texts) == 2001
    assert texts[0].source.startswith("en_ewt-ud-dev.conllu:weblog-blogspot.com_nominations")


def test_words_joined_are_what_the_comment_says(fixtures: Path) -> None:
    (file,) = expand([str(fixtures / "data/ud_ewt/en_ewt-ud-dev.conllu")])
    differ = []
    for sentence in read_sentences(file):
        said = sentence.comments.pop("text")
        if sentence.text() != said:
            differ.append((said, sentence.text()))
    assert differ == []


def test_multi_word_tokens_are_written_once_and_empty_nodes_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "made.conllu"
    path.write_text(ROWS)
    assert list(read_texts([str(path)])) == [
        Text("don't go home.", "made.conllu:made-1"),
        Text("Bye", "made.conllu:11"),
    ]
