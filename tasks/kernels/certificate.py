"""What lengths and a bound on cosines say of a selection without any distance: the sink-aware certificate."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from tasks.kernels.candidates import Ranked
from tasks.kernels.separation import count

_FAR = 1e300


@dataclass(frozen=True)
class Certificate:
    """What it needs of each row of a block: κ, [χ_lo, χ_hi], and where the sink stands among the candidates."""

    pairs: Float64[Tensor, "G M"]
    sink_low: Float64[Tensor, "G M"]
    sink_high: Float64[Tensor, "G M"]
    sink_place: Int64[Tensor, "G M"]
    """Place of key 0 in the order, −1 where it is no candidate."""
    sink_length: Float64[Tensor, "G M"]
    """‖y_0‖, 0 where it is no candidate."""

    @classmethod
    def of(
        cls,
        ranked: Ranked,
        length: Float64[Tensor, "G M W"],
        bounds: tuple[Float64[Tensor, "G M"], Float64[Tensor, "G M"], Float64[Tensor, "G M"]],
        sink: Bool[Tensor, " M"],
    ) -> Certificate:
        """`bounds` are κ, χ_lo, χ_hi of each row; `sink` is true where the block's first key is a candidate and key 0.

        `length` is ‖y_j‖, 0 where a row has no candidate.
        """
        found = ranked.key == 0
        ranked_empty = torch.arange(ranked.key.shape[2]) >= ranked.n[:, None]
        place = (found & ~ranked_empty).int().argmax(-1)
        place = torch.where(sink, place, -1)
        own = length.gather(2, place.clamp_min(0)[..., None])[..., 0]
        return cls(*bounds, place, torch.where(sink, own, 0))

    def counts(
        self,
        ranked: Ranked,
        length: Float64[Tensor, "G M W"],
        total: Float64[Tensor, "G M"],
        n: int,
        slack: Float64[Tensor, "G M"],
        out: Float64[Tensor, "G M W"],
    ) -> tuple[Int64[Tensor, "G M"], Int64[Tensor, "G M"]]:
        """At most so many of the others lie inside the sphere, and at least so many of S inside the others' distance.

        length: ‖y_j‖; total: Σ ‖y_k‖ over the first N. Bounds of D² − ‖s‖² by methods.md §2: of an i ∈ S
        −‖y_i‖² + 2κ‖y_i‖(Y − ‖y_i‖) − 2·1_0 ‖y_i‖‖y_0‖ χ_lo from above, of a j ∉ S ‖y_j‖² − 2κ‖y_j‖Y − 2·1_0 ‖y_j‖‖y_0‖
        χ_hi from below; the sink's own by χ. Distances that count as equal may differ by `slack` in the square.
        """
        in_selection = (self.sink_place >= 0) & (self.sink_place < n)
        sink = torch.where(in_selection, self.sink_length, 0)
        Y = total - sink
        selected, others = length[..., :n], length[..., n:]
        slope = (2 * (self.pairs * Y - sink * self.sink_low))[..., None]
        upper = slope.sub(selected * (1 + 2 * self.pairs)[..., None]).mul_(selected)
        lower = torch.sub(others, (2 * (self.pairs * Y + sink * self.sink_high))[..., None], out=out[..., n:])
        lower.mul_(others)
        self._put_sink(upper, in_selection, self.sink_place, -sink.square() - 2 * sink * Y * self.sink_low)
        outside = self.sink_place >= n
        own = self.sink_length.square() - 2 * self.sink_length * Y * self.sink_high
        self._put_sink(lower, outside, self.sink_place - n, own)
        ranked.hide(out, _FAR)
        inside = count(lower <= (upper.amax(-1) + slack)[..., None])
        return inside, count(upper < (lower.amin(-1) - slack)[..., None])

    @staticmethod
    def _put_sink(columns: Tensor, rows: Bool[Tensor, "G M"], place: Tensor, value: Float64[Tensor, "G M"]) -> None:
        """Replace the sink's entry in the rows given."""
        at = torch.where(rows, place, 0)[..., None]
        columns.scatter_(2, at, torch.where(rows[..., None], value[..., None], columns.gather(2, at)))
