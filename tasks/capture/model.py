"""The model of a capture, loaded once in a process: for its shards, and for the stages that run it again."""

from __future__ import annotations

import gc
from functools import lru_cache

from tasks.capture.folder import CaptureFolder
from tasks.models.loading import LoadedModel, load_model, pick_device
from tasks.models.sources import resolve_captured

_REMEDY = "Its files changed since the capture was prepared. Put them back, or capture the new ones."


@lru_cache(maxsize=1)
def _load(name: str, dtype: str, device: str, digest: str) -> LoadedModel:
    loaded = load_model(resolve_captured(name, digest, _REMEDY), dtype, device)
    # A model and its libraries are 400,000 objects, and the collector waits until a quarter as many are new. Set aside,
    # it soon finds what each shard leaves behind (JSON encoders are cycles), and looks at a shard's own objects alone.
    gc.collect()
    gc.freeze()
    gc.collect()  # so that it counts anew
    return loaded


def captured_model(folder: CaptureFolder) -> LoadedModel:
    """The capture's model, kept in this process until another is asked for.

    Raises ForeignStore where its files are not those that were captured, or ModelError.
    """
    settings = folder.settings
    device = pick_device(settings["device"])
    return _load(folder.model, settings["dtype"], device, folder.record["ingredients"]["model_digest"])
