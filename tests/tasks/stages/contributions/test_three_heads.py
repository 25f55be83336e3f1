"""Three heads that are Mixer, Retriever and Reset by construction, through capture, taxonomy, ablation and pruning.

A GPT-2 of one layer without MLP. The residual stream has three parts of 64, each a row of a Hadamard matrix, so that
LayerNorm leaves it as it is and any function of a token or a position is a linear map: the token, the position, and
what the output embedding reads. All values are the token itself, of one length, so attention alone decides who wins:

head 0 looks at BOS (Mixer), head 1 at the query itself (Retriever), and both write where nobody reads;
head 2 looks at the token before (Reset) and writes which one follows it two places on: the text is aabbccdd….

So the loss is next to 0 as long as head 2 is there, and ln V, all logits 0, without it.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from scipy.linalg import hadamard

from storage.filesystem import open_runs
from storage.warehouse import connect, query
from tasks.stages.registry import tables
from tests.families import VOCABULARY
from tests.tasks.capture import made_captures
from tests.tasks.capture.made_captures import LETTERS, Made, save_tokenizer
from tests.tasks.stages.running import Ran, run

PART, FIRST, SHARPNESS, READING = 64, 3, 64.0, 1.0
ROWS = hadamard(PART).astype(np.float64)
TEXTS = ("".join(letter * 2 for letter in LETTERS[:25]), "".join(letter * 2 for letter in LETTERS[:15]))
MIXER, RETRIEVER, RESET = 0, 1, 2
TOKEN, POSITION, READ = (slice(at, at + PART) for at in (0, PART, 2 * PART))


def moved(to: np.ndarray, n: int) -> np.ndarray:
    """The map (64, 64) that takes row 1 + i of the matrix to row `to[i]`, of the first n."""
    return ROWS[1 : n + 1].T @ ROWS[to[:n]] / PART


def save(folder: Path) -> Path:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=3 * PART,
        n_layer=1,
        n_head=3,
        n_positions=PART - 3,
        layer_norm_epsilon=1e-12,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
    )
    model = transformers.GPT2LMHeadModel(config)
    tokens, positions = np.zeros((VOCABULARY, 3 * PART)), np.zeros((PART - 3, 3 * PART))
    tokens[:, TOKEN] = ROWS[1 : VOCABULARY + 1]
    positions[:, POSITION], positions[:, READ] = ROWS[1 : PART - 2], ROWS[PART - 1]
    block = model.transformer.h[0]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for norm in (block.ln_1, block.ln_2, model.transformer.ln_f):
            norm.weight.fill_(1)
        for weight, values in (
            (model.transformer.wte.weight, tokens),
            (model.transformer.wpe.weight, positions),
            (block.attn.c_attn.weight, looking()),
            (block.attn.c_proj.weight, writing()),
            (model.lm_head.weight, np.pad(READING * ROWS[1 : VOCABULARY + 1], ((0, 0), (2 * PART, 0)))),
        ):
            weight.copy_(torch.from_numpy(values))
    model.save_pretrained(folder)
    return save_tokenizer(folder)


def looking() -> np.ndarray:
    """W_Q, W_K, W_V side by side, of a head after the other."""
    query, key, value = np.zeros((3, 3 * PART, 3 * PART))
    query[READ, TOKEN.start] = ROWS[PART - 1] / PART * SHARPNESS
    key[TOKEN, TOKEN.start] = ROWS[1] / PART  # BOS
    query[POSITION, POSITION] = key[POSITION, POSITION] = np.eye(PART)
    query[POSITION, READ] = np.eye(PART)
    key[POSITION, READ] = moved(np.arange(2, PART), PART - 3)  # position p is found by the query at p + 1
    for head in range(3):
        value[TOKEN, head * PART : (head + 1) * PART] = np.eye(PART)
    return np.concatenate([query, key, value], axis=1)


def writing() -> np.ndarray:
    """W_O: a (BOS's successor) a b c …, each letter the one that follows it."""
    following = np.arange(1, VOCABULARY + 1)
    following[0] = 1 + FIRST
    following[FIRST:-1] += 1
    output = np.zeros((3 * PART, 3 * PART))
    output[TOKEN, TOKEN] = output[POSITION, TOKEN] = np.eye(PART) / 2
    output[READ, READ] = moved(following, VOCABULARY)
    return output


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("three")
    texts = [folder / f"{i}.txt" for i in range(len(TEXTS))]
    for path, text in zip(texts, TEXTS, strict=True):
        path.write_text(text)
    return made_captures.make(save(folder / "model"), texts, folder / "runs", window=PART - 4, device="cpu")


def per_token(ran: Ran, table: str, **chosen: object) -> float:
    """Loss in nats a token of the rows chosen."""
    rows = [row for row in ran.rows(table) if all(row[name] == value for name, value in chosen.items())]
    assert len(rows) == len(TEXTS)
    return float(sum(row["nll_sum"] for row in rows) / sum(row["n_predicted"] for row in rows))


def test_classes_are_those_of_the_construction(made: Made) -> None:
    rows = run(made, "taxonomy").rows("taxonomy")
    classes = {(row["rule"], row["head"]): row["class"] for row in rows}
    for rule in ("plurality", "majority", "final_query"):
        assert [classes[rule, head] for head in (MIXER, RETRIEVER, RESET)] == ["mixer", "retriever", "reset"]
    assert all(row["agreement_halves"] == 1 for row in rows)


def test_the_loss_hangs_on_one_head(made: Made) -> None:
    ran = run(made, "head_ablation")
    assert per_token(ran, "head_ablation", head=RESET) == pytest.approx(math.log(VOCABULARY), rel=1e-5)
    assert max(per_token(ran, "head_ablation", head=head) for head in (MIXER, RETRIEVER)) < 1e-3
    with connect(open_runs(made.runs), tables()) as connection:
        rows = query(connection, "critical_heads", {"every_head": True, "resamples": 100}).to_pylist()
    assert rows[0]["head"] == RESET and rows[0]["nll_change"] == pytest.approx(math.log(VOCABULARY), rel=1e-3)


def test_an_order_of_classes_costs_what_its_first_class_does(made: Made) -> None:
    """At 0.6 two of three heads stay, at 0.3 one."""
    ran = run(made, "pruning", {"retentions": "0.6,0.3", "seeds": 1})
    retention = {kept: float(np.float32(share)) for kept, share in ((2, 0.6), (1, 0.3))}
    dearest, cheapest = math.log(VOCABULARY), 1e-3
    for strategy, gone_first in (
        ("taxonomy", RESET),
        ("taxonomy_reset_retriever_mixer", RESET),
        ("taxonomy_mixer_retriever_reset", MIXER),
        ("taxonomy_retriever_mixer_reset", RETRIEVER),
    ):
        for kept in (2, 1):
            loss = per_token(ran, "pruning", strategy=strategy, retention=retention[kept])
            assert loss == pytest.approx(dearest, rel=1e-5) if gone_first == RESET else loss < cheapest
    half = per_token(ran, "pruning", strategy="taxonomy_mixer_reset_retriever", retention=retention[2])
    assert half < cheapest
    assert per_token(
        ran, "pruning", strategy="taxonomy_mixer_reset_retriever", retention=retention[1]
    ) == pytest.approx(dearest, rel=1e-5)
