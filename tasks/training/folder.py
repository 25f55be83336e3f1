"""The folder that a training run fills: claimed by its own checkpoint or log, every file put in place by rename."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from storage.errors import DamagedPart, UsageError
from storage.filesystem import open_runs

if TYPE_CHECKING:
    import torch

CHECKPOINT, LOG, LOCK = "checkpoint.safetensors", "training_log.json", ".training.lock"


@dataclass
class Checkpoint:
    """Everything needed to go on: the next step to take, the tensors, and the losses so far."""

    step: int
    tensors: dict[str, torch.Tensor]
    losses: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0
    """Time spent so far, over all interruptions."""


class TrainingFolder:
    """`identity` is what the run is (settings, digest of the text); a folder of anything else is refused."""

    def __init__(self, out: str, identity: dict[str, Any]) -> None:
        self._files = open_runs(out, create=True)
        self.identity = identity
        self.claim()

    def claim(self) -> None:
        """UsageError unless the folder is empty or holds this very run, begun or done."""
        for name, read in ((LOG, self._read_log), (CHECKPOINT, self._read_notes)):
            if self._files.exists(name):
                self._compare(read()["identity"], name)
                return
        if others := self._files.children(""):
            raise UsageError(
                "an empty folder, or one that holds this training run",
                got=f"{', '.join(others[:3])}{' …' if len(others) > 3 else ''}",
                where=self._files.where,
                remedy="Name another folder, or empty this one.",
            )

    def _compare(self, theirs: Mapping[str, Any], name: str) -> None:
        for key in sorted({*self.identity, *theirs}):
            ours, found = self.identity.get(key), theirs.get(key)
            if ours != found:
                raise UsageError(
                    f"a folder of this training run ({key} = {ours})",
                    got=f"one with {key} = {found}",
                    where=self._files.absolute(name),
                    remedy="Name another folder, remove this one, or give the settings that it was begun with.",
                )

    def lock(self, on_wait: Callable[[], None] | None) -> AbstractContextManager[None]:
        """Held by the one process that trains into the folder."""
        return self._files.lock(LOCK, on_wait)

    def write(self, name: str, data: bytes) -> None:
        """Put a file in place whole: a kill leaves the old one or the new one."""
        self._files.write_bytes(name, data)

    def log(self) -> dict[str, Any] | None:
        """What the finished run recorded; None while it is not finished."""
        return self._read_log() if self._files.exists(LOG) else None

    def finish(self, log: Mapping[str, Any]) -> None:
        """Record the run as done and drop its checkpoint."""
        self.write(LOG, (json.dumps({"identity": self.identity, **log}, indent=1, allow_nan=False) + "\n").encode())
        self._files.remove(CHECKPOINT)

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint."""
        from safetensors.torch import save

        tensors = {name: tensor.contiguous() for name, tensor in checkpoint.tensors.items()}
        notes = {
            "identity": self.identity,
            "step": checkpoint.step,
            "losses": checkpoint.losses,
            "seconds": checkpoint.seconds,
            "digest": _digest(tensors),
        }
        self.write(CHECKPOINT, save(tensors, metadata={"theodolite": json.dumps(notes)}))

    def load(self) -> Checkpoint | None:
        """The last checkpoint; None if there is none. Raises DamagedPart if its tensors are not what was saved."""
        if not self._files.exists(CHECKPOINT):
            return None
        from safetensors.torch import load

        notes = self._read_notes()
        tensors = load(self._files.read_bytes(CHECKPOINT))
        if notes["digest"] != _digest(tensors):
            raise self._damaged(CHECKPOINT)
        return Checkpoint(notes["step"], tensors, notes["losses"], notes["seconds"])

    def _read_notes(self) -> dict[str, Any]:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self._files.absolute(CHECKPOINT), framework="pt") as file:
                notes = json.loads((file.metadata() or {})["theodolite"])
        except (SafetensorError, ValueError, KeyError) as error:
            raise self._damaged(CHECKPOINT) from error
        kinds = {"identity": dict, "step": int, "losses": list, "seconds": float, "digest": str}
        if not isinstance(notes, dict) or any(not isinstance(notes.get(k), kind) for k, kind in kinds.items()):
            raise self._damaged(CHECKPOINT)
        return notes

    def _read_log(self) -> dict[str, Any]:
        try:
            log = json.loads(self._files.read_bytes(LOG))
        except ValueError as error:
            raise self._damaged(LOG) from error
        if not isinstance(log, dict) or any(not isinstance(log.get(k), dict) for k in ("identity", "result")):
            raise self._damaged(LOG)
        return log

    def _damaged(self, name: str) -> DamagedPart:
        return DamagedPart(
            "what a training run wrote",
            got="something else",
            where=self._files.absolute(name),
            remedy="Name another folder, or remove this one and train again.",
        )


def _digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over names and bytes: safetensors itself carries no checksum."""
    whole = hashlib.sha256()
    for name in sorted(tensors):
        whole.update(name.encode())
        whole.update(tensors[name].numpy().tobytes())
    return whole.hexdigest()
