"""A tokenizer gives transformers' ids, whichever of its files say what, and loads transformers only where it must."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, processors

from storage.errors import ModelError, UsageError
from tasks.corpora.windows import bos_of
from tasks.models import tokenizer as module
from tasks.models import tokenizer_files
from tasks.models.loading import transformers_major
from tasks.models.sources import ModelSource, tokenizer_digest
from tasks.models.tokenizer import Encoder, light_encoder, open_encoder

ROOT = Path(__file__).resolve().parents[3]
SPECIAL = ("<s>", "</s>", "<pad>", "<unk>")
EXTRA: dict[str, Any] = {
    **{"content": "<extra>", "lstrip": False, "rstrip": False},
    **{"normalized": False, "single_word": False, "special": True},
}
TEXTS = ("w1 w2 w3", "w1 <extra> w2", "w1<extra>w2", "<s> w1 </s>", " w1  w2\n", "w1<s>w2", "w1<mask>w2", "")
LISTED = pytest.mark.skipif(transformers_major() < 5, reason="transformers 4 cannot load a list of extra tokens")
OPENERS = pytest.mark.parametrize("opened", [open_encoder, light_encoder])


def made(folder: Path, *, template: str = "<s> $A", named: bool = True, **config: Any) -> Path:
    """A tokenizer of words, whose files say no more than `tokenizer.json` unless `config` does."""
    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *(f"w{i}" for i in range(56)), "<mask>", "<extra>"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s+"), "isolated")
    tokenizer.add_special_tokens([*SPECIAL])
    front = [token for token in SPECIAL if token in template]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[(token, SPECIAL.index(token)) for token in front]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>"} if named else {}
    content = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", **names, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(content))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder


def beside(file: str, content: dict[str, Any]) -> Callable[[Path], None]:
    """Write a file beside the tokenizer."""
    return lambda folder: (folder / file).write_text(json.dumps(content)) and None


def opened_by(folder: Path, opened: Callable[[ModelSource], Encoder]) -> Encoder:
    return opened(ModelSource("tiny", str(folder)))


@OPENERS
@pytest.mark.parametrize(
    ("files", "config"),
    [
        (beside("added_tokens.json", {"<extra>": 60}), {}),
        (beside("special_tokens_map.json", {"additional_special_tokens": ["<extra>"]}), {}),
        pytest.param(beside("special_tokens_map.json", {"extra_special_tokens": ["<extra>"]}), {}, marks=LISTED),
        (beside("special_tokens_map.json", {"mask_token": "<extra>"}), {}),
        (beside("special_tokens_map.json", {"mask_token": {**EXTRA, "rstrip": True}}), {"mask_token": "<extra>"}),
        (None, {"added_tokens_decoder": {"61": EXTRA}}),
        (None, {"added_tokens_decoder": {"0": {**EXTRA, "content": "<s>", "rstrip": True}}}),
        pytest.param(None, {"extra_special_tokens": ["<extra>"]}, marks=LISTED),
        (None, {"extra_special_tokens": {"image_token": "<extra>"}}),
        (None, {"additional_special_tokens": ["<extra>"]}),
        (None, {"additional_special_tokens": [{"__type": "AddedToken", **EXTRA}]}),
        (None, {"image_token": "<extra>"}),
        (None, {"eos_token": "<extra>"}),
        (None, {"mask_token": "<mask>"}),
        (None, {"split_special_tokens": True}),
    ],
)
def test_tokens_that_any_file_adds(
    files: Callable[[Path], None] | None, config: dict[str, Any], opened: Any, tmp_path: Path
) -> None:
    made(tmp_path, **config)
    if files is not None:
        files(tmp_path)
    encoder, right = opened_by(tmp_path, opened), transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert encoder.encode(text) == right(text, add_special_tokens=False).input_ids, text
        assert [*encoder.front, *encoder.encode(text)] == right(text).input_ids, text
    (tmp_path / "alone").mkdir()
    alone = opened_by(made(tmp_path / "alone"), opened)
    if transformers_major() >= 5:  # which reads more of them
        assert any(encoder.encode(text) != alone.encode(text) for text in TEXTS)  # what the files add can be seen


@OPENERS
@pytest.mark.parametrize(
    ("template", "named", "files", "right"),
    [
        ("<s> $A", True, None, (0,)),
        ("<s> $A", False, None, (0,)),
        ("<s> $A", False, beside("special_tokens_map.json", {"bos_token": "<s>"}), (0,)),
        ("</s> $A", True, None, (1,)),
        ("<s> $A </s>", False, None, (0,)),
        ("$A </s>", True, None, ()),
        ("<s> </s> $A", False, None, (0, 1)),
    ],
)
def test_what_stands_in_front_of_a_text(
    template: str,
    named: bool,
    files: Callable[[Path], None] | None,
    right: tuple[int, ...],
    opened: Any,
    tmp_path: Path,
) -> None:
    """Found by what the tokenizer does, whether or not a file names it."""
    made(tmp_path, template=template, named=named)
    if files is not None:
        files(tmp_path)
    encoder = opened_by(tmp_path, opened)
    ids = transformers.AutoTokenizer.from_pretrained(tmp_path)("w1 w2").input_ids
    assert ids[: len(right)] == list(right) and encoder.front == right
    if len(right) < 2:
        assert bos_of("auto", encoder.named_bos, encoder.front) == (right[0] if right else None)


def test_which_token_a_policy_takes() -> None:
    assert [bos_of(policy, 7, ()) for policy in ("auto", "always", "never")] == [None, 7, None]
    assert [bos_of(policy, None, (3,)) for policy in ("auto", "always", "never")] == [3, 3, None]
    assert bos_of("always", 7, (3,)) == 3
    assert [bos_of(policy, 7, (3, 4)) for policy in ("always", "never")] == [7, None]
    with pytest.raises(UsageError, match=r"one token in front.*2 there \(ids 3, 4\).*--bos never, or --bos always"):
        bos_of("auto", 7, (3, 4))
    with pytest.raises(UsageError, match=r"with a BOS token, got one without.*Use --bos never\."):
        bos_of("always", None, ())


def test_a_tokenizer_that_is_whole_is_read_without_transformers(tmp_path: Path) -> None:
    made(tmp_path, clean_up_tokenization_spaces=False, model_max_length=1e30, eos_token="</s>", pad_token="<pad>")
    beside("special_tokens_map.json", {"bos_token": "<s>", "eos_token": {"content": "</s>"}})(tmp_path)
    beside("added_tokens.json", {"<s>": 0})(tmp_path)
    program = (
        "import sys; from tasks.models.sources import ModelSource; from tasks.models.tokenizer import light_encoder\n"
        f"print(light_encoder(ModelSource('tiny', {str(tmp_path)!r})).encode('w1'), 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "[5] False"


def test_where_transformers_takes_another_class_its_ids_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a future version does with files that look whole: it is compared once, and again when they change."""
    made(tmp_path)
    source, loaded = ModelSource("tiny", str(tmp_path)), []

    def other(source: ModelSource) -> Any:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source.folder)
        tokenizer.add_tokens([AddedToken("w5", special=True)] if loaded else ["w7"])
        tokenizer.backend_tokenizer.add_special_tokens(["brown"])
        loaded.append(tokenizer)
        return tokenizer

    monkeypatch.setattr(module, "load_tokenizer", other)
    assert "brown" in open_encoder(source).tokens(open_encoder(source).encode("w1 brown"))
    assert len(loaded) == 1
    before = tokenizer_digest(source)
    beside("special_tokens_map.json", {})(tmp_path)
    assert tokenizer_digest(source) != before
    open_encoder(source)
    assert len(loaded) == 2


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"])
@pytest.mark.parametrize("content", ["", "[]", "[" * 100_000, '{"a": '])
def test_a_damaged_file_is_an_error_that_names_it(name: str, content: str, tmp_path: Path) -> None:
    (made(tmp_path) / name).write_text(content)
    with pytest.raises(ModelError, match=f"a {name} that can be read, got .*{name}"):
        opened_by(tmp_path, light_encoder)


def test_the_sample_and_the_folders_of_transformers_are_whole(tmp_path: Path) -> None:
    """What `save_pretrained` writes for a fast tokenizer needs no transformers to be read."""
    made(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    saved = tmp_path / "saved"
    tokenizer.save_pretrained(saved)
    (saved / "config.json").write_text(json.dumps({"model_type": "llama"}))
    for folder in (saved, ROOT / "samples" / "topics-neox"):
        config = tokenizer_files.plain_config(folder, "llama")
        assert config is not None
        assert tokenizer_files.adds_nothing(folder, config, Tokenizer.from_file(str(folder / "tokenizer.json")))
