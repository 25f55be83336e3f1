"""What the stage `contributions` adds up over documents: the partial of a shard, and how two become one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tasks.kernels.cone import ROW_GROUPS, SINKS
from tasks.kernels.factors import TOKEN_GROUPS
from tasks.kernels.moments import Moments
from tasks.kernels.sink_curve import bin_moments
from tasks.kernels.sink_fit import STATISTICS, fit_statistics

if TYPE_CHECKING:
    from tasks.stages.contract import Partial
    from tasks.stages.contributions.measures import Measures

_MOMENTS = ("curve", "factors")
_SUMS = ("cone_n", "cone_documents", "cone_sum")


class Totals:
    """The running totals of one shard; `partial` gives them as named arrays.

    curve, factors: moments per (layer, head, bin) and (layer, head, token group). fit: per (document, layer, head) what
    the quadratic fit needs of a document, kept apart for the bootstrap. cone: per (layer, head, row group, sink) sums
    over documents.
    """

    def __init__(self, n_documents: int, n_layers: int, n_heads: int, bins: int) -> None:
        self._bins, heads = bins, (n_layers, n_heads)
        self.curve = Moments.zeros((*heads, bins), 2, 1)
        self.factors = Moments.zeros((*heads, len(TOKEN_GROUPS)), 7, 3)
        self.fit = np.zeros((n_documents, *heads, STATISTICS))
        cone = (*heads, len(ROW_GROUPS), len(SINKS))
        self.cone_n, self.cone_documents = np.zeros(cone, np.int64), np.zeros(cone, np.int64)
        self.cone_sum = np.zeros(cone)

    def add(self, layer: int, index: int, measures: Measures) -> None:
        """Take in one layer (number `layer` of those kept) of the shard's document number `index`."""
        a, y = measures.sink.sink_rate.numpy(), measures.sink.output_norm.numpy()
        self.fit[index, layer] = fit_statistics(a, y)
        _merge_into(self.curve, layer, bin_moments(a, y, self._bins))
        _merge_into(self.factors, layer, measures.factors)
        cosine, n = measures.cone.cosine.numpy(), measures.cone.n.numpy()
        defined = ~np.isnan(cosine)
        self.cone_n[layer] += np.where(defined, n, 0)
        self.cone_documents[layer] += defined
        self.cone_sum[layer] += np.where(defined, cosine, 0)

    def partial(self) -> Partial:
        arrays = {"fit": self.fit, **{name: getattr(self, name) for name in _SUMS}}
        for name in _MOMENTS:
            arrays.update(_named(name, getattr(self, name)))
        return arrays


def moments_in(partial: Partial, name: str) -> Moments:
    """The moments saved under a name."""
    return Moments(*(partial[f"{name}_{part}"] for part in ("n", "mean", "comoment")))


def combine(left: Partial, right: Partial) -> Partial:
    """Two neighbouring partials as one: moments merged, sums added, documents one after the other."""
    arrays = {"fit": np.concatenate((left["fit"], right["fit"]))}
    arrays.update({name: left[name] + right[name] for name in _SUMS})
    for name in _MOMENTS:
        arrays.update(_named(name, moments_in(left, name).merge(moments_in(right, name))))
    return arrays


def _named(name: str, moments: Moments) -> Partial:
    return {f"{name}_n": moments.n, f"{name}_mean": moments.mean, f"{name}_comoment": moments.comoment}


def _merge_into(total: Moments, layer: int, part: Moments) -> None:
    merged = Moments(total.n[layer], total.mean[layer], total.comoment[layer]).merge(part)
    total.n[layer], total.mean[layer], total.comoment[layer] = merged.n, merged.mean, merged.comoment
