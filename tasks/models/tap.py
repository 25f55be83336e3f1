"""The tap: one attention function and one mask function under one name, through which every model runs.

The function delegates to the eager attention that stands beside the attention module's class, so softcaps, learned
sinks and windows keep their meaning, one block of queries at a time, so that memory does not grow with the number of
layers. Keys that no query of a block may see are cut off before: their weights are exactly 0. With no tap active in
this thread the function is plain eager attention.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from storage.errors import ModelError
from tasks.models.anatomy import Anatomy, gate_in
from tasks.models.record import BatchRecord

Eager = Callable[..., tuple[Tensor, Tensor]]

NAME = "theodolite"


class Changes(Protocol):
    """What changes attention while it is computed (intervening.py)."""

    def outputs_unused(self) -> bool:
        """Whether `mixed` passes over the output that it is given, in every row."""

    def values(self, value: Tensor) -> Tensor:
        """The values (B, H_kv, T, d_v) that a layer's attention is to use."""

    def mixed(self, start: int, first: int, weights: Tensor, value: Tensor, output: Tensor) -> Tensor:
        """What a block is to give, (B, q, H, d_v): queries from `start` and keys from `first`, weights (B, H, q, K) and
        values (B, H_kv, K, d_v) as they are, and the output that these make."""


class Listener(Protocol):
    """Receives attention as it is computed: BatchRecord, which captures it, or InterventionPass, which changes it."""

    @property
    def changes(self) -> Changes | None:
        """None where nothing is changed."""

    def layer_of(self, module: nn.Module) -> int | None: ...

    def blocks(self, n_queries: int, n_keys: int, mask: Tensor | None) -> list[tuple[int, int, int, int]]: ...

    def attention_begins(
        self, layer: int, value: Tensor, call: tuple[Tensor, Tensor, Mapping[str, Any]] | None = None
    ) -> None: ...

    def attention_rows(
        self, start: int, first: int, weights: Tensor, *, q: Tensor, k: Tensor, scaling: float
    ) -> None: ...

    def heads_mixed(self, mixed: Tensor) -> None: ...


_ACTIVE: ContextVar[Listener | None] = ContextVar("theodolite_tap", default=None)


@contextmanager
def active(record: Listener) -> Iterator[None]:
    """Everything that the tapped model computes in this thread, inside this block, goes to `record`."""
    token = _ACTIVE.set(record)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Attention as the family computes it, in blocks of queries, recorded if a tap is active.

    query (B, H, T, d) and key (B, H_kv, T, d) after rotary, value (B, H_kv, T, d_v) before heads are repeated, mask
    (B, 1, T, T), true where a key is seen. Returns the heads' outputs (B, T, H, d_v) and no weights, so that none
    accumulate above.
    """
    eager = eager_attention_of(type(module))
    record = _ACTIVE.get()
    layer = None if record is None else record.layer_of(module)
    if record is None or layer is None:
        return eager(module, query, key, value, _added(attention_mask, query.dtype), **options)[0], None
    record.attention_begins(layer, value, (query, key, options))
    changes = record.changes
    if changes is not None:
        value = changes.values(value)
    unused = changes is not None and changes.outputs_unused() and _weights_alone(eager, module, query, key, options)
    batch, n_heads, length, _ = query.shape
    heads = value.new_empty(batch, length, n_heads, value.shape[-1])
    for start, stop, first, last in record.blocks(length, key.shape[2], attention_mask):
        q, k, v = query[:, :, start:stop], key[:, :, first:last], value[:, :, first:last]
        seen = None if attention_mask is None else attention_mask[:, :, start:stop, first:last]
        mask = _added(seen, query.dtype)
        output, weights = eager(module, q, k, v[..., :1] if unused else v, mask, **options)
        if changes is not None:  # here, and in `values` above, interventions change what attention computes
            output = changes.mixed(start, first, weights, v, output)
        record.attention_rows(start, first, weights, q=q, k=k, scaling=options.get("scaling", 1.0))
        heads[:, start:stop] = output
    record.heads_mixed(heads)
    return heads, None


_ALONE: dict[tuple[Eager, int], bool] = {}


def _weights_alone(eager: Eager, module: nn.Module, query: Tensor, key: Tensor, options: Mapping[str, Any]) -> bool:
    """Whether weights are the same whatever the values' width, so that where none but weights are used one column of
    the values will do. Asked of the function once, on three drawn tokens: the GPT-2 of transformers 4 scales its scores
    by the values' width."""
    asked = eager, query.shape[-1]
    if asked not in _ALONE:
        generator = torch.Generator().manual_seed(0)
        q, k = (
            torch.randn(1, x.shape[1], 3, x.shape[-1], generator=generator).to(x.device, x.dtype) for x in (query, key)
        )
        weights = [eager(module, q, k, k.new_zeros(*k.shape[:-1], n), None, **options)[1] for n in (1, 8)]
        _ALONE[asked] = torch.equal(*weights)
    return _ALONE[asked]


def _visible(*args: Any, **kwargs: Any) -> Tensor:
    """The mask (B, 1, T, T) as a byte an entry: of 8,192 tokens 64 MiB, where what eager attention adds is 256."""
    return sdpa_mask(*args, **{**kwargs, "allow_is_causal_skip": False, "allow_torch_fix": False})


def _added(seen: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """What eager attention adds to scores: 0 where a key is seen, the dtype's minimum where not."""
    if seen is None or seen.dtype != torch.bool:
        return seen
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, torch.finfo(dtype).min)


def reaches(attention_class: type) -> bool:
    """Whether the class has a module-level eager attention, which the interface's function stands in for."""
    return _eager_beside(attention_class) is not None


def eager_attention_of(attention_class: type) -> Eager:
    """The `eager_attention_forward` of the model file that defines the class or the nearest one it inherits from."""
    function = _eager_beside(attention_class)
    if function is None:
        raise ModelError(
            "an attention class with an eager_attention_forward beside it",
            got=f"{attention_class.__module__}.{attention_class.__name__}",
        )
    return function


def _eager_beside(attention_class: type) -> Eager | None:
    for base in attention_class.__mro__:
        function: Eager | None = getattr(sys.modules.get(base.__module__), "eager_attention_forward", None)
        if function is not None:
            return function
    return None


def attach(anatomy: Anatomy) -> None:
    """Install the hooks that hand residual stream, output-projection input and outputs to the active tap.

    They stay on the model and are silent unless a tap of this very anatomy is active in the thread that runs it, so
    that several threads may run one model. A module that stands in several layers gets one hook of each kind.
    """
    listening = listener(anatomy)

    def layer_enters(at: Sequence[int]) -> Callable[..., None]:
        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if (record := listening()) is not None and record.next_of(at) == 0:
                record.residual(0, args[0] if args else kwargs["hidden_states"])

        return hook

    def projection_enters(at: Sequence[int]) -> Callable[..., None]:
        def hook(_module: nn.Module, args: tuple[Any, ...]) -> None:
            if (record := listening()) is not None:
                record.projection_input(record.next_of(at), args[0])

        return hook

    def output_leaves(at: Sequence[int]) -> Callable[..., None]:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            if (record := listening()) is not None:
                record.attention_output(record.next_of(at), _first(output))

        return hook

    def layer_ends(at: Sequence[int]) -> Callable[..., None]:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            if (record := listening()) is not None:
                layer = record.next_of(at)
                record.layer_ends(layer)
                record.residual(layer + 1, _first(output))

        return hook

    def gate_leaves(at: Sequence[int]) -> Callable[..., None]:
        def hook(_module: nn.Module, _args: Any, output: Tensor) -> None:
            if (record := listening()) is not None:
                record.gate(record.next_of(at), gate_in(anatomy, output))

        return hook

    leaves = anatomy.attentions if anatomy.kind.returns == "projection" else anatomy.output_projections
    for module, at in places(anatomy.gates):
        module.register_forward_hook(gate_leaves(at))
    for module, at in places(dict(enumerate(anatomy.layers))):
        module.register_forward_pre_hook(layer_enters(at), with_kwargs=True)
        module.register_forward_hook(layer_ends(at))
    for module, at in places(anatomy.output_projections):
        module.register_forward_pre_hook(projection_enters(at))
    for module, at in places(leaves):
        module.register_forward_hook(output_leaves(at))


def listener(anatomy: Anatomy) -> Callable[[], BatchRecord | None]:
    """Gives the tap that is active in the calling thread, if it is one of this anatomy."""

    def listening() -> BatchRecord | None:
        record = _ACTIVE.get()
        return record if isinstance(record, BatchRecord) and record.anatomy is anatomy else None

    return listening


def current() -> Listener | None:
    """The tap that is active in the calling thread."""
    return _ACTIVE.get()


def places(modules: Mapping[int, nn.Module]) -> Iterator[tuple[nn.Module, tuple[int, ...]]]:
    """Each module once, with the layers it stands in."""
    at: dict[nn.Module, list[int]] = {}
    for layer, module in modules.items():
        at.setdefault(module, []).append(layer)
    return ((module, tuple(layers)) for module, layers in at.items())


def _first(output: Any) -> Tensor:
    """A layer returns a tensor or, in some versions, a tuple; DistilBERT's begins with the weights, taken out."""
    return next(part for part in output if part is not None) if isinstance(output, Sequence) else output


# A name without a mask function would silently make attention acausal.
AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, _visible)
