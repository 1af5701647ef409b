"""The decoder gives the logits of `transformers`, for every family."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpo.models import decoder as decoders
from gpo.models import export, load

NAMES = ["llama3", "smollm2", "llama_bias", "qwen2", "qwen3"]
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def positions(length, longest):
    at = np.arange(longest, dtype=np.int32)[None]
    return np.where(at < length[:, None], at, -1).astype(np.int32)


def logits(model, params, tokens, position):
    hidden, _ = model.extend(params, tokens, position, decoders.fresh())
    return model.logits(params, hidden)


@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_transformers(name, unpack):
    golden, folder = unpack(name)
    model, params, tokenizer, *_ = load.load(folder)
    position = positions(golden["length"], golden["tokens"].shape[1])
    mine = jax.jit(logits, static_argnums=0)(model, params, golden["tokens"], position)
    assert mine.dtype == jnp.float32 and tokenizer is None
    seen = position >= 0
    np.testing.assert_allclose(mine[seen], golden["logits"][seen], **CLOSE)
    assert np.isfinite(mine).all()


@pytest.mark.parametrize("name", ["llama3", "qwen3"])
def test_decoding_token_by_token_equals_transformers(name, unpack):
    golden, folder = unpack(name)
    model, params, *_ = load.load(folder)
    tokens, longest = golden["tokens"][:1], golden["tokens"].shape[1]

    def step(memory, xs):
        token, at = xs
        hidden, memory = model.extend(params, token[:, None], at[None, None], memory)
        return memory, model.logits(params, hidden)[:, 0]

    memory = decoders.reserve(model.config, 1, longest)
    xs = (jnp.asarray(tokens.T), jnp.arange(longest, dtype=jnp.int32))
    _, mine = jax.jit(lambda m: jax.lax.scan(step, m, xs))(memory)
    np.testing.assert_allclose(mine[:, 0], golden["logits"][0], **CLOSE)


@pytest.mark.parametrize("name", NAMES)
def test_transformers_opens_the_export(name, unpack, tmp_path):
    torch = pytest.importorskip("torch", reason="torch is in the conformance extra")
    import transformers

    golden, folder = unpack(name)
    model, params, *_ = load.load(folder)
    out = export.export(model, params, None, tmp_path / "out")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    tokens = torch.from_numpy(golden["tokens"]).long()
    seen = positions(golden["length"], tokens.shape[1]) >= 0
    with torch.no_grad():
        full = theirs(tokens, attention_mask=torch.from_numpy(seen).long()).logits
    np.testing.assert_allclose(full.numpy()[seen], golden["logits"][seen], **CLOSE)
