"""Named numpy arrays in one file: what a shard hands to a stage's `combine`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from storage.errors import DamagedPart
from storage.filesystem import Filesystem
from storage.manifest import FileRecord


def write_arrays(fs: Filesystem, path: str, arrays: Mapping[str, np.ndarray]) -> FileRecord:
    """Write arrays of any shape and numeric dtype (safetensors: the same arrays give the same bytes)."""
    from safetensors.numpy import save

    data = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    fs.write_bytes(path, data)
    return FileRecord.of(data)


def read_arrays(fs: Filesystem, path: str) -> dict[str, np.ndarray]:
    """The arrays of a file. Raises MissingPart, or DamagedPart if it is cut short or something else."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        return load(fs.read_bytes(path))
    except SafetensorError as error:
        raise DamagedPart(
            "whole arrays", got=str(error), where=fs.absolute(path), remedy="Run the stage again to replace it."
        ) from error
