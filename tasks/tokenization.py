"""Text to token ids and back, with as little loaded as the tokenizer allows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tasks.models.loading import load_tokenizer
from tasks.models.sources import ModelSource

_PLAIN = {"PreTrainedTokenizerFast", "TokenizersBackend"}


@dataclass(frozen=True)
class Encoder:
    """What a corpus needs of a tokenizer.

    `encode` adds no special token; `adds_bos` says whether the tokenizer itself would begin a text with one.
    """

    encode: Callable[[str], list[int]]
    tokens: Callable[[list[int]], list[str]]
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
        config = json.loads(config_file.read_text(encoding="utf-8"))
        if config.get("tokenizer_class") in _PLAIN:
            return _from_json(folder / "tokenizer.json", config)
    return _from_transformers(source)


def _from_json(file: Path, config: dict) -> Encoder:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    bos = config.get("bos_token")
    bos_id = tokenizer.token_to_id(bos["content"] if isinstance(bos, dict) else bos) if bos else None
    return Encoder(
        encode=lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
        tokens=lambda ids: [tokenizer.id_to_token(i) or "" for i in ids],
        bos_id=bos_id,
        adds_bos=bos_id is not None and tokenizer.encode("a").ids[:1] == [bos_id],
    )


def _from_transformers(source: ModelSource) -> Encoder:
    tokenizer = load_tokenizer(source)
    bos_id = tokenizer.bos_token_id
    return Encoder(
        encode=lambda text: tokenizer(text, add_special_tokens=False, verbose=False).input_ids,
        tokens=lambda ids: [t or "" for t in tokenizer.convert_ids_to_tokens(ids)],
        bos_id=bos_id,
        adds_bos=bos_id is not None and tokenizer("a").input_ids[:1] == [bos_id],
    )
