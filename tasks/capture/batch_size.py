"""How many tokens a forward pass takes at once, from the memory of the device that runs it.

Needs torch only where a GPU may be there, so that `plan` answers at once on machines without one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from storage.kept import Kept
from tasks.capture.cost import ConfigShape, memory_peak

SHARE = 0.5
"""Of the device's memory, what one batch and the model may take: the rest is the system's, and other runs'."""
BATCHES = {"cpu": (1024, 512, 256), "mps": (4096, 2048, 1024, 512, 256), "cuda": (16384, 8192, 4096, 2048, 1024, 512)}
"""Tokens of a batch, the most first. On CPUs two windows of 512 are what captures were measured with."""
_CGROUP = Path("/sys/fs/cgroup/memory.max")


def likely_device(name: str) -> str:
    """A named device, there or not; what `auto` will be here: cpu, without asking torch, where there is no GPU."""
    shows_one = Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists() or sys.platform == "darwin"
    if name != "auto" or not shows_one:
        return name if name != "auto" else "cpu"
    from tasks.models.loading import pick_device

    return pick_device(name)


def memory_of(device: str) -> int | None:
    """Bytes of memory that the device has in all, or that this process may have of it; None where it is not here."""
    if device == "cuda":
        import torch

        return int(torch.cuda.get_device_properties(0).total_memory) if torch.cuda.is_available() else None
    if device == "mps" and sys.platform != "darwin":
        return None
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _CGROUP.read_text().strip() if _CGROUP.exists() else "max"
    return min(physical, int(limit)) if limit.isdecimal() else physical


def batch_tokens(shape: ConfigShape, window: int, dtype: str, query_block: int, kept: Kept, device: str) -> int:
    """The largest batch of whole windows whose peak, the model's weights included, takes at most half the memory.

    The least there is where none does: a document is never cut, and `plan` shows the peak beside the memory. For a
    device that is not here, what a CPU takes at most.
    """
    memory = memory_of(device)
    if memory is None:
        return BATCHES["cpu"][0]
    allowed = SHARE * memory
    for tokens in BATCHES[device]:
        documents = max(1, tokens // window)
        lengths = [window] * documents
        if memory_peak(shape, lengths, list(range(documents)), dtype, query_block, kept) <= allowed:
            return tokens
    return BATCHES[device][-1]
