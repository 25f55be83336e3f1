"""A model's small JSON files (config.json, tokenizer_config.json, …), read within named limits."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from storage.errors import ModelError

MOST_BYTES = 16 << 20
"""Of such a file: the largest known, tokenizer configurations with thousands of added tokens, have under 1 MiB."""

_REMEDY = "The file is cut off or damaged: fetch the model again, or save it anew."


def read_object(path: Path) -> dict[str, Any]:
    """The object in a file. Numbers that are not finite, which Python's JSON writes and no other reads, are given as
    their text, so that the object can be written down again.

    Raises ModelError, naming the file, for one that cannot be read, is larger than MOST_BYTES, nested too deeply, or
    holds something other than an object.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise damaged(path, f"more than {MOST_BYTES:,} bytes")
        content = json.loads(data.decode("utf-8"), parse_constant=str, parse_float=_finite)
    except RecursionError as error:
        raise damaged(path, "lists or objects nested too deeply") from error
    except (OSError, ValueError) as error:
        raise error if isinstance(error, ModelError) else damaged(path, error) from error
    if not isinstance(content, dict):
        raise damaged(path, f"a JSON {type(content).__name__}, not an object")
    return content


def _finite(text: str) -> float | str:
    value = float(text)
    return value if math.isfinite(value) else text


def damaged(path: Path, got: object) -> ModelError:
    """The error of a file of a model that cannot be read."""
    return ModelError(f"a {path.name} that can be read", got=str(got), where=str(path), remedy=_REMEDY)
