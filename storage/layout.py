"""The run folder's map: the only place that builds a path.

Every path is POSIX text relative to WHERE, the folder (later: the bucket) of runs, so a run folder can be moved.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

WAREHOUSE = "warehouse.duckdb"
"""The saved DuckDB catalog over every capture in WHERE."""

KEY_DIGITS = 16
"""How many hex digits of a stage's key its folders carry; the whole key is in its record and in its rows."""

MODEL, SHARDS = "model", "shards"
"""The store's groups: what does not depend on the text, and the shards."""

MODEL_WEIGHT, MODEL_BIAS = f"{MODEL}/output_weight", f"{MODEL}/output_bias"
MODEL_VALUE_NORM, MODEL_SINKS = f"{MODEL}/value_weight_norm", f"{MODEL}/sink_logits"
"""Arrays of the store: the output projection per head and its bias, norms of W_V, and learned sinks."""

FINAL = "final"
"""The part that belongs to no shard: what a stage (or the capture) writes once at its end."""


def shard_part(index: int) -> str:
    """The name of the part that shard `index` (0 or more) fills."""
    return f"{index:05d}"


SURVEY = "survey"
"""The part that holds what a stage found over all shards before any of them has rows."""


def survey_part(index: int) -> str:
    """The name of the part that holds what shard `index` (0 or more) gives to a stage's survey."""
    return f"{SURVEY}-{shard_part(index)}"


def under(folder: str, name: str) -> str:
    """The path of `name` inside `folder`."""
    return f"{folder}/{name}"


def batch_group(batch: int) -> str:
    """The group of forward batch `batch` inside a shard of the store."""
    return f"batch-{batch:02d}"


def batch_array(batch: int, kind: str) -> str:
    """The array of a kind of tensor for a forward batch, inside a shard of the store."""
    return f"{batch_group(batch)}/{kind}"


def zarr_json(node: str) -> str:
    """The file that describes a group or array of the store; "" is the root."""
    return f"{node}/zarr.json" if node else "zarr.json"


def chunk_name(index: Iterable[int]) -> str:
    """A chunk's file in its array's folder, all in one folder: Zarr's default keys with dots for slashes."""
    return "c." + ".".join(map(str, index))


@dataclass(frozen=True)
class Layout:
    """Every path of one capture. `part` is `shard_part(i)` or FINAL; `key` is a stage's key in hex."""

    capture: str

    @property
    def root(self) -> str:
        return self.capture

    # ---- the activation store
    @property
    def store(self) -> str:
        return f"{self.capture}/activations.zarr"

    @property
    def store_shards(self) -> str:
        return f"{self.store}/{SHARDS}"

    @property
    def store_model(self) -> str:
        """The group of what does not depend on the text: W_O and its bias."""
        return f"{self.store}/{MODEL}"

    def shard(self, index: int) -> str:
        return f"{self.store_shards}/{shard_part(index)}"

    # ---- the manifest
    @property
    def manifest(self) -> str:
        return f"{self.capture}/manifest"

    @property
    def capture_record(self) -> str:
        return f"{self.manifest}/capture.json"

    @property
    def windows(self) -> str:
        """The documents: token ids and where they came from."""
        return f"{self.manifest}/windows.parquet"

    @property
    def model_record(self) -> str:
        return f"{self.manifest}/model.json"

    @property
    def shard_records_root(self) -> str:
        return f"{self.manifest}/shards"

    def shard_record(self, index: int) -> str:
        return f"{self.shard_records_root}/{shard_part(index)}.json"

    def last_run(self, name: str) -> str:
        """What the last run of the capture, or of the stage `name`, did and what it found done."""
        return f"{self.manifest}/last/{name}.json"

    @property
    def stage_records_root(self) -> str:
        return f"{self.manifest}/stages"

    def stage_folder(self, stage: str, key: str) -> str:
        return f"{self.stage_records_root}/{stage}/{key[:KEY_DIGITS]}"

    def stage_record(self, stage: str, key: str) -> str:
        """What one run of a stage is: its parameters, versions and status."""
        return f"{self.stage_folder(stage, key)}/stage.json"

    def part_record(self, stage: str, key: str, part: str) -> str:
        return f"{self.stage_folder(stage, key)}/part-{part}.json"

    # ---- tables
    @property
    def table_root(self) -> str:
        return f"{self.capture}/tables"

    def table_part(self, table: str, key: str, part: str) -> str:
        return f"{self.table_root}/{table}/{key[:KEY_DIGITS]}/part-{part}.parquet"

    def stages_table(self, stage: str, key: str) -> str:
        """This stage's row of the table `stages`; rewritten whole, by rename, whenever its status changes."""
        return f"{self.table_root}/stages/{stage}-{key[:KEY_DIGITS]}.parquet"

    # ---- work in progress
    def partial(self, stage: str, key: str, part: str) -> str:
        """The arrays that a shard hands to the stage's `combine`."""
        return f"{self.capture}/partials/{stage}/{key[:KEY_DIGITS]}/part-{part}.safetensors"

    def checkpoint_records_root(self, stage: str, key: str) -> str:
        return f"{self.stage_folder(stage, key)}/checkpoints"

    def checkpoint_record(self, stage: str, key: str, part: str, name: str) -> str:
        """What says that the piece `name` of a part under way is done."""
        return f"{self.checkpoint_records_root(stage, key)}/{part}-{name}.json"

    def checkpoints_root(self, stage: str, key: str) -> str:
        return f"{self.capture}/partials/{stage}/{key[:KEY_DIGITS]}/checkpoints"

    def checkpoint(self, stage: str, key: str, part: str, name: str) -> str:
        """The arrays of a piece of a part under way, until the stage is done."""
        return f"{self.checkpoints_root(stage, key)}/{part}-{name}.safetensors"

    def lock(self, name: str) -> str:
        return f"{self.capture}/locks/{name}.lock"

    @property
    def staging_root(self) -> str:
        return f"{self.capture}/staging"

    def staging(self, name: str) -> str:
        """Where the work called `name` puts its files before they are renamed into place."""
        return f"{self.staging_root}/{name}"
