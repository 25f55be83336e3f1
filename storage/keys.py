"""Identity: digests of what determines a number, seeds that depend on names and never on the order of execution."""

from __future__ import annotations

import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SLUG_LENGTH = 48


def canonical(value: Any) -> str:
    """The one JSON text of a value: sorted names, no spaces, ASCII, every float by its shortest exact form.

    Tuples count as lists. Raises TypeError for what JSON cannot hold and ValueError for NaN or infinity, naming where.
    """
    _check_json(value, "value")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest(mapping: Mapping[str, Any]) -> str:
    """SHA-256 of a mapping's canonical JSON, as 64 hex digits: equal for equal content in any order."""
    if not isinstance(mapping, Mapping):
        raise TypeError(f"expected a mapping to digest, got {type(mapping).__name__}")
    return hashlib.sha256(canonical(mapping).encode()).hexdigest()


def file_digest(path: str | Path) -> str:
    """SHA-256 of a file's bytes, as 64 hex digits, read in blocks."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def seed_for(*parts: str | int | float | bool | None) -> int:
    """A seed in [0, 2^64) from what it is for (run seed, stage, document, …): the same on every schedule."""
    data = hashlib.sha256(canonical(list(parts)).encode()).digest()
    return int.from_bytes(data[:8], "big")


def slug(text: str) -> str:
    """A name as a folder name: lower-case ASCII letters, digits, dots and single dashes, 1 to 48 characters."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    name = re.sub(r"[^a-z0-9.]+", "-", plain)
    return re.sub(r"\.{2,}", ".", name).strip("-.")[:_SLUG_LENGTH].rstrip("-.") or "unnamed"


def _check_json(value: Any, where: str) -> None:
    if value is None or isinstance(value, str | bool | int):
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"expected a finite number at {where}, got {value!r}")
        return
    if isinstance(value, Mapping):
        for name, item in value.items():
            if not isinstance(name, str):
                raise TypeError(f"expected text as a name at {where}, got {name!r}")
            _check_json(item, f"{where}.{name}")
        return
    if isinstance(value, list | tuple):
        for i, item in enumerate(value):
            _check_json(item, f"{where}[{i}]")
        return
    raise TypeError(f"expected a JSON value at {where}, got {type(value).__name__} {value!r}")
