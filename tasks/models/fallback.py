"""Tapping families whose code does not go through transformers' attention interface.

They run under their own eager attention and are asked for their weights. A hook on each value projection takes the
values, and one on each attention module, before any other, takes the weights out of what it returns, so that they do
not accumulate in the layers above. One layer's weights (B, H, T, T) are in memory at a time, whole: their code does not
compute blocks of queries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from storage.errors import CaptureCheckError
from tasks.models.anatomy import Anatomy, values_in
from tasks.models.record import BatchRecord
from tasks.models.tap import listener, places


def attach(anatomy: Anatomy, *, clip: float | None = None) -> None:
    """Install the hooks; they are silent unless a tap of this anatomy is active. `clip`: MPT's bound on q, k and v."""
    listening = listener(anatomy)

    def value_leaves(at: Sequence[int]) -> Callable[..., None]:
        def hook(_module: nn.Module, _args: Any, output: Tensor) -> None:
            if (record := listening()) is not None:
                projected = output if clip is None else output.clamp(-clip, clip)
                record.attention_begins(record.next_of(at), values_in(anatomy, projected).transpose(1, 2))

        return hook

    def weights_leave(at: Sequence[int]) -> Callable[..., Any]:
        def hook(_module: nn.Module, _args: Any, output: Any) -> Any:
            if (record := listening()) is None:
                return None  # nothing is changed
            place = _weights_in(output, record, record.next_of(at))
            _record(record, output[place])
            return (*output[:place], None, *output[place + 1 :])

        return hook

    for module, at in places(anatomy.value_projections):
        module.register_forward_hook(value_leaves(at))
    for module, at in places(anatomy.attentions):
        module.register_forward_hook(weights_leave(at), prepend=True)


def _weights_in(output: Any, record: BatchRecord, layer: int) -> int:
    """Where the weights (B, H, T, T) stand in what an attention module returned: after its output, by version."""
    rest = output[1:] if isinstance(output, tuple) else ()
    n_heads = record.anatomy.n_heads
    for index, part in enumerate(rest, start=1):
        if isinstance(part, Tensor) and part.ndim == 4 and part.shape[1] == n_heads and part.shape[2] == part.shape[3]:
            return index
    raise CaptureCheckError(
        "attention weights (B, H, T, T) from the attention module",
        got=", ".join(type(part).__name__ for part in (output if isinstance(output, tuple) else (output,))),
        where=f"model {record.model_name}, layer {layer}",
        remedy="The model must be loaded by load_model and run with output_attentions=True.",
    )


def _record(record: BatchRecord, weights: Tensor) -> None:
    length = weights.shape[-1]
    for start, stop, _, _ in record.blocks(length, length, None):
        rows = weights[:, :, start:stop]
        record.attention_rows(start, 0, rows, q=rows[..., :0], k=rows[..., :0], scaling=1.0)
