"""A copy of a model that shares every weight, and whose layers can be passed over.

What a replay changes, it changes in the copy: the model itself, and what taps it for a capture, stay as they are.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from storage.errors import ModelError
from tasks.models import tap
from tasks.models.anatomy import Anatomy, anatomy_of
from tasks.models.attention_changes import AttentionChanges
from tasks.models.intervention_pass import InterventionPass
from tasks.models.interventions import Part
from tasks.models.loading import LoadedModel
from tasks.models.sublayers import ReadNorms, mlps
from tasks.models.table import FALLBACK

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs")


class PartialModel:
    """The copy. Silent unless an `InterventionPass` of its anatomy is the active tap of the thread that runs it."""

    def __init__(self, loaded: LoadedModel, blank: Callable[[LoadedModel], Mapping[str, Any]]) -> None:
        """blank: what a model is called with for one token of nothing. Raises ModelError for an encoder."""
        if not loaded.anatomy.causal:
            raise ModelError(
                "a model that predicts the next token",
                got=f"{loaded.anatomy.kind.name}, an encoder: a replay has no loss to give",
                where=loaded.name,
            )
        model = _sharing_weights(loaded.model)
        self.loaded = replace(loaded, model=model, anatomy=anatomy_of(model))
        self.anatomy: Anatomy = self.loaded.anatomy
        self._widths: dict[int, int] = {}
        read = ReadNorms(self.anatomy)
        with ExitStack() as stack, torch.inference_mode():
            read.listen(stack)
            for layer, module in enumerate(self.anatomy.layers):
                stack.callback(module.register_forward_hook(self._learns_width(layer)).remove)
            self.anatomy.body(**blank(self.loaded))
        self.norms = dict.fromkeys(read.found())
        for layer, module in enumerate(self.anatomy.layers):
            module.forward = self._passing(layer, module.forward)
        self._attach()

    def _learns_width(self, layer: int) -> Callable[..., None]:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            self._widths[layer] = len(output) if isinstance(output, tuple) else 0

        return hook

    def _passing(self, layer: int, forward: Callable[..., Any]) -> Callable[..., Any]:
        """A layer's forward, which below the layer that a replay begins at gives back what it is given."""
        last = layer == self.anatomy.n_layers - 1

        def passing(*args: Any, **kwargs: Any) -> Any:
            call = self._call()
            if call is None:
                return forward(*args, **kwargs)
            if layer < call.start:
                hidden = call.hidden if last else (args[0] if args else kwargs["hidden_states"])
                return (hidden, *[None] * (self._widths[layer] - 1)) if self._widths[layer] else hidden
            if layer == call.start and args:
                args = (call.hidden, *args[1:])
            elif layer == call.start:
                kwargs["hidden_states"] = call.hidden
            call.layer = layer
            output = forward(*args, **kwargs)
            return _with_first(output, call.residual(layer, _first(output)))

        return passing

    def _attach(self) -> None:
        """Hooks where outputs leave modules, one of each kind on a module, which layers may share."""
        anatomy = self.anatomy
        for projection in dict.fromkeys(anatomy.output_projections.values()):
            projection.register_forward_pre_hook(self._heads_enter)
            projection.register_forward_hook(self._leaves("attention_output"))
        if self.loaded.tap_method == FALLBACK:
            for value in dict.fromkeys(anatomy.value_projections.values()):
                value.register_forward_hook(self._values_leave)
        of_layers: dict[Part, Callable[[int], list[nn.Module]]] = {"mlp_output": self.mlps, "norm_output": self.read}
        for part, of_layer in of_layers.items():
            for module, at in self._in_layers(of_layer).items():
                module.register_forward_hook(self._leaves(part, at))

    def mlps(self, layer: int) -> list[nn.Module]:
        """The modules whose outputs are the MLP's of a layer."""
        return mlps(self.anatomy, layer)

    def read(self, layer: int) -> list[nn.Module]:
        """The norms of a layer whose output a sub-layer reads."""
        inside = set(self.anatomy.layers[layer].modules())
        return [norm for norm in self.norms if norm in inside]

    def _in_layers(self, of_layer: Callable[[int], list[nn.Module]]) -> dict[nn.Module, int]:
        """Module → which of its layer's it is."""
        return {module: at for layer in range(self.anatomy.n_layers) for at, module in enumerate(of_layer(layer))}

    def _leaves(self, part: Part, at: int | None = None) -> Callable[..., Any]:
        def hook(_module: nn.Module, _args: Any, output: Any) -> Any:
            if (call := self._call()) is None:
                return None
            return _with_first(output, call.output(part, _first(output), at))

        return hook

    def _heads_enter(self, _module: nn.Module, args: tuple[Any, ...]) -> Any:
        call = self._call()
        return None if call is None else (call.heads(args[0]), *args[1:])

    def _values_leave(self, _module: nn.Module, _args: Any, output: Tensor) -> Any:
        call = self._call()
        return None if call is None else AttentionChanges(call).projected_values(output)

    def _call(self) -> InterventionPass | None:
        call = tap.current()
        return call if isinstance(call, InterventionPass) and call.anatomy is self.anatomy else None


def _sharing_weights(model: nn.Module) -> nn.Module:
    """A copy of all modules with the very tensors of the model, and no hooks."""
    shared: dict[int, Any] = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    copied = copy.deepcopy(model, shared)
    for module in copied.modules():
        for hooks in _HOOKS:
            setattr(module, hooks, OrderedDict())
    return copied


def _first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def _with_first(output: Any, first: Tensor) -> Any:
    return (first, *output[1:]) if isinstance(output, tuple) else first
