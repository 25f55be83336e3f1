"""The parts of a layer that the tap does not name: its MLP, and the norms whose output a sub-layer reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn

from tasks.models.anatomy import Anatomy


def mlps(anatomy: Anatomy, layer: int) -> list[nn.Module]:
    """The modules whose outputs, together, are the MLP's of a layer; none where it has no MLP."""
    found = {path: _at(anatomy.layers[layer], path) for path in anatomy.kind.mlp}
    return [m for path, m in found.items() if m is not None and (path != anatomy.kind.attention or _is_mlp(m))]


def _is_mlp(mixer: nn.Module) -> bool:
    """Of a layer that is attention, or a state-space part, or an MLP, in one place: whether it is the last."""
    return "MLP" in type(mixer).__name__ or "MoE" in type(mixer).__name__


def _at(module: nn.Module, path: str) -> nn.Module | None:
    """The module at a path below another; None where there is none."""
    for name in path.split("."):
        inner = getattr(module, name, None)
        if not isinstance(inner, nn.Module):
            return None
        module = inner
    return module


def norms(anatomy: Anatomy, layer: int) -> list[nn.Module]:
    """The norms that stand in a layer, in the order they are declared."""
    there = dict.fromkeys((anatomy.layers[layer], _holder(anatomy, layer)))
    return [part for module in there for part in module.children() if _is_norm(part)]


def _is_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower()


def _holder(anatomy: Anatomy, layer: int) -> nn.Module:
    """The module that holds attention beside an MLP: the layer itself, or what layers share in it."""
    module, block = anatomy.layers[layer], anatomy.kind.block
    return (_at(module, block) if block else None) or module


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
