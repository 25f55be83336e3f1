"""Keys: equal for equal content in any order, different for different content, refused for what JSON cannot hold."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.keys import canonical, digest, file_digest, seed_for, slug

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12)
mappings = st.dictionaries(st.text(), values, max_size=6)


def shuffled(value: object, generator: random.Random) -> object:
    """The same content with every mapping's names in another order."""
    if isinstance(value, dict):
        items = [(k, shuffled(v, generator)) for k, v in value.items()]
        generator.shuffle(items)
        return dict(items)
    return [shuffled(v, generator) for v in value] if isinstance(value, list) else value


@given(mappings, st.integers(0, 2**32))
def test_a_digest_does_not_see_the_order_of_names(mapping: dict[str, object], seed: int) -> None:
    again = shuffled(mapping, random.Random(seed))
    assert digest(mapping) == digest(again)
    assert len(digest(mapping)) == 64


@given(mappings, st.text(), values)
def test_a_digest_sees_every_change(mapping: dict[str, object], name: str, value: object) -> None:
    changed = {**mapping, name: value}
    same = json.dumps(mapping, sort_keys=True) == json.dumps(changed, sort_keys=True)
    assert (digest(mapping) == digest(changed)) == same


@given(values)
def test_canonical_json_means_the_same(value: object) -> None:
    assert json.loads(canonical(value)) == value


def test_a_digest_is_the_same_on_every_machine() -> None:
    assert digest({"b": [1, 2.5, None], "a": "é"}) == hashlib.sha256(b'{"a":"\\u00e9","b":[1,2.5,null]}').hexdigest()
    assert digest({"a": (1, 2)}) == digest({"a": [1, 2]})
    assert digest({"a": 1}) != digest({"a": 1.0}) != digest({"a": True})


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ({"x": [1, float("nan")]}, ValueError, r"finite number at value\.x\[1\], got nan"),
        ({"x": float("inf")}, ValueError, r"value\.x"),
        ({"x": {1: 2}}, TypeError, r"text as a name at value\.x, got 1"),
        ({"x": np.int64(3)}, TypeError, r"JSON value at value\.x, got int64"),
        ({"x": b"a"}, TypeError, r"got bytes"),
        ({"x": {1, 2}}, TypeError, r"got set"),
    ],
)
def test_what_json_cannot_hold_is_refused(value: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        digest(value)


def test_only_mappings_are_digested() -> None:
    with pytest.raises(TypeError, match="expected a mapping to digest, got list"):
        digest([1])


def test_a_seed_depends_on_what_it_is_for_and_on_nothing_else() -> None:
    assert seed_for("run", 1, "doc", 2) == seed_for("run", 1, "doc", 2)
    seeds = {seed_for("a", i) for i in range(200)} | {seed_for("b", i) for i in range(200)}
    assert len(seeds) == 400
    assert seed_for("a", "b") != seed_for("ab") != seed_for("b", "a")
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert max(seeds).bit_length() > 60


def test_a_file_is_digested_by_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 3_000_000)
    assert file_digest(path) == hashlib.sha256(b"x" * 3_000_000).hexdigest()


@given(st.text())
def test_a_slug_is_a_folder_name(text: str) -> None:
    name = slug(text)
    assert 1 <= len(name) <= 48
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-")
    assert name[0] not in "-." and name[-1] not in "-." and ".." not in name
    assert slug(name) == name


def test_slugs_read_like_their_names() -> None:
    assert slug("HuggingFaceTB/SmolLM2-135M") == "huggingfacetb-smollm2-135m"
    assert slug("Überraschung.gguf") == "uberraschung.gguf"
    assert slug("../..") == "unnamed"
