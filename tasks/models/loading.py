"""Loading a model and its tokenizer.

sources.py has what needs neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from storage.errors import ModelError, UsageError
from storage.kept import DTYPES
from tasks.models.anatomy import Anatomy, anatomy_of
from tasks.models.families import family_of
from tasks.models.sources import ModelSource, has_tokenizer, read_config
from tasks.models.table import FALLBACK, INTERFACE, Family

if TYPE_CHECKING:
    import torch
    from torch import nn

DEVICES = ("auto", "cpu", "cuda", "mps")


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to be captured: in eval mode, on its device, with the tap attached."""

    model: nn.Module
    anatomy: Anatomy
    source: ModelSource
    device: str
    dtype: str
    tap_method: str = INTERFACE
    """interface | fallback: how the tap reaches its attention in this version of transformers."""

    @property
    def name(self) -> str:
        return self.source.name


def torch_dtype(name: str) -> torch.dtype:
    """float32 | float16 | bfloat16 as torch's; UsageError for anything else."""
    import torch

    if name not in DTYPES:
        raise UsageError(f"a dtype: {', '.join(DTYPES)}", got=f"'{name}'")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def pick_device(name: str) -> str:
    """auto → cuda, else mps, else cpu; a device that is named must be there."""
    import torch

    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return next(device for device, there in present.items() if there)
    if name not in DEVICES:
        raise UsageError(f"a device: {', '.join(DEVICES)}", got=f"'{name}'")
    if not present[name]:
        there = ", ".join(device for device, yes in present.items() if yes)
        raise UsageError("a device of this machine", got=f"'{name}'", remedy=f"There is {there}.")
    return name


def load_tokenizer(source: ModelSource) -> Any:
    """The model's tokenizer. Raises ModelError where the folder has none."""
    if not has_tokenizer(source):
        remedy = "Save one beside the weights: tokenizer.save_pretrained(folder). Without it no text can be captured."
        raise ModelError("a tokenizer beside the model", got="none", where=source.folder, remedy=remedy)
    from transformers import AutoTokenizer

    _know_own_families()
    with _quiet():
        try:
            return AutoTokenizer.from_pretrained(source.folder, **_gguf(source), local_files_only=True)
        except Exception as error:  # transformers and tokenizers raise families of their own
            raise ModelError("a tokenizer that transformers can load", got=_line(error), where=source.folder) from error


def load_model(source: ModelSource, dtype: str = "float32", device: str = "auto") -> LoadedModel:
    """Load the causal LM, or the encoder without a head, in eval mode with the tap attached, silently.

    Raises ModelError, before weights are read, where the family cannot be captured; and where weights are missing,
    damaged, or of another shape than the configuration says; UsageError for a dtype or device that is not there.
    """
    family = family_of(read_config(source), where=source.name)
    _require_version(family, source.name)
    compute, place = torch_dtype(dtype), pick_device(device)
    # eager first: some families raise KeyError for a name that is not their own
    options = {"attn_implementation": "eager", "dtype": compute, "local_files_only": True, "output_loading_info": True}
    with _quiet():
        try:
            auto, parts = _auto_class(family)
            model, info = auto.from_pretrained(source.folder, **_gguf(source), **parts, **options)
        except Exception as error:  # transformers and the readers of weights raise families of their own
            remedy = "A GGUF file needs `pip install gguf accelerate`." if source.gguf_file else ""
            expected = "a model that transformers can load"
            raise ModelError(expected, got=_line(error), where=source.name, remedy=remedy) from error
    absent = sorted({*info["missing_keys"], *(key[0] for key in info["mismatched_keys"])})
    if absent:
        got = f"{len(absent)} missing or of another shape: {', '.join(absent[:3])}"
        raise ModelError("weights for every part of the model", got=got, where=source.name)
    _check_rotary(read_config(source), model.config, source.name)
    return prepare(model.to(place), source, dtype=dtype, device=place)


def prepare(model: Any, source: ModelSource, *, dtype: str, device: str) -> LoadedModel:
    """Attach the tap to a model that is in memory already. Raises ModelError where its family is not supported."""
    from tasks.models import fallback, rotary, tap

    anatomy = anatomy_of(model)
    _require_version(anatomy.kind, source.name)
    tap_method = INTERFACE if tap.reaches(type(anatomy.attentions[anatomy.attended[0]])) else FALLBACK
    wanted = tap.NAME if tap_method == INTERFACE else "eager"
    if model.config._attn_implementation != wanted:
        model.set_attn_implementation(wanted)
    model.eval().requires_grad_(False)
    rotary.attach(anatomy.body, source.name)
    tap.attach(anatomy)
    if tap_method == FALLBACK:
        fallback.attach(anatomy, clip=getattr(getattr(model.config, "attn_config", None), "clip_qkv", None))
    return LoadedModel(model, anatomy, source, device, dtype, tap_method)


def _require_version(family: Family, where: str) -> None:
    """ModelError where the family's code in an older transformers gives other numbers, or shows no attention."""
    if transformers_major() < family.since:
        raise ModelError(
            f"transformers {family.since} for {family.name}",
            got=f"transformers {version('transformers')}, in which it cannot be captured faithfully",
            where=where,
            remedy=f"pip install 'transformers>={family.since}'.",
        )


def _auto_class(family: Family) -> tuple[Any, dict[str, Any]]:
    """The class that loads a family, and its arguments: no pooling layer, which checkpoints of encoders may lack."""
    import transformers

    _know_own_families()
    if family.causal:
        return transformers.AutoModelForCausalLM, {}
    return transformers.AutoModel, {"add_pooling_layer": False} if family.pooler else {}


def _know_own_families() -> None:
    """The families whose code is ours and not transformers' are registered with it: no code comes from a folder."""
    import_module("tasks.models.ega")


def _check_rotary(written: dict[str, Any], read: Any, where: str) -> None:
    """transformers before 5 passes over `rope_parameters` without a word, and would compute another model."""
    given = written.get("rope_parameters")
    if not given or transformers_major() >= 5:
        return
    share = getattr(read, "partial_rotary_factor", getattr(read, "rotary_pct", 1.0))
    used = {"rope_type": "default", "rope_theta": getattr(read, "rope_theta", None), "partial_rotary_factor": share}
    ignored = sorted(name for name, value in given.items() if used.get(name) != value)
    if ignored:
        remedy = "It was written by transformers 5: pip install 'transformers>=5'."
        raise ModelError("rope_parameters that are understood", got=", ".join(ignored), where=where, remedy=remedy)


def transformers_major() -> int:
    """The major version of transformers that is installed."""
    return int(version("transformers").split(".")[0])


def _gguf(source: ModelSource) -> dict[str, str]:
    return {"gguf_file": source.gguf_file} if source.gguf_file else {}


def _line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextmanager
def _quiet() -> Iterator[None]:
    """Neither progress bars nor advice on the console while transformers loads; its settings are put back after."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    with ExitStack() as stack:
        logging.set_verbosity_error()
        stack.callback(logging.set_verbosity, verbosity)
        if bars:
            logging.disable_progress_bar()
            stack.callback(logging.enable_progress_bar)
        stack.enter_context(_silent_gguf())
        yield


@contextmanager
def _silent_gguf() -> Iterator[None]:
    """transformers converts GGUF tensors under a bar of its own that no setting reaches."""
    from transformers import modeling_gguf_pytorch_utils as gguf

    bar = gguf.tqdm
    gguf.tqdm = lambda items, **_options: items
    try:
        yield
    finally:
        gguf.tqdm = bar
