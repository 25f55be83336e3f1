"""Captures of models that read images: what the store and the tables say, identity, and what is refused."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from storage.errors import CorpusError, ModelError, UsageError
from storage.filesystem import open_runs
from storage.layout import Layout
from storage.tables import read_table
from tasks.capture.describe import describe
from tasks.capture.documents import read_windows
from tasks.capture.finish import capture_run_record
from tasks.capture.folder import CaptureFolder
from tasks.capture.plan import plan_capture
from tasks.capture.settings import CaptureSettings
from tasks.capture.verify_sample import rerun_sample
from tests.tasks.capture import made_captures
from tests.tasks.capture.made_captures import Made, make
from tests.tasks.corpora.pictures import DINO, VIT, picture, save_model, save_pictures

pytest.importorskip("PIL", reason="Pillow is not installed: pip install 'theodolite[images]'")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ViT and a DINOv2 with registers, five pictures, and a text."""
    folder = tmp_path_factory.mktemp("images")
    save_model(folder / "vit", "vit")
    save_model(folder / "dinov2", "dinov2_with_registers", DINO)
    save_pictures(folder / "pictures")
    (folder / "pictures" / "notes.txt").write_text("No picture.")
    made_captures.save_model(folder / "llama")
    return folder


@pytest.fixture(scope="module")
def made(place: Path) -> Made:
    return make(place / "dinov2", [place / "pictures"], place / "runs", shard_tokens=80, batch_tokens=70)


def settings(place: Path, model: str = "vit", corpus: str = "pictures", **more: object) -> CaptureSettings:
    path = corpus if corpus.startswith(("hf:", "python-")) else str(place / corpus)
    return CaptureSettings(str(place / model), (path,), **more)


def test_one_image_is_one_document_and_its_tokens_have_no_ids(made: Made) -> None:
    tables = _tables(made)
    documents, tokens = tables["documents"], tables["tokens"]
    assert documents["source"] == ["0.png", "1.jpg", "2.webp", "3.bmp", "4.jpeg"]
    assert documents["n_tokens"] == [1 + 2 + 5 * 6] * 5
    assert (documents["n_predicted"], documents["nll_sum"]) == ([0] * 5, [0.0] * 5)
    assert tokens["token"][:4] == ["[CLS]", "[REG 0]", "[REG 1]", "patch 0,0"]
    assert tokens["token"][32] == "patch 4,5" and tokens["token"][33] == "[CLS]"
    assert tokens["position"][:34] == [*range(33), 0]
    assert set(tokens["token_id"]) == {None} and np.isnan(tokens["nll"]).all()
    captures = {name: values[0] for name, values in tables["captures"].items()}
    assert (captures["family"], captures["causal"], captures["window_tokens"]) == ("dinov2_with_registers", False, 33)
    tensors = made.tensors()
    assert (tensors[0, 0, "token_ids"] == -1).all() and tensors[0, 0, "token_ids"].shape == (33,)
    assert tensors[4, 2, "attention"].shape == (4, 33, 33)
    digests = _windows_digests(made)
    assert documents["digest"] == digests and len(set(digests)) == 5


def _windows_digests(made: Made) -> list[str]:
    windows = read_windows(open_runs(made.runs), Layout(made.capture))
    return [hashlib.sha256(windows.inputs(d).tobytes()).hexdigest() for d in range(len(windows))]


def _tables(made: Made) -> dict[str, dict[str, list]]:
    prepared = CaptureFolder.open(made.runs, made.capture)
    key = capture_run_record(prepared).key
    paths = {n: prepared.layout.table_part(n, key, "final") for n in ("captures", "documents", "tokens")}
    return {name: read_table(prepared.fs, path).to_pydict() for name, path in paths.items()}


def test_a_sample_passes_the_plain_model_and_other_pixels_do_not(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    rerun = rerun_sample(made.runs, made.capture, 3, seed=1)
    assert (rerun.problems, rerun.note, len(rerun.documents)) == ([], "", 3)
    assert all(errors.residual < 1e-5 for errors in rerun.layers) and rerun.layers[3].nll is None
    from tasks.capture.documents import Windows

    inputs = Windows.inputs
    monkeypatch.setattr(Windows, "inputs", lambda self, doc: inputs(self, doc) + np.float32(0.01))
    assert len(rerun_sample(made.runs, made.capture, 1, seed=1).problems) > 3


def test_attention_that_is_rebuilt_is_the_stored_one(place: Path, made: Made, tmp_path: Path) -> None:
    rebuilt = make(place / "dinov2", [place / "pictures"], tmp_path, attention="rebuilt").tensors()
    for (doc, layer, kind), tensor in made.tensors().items():
        if kind == "attention":
            assert torch.allclose(rebuilt[doc, layer, kind], tensor, atol=1e-5)


def test_arrays_are_images_or_pixels(place: Path, tmp_path: Path) -> None:
    """An array of uint8 is prepared as the picture it holds, one of floats is taken as it is."""
    from PIL import Image

    arrays, pictures = tmp_path / "arrays", tmp_path / "pictures"
    arrays.mkdir()
    pictures.mkdir()
    np.save(arrays / "a.npy", picture(2))
    Image.fromarray(picture(2)).save(pictures / "a.png")
    (one,) = describe(settings(place, corpus=str(pictures))).documents()
    np.save(arrays / "b.npy", one.pixels.astype(np.float64))
    first, second = describe(settings(place, corpus=str(arrays))).documents()
    assert np.array_equal(first.pixels, one.pixels) and np.array_equal(second.pixels, one.pixels)
    repeated = describe(settings(place, corpus=str(arrays), deduplicate=True)).documents()
    assert [d.source for d in repeated] == ["a.npy"] and repeated.left_out == {"repeated": 1}


def test_pictures_are_turned_upright_and_made_rgb(place: Path, tmp_path: Path) -> None:
    from PIL import Image

    upright, exif = Image.fromarray(picture(1)), Image.Exif()
    exif[0x0112] = 6  # the camera lay on its side
    upright.rotate(90, expand=True).save(tmp_path / "a.png", exif=exif)
    upright.save(tmp_path / "b.png")
    upright.convert("RGBA").save(tmp_path / "c.png")
    upright.convert("L").save(tmp_path / "d.png")
    a, b, c, d = describe(settings(place, corpus=str(tmp_path))).documents()
    assert np.array_equal(a.pixels, b.pixels) and np.array_equal(c.pixels, b.pixels)
    assert np.array_equal(d.pixels[0], d.pixels[2]) and not np.array_equal(d.pixels, b.pixels)


def test_the_key_knows_pixels_and_preparation(place: Path, tmp_path: Path) -> None:
    save_model(tmp_path / "vit", "vit", {**VIT, "resample": 3})
    first = describe(settings(place)).identity
    other = describe(CaptureSettings(str(tmp_path / "vit"), (str(place / "pictures"),))).identity
    assert first.ingredients["model_digest"] == other.ingredients["model_digest"]
    assert first.ingredients["tokenizer_digest"] != other.ingredients["tokenizer_digest"] is not None
    save_pictures(tmp_path / "pictures", 4)
    fewer = describe(settings(place, corpus=str(tmp_path / "pictures"))).identity
    assert len({first.key, other.key, fewer.key}) == 3
    assert describe(settings(place)).identity == first


def test_a_plan_counts_images_and_their_tokens(place: Path) -> None:
    plan = plan_capture(settings(place, max_documents=3), str(place / "runs"))
    assert (plan.n_docs, plan.n_tokens, plan.window, plan.left_out) == (3, 3 * 37, 37, {})
    assert plan.attention_bytes["stored"] == 3 * 3 * 4 * 37**2 * 4


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"window": 64},
            r"no window for a model that reads images, got 64: .*37 tokens, in window\. Leave --window out",
        ),
        ({"stride": 4}, "no stride .*one image is one document"),
        ({"bos": "never"}, "no bos .*an image has no BOS token"),
        ({"field": "image"}, "no field .*images have no fields"),
    ],
)
def test_settings_of_text_are_refused(more: dict[str, object], message: str, place: Path) -> None:
    with pytest.raises(UsageError, match=message):
        describe(settings(place, **more))


@pytest.mark.parametrize(
    ("model", "corpus", "message"),
    [
        ("vit", "python-topics", r"images: files.*got 'python-topics', which is text.*This model reads images"),
        ("vit", "hf:owner/name", r"got 'hf:owner/name', which is text"),
        ("vit", "pictures/notes.txt", r"a file of a known kind \(\.png, .*got 'notes.txt'.*This model reads images"),
        ("vit", "llama", r"at least one image, got none, in .*llama\. This model reads images.*\.webp"),
        ("llama", "pictures/0.png", r"got '0.png'.*This model reads text; images need one that reads them"),
        ("vit", "pictures/none.png", "not there"),
    ],
)
def test_a_corpus_that_the_model_does_not_read_is_refused(model: str, corpus: str, message: str, place: Path) -> None:
    with pytest.raises(CorpusError, match=message):
        describe(settings(place, model, corpus))


def test_a_text_model_passes_over_pictures_in_a_folder(place: Path) -> None:
    assert [file.name for file in describe(settings(place, "llama")).files] == ["notes.txt"]


def test_images_that_cannot_be_read_are_named(place: Path, tmp_path: Path) -> None:
    from PIL import Image

    whole = (place / "pictures" / "0.png").read_bytes()
    written = {"cut.png": whole[:200], "text.jpg": b"no picture", "empty.bmp": b"", "text.npy": b"no array"}
    for name, data in written.items():
        (tmp_path / name).write_bytes(data)
    Image.fromarray(np.full((30, 30), 40_000, np.uint16)).save(tmp_path / "deep.png")
    np.save(tmp_path / "flat.npy", np.zeros((24, 24), np.uint8))
    np.save(tmp_path / "small.npy", np.zeros((3, 24, 20), np.float32))
    np.save(tmp_path / "nan.npy", np.full((3, 24, 24), np.nan, np.float32))
    np.save(tmp_path / "objects.npy", np.array([{}], object))
    messages = {
        "cut.png": r"a readable image file, got .*in .*cut\.png\. The file is cut off, damaged",
        "text.jpg": "a readable image file, got cannot identify",
        "empty.bmp": "a readable image file, got cannot identify",
        "text.npy": "a readable array file",
        "objects.npy": "a readable array file, got Object arrays cannot be loaded",
        "deep.png": "an image of 8 bits a channel, got one of Pillow's mode I;16, in ",
        "flat.npy": r"an array \(H, W, 3\) of uint8, or .*got \(24, 24\) of uint8",
        "small.npy": r"comes out as pixels of shape \(3, 24, 24\), got \(3, 24, 20\), in .*small\.npy",
        "nan.npy": "finite pixels, got NaN or infinity, in ",
    }
    for name, message in messages.items():
        with pytest.raises(CorpusError, match=message):
            plan_capture(settings(place, corpus=str(tmp_path / name)), str(place / "runs"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vit", None, r"a preprocessor_config.json beside the model.*got none, in .*Save the one"),
        ("vit", {**VIT, "size": 32}, r"images of \(24, 24\) pixels, .*got a preprocessor that makes them \(32, 32\)"),
        ("dinov2", {**DINO, "do_center_crop": False}, "all images the same size, got .*shorter edge 32 pixels"),
        ("dinov2", {**DINO, "crop_size": 3}, r"at least one patch of \(4, 4\) pixels, got images of \(3, 3\) pixels"),
    ],
)
def test_a_preprocessor_that_does_not_fit_is_refused(
    name: str, content: dict | None, message: str, place: Path, tmp_path: Path
) -> None:
    model = save_model(tmp_path / "model", name, content)
    if content is None:
        (model / "preprocessor_config.json").unlink()
    assert json.loads((model / "config.json").read_text())["model_type"] == name
    with pytest.raises(ModelError, match=message):
        describe(CaptureSettings(str(model), (str(place / "pictures"),)))
