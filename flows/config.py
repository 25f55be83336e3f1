"""The configuration of a run: what a TOML file, the command line and a deployment's form may say."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictInt, field_validator

from storage.errors import UsageError
from tasks.capture.settings import CaptureSettings


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

    capture: CaptureSettings = CaptureSettings()
    stages: dict[str, dict[str, Any]] = Field(default_factory=dict, description="Parameters by stage")
    run: RunSettings = RunSettings()
