"""Attention of new tokens to what was read, in float32 softmax, without copies."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from gpo.models import config as configs
from gpo.models import memory as memories

# Finite, so that a row without any visible key (padding) averages junk instead of NaN.
HIDDEN = -1e30


def angles(config: configs.Config, position: Int[Array, "R S"]):
    """cos and sin (R, 1, S, d/2) of the rotary embedding at positions (R, S)."""
    frequency = config.frequencies()[None, None, None, :]
    at = position[:, None, :, None].astype(jnp.float32) * frequency
    return jnp.cos(at), jnp.sin(at)


def rotate(x: Float[Array, "R H S d"], rope, scale: float = 1.0):
    """Rotary embedding of heads (R, H, S, d), computed in float32, first half with
    second half: ``(a cos - b sin, b cos + a sin)``, times ``scale``."""
    cos, sin = rope
    a, b = jnp.split(x.astype(jnp.float32), 2, -1)
    turned = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
    return (turned * scale).astype(x.dtype)


def attend(q: Float[Array, "R Hkv Q d"], keys, views: list[memories.View]):
    """Softmax attention over several sets of keys as if they were concatenated.

    ``out = Σ_i exp(s_i - m) v_i / Σ_i exp(s_i - m)`` over all keys i of all views; the
    sets are contracted where they lie and only maxima, sums and outputs meet.

    Args:
      q: (R, Hkv, Q, d) scaled queries, Q = S * heads / Hkv.
      keys: for each view ``(k, v)`` of shape (C, Hkv, L, d).
      views: how the rows of q read each set.
    Returns:
      (R, Hkv, Q, d) in the dtype of q. Rows that see no key hold finite junk.
    Reference: Milakov and Gimelshein 2018, arXiv:1805.02867 (online softmax).
    """
    sets = [
        (_scores(q, k, view), v, view) for (k, v), view in zip(keys, views, strict=True)
    ]
    tops = [view.spread(s.max(-1, keepdims=True)) for s, _, view in sets]
    top = jax.lax.stop_gradient(functools.reduce(jnp.maximum, tops))
    sums = [_mix(s, v, view, top) for s, v, view in sets]
    mass, out = (functools.reduce(jnp.add, part) for part in zip(*sums, strict=True))
    return (out / mass).astype(q.dtype)


def _scores(q, k, view: memories.View):
    """(blocks, Hkv, width*Q, L) float32 scores; hidden keys get a finite floor."""
    dot = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    scores = dot("chqd,chld->chql", view.gather(q), view.keys(k))
    return jnp.where(view.keys(view.mask), scores, HIDDEN)


def _mix(scores, v, view: memories.View, top):
    """Unnormalised mass (R, Hkv, Q, 1) and output (R, Hkv, Q, d), both float32."""
    p = jnp.exp(scores - view.gather(top))
    dot = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    out = dot("chql,chld->chqd", p.astype(v.dtype), view.keys(v))
    return view.spread(p.sum(-1, keepdims=True)), view.spread(out)
