"""The options of a capture, each declared once: its type, default, help, allowed values, and part in the key.

The command line, the TOML file, a deployment's form, the generated reference (`flows/reference.py`) and the key's
ingredients all come from this declaration.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, ValidationError, ValidationInfo
from pydantic import field_validator as validates

from storage.errors import UsageError
from storage.kept import DTYPES
from storage.numbers import Positions, number_set, written
from tasks.capture.kept import OTHER_KINDS, WAYS, canonical_dtypes, canonical_kinds
from tasks.models.loading import DEVICES

InKey = Literal["value", "value if set", "other", "no"]
"""How an option enters the key: as its value; as its value unless that is None, so that captures from before the
option existed keep their key; as something derived from it (a digest, the window that holds); or not at all."""


@dataclass(frozen=True)
class Option:
    """What an option's declaration says beside its type, default and description."""

    words: tuple[str, ...] = ()
    """The allowed values, where they are words."""
    least: int | None = None
    expected: str = ""
    """What is expected where the value is below `least`; "a number of at least …" by default."""
    unset: str = ""
    """What holds where the option is left out and its default is None."""
    example: int | str | None = None
    """A value for the preset that lists every setting, where the default is None."""
    on_command_line: bool = True
    """Whether the command line has it too, or the file and the form alone."""
    in_key: InKey = "value"

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError, naming the option, for a value that is not allowed."""
        if self.words and value not in self.words:
            raise UsageError(f"one of {', '.join(self.words)}", got=repr(value), where=name)
        if self.least is not None and value is not None and value < self.least:
            raise UsageError(self.expected or f"a number of at least {self.least}", got=str(value), where=name)


_SAMPLE, _TOPICS = "sample", ("python-topics",)


class CaptureSettings(BaseModel):
    """One model over one corpus: what a user may choose about a capture.

    Descriptions are Markdown; choices that mean the same are brought into the same words, so that they have the same
    key. A value that is not allowed raises UsageError naming the option, one of the wrong type pydantic's
    ValidationError.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    model: Annotated[str, Option(in_key="other")] = Field(
        _SAMPLE,
        description="`sample`, `smollm2-135m`, a folder, a `.gguf` file, or a hub id (the only one that uses the"
        " network)",
    )
    corpus: Annotated[tuple[str, ...], Option(in_key="other")] = Field(
        _TOPICS,
        min_length=1,
        description="Files, folders, globs, `s3://bucket/prefix` or `hf:NAME`, of text or images; `python-topics` is"
        " the text in Python",
    )
    field: Annotated[str | None, Option(unset="`text`, or the only text field", example="text")] = Field(
        None, description="The field of a JSONL or Parquet corpus that holds the text, or several joined by `+`"
    )
    window: Annotated[
        StrictInt | None,
        Option(
            least=2,
            expected="a window of at least 2 tokens",
            unset="the model's positions, at most 512; 256 for `theodolite run` alone",
            example=512,
            in_key="other",
        ),
    ] = Field(None, description="Tokens per document, its BOS included")
    stride: Annotated[StrictInt | None, Option(least=1, unset="a window", example=512)] = Field(
        None, description="Tokens from one window's start to the next"
    )
    max_documents: Annotated[
        StrictInt | None,
        Option(
            least=0,
            expected="a number of documents, or 0 for all",
            unset="all (`0`); 48 for `run` and `plan` without CONFIG",
            example=48,
        ),
    ] = Field(None, description="At most so many documents")
    deduplicate: Annotated[StrictBool, Option()] = Field(
        False, description="Leave out a document whose token ids came before"
    )
    bos: Annotated[str, Option()] = Field(
        "auto", description="A BOS token before each window: `auto` (as the tokenizer does), `always` or `never`"
    )
    dtype: Annotated[str, Option(tuple(DTYPES))] = Field(
        "float32", description="What the model computes in: `float32`, `float16` or `bfloat16`"
    )
    store_dtype: Annotated[str, Option()] = Field(
        "float32",
        description="What the store keeps: `float32`, `float16` or `bfloat16`, or one by kind:"
        " `attention=float16,residual=bfloat16`",
    )
    attention: Annotated[str, Option(WAYS)] = Field(
        "auto",
        description="How attention is kept: `stored`, `rebuilt` (as query and key), `none`, or `auto`, the smaller of"
        " the first two",
    )
    layers: Annotated[str | None, Option(unset="all", example="0-5,10", in_key="value if set")] = Field(
        None, description="The layers that are kept, such as `0-5,10`; the whole model runs and is checked"
    )
    heads: Annotated[str | None, Option(unset="all", example="0-3,7", in_key="value if set")] = Field(
        None,
        description="The query heads whose attention is kept, such as `0-3,7`, of every layer, with the keys and values"
        " that they look at",
    )
    positions: Annotated[str | None, Option(unset="all", example="0-31,last", in_key="value if set")] = Field(
        None, description="The query positions whose attention is kept, such as `0-31,last` or `every:16`"
    )
    keep: Annotated[str | None, Option(unset="all", example="value,residual", in_key="value if set")] = Field(
        None,
        description="Which of `value`, `output_input` and `residual` are kept besides attention, such as"
        " `value,residual`",
    )
    padding: Annotated[str, Option(("right", "left"))] = Field(
        "right", description="`right` or `left`; changes no number"
    )
    query_block: Annotated[StrictInt, Option(least=1, on_command_line=False)] = Field(
        128, description="Queries whose attention is held at once"
    )
    batch_tokens: Annotated[StrictInt, Option(least=0, on_command_line=False)] = Field(
        0,
        description="Tokens of one forward pass: as many documents as fit, at least one; `0`: what the memory allows,"
        " on a CPU at most 1,024",
    )
    shard_tokens: Annotated[StrictInt, Option(least=0, on_command_line=False)] = Field(
        0,
        description="Tokens of one shard, the unit of work: as many documents as fit, at least one; `0`: 2,048, or one"
        " batch where that is more",
    )
    device: Annotated[str, Option(DEVICES, in_key="no")] = Field("auto", description="`auto`, `cpu`, `cuda` or `mps`")

    def __init__(self, model: str = _SAMPLE, corpus: Sequence[str] | str = _TOPICS, **choices: Any) -> None:
        try:
            super().__init__(model=model, corpus=corpus, **choices)
        except ValidationError as error:
            if (own := usage_error(error)) is not None:
                raise own from None
            raise

    @validates("corpus", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @validates("layers", "heads", "positions", "keep", "store_dtype", mode="before")
    @classmethod
    def _text_or_list(cls, value: Any) -> Any:
        """A list in the file says the same as its items with commas between them."""
        return ",".join(map(str, value)) if isinstance(value, list | tuple) else value

    @validates("*", mode="after")
    @classmethod
    def _allowed(cls, value: Any, info: ValidationInfo) -> Any:
        option(str(info.field_name)).check(str(info.field_name), value)
        return value

    @validates("max_documents", mode="after")
    @classmethod
    def _zero_is_all(cls, value: int | None) -> int | None:
        return value or None

    @validates("store_dtype", mode="after")
    @classmethod
    def _same_dtypes_same_words(cls, value: str) -> str:
        return canonical_dtypes(value)

    @validates("layers", "heads", mode="after")
    @classmethod
    def _same_numbers_same_words(cls, value: str | None, info: ValidationInfo) -> str | None:
        return None if value is None else written(number_set(value, str(info.field_name)))

    @validates("positions", mode="after")
    @classmethod
    def _same_positions_same_words(cls, value: str | None) -> str | None:
        return None if value is None else str(Positions.parse(value))

    @validates("keep", mode="after")
    @classmethod
    def _same_kinds_same_words(cls, value: str | None, info: ValidationInfo) -> str | None:
        kinds = None if value is None else canonical_kinds(value)
        if kinds == "" and info.data.get("attention") == "none":
            expected = f"something to keep: attention, or some of {', '.join(OTHER_KINDS)}"
            raise UsageError(expected, got="nothing", where="keep")
        return kinds

    def changed(self, **changes: Any) -> Self:
        """The same settings with some changed, checked like new ones."""
        return type(self)(**{**self.model_dump(), **changes})


def option(name: str) -> Option:
    """The declaration of an option."""
    return next(found for found in CaptureSettings.model_fields[name].metadata if isinstance(found, Option))


def options() -> Iterator[tuple[str, Option]]:
    """Every option's name and declaration, in order."""
    return ((name, option(name)) for name in CaptureSettings.model_fields)


def usage_error(error: ValidationError) -> UsageError | None:
    """The first mistake, where it is one of our own messages."""
    own = error.errors()[0].get("ctx", {}).get("error")
    return own if isinstance(own, UsageError) else None
