"""Rotary frequencies that follow a document's length (longrope, dynamic NTK): each row of a batch is given its own.

transformers reads one length off the largest position of a batch, so a document's frequencies would follow its longest
neighbour's; and dynamic NTK keeps the longest length it has seen, so they would follow earlier batches too. Here a
rotary module runs once for each length in the batch, as it was when the model was made: nothing but a document's own
length decides its frequencies, and any thread may run the model.
"""

from __future__ import annotations

import copy
import inspect
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from storage.errors import ModelError

_ORIGINAL = "original_inv_freq"
_LONGEST = "max_seq_len_cached"


def attach(body: nn.Module, where: str) -> None:
    """Let every rotary module of scaled frequencies run by document.

    body: the model without its head. Raises ModelError, with `where`, for code that knows one length for the whole
    batch.
    """
    for module in body.modules():
        if not _is_scaled(module):
            continue
        for part in (body, module):
            if "position_ids" not in inspect.signature(type(part).forward).parameters:
                raise ModelError(
                    "rotary frequencies that are computed from the positions of each document",
                    got=f"{type(part).__name__}, which is not given them",
                    where=where,
                    remedy="pip install 'transformers>=5'.",
                )
        module.forward = MethodType(_by_document, module)  # a copy of the model has a forward of its own copy


def _is_scaled(module: nn.Module) -> bool:
    """Whether a module computes rotary frequencies of another type than the default; some have a type for each kind of
    layer."""
    kinds = getattr(module, "rope_type", None)
    return any(kind != "default" for kind in (kinds.values() if isinstance(kinds, dict) else [kinds]) if kind)


def _by_document(self: nn.Module, x: Tensor, position_ids: Tensor, *args: Any, **kwargs: Any) -> Any:
    """What the module's class gives, computed apart for the rows of each length.

    position_ids (…, B, T): in each row the largest is the document's last, on padding too; x says dtype and device.
    """
    of_rows = position_ids.flatten(0, -3) if position_ids.ndim > 2 else position_ids[None]
    longest = of_rows.amax(dim=(0, 2)).tolist()  # (B,)
    found: Any = None
    for length in sorted(set(longest)):
        rows = torch.tensor([row for row, own in enumerate(longest) if own == length], device=x.device)
        of_length = position_ids.index_select(-2, rows)
        part = type(self).forward(_as_made(self), x, of_length, *args, **kwargs)
        if len(rows) == len(longest):
            return part
        found = _empty(part, len(longest)) if found is None else found
        for whole, own in zip(_tensors(found), _tensors(part), strict=True):
            whole[rows] = own
    return found


def _as_made(module: nn.Module) -> nn.Module:
    """A copy of a rotary module in the state that it was made in; what its forward changes, it changes in the copy."""
    fresh = copy.copy(module)
    fresh._buffers = {name: None if buffer is None else buffer.clone() for name, buffer in module._buffers.items()}
    for name in [*fresh._buffers, *vars(fresh)]:
        if name.endswith(_ORIGINAL):
            setattr(fresh, name.removesuffix(_ORIGINAL) + "inv_freq", getattr(fresh, name).clone())
        elif name.endswith(_LONGEST):
            setattr(fresh, name, fresh.original_max_seq_len)
    return fresh


def _tensors(output: Any) -> tuple[Tensor, ...]:
    return (output,) if isinstance(output, Tensor) else tuple(output)


def _empty(part: Any, n_rows: int) -> Any:
    """Room for the outputs of all rows, in the shape of what one call gives: (b, …) tensors."""
    room = tuple(own.new_empty(n_rows, *own.shape[1:]) for own in _tensors(part))
    return room[0] if isinstance(part, Tensor) else room
