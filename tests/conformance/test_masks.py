"""T8: masks come from what the sampler did, never from comparing with a pad id."""

import jax
import jax.numpy as jnp
import pytest

import gpo
from gpo.models.decoder import Model, decoder, tiny
from gpo.rollout import decode

VOCAB = 10


def scripted(*tokens):
    """A model that writes the given tokens after token 0, whatever is sampled."""
    table = jnp.full((VOCAB, VOCAB), -jnp.inf).at[:, 9].set(0.0)
    for now, then in zip((0, *tokens), tokens, strict=False):
        table = table.at[now].set(-jnp.inf).at[now, then].set(0.0)

    def extend(params, ids, position, memory, remat=None):
        if memory.k is None:
            blank = jnp.zeros((1, ids.shape[0], 1, ids.shape[1], 2))
            memory = memory.replace(k=blank, v=blank, position=position)
        return table[ids], memory

    config = decoder(tiny(VOCAB)).config
    return Model(lambda key: {}, extend, lambda params, hidden: hidden, config)


@pytest.mark.parametrize(
    ("script", "stop", "mask", "truncated"),
    [
        ((5, 7, 2), (2,), [1, 1, 1, 0, 0], False),
        ((5, 3), (2, 3), [1, 1, 0, 0, 0], False),
        ((5, 7, 9), (2,), [1, 1, 1, 1, 1], True),
    ],
)
def test_t8_end_and_padding(script, stop, mask, truncated):
    zero = jnp.zeros(1, jnp.int32)
    # the prompt holds the stop token and the id that fills up: neither matters
    plan = gpo.Plan(jnp.array([[2, 0, 2]]), zero + 2, zero, zero, zero, zero, width=1)
    batch, _ = decode.sample(
        scripted(*script), {}, plan, jax.random.key(0), length=5, stop=stop
    )
    assert batch.mask[0].tolist() == [bool(m) for m in mask]
    assert batch.tokens[0, : len(script)].tolist() == list(script)
    assert batch.length.tolist() == [sum(mask)]
    assert batch.truncated.tolist() == [truncated]
    assert jnp.where(batch.mask, batch.old_logp, 0).tolist() == [[0.0] * 5]
