"""Rotary frequencies follow a document's own length, whatever else is in its batch and whatever ran before it."""

from __future__ import annotations

import copy
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from storage.errors import ModelError
from storage.rebuild import rebuilt_attention
from tasks.capture.run import store_shape
from tasks.models.anatomy import anatomy_of
from tasks.models.families import max_positions, revisions, why_not
from tasks.models.loading import LoadedModel, prepare
from tasks.models.packing import Packing
from tasks.models.rebuild import sink_logits
from tasks.models.rotary import attach
from tasks.models.run import TapSettings, capture_batch
from tasks.models.sources import ModelSource
from tests.families import NAMES, REPLAYABLE, tiny_model, tokens
from tests.tasks.models.capturing import Plain, assert_near, capture, nll_of, plain
from tests.tasks.models.replaying import captured, replayer, starts

ORIGINAL = 16
"""The length at which frequencies change."""
LENGTHS = (29, 9, 40, 16, 17, 23)
"""Of both sides of it, not in order: one after a longer one above it, and one after a longer one below it."""

pytestmark = pytest.mark.skipif(
    int(transformers.__version__.split(".")[0]) < 5, reason="rope_parameters are transformers 5's name"
)


def scaled(kind: str, width: int) -> dict[str, Any]:
    """A rotary embedding of that kind, of so many frequencies."""
    rope: dict[str, dict[str, Any]] = {
        "longrope": {
            "short_factor": [1.0 + 0.1 * i for i in range(width)],
            "long_factor": [1.0 + 1.3 * i for i in range(width)],
            "original_max_position_embeddings": ORIGINAL,
        },
        "dynamic": {"factor": 4.0},
        "yarn": {"factor": 4.0, "original_max_position_embeddings": ORIGINAL},
    }
    return {"rope_type": kind, "rope_theta": 1e4, **rope[kind]}


_UNKNOWN = {("recurrent_gemma", "longrope"), ("recurrent_gemma", "dynamic"), ("phimoe", "dynamic")}
"""Types that a family's code does not know."""


@cache
def _made(name: str, kind: str) -> nn.Module | None:
    changes = {"position_embedding_type": "rope"} if name == "granitemoehybrid" else {}
    changes |= {"use_mem_rope": True} if name == "zamba2" else {}
    changes |= {"head_dim": 8} if name == "mixtral" else {}
    usual = tiny_model(name, **changes)
    frequencies = [b for part, b in usual.named_buffers() if part.endswith("inv_freq")]
    rope = copy.deepcopy(getattr(usual.config, "rope_parameters", None))
    if not frequencies or not rope or (name, kind) in _UNKNOWN:
        return None
    if kind == "dynamic":  # its own word for the length at which frequencies change
        changes["max_position_embeddings"] = ORIGINAL
    own = scaled(kind, len(frequencies[0]))
    if len(frequencies[0]) == 1:  # dynamic NTK divides by the width less 2
        own = {**scaled(kind, 2), "partial_rotary_factor": 0.5}
    own |= {"short_mscale": 1.1, "long_mscale": 1.4} if name == "phimoe" else {}
    by_layers = all(isinstance(part, dict) for part in rope.values())
    changes["rope_parameters"] = {k: {**v, **own} for k, v in rope.items()} if by_layers else {**rope, **own}
    return tiny_model(name, **changes)


def rotary_model(name: str, kind: str) -> nn.Module:
    """A tiny model of scaled frequencies that has not run yet; skips where it has no rotary embedding to be scaled."""
    made = _made(name, kind)
    if made is None:
        pytest.skip(f"{name} has no rotary embedding that can be scaled")
    return copy.deepcopy(made)


def tapped(model: nn.Module, name: str = "tiny") -> LoadedModel:
    return prepare(model, ModelSource(name, ""), dtype="float32", device="cpu")


def near(got: torch.Tensor, want: torch.Tensor) -> None:
    """Equal but for rounding: other frequencies move attention by 0.1."""
    assert_near(got, want, 3e-5)


@cache
def alone(name: str, kind: str) -> list[Plain]:
    """What models that have never run give of one document each."""
    found = []
    for document in tokens(*LENGTHS):
        fresh = rotary_model(name, kind)
        found.append(plain(fresh, anatomy_of(fresh).output_projections, document))
    return found


@pytest.mark.parametrize(
    ("name", "kind"), [*product(NAMES, ("longrope", "dynamic")), *product(("llama", "gemma3_text"), ("yarn",))]
)
def test_a_document_in_a_batch_is_what_the_plain_model_gives_of_it_alone(name: str, kind: str) -> None:
    model = rotary_model(name, kind)
    ids, loaded = tokens(*LENGTHS), tapped(model)
    anatomy, want = loaded.anatomy, alone(name, kind)
    for padding in ("right", "left") if anatomy.kind.left_padding else ("right",):
        together = capture(loaded, ids, padding=padding)
        for document, got, own in zip(ids, together, want, strict=True):
            near(got.nll[1:], nll_of(own.logits, document))
            for at in range(len(anatomy.attended)):
                near(got.attention[at], own.attentions[at])
            for layer in range(anatomy.n_layers):
                near(got.residual[layer], own.hidden_states[layer])


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
@pytest.mark.parametrize("name", REPLAYABLE)
def test_a_replay_in_a_batch_is_the_plain_models_pass_over_each_document(name: str, kind: str) -> None:
    model = rotary_model(name, kind)
    ids, loaded = tokens(*LENGTHS), tapped(model)
    documents = captured(loaded, ids)
    for layer in range(2):
        replayed = list(replayer(loaded).run(layer, starts(documents, ids, layer)))
        for document, one, own in zip(ids, replayed, alone(name, kind), strict=True):
            near(torch.from_numpy(one.nll[1:]), nll_of(own.logits, document))


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
@pytest.mark.parametrize("name", NAMES)
def test_rebuilt_attention_of_a_batch_is_the_plain_models(name: str, kind: str) -> None:
    model = rotary_model(name, kind)
    if why_not(model.config.to_dict()) is not None:
        pytest.skip(f"{name} cannot be rebuilt")
    ids, loaded = tokens(*LENGTHS), tapped(model)
    shape = store_shape(loaded, {"attention": "rebuilt", "store_dtype": "float32"})
    found: dict[tuple[int, str], torch.Tensor] = {}
    settings = TapSettings(8, dtypes=shape.dtypes, kept=Packing.of(shape))
    capture_batch(loaded, ids, settings, lambda *key_and: found.update({key_and[:2]: key_and[2]}), range(len(ids)))
    for at, layer in enumerate(loaded.anatomy.attended):
        terms = shape.terms(layer, sink_logits(loaded.anatomy, layer))
        query, key = (found[layer, kind].split(LENGTHS) for kind in ("query", "key"))
        for d, own in enumerate(alone(name, kind)):
            near(rebuilt_attention(query[d], key[d], terms), own.attentions[at])


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_what_ran_before_changes_nothing(kind: str) -> None:
    """Documents one after the other in any order, also on a model that ran as plain transformers before."""
    model, ids = rotary_model("llama", kind), tokens(*LENGTHS)
    plain(model, anatomy_of(model).output_projections, ids[2])  # dynamic NTK keeps its length
    loaded = tapped(model)
    for order in (range(6), reversed(range(6))):
        for d in order:
            got = capture(loaded, [ids[d]])[0]
            near(got.nll[1:], nll_of(alone("llama", kind)[d].logits, ids[d]))


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_the_two_sides_differ(kind: str) -> None:
    """The control: transformers' own code gives a document the frequencies of its longest neighbour."""
    body, positions = rotary_model("llama", kind).model, torch.arange(40)[None]
    x = torch.zeros(2, 40, 32)
    together = body.rotary_emb(x, positions.clamp(max=torch.tensor([[8], [39]])))[0][0, :9]
    apart = rotary_model("llama", kind).model.rotary_emb(x, positions[:, :9])[0][0]
    assert (together - apart).abs().max() > 0.1


def test_code_that_is_given_one_length_for_a_batch_is_refused() -> None:
    class OneLength(nn.Module):
        rope_type = "longrope"

        def forward(self, x: torch.Tensor, seq_len: int) -> torch.Tensor:
            return x

    class Body(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rotary = OneLength()

        def forward(self, position_ids: torch.Tensor) -> None: ...

    expected = r"the positions of each document, got OneLength, which is not given them, in tiny\. pip install"
    with pytest.raises(ModelError, match=expected):
        attach(Body(), "tiny")
    with pytest.raises(ModelError, match="got Sequential, which is not given them"):
        attach(nn.Sequential(OneLength()), "tiny")


def test_dynamic_frequencies_reach_as_far_as_their_factor() -> None:
    config = {"model_type": "llama", "max_position_embeddings": 16, "rope_scaling": {"type": "dynamic", "factor": 2.5}}
    assert max_positions(config) == 40
    linear = {**config, "rope_scaling": {"type": "linear", "factor": 2.5}}
    assert max_positions(linear) == 16


@pytest.mark.parametrize(
    ("rope", "changed"),
    [
        (None, False),
        ({"type": "linear", "factor": 2.0}, False),
        ({"rope_type": "llama3", "factor": 8.0}, False),
        ({"type": "dynamic", "factor": 2.0}, True),
        ({"type": "dynamic", "factor": 1.0, "alpha": 1000.0}, False),
        ({"type": "su", "short_factor": [1.0], "long_factor": [2.0]}, True),
        ({"type": "yarn", "short_factor": [1.0], "long_factor": [2.0]}, True),
        (
            {"full_attention": {"rope_type": "dynamic", "factor": 2.0}, "sliding_attention": {"rope_type": "default"}},
            True,
        ),
    ],
)
def test_captures_that_were_right_keep_their_key(rope: Any, changed: bool) -> None:
    """Only models whose frequencies follow the length are computed otherwise than before."""
    for name in ("rope_scaling", "rope_parameters"):
        assert revisions({"model_type": "llama", name: rope}) == ({"rotary": 2} if changed else {})
        assert revisions({"model_type": "bert", "pad_token_id": 0}) == {}
        assert revisions({"model_type": "roberta", "pad_token_id": 1}) == {"positions": 2}
