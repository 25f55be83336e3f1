"""What may be changed while a model runs again: small frozen values, of which a condition is made of any number.

A value is equal to another, and hashes alike, where it does the same, so that it can be part of a stage's key. What
each means: `tasks/models/intervention_pass.py` applies it. Its order matters in the residual stream only;
weights are restored before entries are masked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from storage.errors import ModelError, UnknownName, UsageError
from storage.numbers import spans
from tasks.models.table import FALLBACK

if TYPE_CHECKING:
    from tasks.models.anatomy import Anatomy
    from tasks.models.intervention_tensors import DocumentMask, DocumentTensors

Part = Literal["attention_output", "attention_weights", "norm_output", "mlp_output", "residual"]
ARMS, PROTOCOLS = ("magnitude", "angle"), ("exact", "published")
"""Of `Displace`, as tasks/kernels/perturbation.py has them."""
PARTS: tuple[Part, ...] = ("attention_output", "attention_weights", "norm_output", "mlp_output", "residual")


@dataclass(frozen=True)
class MaskEntries:
    """Zero the projected values of entries (i, j): the output becomes Σ (1 − mask) α v; α is as it was."""

    layer: int
    mask: DocumentMask
    """(H', T, T) bool a document, true where an entry goes, for the chosen heads in their order."""
    heads: tuple[int, ...] | None = None
    """Query heads; None for all."""


@dataclass(frozen=True)
class DropKeys:
    """Zero the values of keys, for every query of the chosen heads; α is as it was."""

    layer: int
    keys: DocumentMask | tuple[int, ...]
    """Positions, the same in every document; or (T,) bool a document, true where a key goes."""
    heads: tuple[int, ...] | None = None
    """Query heads; None for all."""
    by_head: bool = False
    """What is given is (H', T) bool a document: the keys of each chosen head, in their order."""


@dataclass(frozen=True)
class ScaleHeads:
    """Multiply what chosen heads give to the output projection; a factor of 0 zeroes them."""

    layer: int
    heads: tuple[int, ...]
    factor: float = 0.0


@dataclass(frozen=True)
class Perturb:
    """Add a tensor (T, D) to the residual stream that leaves a layer."""

    layer: int
    delta: DocumentTensors


@dataclass(frozen=True)
class Displace:
    """Move each token of the residual stream that leaves a layer by δ, in length or in direction (methods.md §3).

    Unlike `Perturb` it follows from the stream as it is in the perturbed run, so that several layers may be moved
    together. `tasks/kernels/perturbation.py` has the rules, `tasks/models/displacement.py` the noise.
    """

    layer: int
    delta: float
    """In the unit of ‖h‖, above 0."""
    arm: str
    """magnitude or angle."""
    protocol: str = "exact"
    """exact or published."""
    first_token: bool = True
    """Whether position 0 is moved too."""
    seed: int = 0
    """Of all noise, with the document, the layer and the arm."""
    sharing: int = 1
    """Neighbouring documents that share their noise: 2 for pairs numbered 2k, 2k + 1."""
    own_vectors: bool = False
    """Whether the vectors of `published` are drawn for each document, or those that share them, instead of for all."""


@dataclass(frozen=True)
class Restore:
    """Put given values, as a rule a clean run's, in place of a part of a layer.

    attention_output: what the output projection gives, (T, D); attention_weights (H, T, T), with the values as they
    are; norm_output (n, T, D): every norm whose output a sub-layer reads, narrower ones filled up with zeros;
    mlp_output (n, T, D): what the MLP gives, one in most families; residual (T, D): what leaves the layer.
    `Replayer.parts` gives them.
    """

    layer: int
    part: Part
    clean: DocumentTensors


Intervention = MaskEntries | DropKeys | ScaleHeads | Perturb | Displace | Restore
Condition = tuple[Intervention, ...]
CLEAN: Condition = ()


@dataclass(frozen=True)
class Row:
    """One row of a batch: a document under a condition."""

    document: int
    length: int
    condition: Condition


def in_residual(intervention: Intervention) -> bool:
    """Whether it changes what leaves a layer, and nothing inside it."""
    if isinstance(intervention, Restore):
        return intervention.part == "residual"
    return isinstance(intervention, Perturb | Displace)


def restores_weights(intervention: Intervention) -> bool:
    """Whether it puts weights in place of those that the layer computes."""
    return isinstance(intervention, Restore) and intervention.part == "attention_weights"


def deepest_start(condition: Condition, n_layers: int) -> int:
    """The last layer from which a replay computes the condition: what lies below it is as in the clean run."""
    return min((i.layer + in_residual(i) for i in condition), default=n_layers)


def in_whole_groups(heads: tuple[int, ...] | None, anatomy: Anatomy) -> bool:
    """Whether the heads are all that look at some key/value heads, whose values they may then share."""
    if heads is None:
        return True
    size, chosen = anatomy.n_heads // anatomy.n_kv_heads, set(heads)
    return all(set(range(h // size * size, (h // size + 1) * size)) <= chosen for h in chosen)


def check(condition: Condition, anatomy: Anatomy, start: int, *, tap_method: str, where: str) -> None:
    """Refuse what a replay from layer `start` of this model cannot do.

    Raises UsageError for a layer, head, position or part that is not there, and for a layer that the replay does not
    compute; ModelError, naming the family, where its code computes attention inside its own module.
    """
    for intervention in condition:
        layer, name = intervention.layer, type(intervention).__name__
        at = f"{name}, {where}"
        _check_layer(intervention, anatomy, start, at)
        if isinstance(intervention, Displace):
            _check_displacement(intervention, at)
        if isinstance(intervention, Restore) and intervention.part not in PARTS:
            raise UsageError(f"a part: {', '.join(PARTS)}", got=f"'{intervention.part}'", where=at)
        if not _of_attention(intervention):
            continue
        if layer not in anatomy.attentions:
            raise UsageError(f"a layer that has attention ({spans(anatomy.attended)})", got=str(layer), where=at)
        if isinstance(intervention, MaskEntries | DropKeys | ScaleHeads):
            _check_heads(intervention.heads, anatomy.n_heads, at)
        if tap_method == FALLBACK and needs_weights(intervention, anatomy):
            raise ModelError(
                "a model whose attention weights can be reached before they meet the values",
                got=f"{anatomy.kind.name}, which computes attention inside its own module",
                where=at,
                remedy="Keys can be dropped for all heads that share them, and heads scaled.",
            )


def _of_attention(intervention: Intervention) -> bool:
    if isinstance(intervention, Restore):
        return intervention.part in ("attention_output", "attention_weights")
    return not isinstance(intervention, Perturb | Displace)


def needs_weights(intervention: Intervention, anatomy: Anatomy) -> bool:
    """Whether it must reach α itself: values that are dropped for all heads that share them need not."""
    if isinstance(intervention, DropKeys):
        return not shared_keys(intervention, anatomy)
    return isinstance(intervention, MaskEntries) or restores_weights(intervention)


def shared_keys(intervention: DropKeys, anatomy: Anatomy) -> bool:
    """Whether every head that shares a key's value loses it: the value itself can be zeroed."""
    return not intervention.by_head and in_whole_groups(intervention.heads, anatomy)


def _check_layer(intervention: Intervention, anatomy: Anatomy, start: int, where: str) -> None:
    layer, first = intervention.layer, start - in_residual(intervention)
    if not 0 <= layer < anatomy.n_layers:
        raise UsageError(f"a layer from 0 to {anatomy.n_layers - 1}", got=str(layer), where=where)
    if layer < first:
        remedy = f"Replay from layer {layer + in_residual(intervention)}, or an earlier one."
        raise UsageError(
            f"a layer that a replay from layer {start} computes", got=str(layer), where=where, remedy=remedy
        )


def _check_displacement(displace: Displace, where: str) -> None:
    for what, value, known in (("arm", displace.arm, ARMS), ("protocol", displace.protocol, PROTOCOLS)):
        if value not in known:
            raise UnknownName.among(what, value, known, where=where)
    if not 0 < displace.delta < math.inf:
        raise UsageError("a δ above 0", got=str(displace.delta), where=where)
    if displace.sharing < 1:
        raise UsageError("noise shared by 1 document or more", got=str(displace.sharing), where=where)


def _check_heads(heads: tuple[int, ...] | None, n_heads: int, where: str) -> None:
    if heads is None:
        return
    outside = sorted(head for head in heads if not 0 <= head < n_heads)
    if outside:
        raise UsageError(f"heads from 0 to {n_heads - 1}", got=spans(outside), where=where)
    if not heads or len(set(heads)) < len(heads):
        raise UsageError("different heads, at least one", got=str(list(heads)), where=where)
