"""Does the store hold what the model computes? A seeded sample of documents is run again through the plain model.

Compared are attention, the input of the output projection, the residual stream, and the loss of each token. An error is
the largest difference in a document's layer, relative to the layer's largest entry or 1, whichever is more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from storage.errors import ForeignStore, ModelError, UsageError
from tasks.capture.documents import read_windows
from tasks.capture.folder import CaptureFolder
from tasks.models.sources import ModelSource, resolve_captured
from tasks.progress import Progress, emit

if TYPE_CHECKING:
    from torch import Tensor

    from storage.store_reader import ActivationStore, ShardReader
    from tasks.models.plain import PlainRun

RERUN = "verify sample"
"""The kind of progress that this tells, in documents."""

COMPUTED = {"float32": 1e-4, "float16": 2.5e-2, "bfloat16": 2e-1}
STORED = {"float32": 1e-4, "float16": 1e-3, "bfloat16": 8e-3}
"""Largest error allowed, the larger of the two, by the dtype computed in and the dtype stored in: what batches and
blocks move, and rounding. SmolLM2 shows 0, 0 and 0.05 for the first, 2.4e-4 to 4.6e-4 and 2e-3 to 3.4e-3 for the
half precisions of the second; another model, layer, head or token is far above."""

MOST_BYTES = 2 << 30
"""Attention of all layers that the plain model may hold at once: longer documents are not drawn."""

_AXES = {
    "attention": ("head", "query", "key"),
    "output_input": ("position", "head", "dimension"),
    "residual": ("position", "dimension"),
    "nll": ("position",),
}


@dataclass
class LayerErrors:
    """The worst errors of a layer over the sample; None where the store does not keep it."""

    layer: int
    """The number of layers stands for the residual stream after the last, and the loss."""
    attention: float | None = None
    output_input: float | None = None
    residual: float | None = None
    nll: float | None = None


@dataclass
class Rerun:
    """The result."""

    documents: list[int] = field(default_factory=list)
    layers: list[LayerErrors] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Errors beyond tolerance, each naming layer, document and position."""
    note: str = ""
    """Why nothing, or not everything, was run again."""


def rerun_sample(runs: str, capture: str, documents: int, seed: int) -> Rerun:
    """Run `documents` documents of the capture again, fewer if it has fewer, and hold the store against them.

    A model that is no longer there is noted, not an error. Raises ForeignStore where its files changed.
    """
    from storage.tensors import ActivationStore

    folder = CaptureFolder.open(runs, capture)
    source = _source(folder)
    if isinstance(source, str):
        return Rerun(note=source)
    left = set(folder.shards_left())
    published = [shard for shard in range(folder.n_shards) if shard not in left]
    if not published:
        return Rerun(note="nothing is run again: no shard is captured yet")
    store = ActivationStore.open(folder.fs, capture)
    short, longest = _short_enough(folder, store, published)
    chosen = np.random.default_rng(seed).permutation(np.asarray(short, dtype=int))[:documents]
    rerun = Rerun(sorted(map(int, chosen)))
    if not rerun.documents:
        rerun.note = f"nothing is run again: every document is longer than {longest} tokens, too long for one pass"
        return rerun
    _hold(folder, store, source, rerun)
    return rerun


def _source(folder: CaptureFolder) -> ModelSource | str:
    """The model's files, or why there are none. Raises ForeignStore where they are not those that were captured."""
    name, digest = folder.model, folder.record["ingredients"]["model_digest"]
    try:
        return resolve_captured(name, digest, "Its files changed since; --documents 0 verifies without the model.")
    except (ModelError, UsageError) as error:
        return f"nothing is run again, the model is not there any more: {error}"


def _short_enough(folder: CaptureFolder, store: ActivationStore, shards: Iterable[int]) -> tuple[list[int], int]:
    """The documents of these shards that one pass of the plain model has room for, and their largest length."""
    longest = int((MOST_BYTES / (4 * store.shape.n_layers * store.shape.n_heads)) ** 0.5)
    documents = [doc for shard in shards for doc in folder.record["shards"][shard]]
    return [doc for doc in documents if folder.record["lengths"][doc] <= longest], longest


def _hold(folder: CaptureFolder, store: ActivationStore, source: ModelSource, rerun: Rerun) -> None:
    from tasks.models.loading import pick_device
    from tasks.models.plain import load_plain, run_plain

    settings, n_layers = folder.settings, store.shape.n_layers
    loaded = load_plain(source, settings["dtype"], pick_device(settings["device"]))
    rerun.layers = [LayerErrors(layer) for layer in range(n_layers + 1)]
    shards = {doc: shard for shard, docs in enumerate(folder.record["shards"]) for doc in docs}
    windows = read_windows(folder.fs, folder.layout)
    for doc in rerun.documents:
        reader, laid_out = store.shard(shards[doc]), windows["token_ids"][doc].values.to_numpy()
        if not np.array_equal(reader.token_ids(doc), laid_out):
            rerun.problems.append(f"token ids of document {doc}: the store's are not those that were laid out")
        plain = run_plain(loaded, windows.inputs(doc))
        for errors in rerun.layers:
            _hold_layer(reader, doc, plain, errors, settings["dtype"], rerun.problems)
        emit(Progress(RERUN, 1, "documents"))


def _hold_layer(
    reader: ShardReader, doc: int, plain: PlainRun, errors: LayerErrors, computed: str, problems: list[str]
) -> None:
    import torch

    for kind, of_layers in (
        ("attention", plain.attention),
        ("output_input", plain.output_input),
        ("residual", dict(enumerate(plain.residual))),
    ):
        if errors.layer in of_layers and (stored := _stored(reader, errors.layer, kind, doc)) is not None:
            dtypes = computed, reader.shape.dtypes.get(kind, "float32")  # attention that is rebuilt is not rounded
            own = _own(reader, kind, doc)
            rounded = _rounded(reader, errors.layer, doc) if kind == "attention" else None
            _compare(kind, stored, _of_kept(of_layers[errors.layer], own), errors, doc, dtypes, problems, own, rounded)
    if errors.layer == reader.shape.n_layers and plain.nll is not None:
        stored = torch.from_numpy(reader.nll(doc).copy())
        _compare("nll", stored[1:], plain.nll[1:], errors, doc, (computed, "float32"), problems)


def _own(reader: ShardReader, kind: str, doc: int) -> list[Sequence[int] | None]:
    """Along each axis of a kind the model's own numbers of the heads and queries that are kept; None for all."""
    stored, length = reader.shape.stored, reader.lengths[reader.documents.index(doc)]
    kept = {"head": stored.heads, "query": None if stored.positions is None else stored.rows(length)}
    return [kept.get(axis) for axis in _AXES[kind]]


def _of_kept(plain: Tensor, own: Sequence[Sequence[int] | None]) -> Tensor:
    """What a store of chosen heads and query positions keeps of a plain model's tensor."""
    for axis, numbers in enumerate(own):
        if numbers is not None:
            plain = plain.index_select(axis, plain.new_tensor(numbers).long())
    return plain


def _stored(reader: ShardReader, layer: int, kind: str, doc: int) -> Tensor | None:
    """One tensor of the store; None where it is not kept."""
    try:
        found = reader.layer(layer, (kind,))
    except UsageError:
        return None
    return next(getattr(document, kind) for document in found if document.doc == doc)


def _rounded(reader: ShardReader, layer: int, doc: int) -> Tensor | None:
    """(H, R, 1): how far attention rebuilt from rounded queries and keys may be off; None where it is not rebuilt."""
    import torch

    from storage.rebuild import rounding_bound

    shape = reader.shape
    if "attention" not in shape.rebuilt:
        return None
    query, key = (_stored(reader, layer, kind, doc) for kind in ("query", "key"))
    assert query is not None and key is not None
    of_heads = key[:, shape.serving("key")]
    dtypes = [getattr(torch, shape.dtypes[kind]) for kind in ("query", "key")]
    return rounding_bound(query, of_heads, shape.terms(layer, None), dtypes).unsqueeze(-1)


def _compare(
    kind: str,
    stored: Tensor,
    plain: Tensor,
    errors: LayerErrors,
    doc: int,
    dtypes: tuple[str, str],
    problems: list[str],
    own: Sequence[Sequence[int] | None] = (None,),
    rounded: Tensor | None = None,
) -> None:
    """Hold one tensor against the plain model's; `own` says along each axis which numbers its entries are of.

    rounded: what of a difference rounding explains, of the tensor's shape or to be broadcast to it.
    """
    if stored.shape != plain.shape:
        raise ForeignStore(
            f"{kind} of shape {tuple(plain.shape)}",
            got=str(tuple(stored.shape)),
            where=f"layer {errors.layer}, document {doc}",
            remedy="The store is not of this model.",
        )
    if not stored.numel():  # the document has none of the chosen positions
        return
    difference = (stored - plain).abs().nan_to_num(nan=float("inf"))
    scale = max(1.0, float(plain.abs().max()))
    setattr(errors, kind, max(float(difference.max()) / scale, getattr(errors, kind) or 0.0))
    unexplained = difference if rounded is None else difference - rounded
    at = np.unravel_index(int(unexplained.argmax()), tuple(difference.shape))
    error, explained = float(difference[at]) / scale, 0.0 if rounded is None else float(rounded.expand_as(plain)[at])
    allowed = max(COMPUTED[dtypes[0]], STORED[dtypes[1]]) + explained / scale
    if error > allowed:
        axes = [*_AXES[kind]]
        offset = 1 if kind == "nll" else 0
        numbers = [int(i) + offset if n is None else n[int(i)] for i, n in zip(at, own, strict=True)]
        place = ", ".join(f"{axis} {number}" for axis, number in zip(axes, numbers, strict=True))
        problems.append(
            f"{kind} of layer {errors.layer}, document {doc}, {place}: {float(stored[at]):.6g} in the store, "
            f"{float(plain[at]):.6g} by the plain model: an error of {error:.2g}, {allowed:.2g} is allowed"
        )
