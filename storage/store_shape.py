"""The shape of an activation store: which kinds of tensor it keeps, their axes, and their sizes for a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from storage.errors import ForeignStore, UnknownName
from storage.triangles import entries

AXES: Mapping[str, tuple[str, ...]] = {
    "attention": ("layer", "head", "entry"),
    "value": ("layer", "token", "kv_head", "d_value"),
    "output_input": ("layer", "token", "head", "d_value"),
    "residual": ("layer", "token", "d_model"),
    "sink_mass": ("layer", "token", "head"),
}
"""The kinds of tensor and what the axes of each are called in the store."""

MEANING: Mapping[str, str] = {
    "attention": "attention weights after the softmax",
    "value": "value vectors before key/value heads are repeated",
    "output_input": "input of the output projection, per head",
    "residual": "residual stream before each layer; the last index is after the last layer",
    "sink_mass": "attention that a learned sink takes, so that each row of attention sums to 1 less this",
}

STORED_DTYPES: Mapping[str, str] = {"float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}
"""How a dtype lies in the store; bfloat16, which Zarr lacks, as its 16 bits."""


@dataclass(frozen=True)
class StoreShape:
    """The sizes of a model and the dtype in which each kind of tensor is kept; a kind without a dtype is not kept."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_model: int
    d_value: int
    causal: bool
    dtypes: Mapping[str, str]
    windows: tuple[int | None, ...]
    """Per layer, how many tokens back a query sees; None for all."""

    def __post_init__(self) -> None:
        for kind, dtype in self.dtypes.items():
            if kind not in AXES:
                raise UnknownName.among("kind of tensor", kind, AXES)
            if dtype not in STORED_DTYPES:
                raise UnknownName.among("dtype of the store", dtype, STORED_DTYPES, where=kind)
        if len(self.windows) != self.n_layers:
            raise ValueError(f"expected a window for each of {self.n_layers} layers, got {len(self.windows)}")

    def layers(self, kind: str) -> int:
        """How many layers of a kind are kept: the residual stream also after the last layer."""
        return self.n_layers + (kind == "residual")

    def entries(self, length: int) -> int:
        """Attention weights kept of a head for a document: the lower triangle, or all if attention is not causal."""
        return entries(length) if self.causal else length * length

    def layer_shape(self, kind: str, lengths: Sequence[int]) -> tuple[int, ...]:
        """The shape of one layer of a kind for documents of these lengths, laid end to end."""
        n_tokens = sum(lengths)  # N
        return {
            "attention": (self.n_heads, sum(self.entries(n) for n in lengths)),
            "value": (n_tokens, self.n_kv_heads, self.d_value),
            "output_input": (n_tokens, self.n_heads, self.d_value),
            "residual": (n_tokens, self.d_model),
            "sink_mass": (n_tokens, self.n_heads),
        }[kind]

    def steps(self, kind: str, lengths: Sequence[int]) -> list[int]:
        """How far each document reaches along the ragged axis of a kind: entries of attention, else tokens."""
        return [self.entries(n) for n in lengths] if kind == "attention" else list(lengths)

    def describe(self, kind: str) -> dict[str, Any]:
        """What an array of the store says of itself, for whoever opens it without Theodolite."""
        ragged = {
            True: "lower triangles, row-major (entry i(i+1)/2 + j is query i, key j), one document after the other",
            False: "square matrices, row-major (entry i*T + j is query i, key j), one document after the other",
        }
        return {
            "kind": kind,
            "meaning": MEANING[kind],
            "axes": list(AXES[kind]),
            "ragged_axis": ragged[self.causal] if kind == "attention" else "tokens, one document after the other",
            "dtype": self.dtypes[kind],
            "bits": self.dtypes[kind] == "bfloat16",
        }

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "dtypes": dict(self.dtypes), "windows": list(self.windows)}

    @classmethod
    def from_json(cls, data: Any, where: str) -> StoreShape:
        """The shape that a store says it has; ForeignStore if it says something else."""
        try:
            return cls(**{**data, "windows": tuple(data["windows"])})
        except (TypeError, KeyError, ValueError) as error:
            raise ForeignStore("the shape of an activation store", got=str(error), where=where) from error
