"""Whole captures, from text to store and tables: batches, padding and blocks move last bits only; BOS; every length."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from storage.filesystem import open_runs
from storage.layout import Layout
from storage.warehouse import connect, run_sql
from tasks.capture.documents import read_windows
from tasks.capture.folder import CaptureFolder
from tasks.corpora.windows import REPEATED, TOO_SHORT
from tasks.stages.registry import tables
from tests.tasks.capture.made_captures import BOS, LETTERS, Made, make, save_model

Tensors = dict[tuple[int, int, str], torch.Tensor]
WINDOW = 17


def texts(folder: Path) -> list[Path]:
    """Texts of every length from none to three windows: in the files' order, with two empty lines among the rows."""
    rng, long = np.random.default_rng(5), folder / "long.txt"
    rows = ["".join(rng.choice(list(LETTERS.replace("\n", "")), n)) for n in range(2 * WINDOW + 5)]
    listed = folder / "rows.jsonl"
    listed.write_text("\n\n".join(f'{{"text": "{row}"}}' for row in rows) + "\n")
    long.write_text("\n\n".join(rows[-3:]) + "\n")
    return [listed, long]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model") / "tiny", "gemma2")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def reference(model: Path, corpus: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Tensors:
    """Every document alone in its pass, in one block of queries: nothing is padded."""
    runs = tmp_path_factory.mktemp("alone")
    return make(model, corpus, runs, window=WINDOW, batch_tokens=1, shard_tokens=4096).tensors()


def assert_equal(got: Tensors, want: Tensors, tolerance: float = 1e-5) -> None:
    assert got.keys() == want.keys()
    for key, tensor in want.items():
        scale = max(1.0, float(tensor.nan_to_num().abs().max()))
        torch.testing.assert_close(got[key], tensor, rtol=0, atol=tolerance * scale, equal_nan=True, msg=str(key))


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize(
    ("batch_tokens", "shard_tokens", "query_block"), [(64, 4096, 128), (4096, 4096, 7), (200, 150, 3)]
)
def test_batches_padding_and_blocks_change_no_number(
    padding: str,
    batch_tokens: int,
    shard_tokens: int,
    query_block: int,
    model: Path,
    corpus: list[Path],
    reference: Tensors,
    tmp_path: Path,
) -> None:
    """Also lengths that no block divides, and batches whose last one is not full."""
    sizes = {"batch_tokens": batch_tokens, "shard_tokens": shard_tokens, "query_block": query_block}
    made = make(model, corpus, tmp_path, window=WINDOW, padding=padding, **sizes)
    assert_equal(made.tensors(), reference)


def test_the_comparison_can_see(reference: Tensors) -> None:
    wrong = {key: tensor.clone() for key, tensor in reference.items()}
    wrong[3, 1, "attention"][0, 1, 0] += 2e-5
    with pytest.raises(AssertionError, match=r"\(3, 1, 'attention'\)"):
        assert_equal(wrong, reference)


def test_documents_of_every_length_and_each_token_of_the_text(model: Path, corpus: list[Path], tmp_path: Path) -> None:
    made = make(model, corpus, tmp_path, window=WINDOW, batch_tokens=64, shard_tokens=200)
    documents = _documents(made)
    lengths = Counter(len(ids) for ids in documents)
    assert set(lengths) == set(range(2, WINDOW + 1))
    prepared = CaptureFolder.open(made.runs, made.capture)
    assert prepared.record["left_out"] == {TOO_SHORT: 1}  # the empty text; the empty lines between the rows are none
    stored = {doc for shard in made.store.shards for doc in made.store.documents(shard)}
    assert stored == set(range(len(documents)))  # no last batch or shard is dropped
    characters = sum(range(2 * WINDOW + 5)) + len(corpus[1].read_text())
    assert sum(len(ids) - 1 for ids in documents) == characters  # each token once, and a BOS in front of each document


def test_bos_is_counted_never_doubled_and_part_of_the_key(model: Path, corpus: list[Path], tmp_path: Path) -> None:
    marked = tmp_path / "marked.txt"
    marked.write_text("<s>abc<s>def")
    made = {bos: make(model, [marked], tmp_path / "runs", window=4, bos=bos) for bos in ("auto", "always", "never")}
    a, b, c, d, e, f = (3 + LETTERS.index(letter) for letter in "abcdef")
    with_bos = [[BOS, a, b, c], [BOS, d, e, f]]
    assert _documents(made["auto"]) == _documents(made["always"]) == with_bos
    assert _documents(made["never"]) == [[BOS, a, b, c], [BOS, d, e, f]]  # the text's own, as tokens of it
    assert len({m.capture for m in made.values()}) == 3
    plain = tmp_path / "plain.txt"
    plain.write_text("abcdef")
    assert _documents(make(model, [plain], tmp_path / "runs", window=4)) == [[BOS, a, b, c], [BOS, d, e, f]]
    assert _documents(make(model, [plain], tmp_path / "runs", window=4, bos="never")) == [[a, b, c, d], [e, f]]


def test_a_tokenizer_without_bos(corpus: list[Path], tmp_path: Path) -> None:
    model = save_model(tmp_path / "plain", bos=False)
    made = make(model, corpus, tmp_path / "runs", window=WINDOW, batch_tokens=100, padding="left")
    assert all(BOS not in ids for ids in _documents(made))
    reference = make(model, corpus, tmp_path / "runs", window=WINDOW, batch_tokens=1)
    assert_equal(made.tensors(), reference.tensors())


def test_repeated_documents_are_left_out_on_request(model: Path, tmp_path: Path) -> None:
    """By the tokens of a document: of the text `ab` twice, and of windows that say the same."""
    for name, text in (("a.txt", "abcdefabcdef"), ("b.txt", "xyz"), ("c.txt", "xyz"), ("d.txt", "abc")):
        (tmp_path / name).write_text(text)
    settings = {"window": 4, "max_documents": 4}
    made = make(model, [tmp_path], tmp_path / "runs", deduplicate=True, **settings)
    whole = make(model, [tmp_path], tmp_path / "runs", **settings)
    assert [d[1:] for d in _documents(made)] == [[3 + LETTERS.index(c) for c in text] for text in ("abc", "def", "xyz")]
    assert len(_documents(whole)) == 4
    assert CaptureFolder.open(made.runs, made.capture).record["left_out"] == {TOO_SHORT: 0, REPEATED: 4}
    connection = connect(open_runs(made.runs), tables())
    count = f"select count(*), count(distinct digest) from documents where capture = '{made.capture}'"
    assert run_sql(connection, count).to_pylist()[0] == {"count_star()": 3, "count(DISTINCT digest)": 3}


def _documents(made: Made) -> list[list[int]]:
    rows = [
        row for group in read_windows(open_runs(made.runs), Layout(made.capture)).groups() for row in group.to_pylist()
    ]
    return [row["token_ids"] for row in rows]
