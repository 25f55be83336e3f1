"""The tensors of one forward pass over a padded batch: checked, unpadded, and emitted layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from tasks.models import selfcheck
from tasks.models.anatomy import Anatomy
from tasks.models.layer_record import LayerRecord, Span
from tasks.models.packing import EVERYTHING, Packing
from tasks.models.query_blocks import QueryBlocks
from tasks.models.rebuild import AttentionCall, RebuildSample
from tasks.models.selfcheck import OutputProbe, Place

Emit = Callable[[int, str, Tensor], None]


class BatchRecord:
    """Records one forward pass over a padded batch, and emits each layer's tensors as the layer ends.

    emit(layer, kind, tensor) gets CPU tensors without padding, documents one after the other: attention
    (H, Σ T(T+1)/2) in the stored dtype, row-major lower triangles, or (H, Σ T²) where it is not causal; query
    (N, H, d_qk) and key (N, H_kv, d_qk) in the stored dtype; value (N, H_kv, d_v); output_input (N, H, d_v); residual
    (N, D) before each layer and, as layer L, after the last; sink_mass (N, H) where the family has sinks; gate
    (N, H, d_v) where it gates the heads. Of these, what `kept` says. Every layer with attention is checked; of the
    others there is the residual stream.
    """

    changes = None

    def __init__(
        self,
        anatomy: Anatomy,
        spans: Sequence[Span],
        emit: Emit,
        *,
        model_name: str,
        query_block: int,
        attention_dtype: torch.dtype,
        kept: Packing = EVERYTHING,
    ) -> None:
        self.anatomy, self.spans, self._emit_to = anatomy, tuple(spans), emit
        self.model_name, self.query_block, self.attention_dtype = model_name, query_block, attention_dtype
        self.kept, self.calls = kept, dict[int, AttentionCall]()
        self._layers: dict[int, list[int]] = {}
        for layer, module in anatomy.attentions.items():
            self._layers.setdefault(id(module), []).append(layer)
        self._entries = [kept.entries(span.length, causal=anatomy.causal) for span in self.spans]
        self._ended = 0
        self._open: LayerRecord | None = None
        self._gate: Tensor | None = None
        self._fired = [0] * anatomy.n_layers
        self._blocks = QueryBlocks(query_block)

    # What the attention function calls.

    def layer_of(self, module: nn.Module) -> int | None:
        at = self._layers.get(id(module))
        return None if at is None else self.next_of(at)

    def next_of(self, layers: Sequence[int]) -> int:
        """Of the layers that a module stands in, the one that is running: the first that has not ended."""
        return next((layer for layer in layers if layer >= self._ended), layers[-1])

    def blocks(self, n_queries: int, n_keys: int, mask: Tensor | None) -> list[tuple[int, int, int, int]]:
        """(first query, end, first key, end) of each block."""
        return self._blocks.of(n_queries, n_keys, mask)

    def attention_begins(
        self, layer: int, value: Tensor, call: tuple[Tensor, Tensor, Mapping[str, Any]] | None = None
    ) -> None:
        """A layer's attention begins with its value (B, H_kv, T, d_v).

        call: query (B, H, T, d_qk), key (B, H_kv, T, d_qk) and options, where the attention function shows them.
        """
        if call is not None:
            self.calls[layer] = AttentionCall.of(*call)
        self._fired[layer] += 1
        if self._fired[layer] > 1:
            self._breach_count(layer)
        probe = OutputProbe.of(self.anatomy, layer)
        n_heads, device = self.anatomy.n_heads, value.device
        self._open = LayerRecord(
            index=layer,
            probe=probe,
            value=value,
            attention=self._triangles(layer, device),
            columns=[probe.columns(value[i, :, s.start : s.stop]) for i, s in enumerate(self.spans)],
            seen=[torch.empty(s.length, probe.directions.shape[1], device=device) for s in self.spans],
            sums=[torch.empty(n_heads, s.length, device=device) for s in self.spans],
        )
        if self.anatomy.kind.sinks is not None:
            self._open.sink_mass = [torch.empty(n_heads, s.length, device=device) for s in self.spans]
            self._open.sink_slack = [torch.empty(n_heads, s.length, device=device) for s in self.spans]
        if call is not None and self.kept.has("query", layer):
            self._open.query, self._open.key = call[:2]
            self._open.samples = [RebuildSample(s.document, layer, s.length, n_heads, device) for s in self.spans]

    def _triangles(self, layer: int, device: torch.device) -> Tensor | None:
        """Where the layer's attention is packed, if it is kept."""
        if not self.kept.has("attention", layer):
            return None
        n_heads = self.kept.n_heads(self.anatomy)
        return torch.empty(n_heads, sum(self._entries), dtype=self.attention_dtype, device=device)

    def attention_rows(self, start: int, first: int, weights: Tensor, *, q: Tensor, k: Tensor, scaling: float) -> None:
        """One block: weights (B, H, q, K) of queries from `start` and keys from `first`, and the q and k behind."""
        offset = 0
        for i, span in enumerate(self.spans):
            rows = slice(max(start, span.start), min(start + weights.shape[2], span.stop))
            keys = slice(max(first, span.start), min(first + weights.shape[3], span.stop))
            if rows.start < rows.stop:
                in_block = slice(rows.start - start, rows.stop - start), slice(keys.start - first, keys.stop - first)
                alpha = weights[i][:, in_block[0], in_block[1]]
                self._document_rows(i, alpha, rows.start - span.start, keys.start - span.start, offset)
                if self.anatomy.kind.sinks is not None:
                    q_rows, k_rows = q[i][:, in_block[0]], k[i][:, in_block[1]]
                    self._sink_rows(i, alpha, q_rows, k_rows, first_row=rows.start - span.start, scaling=scaling)
            offset += self._entries[i]

    def _document_rows(self, i: int, alpha: Tensor, first_row: int, first_key: int, offset: int) -> None:
        """α (H, q, K) of one document's queries from `first_row` and keys from `first_key`: checked, seen, packed."""
        layer = self._layer()
        if self.anatomy.causal:
            selfcheck.check_order(alpha, first_row, first_key, self.anatomy.windows[layer.index], self._place(i))
        n_rows, n_keys = alpha.shape[-2:]
        projected = torch.matmul(alpha.float(), layer.columns[i][:, first_key : first_key + n_keys])  # (H, q, k + 1)
        layer.seen[i][first_row : first_row + n_rows] = projected[..., :-1].sum(dim=0)
        layer.sums[i][:, first_row : first_row + n_rows] = projected[..., -1]
        if layer.samples:
            layer.samples[i].take(alpha, first_row, first_key)
        if layer.attention is None:
            return
        if first_key:
            alpha = nn.functional.pad(alpha, (first_key, 0))
        entries = layer.attention[:, offset : offset + self._entries[i]]
        self.kept.pack(alpha, first_row, self.spans[i].length, entries, causal=self.anatomy.causal)

    def _sink_rows(self, i: int, alpha: Tensor, q: Tensor, k: Tensor, *, first_row: int, scaling: float) -> None:
        layer = self._layer()
        sinks = self.anatomy.attentions[layer.index].get_parameter(str(self.anatomy.kind.sinks))
        rows = slice(first_row, first_row + alpha.shape[1])
        mass, slack = selfcheck.learned_sink_mass(alpha, q, k, sinks, scaling=scaling)
        layer.sink_mass[i][:, rows], layer.sink_slack[i][:, rows] = mass, slack

    def heads_mixed(self, mixed: Tensor) -> None:
        """What attention gives, (B, T, H, d_v): Σ α v, which a gate may multiply before W_O."""
        self._layer().mixed = mixed

    # What the hooks call.

    def gate(self, layer: int, gate: Tensor) -> None:
        """The gate of a layer's heads, (B, T, H, d_v), which may come before or after attention."""
        self._gate = gate if layer in self.anatomy.gates else None

    def projection_input(self, layer: int, heads: Tensor) -> None:
        if self._open is not None and self._open.index == layer:
            self._open.heads = heads.unflatten(-1, (self.anatomy.n_heads, self.anatomy.d_value))

    def attention_output(self, layer: int, output: Tensor) -> None:
        """What left the output projection, (B, T, D)."""
        if self._open is not None and self._open.index == layer:
            self._open.output = output

    def layer_ends(self, layer: int) -> None:
        """Check the layer and emit it."""
        record = self._open
        if record is None and layer not in self.anatomy.attentions:
            self._ended = layer + 1
            return
        if record is None or record.index != layer or record.heads is None or record.output is None:
            self._breach_count(layer)
        record.gate, self._gate = self._gate, None
        self._check(record, record.heads, record.output)
        self._ended = layer + 1
        if record.attention is not None:
            self._emit(layer, "attention", record.attention)
        if record.query is not None and record.key is not None:
            self._emit_rebuildable(record, record.query, record.key)
        self._emit(layer, "value", self.valid(record.value.transpose(1, 2)))
        self._emit(layer, "output_input", self.valid(record.heads))
        if record.gate is not None:
            self._emit(layer, "gate", self.valid(record.gate))
        if record.sink_mass:
            # What the weights themselves lack of 1, so that a row and its sink sum to 1; checked against the logit.
            self._emit(layer, "sink_mass", torch.cat([(1 - sums).clamp(min=0).T for sums in record.sums]))
        self._open = None

    def _emit_rebuildable(self, record: LayerRecord, query: Tensor, key: Tensor) -> None:
        """Query and key in the stored dtype, once attention rebuilt from them is what the model computed."""
        stored = {
            kind: self.valid(tensor.transpose(1, 2)).to(self.kept.dtypes[kind])
            for kind, tensor in (("query", query), ("key", key))
        }
        terms, offset = self.kept.terms(self.anatomy, record.index), 0
        for i, span in enumerate(self.spans):
            tokens = slice(offset, offset + span.length)
            record.samples[i].check(stored["query"][tokens], stored["key"][tokens], terms, self._place(i))
            offset += span.length
        for kind, tensor in stored.items():
            self._emit(record.index, kind, tensor)

    def _check(self, record: LayerRecord, heads: Tensor, output: Tensor) -> None:
        for i, span in enumerate(self.spans):
            place, rows = self._place(i), slice(span.start, span.stop)
            selfcheck.check_finite(record.value[i, :, rows].transpose(0, 1), "value", place)
            selfcheck.check_finite(output[i, rows], "attention output", place)
            sink = (record.sink_mass[i], record.sink_slack[i]) if record.sink_mass else None
            selfcheck.check_row_sums(record.sums[i], sink, output.dtype, place)
            seen = record.seen[i]
            if record.probe.mixing is not None:
                seen = self._gated(record, i, heads[i, rows], place)
            selfcheck.check_output(seen, output[i, rows], heads[i, rows], record.probe, place)

    def _gated(self, record: LayerRecord, i: int, heads: Tensor, place: Place) -> Tensor:
        """Check that W_O is given gate ⊙ Σ α v, and see that along the directions, (T, k)."""
        rows = slice(self.spans[i].start, self.spans[i].stop)
        if record.gate is None or record.mixed is None:
            self._breach_count(record.index)
        gate, mixed = record.gate[i, rows], record.mixed[i, rows]
        selfcheck.check_finite(gate, "gate", place)
        selfcheck.check_mixed(record.seen[i], mixed, record.probe, place)
        selfcheck.check_gate(gate, mixed, heads, place)
        return torch.einsum("thd,hdk->tk", heads.float(), record.probe.weights)

    def residual(self, layer: int, hidden: Tensor) -> None:
        """The residual stream (B, T, D) before layer `layer`; of several streams (S, B, T, D), all side by side."""
        if self.anatomy.n_streams > 1:
            hidden = hidden.permute(1, 2, 0, 3).flatten(2)
        for span, row in zip(self.spans, hidden, strict=True):
            at = Place(self.model_name, layer, document=span.document)
            selfcheck.check_finite(row[span.start : span.stop], "residual stream", at)
        if self.kept.has("residual", layer):
            self._emit(layer, "residual", self.valid(hidden))

    def finish(self) -> None:
        """After the forward pass: every layer must have been recorded exactly once."""
        for layer, fired in enumerate(self._fired):
            if fired != (layer in self.anatomy.attentions):
                self._breach_count(layer)

    def valid(self, tensor: Tensor) -> Tensor:
        """(B, T, …) → (N, …): the documents' own tokens one after the other, in memory of their own."""
        return torch.cat([tensor[i, s.start : s.stop] for i, s in enumerate(self.spans)])

    def _emit(self, layer: int, kind: str, tensor: Tensor) -> None:
        if self.kept.has(kind, layer):
            kept = self.kept.part(kind, tensor, [span.length for span in self.spans])
            self._emit_to(layer, kind, kept.detach().cpu())

    def _layer(self) -> LayerRecord:
        assert self._open is not None
        return self._open

    def _place(self, i: int) -> Place:
        return Place(self.model_name, self._layer().index, document=self.spans[i].document)

    def _breach_count(self, layer: int) -> NoReturn:
        fired = self._fired[layer]
        selfcheck.breach(
            "the tap to fire once per attention layer, between the layer's hooks",
            f"{fired} times",
            Place(self.model_name, layer),
            "The model must be loaded by load_model, and its code must be that of its family in transformers.",
        )
