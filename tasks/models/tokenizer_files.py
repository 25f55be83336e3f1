"""Whether a tokenizer is whole in its `tokenizer.json`: what transformers reads beside it, and would it change an id?

transformers adds to that file every token that is named anywhere else and not among its added tokens: in
tokenizer_config.json (`added_tokens_decoder`, `bos_token` and the like, `extra_special_tokens`, formerly
`additional_special_tokens`), special_tokens_map.json and added_tokens.json. It may take another class than
tokenizer_config.json names, and other files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.models.json_file import read_object
from tasks.models.table import TOKENIZER_OF_ITS_OWN

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

CONFIG, TOKENIZER = "tokenizer_config.json", "tokenizer.json"
_PLAIN = {"PreTrainedTokenizerFast", "TokenizersBackend"}
"""Classes that are nothing but the file."""
_OTHER_FILES = ("tekken.json",)
"""What transformers may read in place of the file."""

_WITHOUT_EFFECT = frozenset({
    *("tokenizer_class", "backend", "name_or_path", "processor_class", "is_local", "local_files_only", "init_inputs"),
    *("model_max_length", "max_length", "model_input_names", "padding_side", "truncation_side", "stride"),
    *("truncation_strategy", "pad_to_multiple_of", "pad_token_type_id", "clean_up_tokenization_spaces"),
    *("chat_template", "chat_control_tokens", "response_schema", "response_template", "errors"),
    *("special_tokens_map_file", "tokenizer_file", "legacy", "use_default_system_prompt"),
})  # fmt: skip
"""Settings of tokenizer_config.json that move no id of a text that is neither padded nor cut."""
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LISTED = ("extra_special_tokens", "additional_special_tokens")
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")
_ADDED = "added_tokens_decoder"


def plain_config(folder: Path, model_type: str) -> dict[str, Any] | None:
    """tokenizer_config.json of a folder whose files may be no more than `tokenizer.json`; None where they are more.

    Raises ModelError for a file that cannot be read.
    """
    if not (folder / TOKENIZER).is_file() or not (folder / CONFIG).is_file():
        return None
    config = read_object(folder / CONFIG)
    if config.get("tokenizer_class") not in _PLAIN or model_type in TOKENIZER_OF_ITS_OWN:
        return None
    known = {*_WITHOUT_EFFECT, *_NAMED, *_LISTED, _ADDED, "add_prefix_space", "split_special_tokens"}
    others = [name for name in config if name not in known and not name.endswith("_token")]
    if others or config.get("split_special_tokens") or any((folder / name).exists() for name in _OTHER_FILES):
        return None
    return config


def adds_nothing(folder: Path, config: Mapping[str, Any], tokenizer: Tokenizer) -> bool:
    """Whether every token that the files beside `tokenizer.json` name is one of its added tokens, just as they say,
    and nothing else in them changes it. Raises ModelError for a file that cannot be read."""
    known = tokenizer.get_added_tokens_decoder()
    by_content = {token.content: token for token in known.values()}
    added = config.get(_ADDED) or {}
    if not isinstance(added, dict) or any(not _same(token, _at(known, at)) for at, token in added.items()):
        return False
    others = [*_other_tokens(config), *_map_tokens(folder, config)]
    if any(token is None or not _same(token, by_content.get(_content(token))) for token in others):
        return False
    indices = read_object(path) if (path := folder / "added_tokens.json").is_file() else {}
    if any(token not in by_content or known.get(index) != by_content[token] for token, index in indices.items()):
        return False
    return _prefix_space(tokenizer) in (None, bool(config.get("add_prefix_space")))


def _other_tokens(config: Mapping[str, Any]) -> Iterator[Any]:
    """Every token that a configuration names aside from `added_tokens_decoder`."""
    for name, value in config.items():
        if name.endswith("_token") and name not in ("add_bos_token", "add_eos_token") and value is not None:
            yield value
        elif name in _LISTED:
            yield from value.values() if isinstance(value, dict) else value or ()


def _map_tokens(folder: Path, config: Mapping[str, Any]) -> Iterator[Any]:
    """Every token of special_tokens_map.json, which lays its names over those of the configuration; None for one that
    says something else."""
    path = folder / "special_tokens_map.json"
    if not path.is_file() or _ADDED in config:  # read only where the configuration does not list the added tokens
        return
    for name, value in read_object(path).items():
        if name in _LISTED:
            yield from value.values() if isinstance(value, dict) else value or ()
        elif value is not None:
            yield value if name in _NAMED and _content(config.get(name)) == _content(value) else None


def _content(token: Any) -> Any:
    return token.get("content") if isinstance(token, dict) else token


def _at(known: Mapping[int, AddedToken], index: str) -> AddedToken | None:
    return known.get(int(index)) if index.isdecimal() else None


def _same(token: Any, known: AddedToken | None) -> bool:
    """Whether a token as a file says it is that one, its flags too where it says them."""
    if known is None or _content(token) != known.content:
        return False
    return not isinstance(token, dict) or all(token.get(f, getattr(known, f)) == getattr(known, f) for f in _FLAGS)


def _prefix_space(tokenizer: Tokenizer) -> bool | None:
    """Whether the outermost pre-tokenizer puts a space in front of a text, which transformers 4 sets as the
    configuration says; None where it has no such setting."""
    if tokenizer.pre_tokenizer is None:
        return None
    state = json.loads(tokenizer.pre_tokenizer.__getstate__())
    return state.get("add_prefix_space")
