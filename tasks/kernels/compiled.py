"""How loops are compiled that numpy and torch can only express as passes over memory, one per operation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from numba import njit

Loop = TypeVar("Loop", bound=Callable[..., Any])

_FREEDOMS = {"nnan", "nsz", "reassoc", "contract"}


def compiled(loop: Loop) -> Loop:
    """Compiled to machine code at the first call, which is kept on disk for the next process if there is room for it.

    Sums may be taken in any order, so that they run in vectors; no number may be NaN.
    """
    plain = inspect.unwrap(loop)  # of a check of shapes, which tests put around every function
    dispatcher: Any = njit(nogil=True, error_model="numpy", fastmath=_FREEDOMS)(plain)
    with suppress(RuntimeError):  # neither beside the modules nor in the user's cache may anything be written
        dispatcher.enable_caching()
    made: Loop = dispatcher
    return made
