"""What a model of a known family is made of: modules, widths, and where each head's matrices lie in its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from storage.errors import ModelError
from tasks.models.attention_layers import attended_layers
from tasks.models.families import family_of, n_streams
from tasks.models.table import Family

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Anatomy:
    """What a loaded model is made of, as the tap sees it."""

    kind: Family
    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_model: int
    d_value: int
    """Width of one head's value, which is what W_O is sliced by."""
    n_streams: int
    """Residual streams side by side, each D wide: more than one in Gemma 3n."""
    causal: bool
    windows: tuple[int | None, ...]
    """Per layer: a query sees itself and the window − 1 keys before it; None = all of them."""
    body: nn.Module
    """The model without its head: ends with the final norm, where the family has one."""
    layers: tuple[nn.Module, ...]
    """In the order they run; a family that shares its layers (ALBERT) has one module here several times."""
    attentions: Mapping[int, nn.Module]
    """By layer, of those that have attention; so are the projections."""
    output_projections: Mapping[int, nn.Module]
    value_projections: Mapping[int, nn.Module]
    gates: Mapping[int, nn.Module] = field(default_factory=dict)
    """By layer, what each head's output is multiplied with comes out of here, before the sigmoid; empty for none."""

    @property
    def attended(self) -> tuple[int, ...]:
        """The layers that have attention, in order."""
        return tuple(self.attentions)

    @property
    def family(self) -> str:
        return self.kind.model_type

    @property
    def norm(self) -> str:
        """layernorm | rmsnorm: the norm before attention."""
        return self.kind.norm


def anatomy_of(model: nn.Module) -> Anatomy:
    """Find the parts of a loaded model. Raises ModelError naming the family if it cannot be captured."""
    config: Any = model.config
    where = config.name_or_path or type(model).__name__
    family = _as_built(family_of(config.to_dict(), where=where), model)
    body, layers = _body(model, family, where), _layers(model, family)
    attended = _attended(layers, family, config.to_dict(), where)
    attentions, projections = (
        {i: attrgetter(path)(layers[i]) for i in attended} for path in (family.attention, family.projection)
    )
    values = _value_projections(layers, attended, family, config)
    n_heads = int(config.num_attention_heads)
    d_value = _width(projections[attended[0]], 0) // n_heads
    return Anatomy(
        kind=family,
        n_layers=len(layers),
        n_heads=n_heads,
        n_kv_heads=_n_kv_heads(family, _width(values[attended[0]], 1), n_heads, d_value),
        d_model=int(config.hidden_size),
        d_value=d_value,
        n_streams=n_streams(family, config.to_dict()),
        causal=family.causal,
        windows=tuple(
            w if family.causal and i in attentions else None for i, w in enumerate(_windows(config, len(layers)))
        ),
        body=body,
        layers=layers,
        attentions=attentions,
        output_projections=projections,
        value_projections=values,
        gates={i: attrgetter(family.gate)(layers[i]) for i in attended if family.gate},
    )


def _value_projections(
    layers: Sequence[nn.Module], attended: Sequence[int], family: Family, config: Any
) -> dict[int, nn.Module]:
    """By layer what makes its values: its own, or that of the last layer of its kind before it that has one."""
    found: dict[int, nn.Module] = {}
    last: dict[str, nn.Module] = {}
    for i in attended:
        kind = config.layer_types[i] if family.shares_values else ""
        if not family.shares_values or _has(layers[i], family.value):
            last[kind] = attrgetter(family.value)(layers[i])
        found[i] = last[kind]
    return found


def _attended(layers: Sequence[nn.Module], family: Family, config: Mapping[str, Any], where: str) -> tuple[int, ...]:
    """The layers with attention: as the configuration says, and as the modules show."""
    declared = attended_layers(config, where)
    if declared is None:
        return tuple(range(len(layers)))
    there = tuple(i for i, layer in enumerate(layers) if _has(layer, family.projection) and _has(layer, family.value))
    if there != declared:
        raise ModelError(f"attention in the layers {declared} of the configuration", got=str(there), where=where)
    return declared


def _has(module: Any, path: str) -> bool:
    for name in path.split("."):
        module = getattr(module, name, None)
    return module is not None


def _as_built(family: Family, model: nn.Module) -> Family:
    """The row with the paths that this model's code has, which may be those of an older transformers."""
    if not family.older:
        return family
    try:
        attrgetter(family.projection)(attrgetter(family.layers)(model)[0])
    except AttributeError:
        older = dict(family.older)
        return replace(
            family,
            layers=older["layers"],
            attention=older["attention"],
            projection=older["projection"],
            value=older["value"],
        )
    return family


def _body(model: nn.Module, family: Family, where: str) -> nn.Module:
    """The causal LM without its head, or the encoder itself."""
    base = getattr(model, family.layers.split(".")[0], None)
    lm: Any = model
    headless = lm.get_output_embeddings() is None
    if base is None or headless is family.causal:
        wanted = "a causal LM" if family.causal else "an encoder without a head"
        raise ModelError(f"{wanted} of the family {family.name}", got=type(model).__name__, where=where)
    body: nn.Module = attrgetter(family.body)(model) if family.body else model
    return body


def _layers(model: nn.Module, family: Family) -> tuple[nn.Module, ...]:
    """The layers in the order they run."""
    listed = tuple(attrgetter(family.layers)(model))
    if not family.group:
        return listed
    config: Any = model.config  # each group of layers runs several times in a row
    runs = [int(i / (config.num_hidden_layers / len(listed))) for i in range(config.num_hidden_layers)]
    return tuple(layer for group in runs for layer in getattr(listed[group], family.group))


def output_weights(anatomy: Anatomy, layer: int) -> tuple[Tensor, Tensor | None]:
    """W_O per head as (H, d_v, D) float32, so that Σ_h z_h W_O[h] + b is the projection's output; and b (D,) or None.

    Sliced by the width of a head's value, which need not be that of its query and key.
    """
    projection = anatomy.output_projections[layer]
    bias: Any = getattr(projection, "bias", None)
    per_head = _matrix(projection).reshape(anatomy.n_heads, anatomy.d_value, anatomy.d_model)
    return per_head, None if bias is None else bias.detach().float()


def values_in(anatomy: Anatomy, projected: Tensor) -> Tensor:
    """The values in what the value projection puts out, by the family's layout: (…, out) → (…, H_kv, d_v)."""
    n_kv, d_value, kind = anatomy.n_kv_heads, anatomy.d_value, anatomy.kind
    match kind.layout:
        case "own":
            return projected.unflatten(-1, (n_kv, d_value))
        case "last":  # all queries, all keys, all values
            return projected[..., -n_kv * d_value :].unflatten(-1, (n_kv, d_value))
        case "last_of_group":  # per key/value head: its queries, its key, its value
            return projected.unflatten(-1, (n_kv, -1, d_value))[..., -1, :]
        case "tail_of_head":  # per head: the part of the key without positions, then the value
            return projected.unflatten(-1, (n_kv, -1))[..., -d_value:]
        case "middle_of_quarter":  # four parts, each with its heads' queries, values and keys
            parts = projected.unflatten(-1, (4, 3, -1))[..., 1, :]
            return parts.flatten(-2).unflatten(-1, (n_kv, d_value))
        case other:
            raise AssertionError(f"unknown place of the value: {other}")


def gate_in(anatomy: Anatomy, projected: Tensor) -> Tensor:
    """The gate as it multiplies the heads' outputs, from what its projection puts out: (…, out) → (…, H, d_v)."""
    per_head = projected.unflatten(-1, (anatomy.n_heads, -1))
    if anatomy.kind.gate_layout == "tail_of_head":
        per_head = per_head[..., -anatomy.d_value :]
    return per_head.sigmoid()


def value_weight_norms(anatomy: Anatomy, layer: int) -> Tensor:
    """‖W_V^h‖_F per key/value head, (H_kv,) float32: the largest a value's gain can be, over all directions.

    Where values are made from a compressed latent (DeepSeek), W_V is the matrix that expands it.
    """
    per_head = values_in(anatomy, _matrix(anatomy.value_projections[layer]))  # (in, H_kv, d_v)
    return per_head.norm(dim=(0, 2))


def _matrix(projection: nn.Module) -> Tensor:
    """A projection's weight as (in, out), float32."""
    weight = projection.get_parameter("weight").detach().float()
    return weight if _is_conv1d(projection) else weight.T


def _width(projection: nn.Module, side: int) -> int:
    """What a projection takes (side 0) or puts out (side 1)."""
    shape = projection.get_parameter("weight").shape
    return shape[side] if _is_conv1d(projection) else shape[1 - side]


def _n_kv_heads(family: Family, width: int, n_heads: int, d_value: int) -> int:
    """Key/value heads, from the width of what makes the values: configurations name them in many ways."""
    if family.layout == "own":
        return width // d_value
    return n_heads if family.layout == "tail_of_head" else (width // d_value - n_heads) // 2


def _is_conv1d(projection: nn.Module) -> bool:
    """GPT-2's Conv1D keeps its weight as (in, out), a Linear as (out, in)."""
    return type(projection).__name__ == "Conv1D"


def _windows(config: Any, n_layers: int) -> tuple[int | None, ...]:
    local = getattr(config, "attention_layers", None)  # GPT-Neo
    if local is not None:
        return tuple(config.window_size if kind == "local" else None for kind in local)
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:  # without a list of kinds the window, if any, holds in every layer (Mistral)
        return (window,) * n_layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
