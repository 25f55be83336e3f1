"""The manifest: done means a record, and every file of it with its size; all else is to be replaced, or is named."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import ForeignStore, MissingPart, TheodoliteError, UnknownName
from storage.filesystem import Filesystem, LocalFolder
from storage.layout import FINAL, Layout
from storage.manifest import (
    FORMAT,
    SEAL_BYTES,
    Checksum,
    FileRecord,
    Manifest,
    PartRecord,
    list_captures,
    open_manifest,
    placed,
)

LAYOUT = Layout("cap")
RECORD = LAYOUT.shard_record(0)
FILES = {"cap/a": b"alpha", "cap/folder/b": b"beta" * 1000}

names = st.text("abcdefghijklmnopqrstuvwxyz/0123456789.", min_size=1)
counts = st.dictionaries(names, st.integers(0, 2**40), max_size=4)
file_records = st.builds(
    FileRecord, st.integers(0, 2**45), st.from_regex(r"[0-9a-f]{8}", fullmatch=True), st.booleans()
)
part_records = st.builds(PartRecord, st.dictionaries(names, file_records, max_size=5), counts, counts)


@pytest.fixture
def manifest(fs: Filesystem) -> Manifest:
    return Manifest(fs, LAYOUT)


def publish(manifest: Manifest) -> PartRecord:
    """Publish FILES from staging: one file and one folder."""
    fs = manifest.fs
    fs.write_bytes("cap/staging/a", FILES["cap/a"])
    fs.write_bytes("cap/staging/folder/b", FILES["cap/folder/b"])
    record = PartRecord({path: FileRecord.of(data) for path, data in FILES.items()}, {"t": 3}, {"nan": 0})
    moves = [("cap/staging/a", "cap/a"), ("cap/staging/folder", "cap/folder")]
    manifest.publish(RECORD, record, moves)
    return record


@given(part_records)
@settings(max_examples=25)
def test_a_record_is_read_as_it_was_written(manifest: Manifest, record: PartRecord) -> None:
    manifest.publish(RECORD, record, [])
    assert manifest.read_part(RECORD) == record
    first = manifest.fs.read_bytes(RECORD)
    backwards = PartRecord(dict(reversed(record.files.items())), dict(reversed(record.rows.items())), record.quality)
    manifest.publish(RECORD, backwards, [])
    assert manifest.fs.read_bytes(RECORD) == first


@given(st.lists(st.binary(max_size=50), max_size=6))
def test_a_checksum_does_not_see_how_bytes_came(pieces: list[bytes]) -> None:
    checksum = Checksum()
    for piece in pieces:
        checksum.update(piece)
    assert checksum.record() == FileRecord.of(b"".join(pieces))


def test_the_checksum_is_crc32c() -> None:
    assert FileRecord.of(b"123456789") == FileRecord(9, "e3069283")
    assert FileRecord.of(b"") == FileRecord(0, "00000000")


def differing(whole: bytes, record: FileRecord) -> str:
    checksum = Checksum()
    checksum.update(whole[:-SEAL_BYTES])
    return checksum.differing(record, whole[-SEAL_BYTES:])


@given(st.binary(max_size=50), st.data())
def test_a_sealed_files_record_sees_every_bit_and_differs_between_files(body: bytes, data: st.DataObject) -> None:
    checksum = Checksum()
    checksum.update(body)
    whole, record = body + checksum.seal(), checksum.sealed_record()
    assert differing(whole, record) == ""
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    flipped = bytearray(whole)
    flipped[bit // 8] ^= 1 << bit % 8
    assert differing(bytes(flipped), record) != ""
    other = data.draw(st.binary(min_size=len(body), max_size=len(body)))
    assert (FileRecord.of(other).crc32c == record.crc32c) == (other == body)
    assert FileRecord.of(whole) == FileRecord(record.size, "48674bc7")  # the number that would be the same for all


def test_a_published_part_is_done(manifest: Manifest) -> None:
    assert manifest.published(RECORD) is None
    record = publish(manifest)
    assert manifest.published(RECORD) == record
    assert manifest.verify(RECORD) == []
    assert manifest.fs.list("cap/staging") == []


@pytest.mark.parametrize("path", FILES)
def test_a_part_with_a_file_gone_or_of_another_size_is_not_done(manifest: Manifest, path: str) -> None:
    publish(manifest)
    manifest.fs.write_bytes(path, FILES[path] + b"!")
    assert manifest.published(RECORD) is None
    assert manifest.verify(RECORD) == [f"{path}: size {len(FILES[path]) + 1} where the record says {len(FILES[path])}"]
    manifest.fs.remove(path)
    assert manifest.published(RECORD) is None
    assert manifest.verify(RECORD) == [f"{path}: missing"]
    record = publish(manifest)
    assert manifest.published(RECORD) == record


def test_a_flipped_bit_is_found_by_verify_alone(manifest: Manifest) -> None:
    publish(manifest)
    manifest.fs.write_bytes("cap/a", b"Alpha")
    assert manifest.published(RECORD) is not None
    (problem,) = manifest.verify(RECORD)
    assert problem.startswith("cap/a: checksum ")
    assert problem.endswith(f"where the record says {FileRecord.of(b'alpha').crc32c}")


def test_verify_says_that_the_record_itself_is_gone_or_broken(manifest: Manifest) -> None:
    assert [p.startswith(f"{RECORD}: expected a file, got nothing there") for p in manifest.verify(RECORD)] == [True]
    manifest.fs.write_bytes(RECORD, b"{")
    assert "a record of Theodolite (JSON), got something else" in manifest.verify(RECORD)[0]


class Failing(LocalFolder):
    """A folder whose n-th change fails: a writer that dies there leaves exactly this."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.left = 10**9

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise InterruptedError("killed here")

    def write_bytes(self, path: str, data: bytes) -> None:
        self._step()
        super().write_bytes(path, data)

    def rename(self, source: str, target: str) -> None:
        self._step()
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self._step()
        super().remove(path)


@pytest.mark.parametrize("damaged", [False, True], ids=["fresh", "over damaged files of the right size"])
def test_a_writer_that_dies_anywhere_leaves_a_part_done_or_not_done_but_never_wrong(
    tmp_path: Path, damaged: bool
) -> None:
    outcomes = set()
    for steps in range(9):
        fs = Failing(str(tmp_path / str(steps)))
        manifest = Manifest(fs, LAYOUT)
        if damaged:
            publish(manifest)
            fs.write_bytes("cap/a", b"Alpha")
        fs.left = 2 + steps  # the two files of staging are there
        with suppress(InterruptedError):
            publish(manifest)
        fs.left = 10**9
        done = Manifest(fs, LAYOUT).published(RECORD)
        outcomes.add(done is not None)
        if done is not None and not (damaged and steps == 0):
            assert manifest.verify(RECORD) == []
        publish(manifest)
        assert manifest.verify(RECORD) == []
    assert outcomes == {True, False}


def test_the_record_comes_before_the_files(fs: Filesystem, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, order = Manifest(fs, LAYOUT), []
    write, rename = LocalFolder.write_bytes, LocalFolder.rename
    monkeypatch.setattr(
        LocalFolder, "write_bytes", lambda self, path, data: (order.append(path), write(self, path, data))[1]
    )
    monkeypatch.setattr(LocalFolder, "rename", lambda self, a, b: (order.append(b), rename(self, a, b))[1])
    publish(manifest)
    assert order[2:] == [RECORD, "cap/a", "cap/folder"]


def test_the_capture_says_its_format(manifest: Manifest) -> None:
    manifest.write_capture({"name": "n", "shards": 3})
    assert manifest.read_capture() == {"name": "n", "shards": 3, "format": FORMAT}
    assert open_manifest(manifest.fs, "cap").read_capture()["name"] == "n"


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (None, MissingPart, r"nothing there, in .*capture\.json"),
        (
            b'{"format": %d}' % (FORMAT + 1),
            ForeignStore,
            rf"format {FORMAT} or older, got format {FORMAT + 1}.*upgrade",
        ),
        (b"\x00\xff", ForeignStore, r"a record of Theodolite \(JSON\), got something else .*capture\.json"),
        (b'{"format": 1', ForeignStore, r"got something else"),
        (b"[]", ForeignStore, r"with its format, got JSON without one"),
        (b'{"zarr_format": 3}', ForeignStore, r"with its format, got JSON without one"),
        (b'{"format": "1"}', ForeignStore, r"JSON without one"),
    ],
)
def test_a_record_of_another_kind_is_refused(
    manifest: Manifest, content: bytes | None, error: type[TheodoliteError], message: str
) -> None:
    if content is not None:
        manifest.fs.write_bytes(LAYOUT.capture_record, content)
    with pytest.raises(error, match=message):
        manifest.read_capture()


def test_a_parts_record_of_another_shape_is_refused(manifest: Manifest) -> None:
    for content in (
        {"files": 1, "rows": {}, "quality": {}},
        {"rows": {}},
        {"files": {"a": {}}, "rows": {}, "quality": {}},
    ):
        manifest.fs.write_bytes(RECORD, json.dumps({**content, "format": FORMAT}).encode())
        with pytest.raises(ForeignStore, match="the record of a part, got JSON of another shape"):
            manifest.published(RECORD)


def test_stages_are_listed_with_their_done_parts(manifest: Manifest) -> None:
    assert manifest.stage_runs() == []
    for stage, key in (("sink", "b" * 64), ("sink", "a" * 64), ("contributions", "c" * 64)):
        run = {"stage": stage, "key": key, "version": 1, "status": "done", "requested_at": "now"}
        manifest.write_stage(stage, key, run)
    manifest.publish(LAYOUT.part_record("sink", "d" * 64, FINAL), PartRecord({}), [])
    found = [(run["stage"], run["key"][0]) for run in manifest.stage_runs()]
    assert found == [("contributions", "c"), ("sink", "a"), ("sink", "b")]
    for part in (FINAL, "00001", "00000"):
        path = LAYOUT.table_part("t", "a" * 64, part)
        manifest.fs.write_bytes(path, part.encode())
        record = PartRecord({path: FileRecord.of(part.encode())}, {"t": 1})
        manifest.publish(LAYOUT.part_record("sink", "a" * 64, part), record, [])
    manifest.fs.remove(LAYOUT.table_part("t", "a" * 64, "00001"))
    assert list(manifest.parts("sink", "a" * 64)) == ["00000", FINAL]
    assert manifest.read_stage("sink", "a" * 64)["key"] == "a" * 64


def test_captures_are_found_by_their_record(fs: Filesystem) -> None:
    for name in ("two", "one"):
        Manifest(fs, Layout(name)).write_capture({})
    fs.write_bytes("other/file", b"")
    assert list_captures(fs) == ["one", "two"]
    with pytest.raises(UnknownName, match=r"name of a capture, got 'tow', in .*Did you mean 'two'"):
        open_manifest(fs, "tow")


def test_placed_names_files_from_where(manifest: Manifest) -> None:
    record = FileRecord(1, "00000000")
    assert placed({"a": record, "b/c": record}, "cap/f") == {"cap/f/a": record, "cap/f/b/c": record}
