"""The tap on every family: what it records is what the plain model computes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.testing import assert_close

from storage.errors import ModelError
from tasks.models import tap
from tasks.models.anatomy import output_weights
from tasks.models.layer_record import Span
from tasks.models.record import BatchRecord
from tasks.models.table import FALLBACK
from tests.families import DECODERS, ENCODERS, NAMES, tokens
from tests.tasks.models.capturing import assert_near, capture, inputs, plain_of, shared, tiny


@pytest.mark.parametrize("name", NAMES)
def test_tapped_logits_are_the_plain_models(name: str) -> None:
    loaded, ids = shared(name), tokens(29)[0]
    record = BatchRecord(
        loaded.anatomy,
        [Span(0, 0, 29)],
        lambda *_: None,
        model_name=name,
        query_block=8,
        attention_dtype=torch.float32,
    )
    asked = {"output_attentions": True} if loaded.tap_method == FALLBACK else {}
    with torch.inference_mode(), tap.active(record):
        out = loaded.model(**inputs(ids, loaded.anatomy.causal), **asked)
    record.finish()
    assert not any(weights is not None for weights in out.get("attentions") or ()), "weights accumulated"
    last = out.logits if loaded.anatomy.causal else out.last_hidden_state
    assert_near(last[0], plain_of(loaded, ids).logits)


@pytest.mark.parametrize("name", NAMES)
def test_attention_and_residual_are_what_the_plain_model_reports(name: str) -> None:
    loaded, ids = shared(name), tokens(29)[0]
    got, want = capture(loaded, [ids])[0], plain_of(loaded, ids)
    for tapped, attention in zip(got.attention, want.attentions, strict=True):
        assert_near(tapped, attention)
    for layer in range(loaded.anatomy.n_layers):
        assert_near(got.residual[layer], want.hidden_states[layer])
    if loaded.anatomy.n_streams > 1:  # a mean of the streams is normed, and transformers reports what went in
        assert_near(got.residual[-1], want.hidden_states[-1])
        return
    # transformers reports the last hidden state after the final norm, the capture before it
    last = [m for n, m in loaded.anatomy.body.named_children() if "norm" in n or n in ("ln_f", "project_out")][-1:]
    assert bool(last) is loaded.anatomy.causal
    assert_near(last[0](got.residual[-1]) if last else got.residual[-1], want.hidden_states[-1])


@pytest.mark.parametrize("name", NAMES)
def test_weights_values_and_projection_give_the_attentions_output_in_float64(name: str) -> None:
    loaded, ids = shared(name), tokens(29)[0]
    got, want = capture(loaded, [ids])[0], plain_of(loaded, ids)
    assert loaded.anatomy.attended
    for at, layer in enumerate(loaded.anatomy.attended):
        w_o, bias = output_weights(loaded.anatomy, layer)
        groups = loaded.anatomy.n_heads // loaded.anatomy.n_kv_heads
        value = got.value[at].double().repeat_interleave(groups, dim=1)  # (T, H, d_v)
        heads = torch.einsum("hqk,khd->qhd", got.attention[at].double(), value)
        if loaded.anatomy.kind.gate:
            assert ((got.gate[at] > 0) & (got.gate[at] < 1)).all() and not torch.equal(heads, got.output_input[at])
            heads = heads * got.gate[at].double()
        output = torch.einsum("qhd,hdm->qm", heads, w_o.double()) + (0 if bias is None else bias.double())
        assert_near(heads, got.output_input[at].double())
        assert_near(output, want.projected[at].double())


@pytest.mark.parametrize("name", DECODERS)
def test_attention_is_causal_and_keeps_to_the_window(name: str) -> None:
    loaded, ids = shared(name), tokens(29)[0]
    query, key = torch.arange(29)[:, None], torch.arange(29)[None, :]
    want = plain_of(loaded, ids)
    for at, attention in enumerate(capture(loaded, [ids])[0].attention):
        window = loaded.anatomy.windows[loaded.anatomy.attended[at]]
        seen = (key <= query) & (key > query - (29 if window is None else window))
        assert (attention[:, ~seen] == 0).all()
        # the declared window is the model's own: nothing inside it is masked either
        assert (want.attentions[at][:, seen] > 0).all() and (attention[:, seen] > 0).all()


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_sees_every_token_of_its_document(name: str) -> None:
    got = capture(shared(name), tokens(29, 7))
    assert all((attention > 0).all() for document in got for attention in document.attention)
    assert all(torch.isnan(document.nll).all() for document in got)


@pytest.mark.parametrize("name", ["gemma2", "mistral-window", "gpt_oss", "gpt_neo", "cohere2", "olmo3"])
def test_windows_are_declared(name: str) -> None:
    assert any(window is not None for window in shared(name).anatomy.windows)


def test_learned_sinks_keep_their_mass() -> None:
    loaded, ids = tiny("gpt_oss"), tokens(29)[0]
    got, want = capture(loaded, [ids])[0], plain_of(loaded, ids)
    for layer, attention in enumerate(got.attention):
        mass = got.sink_mass[layer]  # (T, H)
        assert_close(attention.sum(-1).T + mass, torch.ones_like(mass))
        assert_close(mass, 1 - want.attentions[layer].sum(-1).T, atol=1e-5, rtol=0)
        assert ((mass >= 0) & (mass <= 1)).all() and 0.05 < mass.mean() < 0.95


@pytest.mark.parametrize("name", [n for n in NAMES if n != "gpt_oss"])
def test_rows_sum_to_one_without_sinks(name: str) -> None:
    got = capture(shared(name), tokens(29))[0]
    assert not got.sink_mass
    for attention in got.attention:
        assert_close(attention.sum(-1), torch.ones(attention.shape[:2]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "gpt_oss", "bloom"])
@pytest.mark.parametrize("block", [1, 5, 64])
def test_any_block_of_queries_gives_the_same(name: str, block: int) -> None:
    loaded, ids = shared(name), tokens(29, 5)
    got, want = capture(loaded, ids, query_block=block)[0], capture(loaded, ids, query_block=29)[0]
    for a, b in zip(got.attention, want.attention, strict=True):
        assert_near(a, b)
    assert_near(got.nll[1:], want.nll[1:])


@pytest.mark.parametrize("name", ["llama", "gpt_neox", "gemma2", "gpt_oss", "gpt2", "falcon-40b"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_models_are_captured(name: str, dtype: str) -> None:
    loaded, ids = tiny(name, dtype=dtype), tokens(29)[0]
    got, want = capture(loaded, [ids], dtypes={"attention": "float32"})[0], plain_of(loaded, ids)
    assert got.value[0].dtype == getattr(torch, dtype) and got.nll.dtype == torch.float32
    # blocks may round a last bit otherwise, and a later layer inherits it: the first layer is held tightly
    assert_close(got.attention[0], want.attentions[0].float(), atol=2e-2, rtol=0)
    assert (got.nll[1:] > 0).all()


@pytest.mark.parametrize("stored", ["float16", "bfloat16"])
def test_attention_is_packed_in_the_stored_dtype(stored: str) -> None:
    loaded, ids = tiny("llama"), tokens(29)
    got, want = capture(loaded, ids, dtypes={"attention": stored})[0], capture(loaded, ids)[0]
    for a, b in zip(got.attention, want.attention, strict=True):
        assert a.dtype == getattr(torch, stored)
        assert torch.equal(a, b.to(a.dtype))


def test_without_an_active_tap_attention_is_plain_eager() -> None:
    loaded, ids = tiny("gemma2"), tokens(29)[0]
    batch = torch.from_numpy(ids).long()[None]
    with torch.inference_mode():
        logits = loaded.model(batch, attention_mask=torch.ones_like(batch), use_cache=False).logits[0]
    assert torch.equal(logits, plain_of(loaded, ids).logits)


def test_emitted_tensors_do_not_share_memory_with_the_running_model() -> None:
    loaded = tiny("llama")
    first = capture(loaded, tokens(17))[0]
    kept = [t.clone() for t in (*first.attention, *first.value, *first.residual)]
    capture(loaded, tokens(17, seed=4))
    for now, then in zip((*first.attention, *first.value, *first.residual), kept, strict=True):
        assert torch.equal(now, then)


def test_threads_that_share_a_model_do_not_hear_each_other() -> None:
    loaded = tiny("llama")
    batches = [tokens(9 + n, 20, seed=n) for n in range(6)]
    want = [capture(loaded, batch) for batch in batches]
    with ThreadPoolExecutor(3) as pool:
        got = list(pool.map(lambda batch: capture(loaded, batch), batches))
    for a, b in zip(got, want, strict=True):
        for x, y in zip(a, b, strict=True):
            assert torch.equal(x.attention[-1], y.attention[-1])
            assert torch.equal(x.nll[1:], y.nll[1:])


def test_a_class_without_eager_attention_is_refused() -> None:
    with pytest.raises(ModelError, match=r"eager_attention_forward beside it, got torch\.nn\.modules\.linear\.Linear"):
        tap.eager_attention_of(torch.nn.Linear)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "gpt2"])
def test_a_cuda_device_gives_what_the_cpu_gives(name: str) -> None:
    on_cpu, on_cuda = shared(name), tiny(name, device="cuda")
    ids = tokens(13, 29)
    for got, want in zip(capture(on_cuda, ids), capture(on_cpu, ids), strict=True):
        for a, b in zip(got.attention, want.attention, strict=True):
            assert_near(a, b, 1e-3)
        assert_near(got.nll[1:], want.nll[1:], 1e-3)
