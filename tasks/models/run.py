"""One forward pass over a batch of documents, captured."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from storage.errors import CorpusError, ModelError, UsageError
from tasks.models import selfcheck, tap
from tasks.models.families import first_position, max_positions
from tasks.models.inputs import PIXELS, InputKind
from tasks.models.layer_record import Span
from tasks.models.loading import LoadedModel, torch_dtype, transformers_major
from tasks.models.packing import EVERYTHING, Packing
from tasks.models.rebuild import AttentionCall
from tasks.models.record import BatchRecord, Emit
from tasks.models.scoring import token_nll
from tasks.models.selfcheck import Place
from tasks.models.table import FALLBACK


@dataclass(frozen=True)
class TapSettings:
    """How a batch is run. All of it enters the capture's key: block and batch sizes move last bits."""

    query_block: int = 128
    """Queries per call of the family's attention: small blocks skip more masked keys and stay in the cache."""
    padding: str = "right"
    """right | left: where shorter documents of a batch are filled up; moves last bits only."""
    dtypes: Mapping[str, str] = field(default_factory=lambda: {"attention": "float32"})
    """Kind of tensor → the dtype it is stored in; attention is packed into it at once."""
    kept: Packing = EVERYTHING
    """Which kinds of which layers are emitted."""

    def __post_init__(self) -> None:
        if self.query_block < 1:
            raise UsageError("a query block of at least 1", got=str(self.query_block))
        if self.padding not in ("right", "left"):
            raise UsageError("padding right or left", got=f"'{self.padding}'")
        torch_dtype(self.attention_dtype)

    @property
    def attention_dtype(self) -> str:
        """What attention is packed into, where it is kept."""
        return self.dtypes.get("attention", "float32")


def capture_batch(
    loaded: LoadedModel,
    inputs: Sequence[np.ndarray],
    settings: TapSettings,
    emit: Emit,
    documents: Sequence[int],
) -> list[np.ndarray]:
    """Run the model once over documents of any lengths and emit each layer's tensors as the layer ends.

    inputs: one array a document, token ids or, of a family that reads images, pixels (3, H, W); documents: their
    numbers, for messages; emit: see BatchRecord. Returns the negative log-likelihood of each token in nats, float32,
    one array (T,) a document, NaN at position 0; of an encoder, NaN everywhere.
    Raises CaptureCheckError when a capture-time identity is breached, CorpusError for an id outside the vocabulary or
    an empty document, ModelError for a document longer than the model's positions.
    """
    kind_of_input = _input_kind(loaded)
    kind_of_input.check(loaded, inputs, documents)
    lengths = [kind_of_input.length(loaded, document) for document in inputs]
    width = max(lengths)
    starts = [width - n if settings.padding == "left" else 0 for n in lengths]
    spans = [Span(*parts) for parts in zip(documents, starts, lengths, strict=True)]
    record = BatchRecord(
        loaded.anatomy,
        spans,
        emit,
        model_name=loaded.name,
        query_block=settings.query_block,
        attention_dtype=torch_dtype(settings.attention_dtype),
        kept=settings.kept,
    )
    with torch.inference_mode():
        with tap.active(record):
            output = loaded.anatomy.body(**kind_of_input.tensors(loaded, inputs, spans, width))
        record.finish()
        if not loaded.anatomy.causal:  # what looks both ways predicts no next token
            return [np.full(n, np.nan, dtype=np.float32) for n in lengths]
        ids = torch.from_numpy(np.concatenate(inputs).astype(np.int64)).to(loaded.device)
        hidden = record.valid(output.last_hidden_state)
        nll = token_nll(loaded.model, loaded.anatomy, hidden, ids, lengths, body_output=type(output))
    for span, scores in zip(spans, nll, strict=True):
        place = Place(loaded.name, document=span.document)
        selfcheck.check_finite(scores[1:].unsqueeze(1), "likelihood of the next token", place)
    return [scores.numpy() for scores in nll]


def attention_calls(loaded: LoadedModel) -> dict[int, AttentionCall]:
    """The call of each layer's attention function: one token, or a blank image, goes through; nothing is kept.

    Raises ModelError where the model's code computes attention inside its own modules.
    """
    if loaded.tap_method == FALLBACK:
        raise ModelError(
            "a model whose attention function shows query and key, to rebuild attention from",
            got=f"{loaded.anatomy.kind.name}, which computes attention inside its own module",
            where=loaded.name,
            remedy="Use --attention stored.",
        )
    kind_of_input = _input_kind(loaded)
    blank = kind_of_input.blank(loaded)
    length = kind_of_input.length(loaded, blank)
    record = BatchRecord(
        loaded.anatomy,
        [Span(0, 0, length)],
        lambda *_: None,
        model_name=loaded.name,
        query_block=length,
        attention_dtype=torch.float32,
        kept=Packing(frozenset()),
    )
    with torch.inference_mode(), tap.active(record):
        loaded.anatomy.body(**kind_of_input.tensors(loaded, [blank], record.spans, length))
    record.finish()
    return {layer: record.calls[layer] for layer in loaded.anatomy.attended}


def token_tensors(
    loaded: LoadedModel, token_ids: Sequence[np.ndarray], spans: Sequence[Span], width: int
) -> dict[str, Any]:
    """Padded ids, mask and, where the model takes them, positions that count the document's own tokens."""
    ids = torch.zeros(len(spans), width, dtype=torch.long)  # any id will do as padding: nothing sees it
    mask = torch.zeros(len(spans), width, dtype=torch.long)
    for row, (span, tokens) in enumerate(zip(spans, token_ids, strict=True)):
        ids[row, span.start : span.stop] = torch.from_numpy(tokens.astype(np.int64))
        mask[row, span.start : span.stop] = 1
    kind = loaded.anatomy.kind
    mixes = not kind.left_padding or (kind.hybrid and transformers_major() < 5)
    if mixes and any(span.start for span in spans):
        raise ModelError(
            "padding that reaches no document",
            got=f"--padding left for {kind.name}, whose layers without attention mix padding in",
            where=loaded.name,
            remedy="Use --padding right.",
        )
    inputs: dict[str, Tensor] = {"input_ids": ids, "attention_mask": mask}
    if "position_ids" in inspect.signature(loaded.anatomy.body.forward).parameters:
        inputs["position_ids"] = _positions(loaded, ids, mask)
    elif kind.counts_padding and any(span.start for span in spans):
        raise ModelError(
            f"positions that can be given to {kind.name}",
            got="a transformers that counts padding as tokens",
            where=loaded.name,
            remedy="Use --padding right, or pip install 'transformers>=5'.",
        )
    moved: dict[str, Any] = {name: tensor.to(loaded.device) for name, tensor in inputs.items()}
    options = {"use_cache": False} if loaded.anatomy.causal else {}
    weights = {"output_attentions": True} if loaded.tap_method == FALLBACK else {}  # else they are not returned
    return {**moved, **options, **weights}


def _positions(loaded: LoadedModel, ids: Tensor, mask: Tensor) -> Tensor:
    """(B, T): each document's tokens counted from its first; RoBERTa, which counts from behind the padding token's id,
    passes over that token where a document contains it."""
    config: Any = loaded.model.config
    first = first_position(config.to_dict())
    if not loaded.anatomy.kind.positions_after_padding:
        return (mask.cumsum(dim=1) - 1).clamp(min=0)
    counted = mask * (ids != first - 1)
    return counted.cumsum(dim=1) * counted + first - 1


def check_tokens(loaded: LoadedModel, token_ids: Sequence[np.ndarray], documents: Sequence[int]) -> None:
    """Raises CorpusError or ModelError, naming the document, for token ids that the model cannot take."""
    config: Any = loaded.model.config
    limit = max_positions(config.to_dict())
    for document, ids in zip(documents, token_ids, strict=True):
        where = f"document {document}"
        if len(ids) == 0:
            raise CorpusError("a document of at least one token", got="none", where=where)
        if limit is not None and len(ids) > limit:
            remedy = f"Use windows of at most {limit} tokens."
            raise ModelError(
                f"at most the model's {limit} positions", got=f"{len(ids)} tokens", where=where, remedy=remedy
            )
        outside = np.flatnonzero((ids < 0) | (ids >= config.vocab_size))
        if len(outside):
            at = int(outside[0])
            raise CorpusError(
                f"token ids below the vocabulary's {config.vocab_size}",
                got=str(int(ids[at])),
                where=f"{where}, position {at}",
                remedy="The tokenizer does not belong to this model.",
            )


_TOKENS = InputKind(
    check=check_tokens,
    length=lambda _loaded, ids: len(ids),
    tensors=token_tensors,
    blank=lambda _loaded: np.zeros(1, np.int64),
)
_INPUT_KINDS = {"text": _TOKENS, "images": PIXELS}


def _input_kind(loaded: LoadedModel) -> InputKind:
    """How documents enter this model."""
    return _INPUT_KINDS[loaded.anatomy.kind.reads]
