"""`extend` is one function: however tokens reach it, the result is the same."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core as jex

from gpo.models import decoder as decoders

KINDS = {
    "llama": {},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True, "tied": False},
    "one_head_each": {"kv_heads": 4},
}
CONTEXT = jnp.array([[5, 3, 8, 1, 0], [7, 2, 0, 0, 0], [4, 4, 9, 0, 0]], jnp.int32)
LENGTH = np.array([4, 2, 3], np.int32)
ROWS = jnp.arange(24, dtype=jnp.int32).reshape(6, 4) * 7 % 16
EVEN = (0, 0, 1, 1, 2, 2)
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@functools.cache
def setup(kind="llama", **fields):
    config = decoders.tiny(16, dim=32, **{**KINDS[kind], **fields})
    model = decoders.decoder(config)
    return model, jax.jit(model.init)(jax.random.key(0))


extend = jax.jit(lambda model, *args: model.extend(*args), static_argnums=0)


def count(rows, new, start=0):
    at = jnp.arange(new, dtype=jnp.int32)[None]
    return jnp.broadcast_to(at, (rows, new)) + start


def prefill(model, params, remat=None):
    at = count(3, 5)
    position = jnp.where(at < LENGTH[:, None], at, -1)
    return model.extend(params, CONTEXT, position, decoders.fresh(), remat)[1]


@functools.partial(jax.jit, static_argnums=(0, 2, 3, 4))
def shared(model, params, context, width, remat=None):
    """Logits (6, 4, V) of all rows on top of the three contexts."""
    context = jnp.array(context, jnp.int32)
    memory = decoders.fresh(prefill(model, params, remat), context, width)
    position = count(6, 4) + jnp.asarray(LENGTH)[context][:, None]
    hidden, _ = model.extend(params, ROWS, position, memory, remat)
    return model.logits(params, hidden)


@functools.partial(jax.jit, static_argnums=(0, 2))
def alone(model, params, context):
    """The same without sharing or padding: every row reads its own full prompt."""
    found = jnp.zeros((6, 4, 16))
    for c in sorted(set(context)):
        rows, size = np.flatnonzero(np.array(context) == c), LENGTH[c]
        prompts = jnp.tile(CONTEXT[c, :size][None], (len(rows), 1))
        tokens = jnp.concatenate([prompts, ROWS[rows]], 1)
        position = count(len(rows), size + 4)
        hidden, _ = model.extend(params, tokens, position, decoders.fresh())
        found = found.at[rows].set(model.logits(params, hidden[:, size:]))
    return found


def gradient(fn, model, params, *args):
    weight = jax.random.normal(jax.random.key(1), (6, 4, 16))
    return jax.grad(lambda p: jnp.sum(fn(model, p, *args) * weight))(params)


def near(a, b):
    """Equal up to rounding at the scale of the whole array."""
    np.testing.assert_allclose(a, b, atol=1e-5 * float(jnp.abs(b).max()) + 1e-6)


@pytest.mark.parametrize(
    "kind, context, width",
    [
        *((kind, EVEN, 2) for kind in KINDS),
        ("llama", EVEN, None),
        ("qwen3", (2, 0, 2, 2, 0, 2), None),
        ("llama", (1, 1, 1, 1, 1, 1), None),
    ],
)
def test_shared_prefix_equals_each_row_alone(kind, context, width):
    model, params = setup(kind)
    both = shared(model, params, context, width)
    np.testing.assert_allclose(both, alone(model, params, context), **CLOSE)


@pytest.mark.parametrize("context, width", [(EVEN, 2), ((2, 0, 2, 2, 0, 2), None)])
def test_gradients_flow_through_the_shared_prefix(context, width):
    model, params = setup("qwen3")
    mine = gradient(shared, model, params, context, width)
    jax.tree.map(near, mine, gradient(alone, model, params, context))


@pytest.mark.parametrize("kind", KINDS)
def test_prefill_then_decode_equals_one_extend(kind):
    model, params = setup(kind)
    learned, starts = shared(model, params, EVEN, 2), jnp.asarray(LENGTH[list(EVEN)])

    def step(memory, xs):
        token, at = xs
        position = (at + starts)[:, None]
        hidden, memory = model.extend(params, token[:, None], position, memory)
        return memory, model.logits(params, hidden)[:, 0]

    def sample():
        memory = decoders.reserve(model.config, 6, 4, prefill(model, params), width=2)
        return jax.lax.scan(step, memory, (ROWS.T, jnp.arange(4, dtype=jnp.int32)))

    memory, sampled = jax.jit(sample)()
    np.testing.assert_allclose(sampled.swapaxes(0, 1), learned, **CLOSE)
    assert int(memory.filled) == 4
    np.testing.assert_array_equal(memory.position, count(6, 4) + starts[:, None])


def test_a_fresh_memory_grows_by_what_it_reads():
    model, params = setup()
    whole, full = extend(model, params, ROWS, count(6, 4), decoders.fresh())
    first, memory = extend(model, params, ROWS[:, :3], count(6, 3), decoders.fresh())
    last, memory = extend(model, params, ROWS[:, 3:], count(6, 1, 3), memory)
    np.testing.assert_allclose(jnp.concatenate([first, last], 1), whole, **CLOSE)
    np.testing.assert_allclose(memory.k, full.k, **CLOSE)
    np.testing.assert_array_equal(memory.position, full.position)
    c = model.config
    assert full.k.shape == (c.layers, 6, c.kv_heads, 4, c.head_dim)


def test_several_tokens_at_once_into_reserved_slots():
    model, params = setup()
    whole, _ = extend(model, params, ROWS, count(6, 4), decoders.fresh())
    memory = decoders.reserve(model.config, 6, 5)
    first, memory = extend(model, params, ROWS[:, :2], count(6, 2), memory)
    last, memory = extend(model, params, ROWS[:, 2:], count(6, 2, 2), memory)
    np.testing.assert_allclose(jnp.concatenate([first, last], 1), whole, **CLOSE)
    assert memory.position[:, 4].tolist() == [-1] * 6


def test_padding_is_never_attended_to():
    model, params = setup("qwen3")
    position = jnp.where(count(6, 4) < 2, count(6, 4), -1)
    other = ROWS.at[:, 2:].set(jnp.array([-7, 99], jnp.int32)[None])
    a, memory = extend(model, params, ROWS, position, decoders.fresh())
    b, twin = extend(model, params, other, position, decoders.fresh())
    np.testing.assert_array_equal(a[:, :2], b[:, :2])
    after, _ = extend(model, params, ROWS[:, :1], count(6, 1, 2), memory)
    same, _ = extend(model, params, ROWS[:, :1], count(6, 1, 2), twin)
    np.testing.assert_array_equal(after, same)


@pytest.mark.parametrize("width", [2, None])
def test_rows_that_see_nothing_are_finite_with_finite_gradients(width):
    model, params = setup("qwen3")
    context = jnp.array(EVEN, jnp.int32)

    def run(p):
        nothing = jnp.full((3, 5), -1, jnp.int32)
        _, prefix = model.extend(p, CONTEXT, nothing, decoders.fresh())
        memory = decoders.fresh(prefix, context, width)
        hidden, _ = model.extend(p, ROWS, jnp.full((6, 4), -1, jnp.int32), memory)
        return model.logits(p, hidden)

    value, slope = jax.jit(lambda p: (run(p), jax.grad(lambda q: run(q).sum())(p)))(
        params
    )
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((value, slope)))


def test_bfloat16_is_close_to_float32_and_gives_float32_logits():
    model, params = setup("qwen3")
    half, _ = setup("qwen3", dtype="bfloat16", param_dtype="bfloat16")
    small = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    assert jax.tree.map(
        jnp.shape, jax.eval_shape(half.init, jax.random.key(0))
    ) == jax.tree.map(jnp.shape, small)
    exact, rough = shared(model, params, EVEN, 2), shared(half, small, EVEN, 2)
    assert rough.dtype == jnp.float32
    np.testing.assert_allclose(rough, exact, atol=0.05)
    assert prefill(half, small).k.dtype == jnp.bfloat16


def test_float32_parameters_with_bfloat16_activations():
    model, params = setup()
    mixed, _ = setup(dtype="bfloat16")
    hidden, memory = extend(mixed, params, ROWS, count(6, 4), decoders.fresh())
    exact, _ = extend(model, params, ROWS, count(6, 4), decoders.fresh())
    assert hidden.dtype == memory.v.dtype == jnp.bfloat16
    np.testing.assert_allclose(hidden.astype(jnp.float32), exact, atol=0.1)


@pytest.mark.parametrize("remat", [True, jax.checkpoint_policies.dots_saveable])
def test_rematerialisation_changes_memory_and_not_gradients(remat):
    model, params = setup()
    plain = gradient(shared, model, params, EVEN, 2)
    jax.tree.map(near, gradient(shared, model, params, EVEN, 2, remat), plain)


@pytest.mark.parametrize("remat", [None, True])
def test_program_size_does_not_grow_with_depth(remat):
    def size(layers):
        model, params = setup(layers=layers)

        def loss(p):
            return shared(model, p, EVEN, 2, remat).sum()

        return len(jax.jit(jax.grad(loss)).lower(params).as_text().splitlines())

    assert size(2) == size(6)


def shapes(jaxpr):
    """Shapes of everything a jaxpr computes, inner jaxprs included."""
    for equation in jaxpr.eqns:
        yield from (v.aval.shape for v in equation.outvars)
        for inner in jex.jaxprs_in_params(equation.params):
            yield from shapes(inner)


@pytest.mark.parametrize("width, copies", [(8, 1), (None, 2)])
def test_prefix_is_not_copied_for_every_row(width, copies):
    model, params = setup()
    c, contexts, rows, length = model.config, 2, 16, 13
    shape = (c.layers, contexts, c.kv_heads, length, c.head_dim)
    at = count(contexts, length)
    prefix = decoders.Memory(jnp.zeros(shape), jnp.zeros(shape), at)

    def step(params, prefix, context):
        memory = decoders.reserve(c, rows, 3, prefix, context, width)
        new = jnp.zeros((rows, 1), jnp.int32)
        return model.extend(params, new, new + length, memory)[0]

    context = jnp.arange(rows, dtype=jnp.int32) // 8
    found = set(shapes(jax.make_jaxpr(step)(params, prefix, context).jaxpr))
    keys = [s for s in found if {length, c.head_dim} <= set(s)]
    most = copies * np.prod(shape[1:])
    assert all(np.prod(s) <= most for s in keys), keys
    assert bool(keys) == (width is None)


def test_parameters_of_several_seeds_are_vmapped():
    model, _ = setup("qwen2")
    many = jax.jit(jax.vmap(model.init))(jax.random.split(jax.random.key(5), 3))
    context = (2, 0, 2, 2, 0, 2)
    both = jax.vmap(lambda p: shared(model, p, context, None))(many)
    one = shared(model, jax.tree.map(lambda x: x[1], many), context, None)
    np.testing.assert_allclose(both[1], one, **CLOSE)


def test_rows_over_eight_devices_equal_one_device():
    model, params = setup()
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    split = jax.NamedSharding(mesh, jax.P("data"))
    tokens, position = jnp.tile(ROWS[:4], (4, 1)), count(16, 4, 3)

    def run(params, contexts, tokens):
        _, prefix = model.extend(params, contexts, count(8, 3), decoders.fresh())
        memory = decoders.fresh(prefix, width=2)
        return model.extend(params, tokens, position, memory)[0]

    contexts = jnp.tile(CONTEXT[:2, :3], (4, 1))
    whole = jax.jit(run)(params, contexts, tokens)
    spread = jax.jit(run)(params, *jax.device_put((contexts, tokens), split))
    np.testing.assert_allclose(spread, whole, **CLOSE)


def test_equal_configs_share_their_functions():
    assert decoders.decoder(decoders.tiny(16)) is decoders.decoder(decoders.tiny(16))


def test_layers_are_stacked_and_kernels_are_named():
    _, params = setup("qwen2")
    attention = params["layers"]["attention"]
    assert set(attention) == {"q", "k", "v", "o"}
    assert attention["q"]["kernel"].shape == (2, 32, 32)
    assert attention["k"]["bias"].shape == (2, 16)
    assert set(params["layers"]["mlp"]) == {"gate", "up", "down"}
    assert params["embed"]["embedding"].shape == (16, 32)
    assert not np.array_equal(*attention["q"]["kernel"])


def test_wrong_use_says_what_is_right():
    model, params = setup()
    prefix = prefill(model, params)
    cases = [
        ("needs width", lambda: decoders.fresh(prefix)),
        ("extend a fresh", lambda: decoders.fresh(decoders.fresh(), width=2)),
        (
            "7 rows are not 3",
            lambda: decoders.reserve(model.config, 7, 1, prefix, width=2),
        ),
        ("rank 2", lambda: model.extend(params, ROWS[0], ROWS[0], decoders.fresh())),
        (
            "one shape",
            lambda: model.extend(params, ROWS, ROWS[:, :2], decoders.fresh()),
        ),
    ]
    short = decoders.reserve(model.config, 6, 2)
    cases += [
        ("reserve more", lambda: model.extend(params, ROWS, ROWS, short)),
        ("6 rows", lambda: model.extend(params, ROWS[:3], ROWS[:3], short)),
        ("kv_heads=3", lambda: decoders.tiny(8, kv_heads=3)),
        ("must be even", lambda: decoders.tiny(8, head_dim=5)),
        ("heads=4", lambda: decoders.tiny(8, dim=30)),
    ]
    ragged = decoders.fresh(prefix, context=jnp.zeros(5, jnp.int32))
    cases += [("context has shape", lambda: model.extend(params, ROWS, ROWS, ragged))]
    for message, call in cases:
        with pytest.raises(ValueError, match=message):
            call()
