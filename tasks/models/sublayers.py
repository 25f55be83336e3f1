"""The parts of a layer that the tap does not name: its MLP, and the norms whose output a sub-layer reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn

from tasks.models.families import Anatomy

_MLP = ("mlp", "feed_forward", "ffn", "mlp_block", "block_sparse_moe", "shared_mlp", "fc2")
"""What families call the module whose output is the MLP's."""
_ADDS_RESIDUAL = {"bloom": "dense_4h_to_h", "mpt": "down_proj"}
"""Families whose MLP adds the residual inside: its last projection is what the MLP itself gives."""


def mlps(anatomy: Anatomy, layer: int) -> list[nn.Module]:
    """The modules whose outputs, together, are the MLP's of a layer; none where it has no MLP."""
    module = _holder(anatomy, layer)
    found = [getattr(module, name) for name in _MLP if isinstance(getattr(module, name, None), nn.Module)]
    inner = _ADDS_RESIDUAL.get(anatomy.family)
    mixer = getattr(module, "mixer", None)  # Nemotron-H: a layer is attention, or a state-space part, or an MLP
    if not found and mixer is not None and ("MLP" in type(mixer).__name__ or "MoE" in type(mixer).__name__):
        found = [mixer]
    return found if inner is None else [part.get_submodule(inner) for part in found]


def norms(anatomy: Anatomy, layer: int) -> list[nn.Module]:
    """The norms that stand in a layer, in the order they are declared."""
    there = dict.fromkeys((anatomy.layers[layer], _holder(anatomy, layer)))
    return [part for module in there for name, part in module.named_children() if _is_norm(name, part)]


def _is_norm(name: str, module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower()


def _holder(anatomy: Anatomy, layer: int) -> nn.Module:
    """The module that holds attention beside an MLP: the layer itself, or what layers share in it (Zamba)."""
    module = anatomy.layers[layer]
    first = anatomy.kind.attention.split(".")[0]
    return getattr(module, first, module) if first.startswith("shared_transf") else module


class ReadNorms:
    """Listens to one forward pass for the norms whose output another module of their layer is given."""

    def __init__(self, anatomy: Anatomy) -> None:
        self._layers = anatomy.layers
        self._norms = {id(norm): norm for layer in range(anatomy.n_layers) for norm in norms(anatomy, layer)}
        self._given: dict[int, int] = {}
        self._read: dict[int, None] = {}
        self._kept: list[Tensor] = []  # so that no memory is used again for another tensor

    def listen(self, stack: ExitStack) -> None:
        """Hooks on every module of the layers, until the stack is closed."""
        for module in dict.fromkeys(part for layer in self._layers for part in layer.modules()):
            if id(module) in self._norms:
                stack.callback(module.register_forward_hook(self._norm_leaves).remove)
            else:
                stack.callback(module.register_forward_pre_hook(self._enters, with_kwargs=True).remove)

    def _norm_leaves(self, module: nn.Module, _args: Any, output: Tensor) -> None:
        self._kept.append(output)
        self._given[output.data_ptr()] = id(module)

    def _enters(self, _module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        for given in (*args, *kwargs.values()):
            if isinstance(given, Tensor) and (norm := self._given.get(given.data_ptr())) is not None:
                self._read[norm] = None

    def found(self) -> Iterator[nn.Module]:
        """The norms that were read."""
        return (norm for key, norm in self._norms.items() if key in self._read)
