"""The configuration of a run: what a TOML file, the command line and a deployment's form may say."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, field_validator

from storage.errors import UsageError
from tasks.capture.key import CaptureSettings


class CaptureConfig(BaseModel):
    """One model over one corpus. The meaning of each value is in docs/running.md."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    model: str = Field("sample", description="sample, smollm2-135m, a folder, a .gguf file, or a hub id")
    corpus: tuple[str, ...] = Field(
        ("python-topics",),
        min_length=1,
        description="Files, folders, globs, s3://, hf:NAME; or python-topics",
    )
    field: str | None = Field(None, description="The field of a JSONL or Parquet corpus that holds the text")
    window: StrictInt | None = Field(
        None, description="Tokens per document, its BOS included; the model's positions, to 512"
    )
    stride: StrictInt | None = Field(None, description="Tokens from one window's start to the next; a window")
    max_documents: StrictInt | None = Field(None, description="At most so many documents")
    deduplicate: StrictBool = Field(False, description="Leave out documents whose tokens came before")
    bos: str = Field("auto", description="auto, always or never")
    dtype: str = Field("float32", description="What the model computes in: float32, float16 or bfloat16")
    store_dtype: str = Field(
        "float32", description="Stored in float32, float16 or bfloat16; or by kind: attention=float16,residual=float32"
    )
    attention: str = Field(
        "auto", description="How attention is kept: stored, rebuilt from query and key, none, or auto, the smaller"
    )
    layers: str | None = Field(None, description="The layers that are kept, such as 0-5,10; all by default")
    heads: str | None = Field(
        None, description="The heads whose attention is kept, such as 0-3,7, with their keys and values; all by default"
    )
    positions: str | None = Field(
        None, description="The query positions whose attention is kept, such as 0-31,last or every:8; all by default"
    )
    keep: str | None = Field(
        None, description="Which of value, output_input and residual are kept, separated by commas; all by default"
    )
    padding: str = Field("right", description="right or left; changes no number")
    query_block: StrictInt = Field(128, description="Queries whose attention is held at once")
    batch_tokens: StrictInt = Field(0, description="Tokens of one forward pass; 0: what the memory allows")
    shard_tokens: StrictInt = Field(0, description="Tokens of one shard, the unit of work; 0: 2,048 or one batch")
    device: str = Field("auto", description="auto, cpu, cuda or mps")

    @field_validator("corpus", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("layers", "heads", "positions", "keep", "store_dtype", mode="before")
    @classmethod
    def _text_or_list(cls, value: Any) -> Any:
        """A list in the file says the same as its items with commas between them."""
        return ",".join(map(str, value)) if isinstance(value, list | tuple) else value

    def settings(self) -> CaptureSettings:
        """The same for the tasks; UsageError names the value that is not allowed."""
        return CaptureSettings(**self.model_dump())


class RunSettings(BaseModel):
    """Where a run lies and how it is worked."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    runs: str = Field("runs", description="The folder of runs")
    stages: tuple[str, ...] | None = Field(
        None, description="The stages to do, in order, or all; by default those that are quick"
    )
    seed: StrictInt = Field(0, ge=0, description="The seed of everything that is drawn; 0 or more")
    workers: Annotated[StrictInt, Field(ge=1)] | None = Field(
        None, description="Shards of a stage worked on at once; the cores by default"
    )

    @field_validator("stages", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        names = tuple(part.strip() for part in value.split(",") if part.strip())
        if not names:
            raise UsageError(
                "names of stages",
                got=f"'{value}'",
                where="stages",
                remedy="Leave it out for those that are quick; `theodolite capture` does none.",
            )
        return names


class Config(BaseModel):
    """A whole configuration: the sections of the TOML file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    capture: CaptureConfig = CaptureConfig()
    stages: dict[str, dict[str, Any]] = Field(default_factory=dict, description="Parameters by stage")
    run: RunSettings = RunSettings()
