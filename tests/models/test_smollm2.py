"""The named model: SmolLM2-135M-Instruct, fetched once and kept in the cache."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpo.models import decoder as decoders
from gpo.models import load

pytestmark = pytest.mark.slow
QUESTION = "What is the capital of France?"
CHAT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by "
    f"Hugging Face<|im_end|>\n<|im_start|>user\n{QUESTION}<|im_end|>\n"
    "<|im_start|>assistant\n"
)
MEANS = [0.148177, 0.153796, 0.146134, 0.134270]  # of |q|, |k|, |v|, |o|
# By transformers 5.24's own conversion of the same file.
IDS = {
    "Hello world, 12+34=46!\n": "19556 905 28 216 33 34 27 35 36 45 36 38 17 198",
    "<|im_start|>user\n7+8=?<|im_end|>\n": "1 4093 198 39 27 40 45 47 2 198",
    " tab\tnew\r\nline  x": "10147 197 2241 201 198 1311 216 1792",
    "naïve café — 日本語 🙂": (
        "3546 46494 37366 1841 17097 241 115 40993 179 120 248 47526"
    ),
    "def f(x):\n    return x**2\n": "1604 275 24 104 727 472 1003 1792 828 34 198",
    "I'll don't WE'RE 3.14 1000": (
        "57 3060 1326 982 26587 23 3256 216 35 30 33 36 216 33 32 32 32"
    ),
}


@pytest.fixture(scope="module")
def loaded():
    return load.load("smollm2-135m")


def test_config_and_tensors(loaded):
    c, params = loaded.model.config, loaded.params
    assert (c.layers, c.dim, c.heads, c.kv_heads, c.hidden) == (30, 576, 9, 3, 1536)
    assert (c.vocab, c.rope_theta, c.norm_eps, c.tied) == (49152, 1e5, 1e-5, True)
    assert sum(x.size for x in jax.tree.leaves(params)) == 134515008
    means = {
        path: float(jnp.abs(params["layers"]["attention"][path]["kernel"]).mean())
        for path in "qkvo"
    }
    np.testing.assert_allclose([means[p] for p in "qkvo"], MEANS, rtol=1e-4)


@pytest.mark.parametrize("text", IDS)
def test_token_ids(loaded, text):
    ids = loaded.tokenizer.encode(text)
    assert ids == [int(i) for i in IDS[text].split()]
    assert loaded.tokenizer.decode(ids) == text


def test_chat_template(loaded):
    assert loaded.tokenizer.eos_token == "<|im_end|>"
    messages = [{"role": "user", "content": QUESTION}]
    render = loaded.tokenizer.apply_chat_template
    assert render(messages, tokenize=False, add_generation_prompt=True) == CHAT


def test_greedy_answer(loaded):
    model, params, tokenizer, *_ = loaded
    prompt = jnp.array([tokenizer.encode(CHAT)], jnp.int32)
    size = prompt.shape[1]

    @jax.jit
    def answer(params, prompt):
        def step(carry, at):
            token, memory = carry
            hidden, memory = model.extend(
                params, token[:, None], at[None, None], memory
            )
            token = model.logits(params, hidden[:, 0]).argmax(-1).astype(jnp.int32)
            return (token, memory), token

        at = jnp.arange(size - 1, dtype=jnp.int32)[None]
        _, prefix = model.extend(params, prompt[:, :-1], at, decoders.fresh())
        memory = decoders.reserve(model.config, 1, 8, prefix, width=1)
        times = jnp.arange(size - 1, size + 7, dtype=jnp.int32)
        return jax.lax.scan(step, (prompt[:, -1], memory), times)[1][:, 0]

    ids = answer(params, prompt).tolist()
    assert tokenizer.decode(ids) == "The capital of France is Paris.<|im_end|>"
