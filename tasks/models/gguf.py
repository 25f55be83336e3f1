"""The metadata of a GGUF file, read without any package: what `plan` needs to know before weights are loaded.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian).
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from storage.errors import ModelError

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9

# GGUF's key (after the architecture's prefix) → the name in a transformers configuration.
_KEYS = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "context_length": "max_position_embeddings",
    "vocab_size": "vocab_size",
}
_MODEL_TYPES = {"gemma3": "gemma3_text", "gpt-oss": "gpt_oss"}


class _Cursor:
    """Walks the header; an array's elements are skipped and only their number is kept."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, 0

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from(code, self.data, self.at)
        self.at += struct.calcsize(code)
        return value

    def string(self) -> str:
        length = self.scalar("<Q")
        self.at += length
        return self.data[self.at - length : self.at].decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.scalar(_SCALARS[kind])
        element, length = self.scalar("<I"), self.scalar("<Q")
        if element in _SCALARS:
            self.at += length * struct.calcsize(_SCALARS[element])
        else:
            for _ in range(length):
                self.value(element)
        return length


def read_metadata(path: str) -> dict[str, Any]:
    """Every key of the header; an array is given as its length. Raises ModelError where it is not a GGUF file."""
    try:
        with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            cursor = _Cursor(data)
            if data[:4] != b"GGUF":
                raise ModelError("a GGUF file", got=f"one that begins with {data[:4]!r}", where=path)
            cursor.at = 4
            version, _tensors, keys = cursor.scalar("<I"), cursor.scalar("<Q"), cursor.scalar("<Q")
            if version not in (2, 3):
                raise ModelError("GGUF version 2 or 3", got=str(version), where=path)
            return {cursor.string(): cursor.value(cursor.scalar("<I")) for _ in range(keys)}
    except (struct.error, KeyError, ValueError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError("a whole GGUF header", got=f"{type(error).__name__}: {error}", where=path) from error


def gguf_config(path: str) -> dict[str, Any]:
    """The sizes of the model under the names that a transformers config.json uses."""
    metadata = read_metadata(path)
    architecture = str(metadata.get("general.architecture", "none"))
    config: dict[str, Any] = {
        name: metadata[f"{architecture}.{key}"] for key, name in _KEYS.items() if f"{architecture}.{key}" in metadata
    }
    config["model_type"] = _MODEL_TYPES.get(architecture, architecture)
    if architecture == "llama" and "mistral" in str(metadata.get("general.name", "")).lower():
        config["model_type"] = "mistral"  # llama.cpp files Mistral under llama
    config.setdefault("vocab_size", metadata.get("tokenizer.ggml.tokens"))
    if "num_attention_heads" in config:
        config.setdefault("num_key_value_heads", config["num_attention_heads"])
    for token in ("bos", "eos"):
        config[f"{token}_token_id"] = metadata.get(f"tokenizer.ggml.{token}_token_id")
    return config
