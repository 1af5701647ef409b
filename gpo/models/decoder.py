"""One decoder for Llama, SmolLM2, Qwen2/2.5 and Qwen3, as three pure functions.

Prefill, one-token decoding and teacher-forced learning on top of a shared prefix are
all `Model.extend`: "append S tokens to a memory".

Example:
  >>> import jax, jax.numpy as jnp
  >>> model = decoder(tiny(vocab=16))
  >>> params = model.init(jax.random.key(0))
  >>> tokens = jnp.array([[3, 1, 4], [1, 5, 0]])
  >>> position = jnp.array([[0, 1, 2], [0, 1, -1]])  # -1: padding
  >>> hidden, memory = model.extend(params, tokens, position, fresh())
  >>> model.logits(params, hidden).shape
  (2, 3, 16)
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from gpo import checks
from gpo.models import attention as attending
from gpo.models import memory as memories
from gpo.models.config import Config, tiny
from gpo.models.memory import Memory, fresh, reserve

__all__ = ["Config", "Memory", "Model", "decoder", "fresh", "reserve", "tiny"]


class Model(NamedTuple):
    """A language model as pure functions.

    ======  ===========================================================================
    init    ``key -> params``: nested dict of arrays, layers stacked on axis 0
    extend  ``(params, tokens (R, S) int32, position (R, S) int32, memory, remat=None)
            -> (hidden (R, S, D), memory)``
    logits  ``(params, hidden (..., D)) -> (..., V) float32``
    config  `Config`
    ======  ===========================================================================

    Position -1 marks padding: such a token is never attended to, and its hidden is
    finite junk. Real tokens come first in a row, at increasing positions; each attends
    to everything its row has read and to new tokens up to itself. ``hidden`` is after
    the final norm. ``remat`` is None, True, or a `jax.checkpoint` policy for the body
    of a layer.
    """

    init: Callable[[Any], Any]
    extend: Callable[..., tuple[Any, Memory]]
    logits: Callable[[Any, Any], Any]
    config: Config


class RMSNorm(nnx.Module):
    """``x / √(mean x² + eps) · scale``, computed in float32."""

    def __init__(self, size: int, config: Config):
        self.scale = nnx.Param(jnp.ones(size, config.param_dtype))
        self.eps = config.norm_eps

    def __call__(self, x):
        wide = x.astype(jnp.float32)
        scale = self.scale[...].astype(jnp.float32)
        scale = scale.reshape((1,) * (x.ndim - 1) + (-1,))
        square = jnp.mean(wide * wide, -1, keepdims=True)
        return (wide * jax.lax.rsqrt(square + self.eps) * scale).astype(x.dtype)


def _linear(c: Config, inner: int, outer: int, bias: bool, rngs, scale: float = 1.0):
    return nnx.Linear(
        inner,
        outer,
        use_bias=bias,
        dtype=jnp.dtype(c.dtype),
        param_dtype=jnp.dtype(c.param_dtype),
        kernel_init=nnx.initializers.variance_scaling(
            scale, "fan_in", "truncated_normal"
        ),
        rngs=rngs,
    )


class Attention(nnx.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, c: Config, rngs: nnx.Rngs):
        inner, outer = c.heads * c.head_dim, c.kv_heads * c.head_dim
        self.config = c
        self.q = _linear(c, c.dim, inner, c.qkv_bias, rngs)
        self.k = _linear(c, c.dim, outer, c.qkv_bias, rngs)
        self.v = _linear(c, c.dim, outer, c.qkv_bias, rngs)
        self.o = _linear(c, inner, c.dim, c.o_bias, rngs, 0.5 / c.layers)
        if c.qk_norm:
            self.q_norm = RMSNorm(c.head_dim, c)
            self.k_norm = RMSNorm(c.head_dim, c)

    def __call__(self, x, rope, views, keys):
        c, (rows, new, _) = self.config, x.shape
        q, k, v = (self._heads(f(x)) for f in (self.q, self.k, self.v))
        if c.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q = attending.rotate(q, rope, c.head_dim**-0.5)
        k = attending.rotate(k, rope)
        # (R, heads, S, d) -> (R, Hkv, S * repeat, d): one dot a key head serves the group
        q = q.reshape(rows, c.kv_heads, -1, new, c.head_dim).swapaxes(2, 3)
        q = q.reshape(rows, c.kv_heads, -1, c.head_dim)
        out = attending.attend(q, ((k, v), *keys), views)
        out = out.reshape(rows, c.kv_heads, new, -1, c.head_dim).swapaxes(1, 2)
        return self.o(out.reshape(rows, new, -1)), (k, v)

    def _heads(self, x):
        rows, new, _ = x.shape
        return x.reshape(rows, new, -1, self.config.head_dim).swapaxes(1, 2)


class MLP(nnx.Module):
    """``down(silu(gate(x)) · up(x))``."""

    def __init__(self, c: Config, rngs: nnx.Rngs):
        self.gate = _linear(c, c.dim, c.hidden, c.mlp_bias, rngs)
        self.up = _linear(c, c.dim, c.hidden, c.mlp_bias, rngs)
        self.down = _linear(c, c.hidden, c.dim, c.mlp_bias, rngs, 0.5 / c.layers)

    def __call__(self, x):
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))


class Layer(nnx.Module):
    """Attention and MLP, each behind its norm, on the residual stream."""

    def __init__(self, c: Config, rngs: nnx.Rngs):
        self.attention_norm = RMSNorm(c.dim, c)
        self.attention = Attention(c, rngs)
        self.mlp_norm = RMSNorm(c.dim, c)
        self.mlp = MLP(c, rngs)

    def __call__(self, x, rope, views, keys):
        out, new = self.attention(self.attention_norm(x), rope, views, keys)
        x = x + out
        return x + self.mlp(self.mlp_norm(x)), new


class Decoder(nnx.Module):
    """Embedding, stacked layers, final norm and head."""

    def __init__(self, c: Config, rngs: nnx.Rngs):
        @nnx.split_rngs(splits=c.layers)
        @nnx.vmap(in_axes=0, out_axes=0)
        def stack(rngs):
            return Layer(c, rngs)

        self.config = c
        self.embed = nnx.Embed(
            c.vocab,
            c.dim,
            param_dtype=jnp.dtype(c.param_dtype),
            embedding_init=nnx.initializers.normal(0.02),
            rngs=rngs,
        )
        self.layers = stack(rngs)
        self.norm = RMSNorm(c.dim, c)
        if not c.tied:
            self.head = _linear(c, c.dim, c.vocab, False, rngs)

    def extend(self, tokens, position, memory: Memory, remat=None):
        c = self.config
        rope = attending.angles(c, position)
        views = memories.views(memory, position, c.heads // c.kv_heads)

        def body(layer, x, keys):
            return layer(x, rope, views, keys)

        if remat is not None and remat is not False:
            policy = None if remat is True else remat
            body = nnx.remat(body, prevent_cse=False, policy=policy)
        # Padding may carry any id: clip instead of JAX's default of NaN out of bounds.
        table = self.embed.embedding[...]
        x = jnp.take(table, tokens, axis=0, mode="clip").astype(c.dtype)
        scan = nnx.scan(body, in_axes=(0, nnx.Carry, 0), out_axes=(nnx.Carry, 0))
        x, (k, v) = scan(self.layers, x, memories.stored(memory))
        return self.norm(x), memories.write(memory, k, v, position)

    def logits(self, hidden):
        c = self.config
        hidden = hidden.astype(c.dtype)
        kernel = self.embed.embedding[...] if c.tied else self.head.kernel[...]
        over = (((hidden.ndim - 1,), (1 if c.tied else 0,)), ((), ()))
        return jax.lax.dot_general(
            hidden, kernel.astype(c.dtype), over, preferred_element_type=jnp.float32
        )


@functools.cache
def decoder(config: Config) -> Model:
    """The pure functions of a decoder.

    Args:
      config: its shape; equal configs give the same `Model`, so that functions compiled
        for one serve the other.
    Returns:
      `Model`.
    Reference: Llama 2 (arXiv:2307.09288), Qwen2 (arXiv:2407.10671), Qwen3
      (arXiv:2505.09388).
    Status: code.
    """
    graph = nnx.split(nnx.eval_shape(lambda: Decoder(config, nnx.Rngs(0))))[0]

    def init(key):
        return nnx.to_pure_dict(nnx.state(Decoder(config, nnx.Rngs(key)), nnx.Param))

    @jax.named_scope("extend")
    def extend(params, tokens, position, memory, remat=None):
        checks.rank("tokens", tokens, 2)
        checks.same_shape(tokens=tokens, position=position)
        memories.check_rows(memory, tokens.shape[0])
        return nnx.merge(graph, params).extend(tokens, position, memory, remat)

    @jax.named_scope("logits")
    def logits(params, hidden):
        return nnx.merge(graph, params).logits(hidden)

    return Model(init, extend, logits, config)
