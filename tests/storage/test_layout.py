"""Paths: the ones that docs/architecture.md promises, all inside the capture's folder."""

from __future__ import annotations

from pathlib import PurePosixPath

from storage.layout import (
    FINAL,
    KEY_DIGITS,
    SURVEY,
    Layout,
    batch_array,
    chunk_name,
    shard_part,
    survey_part,
    zarr_json,
)

KEY = "0123456789abcdef" * 4
LAYOUT = Layout("c")


def test_paths_are_those_of_the_architecture() -> None:
    assert LAYOUT.capture_record == "c/manifest/capture.json"
    assert LAYOUT.windows == "c/manifest/windows.parquet"
    assert LAYOUT.shard_record(12) == "c/manifest/shards/00012.json"
    assert LAYOUT.stage_record("sink", KEY) == "c/manifest/stages/sink/0123456789abcdef/stage.json"
    assert LAYOUT.part_record("sink", KEY, FINAL) == "c/manifest/stages/sink/0123456789abcdef/part-final.json"
    assert LAYOUT.shard(3) == "c/activations.zarr/shards/00003"
    assert LAYOUT.store_model == "c/activations.zarr/model"
    assert LAYOUT.table_part("tokens", KEY, shard_part(3)) == "c/tables/tokens/0123456789abcdef/part-00003.parquet"
    assert LAYOUT.stages_table("sink", KEY) == "c/tables/stages/sink-0123456789abcdef.parquet"
    assert LAYOUT.partial("sink", KEY, "00003") == "c/partials/sink/0123456789abcdef/part-00003.safetensors"
    assert survey_part(3) == "survey-00003"
    assert LAYOUT.lock("shard-3") == "c/locks/shard-3.lock"
    assert LAYOUT.staging("shard-3") == "c/staging/shard-3"
    assert batch_array(3, "value") == "batch-03/value"
    assert chunk_name((4, 0, 1)) == "c.4.0.1"
    assert (zarr_json(""), zarr_json("model")) == ("zarr.json", "model/zarr.json")


def test_every_path_lies_in_the_captures_folder_and_no_two_are_the_same() -> None:
    paths = [
        LAYOUT.capture_record,
        LAYOUT.model_record,
        LAYOUT.windows,
        *(LAYOUT.shard_record(i) for i in range(3)),
        *(LAYOUT.shard(i) for i in range(3)),
        *(
            f(stage, key)
            for f in (LAYOUT.stage_record, LAYOUT.stages_table)
            for stage in "ab"
            for key in (KEY, KEY[::-1])
        ),
        *(LAYOUT.part_record("a", KEY, part) for part in ("00000", "00001", FINAL, SURVEY, survey_part(0))),
        *(LAYOUT.partial("a", KEY, part) for part in ("00000", "00001", FINAL, SURVEY, survey_part(0))),
        *(LAYOUT.table_part(table, KEY, part) for table in "ab" for part in ("00000", FINAL)),
        LAYOUT.lock("a"),
        LAYOUT.staging("a"),
    ]
    assert len(set(paths)) == len(paths)
    assert all(PurePosixPath(path).parts[0] == LAYOUT.root for path in paths)


def test_folders_carry_the_keys_first_digits() -> None:
    assert LAYOUT.stage_folder("a", KEY).endswith(KEY[:KEY_DIGITS])
    assert LAYOUT.stage_folder("a", KEY) == LAYOUT.stage_folder("a", KEY[:KEY_DIGITS])
