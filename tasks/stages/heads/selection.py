"""The stage `selection`: do the keys that a query attends to most lie apart in value space (methods.md §2)?

Per layer every document's attention and values pass once through the kernels; all selections of a document and layer
are in memory together, and no more. Nothing is summed over documents.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import torch

from storage.keys import seed_for
from tasks.kernels.selection import Selection, Selections
from tasks.kernels.sink_statistics import sink_statistics
from tasks.kernels.values import Values, coherence
from tasks.kernels.visibility import Visibility
from tasks.stages.heads.selection_rows import Control, RowGroups, selection_rows, statistics_rows

if TYPE_CHECKING:
    from storage.tensors import ActivationStore, DocumentLayer, ShardReader
    from tasks.stages.contract import Partial, Rows, StageContext
    from tasks.stages.heads.declaration import SelectionParameters


def per_shard(
    store: ActivationStore, shard: ShardReader, parameters: SelectionParameters, context: StageContext, rows: Rows
) -> tuple[Partial, dict[str, int]]:
    """Rows of one shard, layer by layer and in it by document, gathered to row groups of some size.

    Where heads are gated, values are taken as the gate leaves them for each query; sink statistics are of the values
    before it. Of an encoder every key is a candidate of every query.
    """
    shape = store.shape
    kinds = ("attention", "value", *(("gate",) if shape.gated else ()))
    quality = Counter({"rows_left_out": 0, "nan_sink_statistics": 0})
    groups = {name: RowGroups(rows, name) for name in ("selection", "sink_statistics")}
    for layer in shape.kept_layers:
        visibility = Visibility(shape.windows[layer], shape.causal)
        for document in shard.layer(layer, kinds):
            assert document.value is not None  # the stage asks for it
            values = Values.of(document.value)
            columns = statistics_rows(sink_statistics(values), document.doc, layer, shape.n_heads)
            quality["nan_sink_statistics"] += int(np.isnan(columns["norm_ratio"]).sum())
            groups["sink_statistics"].add(columns)
            _select(document, values, visibility, parameters, context, groups["selection"], quality)
            context.advance(1)
    for group in groups.values():
        group.flush()
    return {}, dict(quality)


def _select(
    document: DocumentLayer,
    values: Values,
    visibility: Visibility,
    parameters: SelectionParameters,
    context: StageContext,
    group: RowGroups,
    quality: Counter[str],
) -> None:
    """All selections of one document and layer, as rows."""
    assert document.attention is not None  # the stage asks for it
    queries = _chosen_queries(parameters.queries, document.n_tokens, context.seed, document.doc)
    selections = Selections(
        document.attention,
        values,
        gate=document.gate,
        visibility=visibility,
        sizes=parameters.n,
        distances=parameters.distances,
        coherence=coherence(values, visibility),
    )
    place = (context.seed, document.doc, document.layer)
    drawn = _drawn(queries, visibility, document.n_tokens, parameters, place)
    for sink in parameters.sinks:
        control = None
        if len(drawn):
            random = np.random.Generator(np.random.Philox(seed_for(*place, "selection", "rankings")))
            found = selections.random_f(queries[drawn], sink, parameters.random_rankings, random)
            control = Control.of(drawn.numpy(), found, len(queries))
        for ranking in parameters.rankings:
            selection = selections.select(queries, ranking, sink)
            quality["rows_left_out"] += _left_out(selection, len(document.attention))
            for distance in parameters.distances:
                key = {"doc": document.doc, "layer": document.layer, "ranking": ranking, "sink": sink}
                columns = selection_rows(selection, distance, queries.numpy(), parameters.n, control)
                group.add({**key, "distance": distance, **columns})


def _left_out(selection: Selection, n_heads: int) -> int:
    """Rows that there are not, since the query has no more than N candidates."""
    return n_heads * len(selection.by_distance) * int((~selection.defined).sum())


def _chosen_queries(queries: int | str, n_tokens: int, seed: int, doc: int) -> torch.Tensor:
    """Query positions, ascending. The final one is the document's last position, of an encoder too."""
    if queries == "every":
        return torch.arange(n_tokens)
    if queries == "final":
        return torch.tensor([n_tokens - 1])
    random = np.random.Generator(np.random.Philox(seed_for(seed, doc, "selection", "queries")))
    drawn = random.choice(n_tokens, min(int(queries), n_tokens), replace=False)
    return torch.from_numpy(np.sort(drawn))


def _drawn(
    queries: torch.Tensor,
    visibility: Visibility,
    n_tokens: int,
    parameters: SelectionParameters,
    place: tuple[int, int, int],
) -> torch.Tensor:
    """Which of the chosen queries the random control is drawn for: of those with rows, with and without the sink."""
    candidates = (visibility.last_keys(n_tokens) - visibility.first_keys(n_tokens))[queries] - 1
    possible = np.flatnonzero(candidates.numpy() > min(parameters.n))
    n = min(parameters.random_queries if parameters.random_rankings else 0, len(possible))
    random = np.random.Generator(np.random.Philox(seed_for(*place, "selection", "drawn")))
    return torch.from_numpy(np.sort(random.choice(possible, n, replace=False)).astype(np.int64))
