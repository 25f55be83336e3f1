"""Bulk output: the bytes as they were given, past the cache or not, whatever the system refuses on the way."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage import bulk

BUFFER = bulk._BUFFER


def _bytes(n: int) -> bytes:
    return bytes(range(256)) * (n // 256) + bytes(range(n % 256))


@pytest.mark.parametrize(
    "sizes",
    [(), (0,), (1,), (4095, 2), (4096,), (BUFFER,), (BUFFER - 1, 1), (BUFFER, 4), (5, 2 * BUFFER, 4096, 7)],
    ids=str,
)
def test_the_file_is_the_parts(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    parts = [_bytes(n) for n in sizes]
    bulk.write_bulk(str(tmp_path / "f"), parts)
    assert (tmp_path / "f").read_bytes() == b"".join(parts)


@given(st.lists(st.binary(max_size=9000), max_size=6))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_parts(tmp_path: Path, parts: list[bytes]) -> None:
    bulk.write_bulk(str(tmp_path / "f"), parts)
    assert (tmp_path / "f").read_bytes() == b"".join(parts)


def _refusing_open(open_: Callable[..., int]) -> Callable[..., int]:
    def refuse(path: str, flags: int, *rest: Any) -> int:
        if flags & bulk._DIRECT:
            raise OSError(errno.EINVAL, "no direct files here")
        return open_(path, flags, *rest)

    return refuse


def _refusing_write(write: Callable[..., int]) -> Callable[..., int]:
    refused = []

    def refuse(file: int, data: Any) -> int:
        if not refused:
            refused.append(file)
            raise OSError(errno.EINVAL, "no direct writes here")
        return write(file, data)

    return refuse


def _short_write(write: Callable[..., int]) -> Callable[..., int]:
    return lambda file, data: write(file, data[: max(1, len(data) // 3)])


@pytest.mark.skipif(not bulk._DIRECT, reason="this system has no direct writes")
@pytest.mark.parametrize(
    ("name", "refusal"), [("open", _refusing_open), ("write", _refusing_write), ("write", _short_write)]
)
def test_refused_or_cut_short_it_goes_on_buffered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, refusal: Callable[..., Any]
) -> None:
    parts = [_bytes(BUFFER + 5000), _bytes(12)]
    with monkeypatch.context() as patch:
        patch.setattr(f"storage.bulk.os.{name}", refusal(getattr(os, name)))
        bulk.write_bulk(str(tmp_path / "f"), parts)
    assert (tmp_path / "f").read_bytes() == b"".join(parts)


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_file: int, _data: Any) -> int:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr("storage.bulk.os.write", full)
        with pytest.raises(OSError, match="full"):
            bulk.write_bulk(str(tmp_path / "f"), [_bytes(5000)])
