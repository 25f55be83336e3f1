"""What is recorded of one layer while it runs, and where documents lie in the padded batch."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from tasks.models.rebuild import RebuildSample
from tasks.models.selfcheck import OutputProbe


@dataclass(frozen=True)
class Span:
    """Where one document lies in its row of the padded batch."""

    document: int
    start: int
    length: int

    @property
    def stop(self) -> int:
        return self.start + self.length


@dataclass
class LayerRecord:
    """One layer: filled by the attention function and the hooks, emitted when the layer ends."""

    index: int
    probe: OutputProbe
    value: Tensor  # (B, H_kv, T, d_v)
    attention: Tensor | None  # (H, Σ_d T_d (T_d + 1) / 2), or Σ_d T_d² where not causal, in the stored dtype; if kept
    columns: list[Tensor]  # per document (H, T, k + 1)
    seen: list[Tensor]  # per document (T, k)
    sums: list[Tensor]  # per document (H, T)
    sink_mass: list[Tensor] = field(default_factory=list)  # per document (H, T), where the family has sinks
    sink_slack: list[Tensor] = field(default_factory=list)
    query: Tensor | None = None  # (B, H, T, d_qk), where query and key (B, H_kv, T, d_qk) are kept
    key: Tensor | None = None
    samples: list[RebuildSample] = field(default_factory=list)  # per document
    mixed: Tensor | None = None  # (B, T, H, d_v): Σ α v, before a gate
    gate: Tensor | None = None  # (B, T, H, d_v), where the family gates the heads
    heads: Tensor | None = None  # (B, T, H, d_v): what W_O is given
    output: Tensor | None = None  # (B, T, D): what W_O returned
