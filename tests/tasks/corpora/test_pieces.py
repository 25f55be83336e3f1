"""Long texts in pieces: together they are the text, wherever its chunks end."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tasks.corpora import pieces as module
from tasks.corpora.files import expand
from tasks.corpora.pieces import pieces
from tasks.corpora.readers import Text, read_files, read_texts
from tasks.corpora.windows import WindowSettings
from tests.tasks.corpora.cutting import Cut, windows

CHUNKS = st.lists(st.text(alphabet="ab \n\t", max_size=30), max_size=12)


@given(CHUNKS, st.integers(1, 20))
def test_pieces_are_the_text_and_none_is_longer(chunks: list[str], size: int) -> None:
    found = list(pieces(chunks, size))
    assert "".join(piece for piece, _ in found) == "".join(chunks)
    assert all(len(piece) <= size for piece, _ in found)
    assert [more for _, more in found] == [True] * (len(found) - 1) + [False]


@given(CHUNKS, CHUNKS, st.integers(1, 20))
def test_where_chunks_end_changes_nothing(some: list[str], others: list[str], size: int) -> None:
    joined = "".join(some) + "".join(others)
    assert list(pieces([*some, *others], size)) == list(pieces([joined], size))


def test_pieces_by_hand() -> None:
    assert list(pieces(["abcd", "efgh"], 3)) == [("abc", True), ("def", True), ("gh", False)]
    assert list(pieces(["abc"], 3)) == [("abc", False)]
    assert list(pieces([])) == [("", False)]


@given(st.lists(st.integers(0, 9), max_size=60), st.integers(2, 9), st.none() | st.integers(1, 9), st.data())
def test_windows_of_pieces_are_windows_of_the_text(
    ids: list[int], window: int, stride: int | None, data: st.DataObject
) -> None:
    """Wherever the pieces end, with ids that are BOS tokens among them."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=4)))
    parts = [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
    texts = [Text("".join(map(str, part)), "a", more=i < len(parts) - 1) for i, part in enumerate(parts)]
    settings = WindowSettings(window, min(stride, window) if stride else None, "always")

    def cut(given: list[Text]) -> Cut:
        given = [*given, Text("12", "b")]
        return windows(given, lambda text: [*map(int, text)], settings, 0, True, 10)

    pieced, whole = cut(texts), cut([Text("".join(map(str, ids)), "a")])
    assert (pieced.left_out, pieced.n_texts) == (whole.left_out, 2)
    assert [(d.source, d.start, d.token_ids.tolist()) for d in pieced.documents] == [
        (d.source, d.start, d.token_ids.tolist()) for d in whole.documents
    ]


def test_a_text_file_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("a line of a long text\n" * 200_000)
    texts = list(read_files(expand([str(tmp_path / "long.txt")]), None))
    assert [t.more for t in texts] == [True] * (len(texts) - 1) + [False]
    assert len(texts) == 5
    assert max(len(t.text) for t in texts) <= module.PIECE
    (whole,) = read_texts([str(tmp_path / "long.txt")])
    assert "".join(t.text for t in texts) == (tmp_path / "long.txt").read_text() == whole.text
    assert expand([str(tmp_path / "long.txt")])[0].size() == 4_400_000
