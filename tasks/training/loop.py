"""The loop: step, measure, keep a checkpoint, go on from the last one."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.training.diverging import require_finite, require_finite_weights
from tasks.training.export import export, halved
from tasks.training.folder import Checkpoint, TrainingFolder
from tasks.training.optimiser import Optimiser
from tasks.training.progress import Listener, MeasureListener, MeasureProgress, TrainProgress
from tasks.training.settings import TrainSettings
from tasks.training.text import TrainingText, batch_of, held_out_windows, training_text
from tasks.training.variants import computing, load_weights, new_model, weights_of

MEASURE_EVERY = 100
"""Steps between two looks at the held-out text; the first step and the last are followed by one too."""
MEASURED_WINDOWS = 24
"""Windows of such a look; the last one takes the whole held-out text."""


@dataclass(frozen=True)
class TrainResult:
    """A finished run."""

    out: str
    held_out_nats: float
    """Mean nats per character of the float16 weights over the whole held-out part."""
    steps: int
    parameters: int
    weight_bytes: int
    seconds: float
    """Over all interruptions."""
    resumed_at: int | None
    """The step at which this call went on; None if it began at 0 or had nothing to do."""
    already_done: bool
    measuring_seconds: float | None = None
    """Of them, what measuring the whole held-out part took; None in a folder that an earlier version trained."""


def train(
    documents: Iterable[str],
    out: str,
    settings: TrainSettings | None = None,
    *,
    checkpoint_every: int = 100,
    progress: Listener | None = None,
    measuring: MeasureListener | None = None,
    on_wait: Callable[[], None] | None = None,
) -> TrainResult:
    """Train a character model on the documents into the folder `out`, or go on with what lies there.

    Interrupted anywhere and called again with the same arguments (and as many threads), it ends with the same weights
    as an undisturbed run. Two calls at once: the second waits (and calls `on_wait`), then finds the work done.

    Raises: UsageError (settings, or an `out` that holds something else), CorpusError (too little text), DamagedPart
    (an unreadable checkpoint), TrainingDiverged (a loss or weights that are not finite), StorageFull, StorageReadOnly.
    """
    settings = (settings or TrainSettings()).check(checkpoint_every)
    text = training_text(documents, settings)
    folder = TrainingFolder(out, {**settings.describe(), "text_digest": text.digest})
    with folder.lock(on_wait):
        folder.claim()  # once more: whoever held the lock may have filled the folder
        log = folder.log()
        if log is not None:
            return TrainResult(out, **log["result"], resumed_at=None, already_done=True)
        run = _Run(text, folder, settings)
        resumed_at = run.resume()
        run.advance(checkpoint_every, progress)
        return TrainResult(out, **run.finish(measuring), resumed_at=resumed_at, already_done=False)


class _Run:
    """Model, optimiser and state of one run."""

    def __init__(self, text: TrainingText, folder: TrainingFolder, settings: TrainSettings) -> None:
        self.text, self.folder, self.settings = text, folder, settings
        self.model = new_model(settings, len(text.vocabulary))
        self.optimiser = Optimiser(self.model, settings)
        self.state = Checkpoint(0, {})
        self.begun = time.perf_counter()

    def resume(self) -> int | None:
        """Take up the folder's checkpoint; without one, leave one that claims the folder."""
        found = self.folder.load()
        if found is None:
            self._save()
            return None
        weights = {k.removeprefix("model."): t for k, t in found.tensors.items() if k.startswith("model.")}
        load_weights(self.model, weights)
        self.optimiser.load_state(
            {k.removeprefix("optimiser."): t for k, t in found.tensors.items() if k.startswith("optimiser.")}
        )
        self.state = found
        self.begun = time.perf_counter() - found.seconds
        return found.step

    def _save(self) -> None:
        tensors = {f"model.{k}": t for k, t in weights_of(self.model).items()}
        tensors |= {f"optimiser.{k}": t for k, t in self.optimiser.state().items()}
        self.state.tensors = tensors
        self.state.seconds = time.perf_counter() - self.begun
        self.folder.save(self.state)

    def advance(self, checkpoint_every: int, progress: Listener | None) -> None:
        """Take the steps that are left; no checkpoint is kept of weights that are not finite."""
        started, first = time.perf_counter(), self.state.step
        self.model.train()
        while self.state.step < self.settings.steps:
            loss = self._step(self.state.step)
            self.state.step += 1
            last = self.state.step == self.settings.steps
            if self.state.step % MEASURE_EVERY == 0 or self.state.step == 1 or last:
                held_out = require_finite(self.measure(MEASURED_WINDOWS), f"after step {self.state.step}")
                self.state.losses.append({"step": self.state.step, "train": round(loss, 4), "held_out": held_out})
            if self.state.step % checkpoint_every == 0 or last:  # measuring may be interrupted too
                require_finite_weights(weights_of(self.model), f"after step {self.state.step}")
                self._save()
            if progress is not None:
                rate = (self.state.step - first) / (time.perf_counter() - started)
                characters = rate * self.settings.batch * self.settings.context
                left = (self.settings.steps - self.state.step) / rate
                progress(TrainProgress(self.state.step, self.settings.steps, loss, characters, left))

    def _step(self, step: int) -> float:
        with computing(self.settings, step):
            loss = self._loss(batch_of(self.text, self.settings, step))
        value = require_finite(loss.item(), f"step {step + 1}")
        loss.backward()
        self.optimiser.step(step)
        return value

    def _loss(self, windows: np.ndarray) -> Any:
        """Mean nats per predicted character of (B, T+1) ids."""
        import torch

        ids = torch.from_numpy(windows)
        logits = self.model(ids[:, :-1], use_cache=False).logits  # (B, T, V)
        return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())

    def measure(self, most: int | None, tell: MeasureListener | None = None) -> float:
        """Mean nats per character over held-out windows."""
        import torch

        windows = held_out_windows(self.text, self.settings, most)
        told = tell or (lambda _now: None)
        told(MeasureProgress(0, len(windows)))
        self.model.eval()
        sums = []
        with torch.no_grad():
            for window in windows:
                sums.append(self._loss(window[None]).item() * (len(window) - 1))
                told(MeasureProgress(len(sums), len(windows)))
        self.model.train()
        return round(sum(sums) / sum(len(w) - 1 for w in windows), 4)

    def finish(self, measuring: MeasureListener | None) -> dict[str, Any]:
        """Measure the model as it is shipped, then write it and its log: a loss that is not finite ships nothing."""
        import torch

        load_weights(self.model, {k: t.float() for k, t in halved(self.model).items()})
        measured_from = time.perf_counter()
        held_out = require_finite(self.measure(None, measuring), "the finished model's float16 weights")
        measured = time.perf_counter() - measured_from
        weight_bytes = export(self.folder, self.model, self.text.vocabulary, self.settings)
        result = {
            "held_out_nats": held_out,
            "steps": self.settings.steps,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "weight_bytes": weight_bytes,
            "measuring_seconds": round(measured, 1),
            "seconds": round(time.perf_counter() - self.begun, 1),
        }
        text = {"characters_trained_on": len(self.text.train), "characters_held_out": len(self.text.held_out)}
        versions = {"python": platform.python_version(), "torch": torch.__version__}
        machine = {**versions, "threads": torch.get_num_threads()}
        self.folder.finish({"result": result, "text": text, "machine": machine, "losses": self.state.losses})
        return result
