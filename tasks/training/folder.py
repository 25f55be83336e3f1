"""The folder that a training run fills: claimed by its own checkpoint or log, every file published by rename."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.errors import DamagedPart, UsageError

if TYPE_CHECKING:
    import torch

CHECKPOINT, LOG = "checkpoint.safetensors", "training_log.json"
TEMPORARY = ".writing-"


@dataclass
class Checkpoint:
    """Everything needed to go on: the next step to take, the tensors, and the losses so far."""

    step: int
    tensors: dict[str, torch.Tensor]
    losses: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0
    """Time spent so far, over all interruptions."""


class TrainingFolder:
    """`identity` is what the run is (settings, digest of the text): a folder of another identity is refused."""

    def __init__(self, out: Path, identity: dict[str, Any]) -> None:
        self.out, self.identity = out, identity
        out.mkdir(parents=True, exist_ok=True)
        self._claim()

    def _claim(self) -> None:
        for name, read in ((LOG, self._read_log), (CHECKPOINT, self._read_identity)):
            if (self.out / name).is_file():
                self._compare(read(), name)
                return
        others = sorted(p.name for p in self.out.iterdir() if not p.name.startswith(TEMPORARY))
        if others:
            raise UsageError(
                "an empty folder, or one that holds this training run",
                got=f"{', '.join(others[:3])}{' …' if len(others) > 3 else ''}",
                where=str(self.out),
                remedy="Name another folder, or empty this one.",
            )

    def _compare(self, theirs: dict[str, Any], name: str) -> None:
        for key in sorted({*self.identity, *theirs}):
            if self.identity.get(key) != theirs.get(key):
                raise UsageError(
                    f"a folder of this training run ({key} = {self.identity.get(key)})",
                    got=f"one with {key} = {theirs.get(key)}",
                    where=str(self.out / name),
                    remedy="Name another folder, remove this one, or give the settings that it was begun with.",
                )

    def write(self, name: str, data: bytes) -> None:
        """Replace a file whole: a kill leaves the old one or the new one."""
        temporary = self.out / f"{TEMPORARY}{name}"
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.out / name)

    def log(self) -> dict[str, Any] | None:
        """What the finished run recorded; None while it is not finished."""
        return json.loads((self.out / LOG).read_bytes()) if (self.out / LOG).is_file() else None

    def finish(self, log: dict[str, Any]) -> None:
        """Record the run as done and drop its checkpoint."""
        self.write(LOG, (json.dumps({"identity": self.identity, **log}, indent=1) + "\n").encode())
        (self.out / CHECKPOINT).unlink(missing_ok=True)

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint."""
        from safetensors.torch import save

        notes = {"identity": self.identity, "step": checkpoint.step, "losses": checkpoint.losses}
        header = {"theodolite": json.dumps({**notes, "seconds": checkpoint.seconds})}
        self.write(CHECKPOINT, save({k: t.contiguous() for k, t in checkpoint.tensors.items()}, metadata=header))

    def load(self) -> Checkpoint | None:
        """The last checkpoint; None if there is none."""
        if not (self.out / CHECKPOINT).is_file():
            return None
        notes, tensors = self._open_checkpoint(with_tensors=True)
        return Checkpoint(notes["step"], tensors, notes["losses"], notes["seconds"])

    def _read_identity(self) -> dict[str, Any]:
        return self._open_checkpoint(with_tensors=False)[0]["identity"]

    def _read_log(self) -> dict[str, Any]:
        try:
            return json.loads((self.out / LOG).read_bytes())["identity"]
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                "the log of a training run",
                got="something else",
                where=str(self.out / LOG),
                remedy="Name another folder, or empty this one.",
            ) from error

    def _open_checkpoint(self, *, with_tensors: bool) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        from safetensors import SafetensorError, safe_open

        path = self.out / CHECKPOINT
        try:
            with safe_open(path, framework="pt") as file:
                notes = json.loads(file.metadata()["theodolite"])
                return notes, {k: file.get_tensor(k) for k in file.keys()} if with_tensors else {}  # noqa: SIM118
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise DamagedPart(
                "a checkpoint of a training run",
                got="something unreadable",
                where=str(path),
                remedy="Remove the folder and train again.",
            ) from error
