"""Text to token ids and back, with as little loaded as the tokenizer allows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.errors import ForeignStore, ModelError
from tasks.models.loading import load_tokenizer
from tasks.models.sources import ModelSource, tokenizer_digest

_PLAIN = {"PreTrainedTokenizerFast", "TokenizersBackend"}


Spans = tuple[list[int], list[tuple[int, int]]]
"""Token ids, and of each its first character and the one behind its last; pieces of one character share its span."""


@dataclass(frozen=True)
class Encoder:
    """What a corpus needs of a tokenizer.

    `encode` adds no special token; `adds_bos` says whether the tokenizer itself would begin a text with one. Where it
    names no BOS token but begins a text with [CLS], as BERT's does, that is its BOS token.
    """

    encode: Callable[[str], list[int]]
    tokens: Callable[[list[int]], list[str]]
    spans: Callable[[str], Spans]
    """The same ids as `encode`, each with the characters of the text that it stands for. Raises ModelError where the
    tokenizer does not say."""
    bos_id: int | None
    adds_bos: bool


def open_encoder(source: ModelSource) -> Encoder:
    """The model's tokenizer.

    A tokenizer that is nothing but its `tokenizer.json` is read by the tokenizers library alone, in milliseconds;
    any other by transformers. Raises ModelError where there is none.
    """
    folder = Path(source.folder)
    config_file = folder / "tokenizer_config.json"
    if not source.gguf_file and (folder / "tokenizer.json").is_file() and config_file.is_file():
        config = _settings(config_file)
        if config.get("tokenizer_class") in _PLAIN:
            return _from_json(folder / "tokenizer.json", config)
    return _from_transformers(source)


def captured_encoder(source: ModelSource, captured: str | None) -> Encoder:
    """The tokenizer of a capture, whose digest that was. Raises ForeignStore where its files changed, ModelError."""
    if (found := tokenizer_digest(source)) != captured:
        raise ForeignStore(
            f"the tokenizer that was captured (digest {captured[:12] if captured else 'none'})",
            got=f"one of digest {found[:12] if found else 'none'}",
            where=source.name,
            remedy="Its files changed since the capture was prepared. Put them back, or capture the new ones.",
        )
    return open_encoder(source)


def _settings(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged(file, error) from error
    if not isinstance(config, dict):
        raise _damaged(file, f"a JSON {type(config).__name__}")
    return config


def _damaged(file: Path, got: object) -> ModelError:
    return ModelError(
        f"a {file.name} that can be read",
        got=str(got),
        where=str(file),
        remedy="The file is cut off or damaged: fetch the model again, or save its tokenizer beside it.",
    )


def _from_json(file: Path, config: dict[str, Any]) -> Encoder:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the tokenizers library raises nothing more precise
        raise _damaged(file, error) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def special(name: str) -> int | None:
        token = config.get(name)
        return tokenizer.token_to_id(token["content"] if isinstance(token, dict) else token) if token else None

    def spans(text: str) -> Spans:
        encoded = tokenizer.encode(text, add_special_tokens=False)
        return encoded.ids, encoded.offsets

    bos_id, adds_bos = _bos(special("bos_token"), special("cls_token"), tokenizer.encode("a").ids)
    return Encoder(
        encode=lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
        tokens=lambda ids: [tokenizer.id_to_token(i) or "" for i in ids],
        spans=spans,
        bos_id=bos_id,
        adds_bos=adds_bos,
    )


def _bos(named: int | None, cls: int | None, text: list[int]) -> tuple[int | None, bool]:
    """The BOS token, and whether a text as the tokenizer encodes it begins with it."""
    if named is None and cls is not None and text[:1] == [cls]:
        named = cls
    return named, named is not None and text[:1] == [named]


def _from_transformers(source: ModelSource) -> Encoder:
    tokenizer = load_tokenizer(source)
    bos_id, adds_bos = _bos(tokenizer.bos_token_id, tokenizer.cls_token_id, tokenizer("a").input_ids)

    def spans(text: str) -> Spans:
        if not tokenizer.is_fast:
            raise ModelError(
                "a tokenizer that says which characters its tokens stand for",
                got=type(tokenizer).__name__,
                where=source.name,
                remedy="Save the model with its fast tokenizer (tokenizer.json).",
            )
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return encoded.input_ids, [(first, end) for first, end in encoded.offset_mapping]

    return Encoder(
        encode=lambda text: tokenizer(text, add_special_tokens=False, verbose=False).input_ids,
        tokens=lambda ids: [t or "" for t in tokenizer.convert_ids_to_tokens(ids)],
        spans=spans,
        bos_id=bos_id,
        adds_bos=adds_bos,
    )
