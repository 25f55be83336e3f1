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


def read_arrays(fs: Filesystem, path: str, record: FileRecord) -> dict[str, np.ndarray]:
    """The arrays of a file that has this record. Raises MissingPart, or DamagedPart if its bytes are others."""
    from safetensors.numpy import load

    data = fs.read_bytes(path)
    found = FileRecord.of(data)
    if found != record:
        raise DamagedPart(
            f"{record.size} bytes of checksum {record.crc32c}",
            got=f"{found.size} of checksum {found.crc32c}",
            where=fs.absolute(path),
            remedy="Delete this file and run the same stage again: it does that shard anew.",
        )
    return load(data)
