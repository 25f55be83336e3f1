"""The text of a training run, its vocabulary and its batches."""

from __future__ import annotations

import string
from dataclasses import replace

import numpy as np
import pytest

from storage.errors import CorpusError, UsageError
from tasks.training.settings import TrainSettings
from tasks.training.text import batch_of, held_out_windows, training_text

SMALL = TrainSettings(context=16, batch=4, seed=3)
DOCUMENTS = ["The quick brown fox — naïve.\n" * 20, "It jumps. " * 30]


def test_the_vocabulary_is_special_tokens_ascii_and_the_text_sorted() -> None:
    vocabulary = training_text(DOCUMENTS, SMALL).vocabulary
    assert vocabulary[:2] == ["<unk>", "<s>"]
    assert vocabulary[2:] == sorted(vocabulary[2:])
    printable = string.ascii_letters + string.digits + string.punctuation + " \n\t"
    assert set(vocabulary[2:]) == {*printable, "—", "ï"}


def test_ids_spell_the_joined_text_and_its_end_is_held_out() -> None:
    text = training_text(DOCUMENTS, SMALL)
    spelled = "".join(text.vocabulary[i] for i in [*text.train, *text.held_out])
    assert spelled == "\n\n".join(DOCUMENTS)
    assert len(text.held_out) == len(spelled) // 10


def test_a_batch_follows_from_seed_and_step_alone() -> None:
    text = training_text(DOCUMENTS, SMALL)
    first = batch_of(text, SMALL, 5)
    batch_of(text, SMALL, 6)
    np.testing.assert_array_equal(batch_of(text, SMALL, 5), first)
    assert first.shape == (4, 17)
    assert not np.array_equal(batch_of(text, SMALL, 6), first)
    assert not np.array_equal(batch_of(text, replace(SMALL, seed=4), 5), first)
    whole = "".join(map(chr, text.train))
    assert all("".join(map(chr, row)) in whole for row in first)


def test_batches_reach_both_ends_of_the_text() -> None:
    settings = replace(SMALL, batch=2000)
    text = training_text(["".join(chr(0x100 + i) for i in range(200))], settings)
    batch = batch_of(text, settings, 0)
    assert {tuple(text.train[:17]), tuple(text.train[-17:])} <= {tuple(row) for row in batch}


def test_held_out_windows_predict_every_character_once() -> None:
    text = training_text(DOCUMENTS, SMALL)
    windows = held_out_windows(text, SMALL)
    np.testing.assert_array_equal(np.concatenate([w[1:] for w in windows]), text.held_out[1:])
    some = held_out_windows(text, SMALL, most=2)
    assert len(some) == 2
    assert all(len(w) == 17 for w in some)


def test_too_little_text_is_refused() -> None:
    with pytest.raises(CorpusError, match=r"more than 16 characters to be held out.*got 5 of 50 characters"):
        training_text(["x" * 50], SMALL)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps of at least 1, got 0"),
        ({"batch": 0}, "batch of at least 1, got 0"),
        ({"context": 1}, "a context of at least 2 characters, got 1"),
        ({"width": 100}, r"multiple of 8.*width 100 over 8 heads.*multiple of 64"),
        ({"muon_rate": 0.0}, "muon_rate above 0 and at most 1, got 0.0"),
        ({"adam_rate": float("nan")}, "adam_rate above 0 and at most 1, got nan"),
        ({"seed": -1}, "a seed of 0 to 9223372036854775807, got -1"),
        ({"seed": 2**63}, "a seed of 0 to 9223372036854775807, got 9223372036854775808"),
        ({"width": 16, "heads": 3}, r"every head a multiple of 8 .*width 16 over 3 heads.*a multiple of 24\."),
        ({"warm_up": 1.0}, r"warm_up in \[0, 1\), got 1.0"),
        ({"held_out": 0.0}, "a held-out share above 0"),
    ],
)
def test_settings_that_cannot_be(change: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TrainSettings(**change).check()
