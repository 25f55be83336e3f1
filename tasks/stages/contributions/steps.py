"""The stage `contributions`: contribution weights, sink geometry and factor attribution from a store (methods.md §1).

Per layer every document's attention and values pass once through the kernels of `contributions_measures`; its rows
leave for the tables, what is summed over documents stays in `contributions_totals`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from storage.keys import seed_for
from tasks.kernels.cone import ROW_GROUPS, SINKS
from tasks.kernels.factors import FACTORS, TOKEN_GROUPS, factor_shares
from tasks.kernels.sink_fit import fit_curvature
from tasks.kernels.visibility import Visibility
from tasks.kernels.weights import LayerWeights
from tasks.stages.contributions.measures import measure, nan_counts
from tasks.stages.contributions.rows import Columns, rows_of
from tasks.stages.contributions.totals import Totals, combine, moments_in

if TYPE_CHECKING:
    from storage.tensors import ActivationStore, ShardReader
    from tasks.stages.contract import Partial, Rows, StageContext
    from tasks.stages.contributions.declaration import ContributionParameters

__all__ = ["combine", "finish", "per_shard"]


def per_shard(
    store: ActivationStore, shard: ShardReader, parameters: ContributionParameters, context: StageContext, rows: Rows
) -> tuple[Partial, dict[str, int]]:
    """Rows per document of one shard, layer by layer; a layer is one row group of each table.

    Reads the learned sink's mass where the store holds it, and the heads' gate where the model has one. Of an encoder
    every query sees all keys of its document, and since none predicts a token, every one counts.
    """
    shape = store.shape
    beside = ("sink_mass",) if "sink_mass" in shape.offered else ()
    kinds = ("attention", "value", *beside, *(("gate",) if shape.gated else ()))
    totals = Totals(len(shard.documents), len(shape.kept_layers), shape.n_heads, parameters.bins)
    quality: Counter[str] = Counter()
    for kept, layer in enumerate(shape.kept_layers):
        weights = LayerWeights.of(store.weights(layer)[0])
        visibility = Visibility(shape.windows[layer], shape.causal)
        tables: dict[str, list[Columns]] = defaultdict(list)
        for index, document in enumerate(shard.layer(layer, kinds)):
            measures = measure(document, weights, visibility, parameters.edges)
            totals.add(kept, index, measures)
            quality.update(nan_counts(measures))
            for table, columns in rows_of(measures):
                n_rows = len(columns["head"])
                tables[table].append({"doc": np.full(n_rows, document.doc, np.int32), **columns})
            context.advance(1)
        for table, parts in tables.items():
            rows.add(table, {"layer": layer, **{name: _joined([part[name] for part in parts]) for name in parts[0]}})
    return totals.partial(), dict(quality)


def finish(
    store: ActivationStore,
    partial: Partial,
    parameters: ContributionParameters,
    context: StageContext,
    rows: Rows,
) -> dict[str, int]:
    """Rows per head over all documents: factor shares, curve, curvature and cone."""
    tables = {
        "contribution_factors": _factors(partial),
        "sink_curve": _curve(partial),
        "sink_fit": _fit(partial, parameters.resamples, seed_for(context.seed, "contributions", "sink_fit")),
        "semantic_cone": _cone(partial),
    }
    layers = np.asarray(store.shape.kept_layers, np.int32)
    for table, columns in tables.items():
        rows.add(table, {**columns, "layer": layers[columns["layer"]]})
    undefined = {
        "nan_factor_shares": tables["contribution_factors"]["share_alpha"],
        "nan_sink_fits": tables["sink_fit"]["curvature"],
        "nan_sink_fit_intervals": tables["sink_fit"]["curvature_lo"],
        "nan_cone_cosines": tables["semantic_cone"]["mean_pairwise_cosine"],
    }
    return {name: int(np.isnan(values).sum()) for name, values in undefined.items()}


def _joined(parts: list[Any]) -> Any:
    """The documents' values of a column, one after the other."""
    if isinstance(parts[0], pa.Array):
        return pa.concat_arrays(parts)
    return np.concatenate([np.asarray(part) for part in parts])


def _keys(shape: tuple[int, ...], *names: str) -> Columns:
    """Key columns of raveled values: the index along each axis, as int32."""
    return {name: axis.ravel().astype(np.int32) for name, axis in zip(names, np.indices(shape), strict=True)}


def _words(index: np.ndarray, words: tuple[str, ...]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(index, list(words))


def _factors(partial: Partial) -> Columns:
    moments = moments_in(partial, "factors")  # (L, H, groups)
    keys = _keys(moments.n.shape, "layer", "head", "token_group")
    columns: Columns = {**keys, "token_group": _words(keys["token_group"], TOKEN_GROUPS), "n": moments.n.ravel()}
    shares, means = factor_shares(moments), moments.means()[..., 3:]
    for at, factor in enumerate(FACTORS):
        columns[f"share_{factor}"] = shares[..., at].ravel()
    for at, name in enumerate(("alpha", "relative_norm", "cosine", "cw")):
        columns[f"mean_{name}"] = means[..., at].ravel()
    return columns


def _curve(partial: Partial) -> Columns:
    moments = moments_in(partial, "curve")  # (L, H, bins)
    means = moments.means()
    return {
        **_keys(moments.n.shape, "layer", "head", "bin"),
        "n": moments.n.ravel(),
        "sink_rate": means[..., 1].ravel(),
        "output_norm_mean": means[..., 0].ravel(),
        "output_norm_sd": np.sqrt(moments.variance()[..., 0]).ravel(),
    }


def _fit(partial: Partial, resamples: int, seed: int) -> Columns:
    fit = fit_curvature(partial["fit"], resamples, seed)  # (L, H)
    return {
        **_keys(fit.n.shape, "layer", "head"),
        "n": fit.n.ravel().astype(np.int64),
        "curvature": fit.curvature.ravel(),
        "curvature_lo": fit.low.ravel(),
        "curvature_hi": fit.high.ravel(),
        "a_min": fit.a_min.ravel(),
        "r2": fit.r2.ravel(),
    }


def _cone(partial: Partial) -> Columns:
    documents = partial["cone_documents"]  # (L, H, row group, sink)
    keys = _keys(documents.shape, "layer", "head", "row_group", "sink")
    mean = np.divide(partial["cone_sum"], documents, out=np.full(documents.shape, np.nan), where=documents > 0)
    return {
        **keys,
        "row_group": _words(keys["row_group"], ROW_GROUPS),
        "sink": _words(keys["sink"], SINKS),
        "n": partial["cone_n"].ravel(),
        "mean_pairwise_cosine": mean.ravel(),
    }
