"""Text to token ids and back, with as little loaded as the tokenizer allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from storage.errors import ForeignStore, ModelError
from tasks.models.json_file import damaged, read_object
from tasks.models.loading import load_tokenizer
from tasks.models.sources import ModelSource, read_config, tokenizer_digest
from tasks.models.tokenizer_files import CONFIG, TOKENIZER, adds_nothing, plain_config


class Spans(NamedTuple):
    """The tokens of a text with the characters that they stand for."""

    ids: list[int]
    offsets: list[tuple[int, int]]
    """Of each its first character and the one behind its last; pieces of one character share its span."""
    words: list[int | None]
    """Of each the number of the stretch that it was cut from, which the tokenizer cuts by itself; None for none."""


@dataclass(frozen=True)
class Encoder:
    """What a corpus needs of a tokenizer. `encode` adds no special token."""

    encode: Callable[[str], list[int]]
    tokens: Callable[[list[int]], list[str]]
    spans: Callable[[str], Spans] | None
    """The same ids as `encode`, with their characters; None where the tokenizer does not say them."""
    merges: bool
    """Whether its model is BPE, whose ids are right wherever each two neighbours are."""
    named_bos: int | None
    """The BOS token that the tokenizer names."""
    front: tuple[int, ...]
    """The tokens that it puts in front of a text by itself."""

    @property
    def bos_id(self) -> int | None:
        """The one token that it puts in front of a text; else the BOS token that it names."""
        return self.front[0] if len(self.front) == 1 else self.named_bos


def open_encoder(source: ModelSource) -> Encoder:
    """The model's tokenizer, by which the ids are transformers'.

    What `light_encoder` reads by the tokenizers library alone is compared with transformers, once in a process for each
    digest of the tokenizer: ids and names of a text of many kinds and of every added token. Where they differ it is
    transformers that counts. Raises ModelError where there is none.
    """
    return _compared(source, tokenizer_digest(source))


def light_encoder(source: ModelSource) -> Encoder:
    """The model's tokenizer without importing transformers, where its files say that it is whole in `tokenizer.json`.

    Any other is read by transformers. Raises ModelError where there is none.
    """
    tokenizer = _plain(source)
    return _from_transformers(source) if tokenizer is None else _of_json(tokenizer, source)


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


@lru_cache(maxsize=1)
def _compared(source: ModelSource, digest: str | None) -> Encoder:
    tokenizer, whole = _plain(source), _from_transformers(source)
    if tokenizer is None:
        return whole
    plain, added = _of_json(tokenizer, source), tokenizer.get_added_tokens_decoder().values()
    return plain if _agree(plain, whole, [token.content for token in added]) else whole


def _plain(source: ModelSource) -> Any:
    """The tokenizers library's own of `tokenizer.json`; None where the files beside it may say more."""
    folder = Path(source.folder)
    config = None if source.gguf_file else plain_config(folder, str(read_config(source).get("model_type")))
    if config is None:
        return None
    tokenizer = _open(folder / TOKENIZER)
    return tokenizer if adds_nothing(folder, config, tokenizer) else None


def _of_json(tokenizer: Any, source: ModelSource) -> Encoder:
    bos = read_object(source.path(CONFIG)).get("bos_token")

    def spans(text: str) -> Spans:
        encoded = tokenizer.encode(text, add_special_tokens=False)
        return Spans(encoded.ids, encoded.offsets, encoded.word_ids)

    def both(text: str, special: bool) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=special).ids

    return Encoder(
        encode=lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
        tokens=lambda ids: [tokenizer.id_to_token(i) or "" for i in ids],
        spans=spans,
        merges=_merges(tokenizer),
        named_bos=tokenizer.token_to_id(bos["content"] if isinstance(bos, dict) else bos) if bos else None,
        front=_front(both, source.name),
    )


def _open(file: Path) -> Any:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the tokenizers library raises nothing more precise
        raise damaged(file, error) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _from_transformers(source: ModelSource) -> Encoder:
    tokenizer = load_tokenizer(source)

    def spans(text: str) -> Spans:
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return Spans(encoded.input_ids, list(map(tuple, encoded.offset_mapping)), encoded.word_ids())

    def both(text: str, special: bool) -> list[int]:
        return tokenizer(text, add_special_tokens=special, verbose=False).input_ids

    return Encoder(
        encode=lambda text: tokenizer(text, add_special_tokens=False, verbose=False).input_ids,
        tokens=lambda ids: [t or "" for t in tokenizer.convert_ids_to_tokens(ids)],
        spans=spans if tokenizer.is_fast else None,
        merges=tokenizer.is_fast and _merges(tokenizer.backend_tokenizer),
        named_bos=tokenizer.bos_token_id,
        front=_front(both, source.name),
    )


def _merges(tokenizer: Any) -> bool:
    model = tokenizer.model
    return type(model).__name__ == "BPE" and not model.dropout and not model.ignore_merges


_TEXTS = ("a", "the", "1", ".")


def _front(encode: Callable[[str, bool], list[int]], where: str) -> tuple[int, ...]:
    """The tokens that `encode`, asked for special tokens, puts in front of a text. ModelError where that is unclear."""
    for text in _TEXTS:
        plain, whole = encode(text, False), encode(text, True)
        for at in range(len(whole) - len(plain) + 1 if plain else 0):
            if whole[at : at + len(plain)] == plain:
                return tuple(whole[:at])
    raise ModelError(
        "a tokenizer that puts its special tokens around the tokens of a text",
        got=f"{whole} for {text!r}, whose own tokens are {plain}",
        where=where,
    )


_MANY_KINDS = (
    "The quick brown fox's 12,345.67 jumps; over\tthe lazy dog!\n\n  Don't  you'll see? (a_b) [c] {d} <e>",
    "ÀÉ naïve café Straße ﬁ ½ ｆｕｌｌ e\u0301 — “quoted” … 東京、北京。한국어 العربية עברית हिन्दी",
    "👩\u200d👧 🇫🇷 \u200b\u00a0x\r\n\ty https://example.org/?q=1",
    " leading and trailing  ",
    "def f(x):\n    return x ** 2  # \\n\n",
)


def _agree(plain: Encoder, whole: Encoder, added: Sequence[str]) -> bool:
    """Whether two encoders give the same ids, names and tokens in front: of texts of many kinds, and of every added
    token, alone and inside a text."""
    texts = [*_MANY_KINDS, *(text for token in added for text in (token, f"a{token}b {token} c"))]
    ids = [plain.encode(text) for text in texts]
    return (
        (plain.front, plain.bos_id) == (whole.front, whole.bos_id)
        and ids == [whole.encode(text) for text in texts]
        and _names(plain, ids) == _names(whole, ids)
    )


def _names(encoder: Encoder, ids: Sequence[list[int]]) -> list[str]:
    return encoder.tokens(sorted({i for one in ids for i in one}))
