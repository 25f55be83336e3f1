"""The shape of an activation store: which kinds of tensor it keeps, their axes, and their sizes for a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from storage.errors import ForeignStore, UnknownName, UsageError
from storage.kept import BY_ROW, DTYPES, Kept
from storage.numbers import spans
from storage.rebuild import LayerTerms, Rebuild
from storage.triangles import entries, row_starts

if TYPE_CHECKING:
    from torch import Tensor

AXES: Mapping[str, tuple[str, ...]] = {
    "attention": ("layer", "head", "entry"),
    "query": ("layer", "token", "head", "d_qk"),
    "key": ("layer", "token", "kv_head", "d_qk"),
    "value": ("layer", "token", "kv_head", "d_value"),
    "output_input": ("layer", "token", "head", "d_value"),
    "residual": ("layer", "token", "d_model"),
    "sink_mass": ("layer", "token", "head"),
    "gate": ("layer", "token", "head", "d_value"),
}
"""The kinds of tensor and what the axes of each are called in the store."""

MEANING: Mapping[str, str] = {
    "attention": "attention weights after the softmax",
    "query": "query vectors as attention takes them, rotary positions applied",
    "key": "key vectors as attention takes them, rotary positions applied, before key/value heads are repeated",
    "value": "value vectors before key/value heads are repeated",
    "output_input": "input of the output projection, per head",
    "residual": "residual stream before each layer; the last index is after the last layer",
    "sink_mass": "attention that a learned sink takes, so that each row of attention sums to 1 less this",
    "gate": "what each head's sum of attention times value is multiplied with before the output projection",
}


_UNUSED = {
    "kept": None,
    "heads": None,
    "positions": None,
    "rebuild": None,
    "attended": None,
    "gated": False,
    "streams": 1,
}
"""What a store says of itself only where it makes use of it."""


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
    kept: tuple[int, ...] | None = None
    """The layers that are kept, in order; None for all. Of the residual stream also what follows each of them."""
    heads: tuple[int, ...] | None = None
    """The query heads that are kept, in order, and of keys and values those that they look at; None for all."""
    positions: str | None = None
    """The query positions whose rows of attention are kept, in the words of `storage.numbers.Positions`; None for all.
    Of every other kind all positions are kept."""
    rebuild: Rebuild | None = None
    """How attention comes from query and key, where these are kept instead of it."""
    attended: tuple[int, ...] | None = None
    """The layers of the model that have attention, in order; None for all. Others have a residual stream alone."""
    streams: int = 1
    """Residual streams of the model, which lie side by side, each d_model wide."""
    gated: bool = False
    """Whether the model multiplies each head's Σ α v by a gate before W_O: the store then says output_input ≠ Σ α v."""

    def __post_init__(self) -> None:
        for kind, dtype in self.dtypes.items():
            if kind not in AXES:
                raise UnknownName.among("kind of tensor", kind, AXES)
            if dtype not in DTYPES:
                raise UnknownName.among("dtype of the store", dtype, DTYPES, where=kind)
        if len(self.windows) != self.n_layers:
            raise ValueError(f"expected a window for each of {self.n_layers} layers, got {len(self.windows)}")
        if not {*self._layers, *self.attention_layers} <= set(range(self.n_layers)):
            raise ValueError(f"expected layers from 0 to {self.n_layers - 1}, got {self.kept or self.attended}")
        if ({"query", "key"} <= set(self.dtypes)) != (self.rebuild is not None):
            raise ValueError("expected query and key together with how attention is rebuilt from them")
        if self.heads is not None and not (self.heads and set(self.heads) <= set(range(self.n_heads))):
            raise ValueError(f"expected heads from 0 to {self.n_heads - 1}, got {self.heads}")
        _ = self.stored  # which refuses positions that cannot be

    @property
    def stored(self) -> Kept:
        """What is kept of the model: layers, heads, query positions, kinds and dtypes."""
        return Kept(self.kept, self.heads, self.positions, self.dtypes)

    def serving(self, kind: str) -> list[int]:
        """For each kept query head, where the head of a kind that serves it lies among those kept."""
        return self.stored.serving(self.n_heads_of(kind), self.n_heads)

    def heads_of(self, kind: str) -> tuple[int, ...]:
        """The heads of a kind that are kept, by the model's own numbers."""
        return self.stored.heads_of(self.n_heads_of(kind), self.n_heads)

    def n_heads_of(self, kind: str) -> int:
        """Heads that the model has of a kind: of queries, or of the values or keys that serve them."""
        if "kv_head" not in AXES[kind]:
            return self.n_heads
        return self.rebuild.n_key_heads if kind == "key" and self.rebuild is not None else self.n_kv_heads

    def n_kept_heads(self, kind: str) -> int:
        """Heads of a kind that are kept."""
        return len(self.heads_of(kind))

    @property
    def kept_layers(self) -> tuple[int, ...]:
        """The layers whose attention the store keeps, in order: those that a stage runs over."""
        return tuple(layer for layer in self._layers if self.attended is None or layer in self.attended)

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """The layers of the model that have attention, kept or not, in order: those that have heads."""
        return tuple(range(self.n_layers)) if self.attended is None else self.attended

    @property
    def _layers(self) -> tuple[int, ...]:
        return tuple(range(self.n_layers)) if self.kept is None else self.kept

    @property
    def offered(self) -> frozenset[str]:
        """The kinds of tensor that can be read: those that are kept, and those that are rebuilt."""
        return frozenset(self.dtypes) | self.rebuilt

    @property
    def rebuilt(self) -> frozenset[str]:
        """The kinds that are rebuilt from query and key: attention, and the learned sinks' mass where there are any."""
        if self.rebuild is None:
            return frozenset()
        return frozenset({"attention", "sink_mass"} if self.rebuild.sinks else {"attention"}) - set(self.dtypes)

    def behind(self, kind: str) -> tuple[str, ...]:
        """The kept kinds that a kind is read from; UnknownName if the store does not offer it."""
        if kind not in self.offered:
            raise UnknownName.among("stored kind of tensor", kind, sorted(self.offered))
        return ("query", "key") if kind in self.rebuilt else (kind,)

    def layers(self, kind: str) -> int:
        """How many layers of a kind are kept."""
        return len(self.layer_numbers(kind))

    def layer_numbers(self, kind: str) -> tuple[int, ...]:
        """The layers of a kind that are kept, in order: of the residual stream also what follows each of them."""
        if kind != "residual":
            return self.kept_layers
        return tuple(sorted({*self._layers, *(layer + 1 for layer in self._layers)}))

    def index(self, kind: str, layer: int) -> int:
        """Where a layer of a kind lies along the first axis; UsageError naming the layers that are kept."""
        numbers = self.layer_numbers(kind)
        if layer not in numbers:
            every = f"a layer from 0 to {self.n_layers - (kind != 'residual')}"
            kept = f"a layer whose {kind} the store keeps ({spans(numbers)})"
            some = self.kept is not None or self.attended is not None
            raise UsageError(kept if some else every, got=str(layer))
        return numbers.index(layer)

    def terms(self, layer: int, sinks: Tensor | None) -> LayerTerms:
        """How attention of a layer comes from query and key; sinks (H,): the layer's learned sink logits."""
        if self.rebuild is None:
            raise ValueError("the store keeps no query and key")
        return LayerTerms.of(self.rebuild, layer, window=self.windows[layer], causal=self.causal, sinks=sinks)

    def entries(self, length: int) -> int:
        """Attention weights kept of a head for a document: the lower triangle, or all if attention is not causal; of
        chosen query positions their rows of it."""
        if self.positions is not None:
            rows = self.stored.rows(length)
            return row_starts(rows)[-1] if self.causal else len(rows) * length
        return entries(length) if self.causal else length * length

    def layer_shape(self, kind: str, lengths: Sequence[int]) -> tuple[int, ...]:
        """The shape of one layer of a kind for documents of these lengths, laid end to end."""
        n = sum(self.steps(kind, lengths))
        if kind == "residual":
            return (n, self.streams * self.d_model)
        heads = self.n_kept_heads(kind)
        return {
            "attention": (heads, n),
            **(self._query_and_key(n, heads) if self.rebuild else {}),
            "value": (n, heads, self.d_value),
            "output_input": (n, heads, self.d_value),
            "gate": (n, heads, self.d_value),
            "sink_mass": (n, heads),
        }[kind]

    def _query_and_key(self, n: int, heads: int) -> dict[str, tuple[int, ...]]:
        assert self.rebuild is not None
        return dict.fromkeys(("query", "key"), (n, heads, self.rebuild.d_qk))

    def steps(self, kind: str, lengths: Sequence[int]) -> list[int]:
        """How far each document reaches along the ragged axis of a kind: entries of attention, queries, else tokens."""
        if kind == "attention":
            return [self.entries(n) for n in lengths]
        if kind in BY_ROW and self.positions is not None:
            return [len(self.stored.rows(n)) for n in lengths]
        return list(lengths)

    def describe(self, kind: str) -> dict[str, Any]:
        """What an array of the store says of itself, for whoever opens it without Theodolite."""
        return {
            "kind": kind,
            "meaning": MEANING[kind],
            "axes": list(AXES[kind]),
            "ragged_axis": self._ragged(kind),
            "dtype": self.dtypes[kind],
            "bits": self.dtypes[kind] == "bfloat16",
            **({} if self._every(kind) else {"layers": list(self.layer_numbers(kind))}),
            **self.stored.describe(kind, AXES[kind], self.n_heads_of(kind), self.n_heads),
        }

    def _every(self, kind: str) -> bool:
        """Whether a kind lies there for every layer, so that a layer's number is its place."""
        return self.kept is None and (self.attended is None or kind == "residual")

    def _ragged(self, kind: str) -> str:
        """What lies along the ragged axis, in words."""
        if kind in BY_ROW and self.positions is not None:
            row = {True: "i + 1 entries (keys 0 to i)", False: "T entries (keys 0 to T - 1)"}[self.causal]
            of_query = f"of each query i of query_positions {row}" if kind == "attention" else "query_positions"
            return f"{of_query}, one document after the other"
        ragged = {
            True: "lower triangles, row-major (entry i(i+1)/2 + j is query i, key j), one document after the other",
            False: "square matrices, row-major (entry i*T + j is query i, key j), one document after the other",
        }
        return ragged[self.causal] if kind == "attention" else "tokens, one document after the other"

    def as_json(self) -> dict[str, Any]:
        """The shape as JSON; what a store does not make use of is left out."""
        used = {n: v for n, v in asdict(self).items() if n not in _UNUSED or v != _UNUSED[n]}
        return {**used, "dtypes": dict(self.dtypes), "windows": list(self.windows)}

    @classmethod
    def from_json(cls, data: Any, where: str) -> StoreShape:
        """The shape that a store says it has; ForeignStore if it says something else."""
        try:
            shape = {**data, "windows": tuple(data["windows"])}
            for name in ("kept", "attended", "heads"):
                if data.get(name) is not None:
                    shape[name] = tuple(data[name])
            if (terms := data.get("rebuild")) is not None:
                lists = {"scaling": tuple(terms["scaling"]), "softcap": tuple(terms["softcap"])}
                shape["rebuild"] = Rebuild(**{**terms, **lists})
            return cls(**shape)
        except (TypeError, KeyError, ValueError) as error:
            raise ForeignStore("the shape of an activation store", got=str(error), where=where) from error
