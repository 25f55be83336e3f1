"""Arrays that are used again: memory that is asked for anew comes page by page, which takes longer than filling it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


class Scratch:
    """Arrays by name; a name's array is valid until the name is taken again."""

    def __init__(self) -> None:
        self._held: dict[str, np.ndarray] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
        """An array with nothing in particular in it."""
        size = math.prod(shape)
        held = self._held.get(name)
        if held is None or held.size < size or held.dtype != dtype:
            held = self._held[name] = np.empty(size, dtype)
        return held[:size].reshape(shape)
