"""What the stage `contributions` measures of one document and layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tasks.kernels.cone import SemanticCone, semantic_cone
from tasks.kernels.contribution import Contributions, contributions
from tasks.kernels.drift import SemanticDrift, semantic_drift
from tasks.kernels.factors import factor_moments
from tasks.kernels.moments import Moments
from tasks.kernels.outputs import HeadOutputs, head_outputs
from tasks.kernels.sink import SinkGeometry, sink_geometry, tail_mass
from tasks.kernels.visibility import Visibility
from tasks.kernels.weights import LayerWeights

if TYPE_CHECKING:
    from storage.tensors import DocumentLayer


@dataclass(frozen=True)
class Measures:
    """Everything that the kernels say of one document and layer."""

    doc: int
    outputs: HeadOutputs
    attention_sum: torch.Tensor
    """Σ_j α (H, T)."""
    weights: Contributions
    sink: SinkGeometry
    drift: SemanticDrift
    cone: SemanticCone
    factors: Moments
    factor_entries_left_out: int


def measure(document: DocumentLayer, weights: LayerWeights, visibility: Visibility, edges: int) -> Measures:
    """Run the kernels over one document and layer. Rows see what was stored: attention that sums to less stays so."""
    attention, value = document.attention, document.value
    assert attention is not None and value is not None  # the stage asks for both
    outputs = head_outputs(attention, value, weights, gate=document.gate, visibility=visibility)
    tail = tail_mass(attention, visibility=visibility)
    rest = tail if document.sink_mass is None else tail + document.sink_mass.T
    factors, left_out = factor_moments(attention, outputs, visibility=visibility)
    return Measures(
        doc=document.doc,
        outputs=outputs,
        attention_sum=outputs.sink_rate + tail,
        weights=contributions(attention, outputs, edges=edges, visibility=visibility),
        sink=sink_geometry(outputs, weights, rest, visibility=visibility),
        drift=semantic_drift(attention, outputs, weights, visibility=visibility),
        cone=semantic_cone(outputs, weights),
        factors=factors,
        factor_entries_left_out=left_out,
    )


def nan_counts(measures: Measures) -> Mapping[str, int]:
    """How many values are undefined, for the quality record."""
    rows, tokens, edges = measures.weights.rows, measures.weights.tokens, measures.weights.edges
    return {
        "nan_cw_intra_rows": _nans(rows.cw_intra),
        "nan_cw_inter_rows": _nans(rows.cw_inter),
        "nan_token_scores": _nans(tokens.cw_intra + tokens.cw_inter),
        "nan_edge_cosines": _nans(edges.cosine) - int((edges.key < 0).sum()),
        "nan_sink_tails": _nans(measures.sink.tail_norm),
        "nan_a_star_rows": _nans(measures.sink.a_star),
        "nan_drift_cosines": _nans(measures.drift.cosine_sink),
        "factor_entries_left_out": measures.factor_entries_left_out,
    }


def _nans(values: torch.Tensor) -> int:
    return int(values.isnan().sum())
