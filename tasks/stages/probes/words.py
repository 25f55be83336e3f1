"""The words of a captured treebank: in which document each ends, at which position, and what is read off there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from storage.errors import CorpusError, ModelError
from tasks.capture.documents import read_windows
from tasks.corpora.files import files_digest
from tasks.corpora.treebank import NONE, TreebankSentence, last_tokens, read_treebank, treebank_files
from tasks.models.sources import resolve
from tasks.models.tokenizer import Spans, captured_encoder

if TYPE_CHECKING:
    from tasks.capture.folder import CaptureFolder
    from tasks.stages.contract import Partial
    from tasks.stages.probes.declaration import ProbesParameters

OF_WORD = ("doc", "position", "sentence", "pos", "depth")
COUNTS = ("words", "words_without_a_token", "words_sharing_a_token", "documents_without_a_sentence")

Place = tuple[str, str]
"""A file's name without its folders, and what of it: its `sent_id`, or the line it begins on."""
Known = Mapping[Place, Sequence[tuple[int, TreebankSentence]]]
"""Every sentence by its place, with its number; a place may be several sentences', in files of one name."""


def words_of(prepared: CaptureFolder, documents: Sequence[int], parameters: ProbesParameters, key: str) -> Partial:
    """The words of these documents: OF_WORD, (n,) int32 each, and COUNTS as one array.

    A word is where its last token is. Words that share it, and those of which no token is in the document, are left
    out and counted. Of windows that overlap, the first has the word.
    Raises CorpusError for a capture whose corpus is no treebank, ForeignStore where its tokenizer changed, ModelError
    where that does not say which characters a token stands for.
    """
    known, captured = _treebank(prepared, parameters, key), prepared.record["ingredients"]["tokenizer_digest"]
    encoder = captured_encoder(resolve(prepared.model), captured)
    if encoder.spans is None:
        raise ModelError(
            "a tokenizer that says which characters its tokens stand for",
            got="one that does not",
            where=prepared.model,
            remedy="Save the model with its fast tokenizer (tokenizer.json).",
        )
    windows, counts = read_windows(prepared.fs, prepared.layout), dict.fromkeys(COUNTS, 0)
    found = [np.empty((0, len(OF_WORD)), np.int32)]
    for doc in documents:
        source, start = (windows[name][doc].as_py() for name in ("source", "start_token"))
        ids = windows["token_ids"][doc].values.to_numpy()
        match = _sentence(known, encoder.spans, source, start, ids)
        if match is None:
            counts["documents_without_a_sentence"] += 1
            continue
        number, sentence, last, shared, head = match
        inside = (last >= start + _overlap(prepared, start, head)) & (last < start + len(ids) - head)
        if start == 0:
            counts["words"] += len(last)
            counts["words_without_a_token"] += int((last == NONE).sum())
        counts["words_sharing_a_token"] += int((shared & inside).sum())
        chosen = np.flatnonzero(inside & ~shared)
        of_word = [last[chosen] - start + head, np.full(len(chosen), number)]
        of_word += [np.array(labels, np.int32)[chosen] for labels in (sentence.pos, sentence.depths)]
        found.append(np.stack([np.full(len(chosen), doc), *of_word], 1).astype(np.int32))
    columns = np.concatenate(found).T
    return {
        **{name: np.ascontiguousarray(column) for name, column in zip(OF_WORD, columns, strict=True)},
        "counts": np.array([counts[name] for name in COUNTS], np.int64),
    }


def _overlap(prepared: CaptureFolder, start: int, head: int) -> int:
    """Tokens at the beginning of a window's text that the window before it has too, whose words those are."""
    window, stride = (prepared.record["ingredients"][name] for name in ("window", "stride"))
    return max(0, window - head - stride) if start else 0


def _sentence(
    known: Known, spans: Callable[[str], Spans], source: str, start: int, ids: np.ndarray
) -> tuple[int, TreebankSentence, np.ndarray, np.ndarray, int] | None:
    """The sentence that a document is a window of, its words' last tokens, whether they share them, and how many
    tokens stand in front of the text (0 or 1); None where no sentence of that place has those tokens."""
    for number, sentence in known.get(place_of(source), ()):
        tokens, offsets, _ = spans(sentence.text)
        for head in (0, 1):
            if np.array_equal(tokens[start : start + len(ids) - head], ids[head:]):
                return number, sentence, *last_tokens(sentence.spans, offsets), head
    return None


def place_of(source: str) -> Place:
    """What names a sentence wherever its file lies."""
    name, _, sentence = source.partition(":")
    return name.rpartition("/")[2], sentence


def _treebank(prepared: CaptureFolder, parameters: ProbesParameters, key: str) -> Known:
    paths = parameters.treebank or tuple(prepared.settings["corpus"])
    files = treebank_files(paths)
    if not parameters.treebank:
        captured = prepared.record["ingredients"]["corpus_digest"]
        if files_digest(files, prepared.settings["field"]) != captured:
            raise CorpusError(
                "the corpus that was captured",
                got="files that changed since",
                where=files[0].place(),
                remedy="Put them back, name the files with --set probes.treebank=FILE, or capture the new ones.",
            )
    return _read(key, paths)


@lru_cache(maxsize=1)
def _read(key: str, paths: tuple[str, ...]) -> Known:
    """A treebank, read once for all shards of a run; the run's key stands for its bytes."""
    known: dict[Place, list[tuple[int, TreebankSentence]]] = {}
    for number, sentence in enumerate(read_treebank(treebank_files(paths))):
        known.setdefault(place_of(sentence.place), []).append((number, sentence))
    return known


def require_words(words: Partial, n_docs: int) -> None:
    """CorpusError where no document is a sentence of the treebank."""
    if not len(words["doc"]):
        raise CorpusError(
            "a capture of the sentences of a CoNLL-U treebank",
            got=f"none of {n_docs} documents with the text of a sentence whose words have tokens",
            where="stage probes",
            remedy="Capture the treebank (--corpus FILE.conllu), and name that file with --set probes.treebank=FILE.",
        )


def joined(left: Partial, right: Partial) -> Partial:
    """Words one after the other, counts added."""
    together = {name: np.concatenate([left[name], right[name]]) for name in OF_WORD}
    return {**together, "counts": left["counts"] + right["counts"]}


def folds_of(sentences: np.ndarray, n_folds: int) -> Iterator[np.ndarray]:
    """Which of the rows each fold holds out: sentences whole, dealt in the order in which they are numbered."""
    _, dealt = np.unique(sentences, return_inverse=True)
    for fold in range(min(n_folds, int(dealt.max(initial=-1)) + 1)):
        yield np.flatnonzero(dealt % n_folds == fold)
