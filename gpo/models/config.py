"""What a decoder looks like: `Config`, its rotary variants, and `tiny` for tests."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np

from gpo import checks


@dataclasses.dataclass(frozen=True)
class Linear:
    """Rotary frequencies divided by ``factor``: ``f' = f / factor``.

    Reference: position interpolation, Chen et al. 2023, arXiv:2306.15595.
    """

    factor: float

    def __call__(self, frequency: np.ndarray) -> np.ndarray:
        return frequency / self.factor


@dataclasses.dataclass(frozen=True)
class Llama3:
    """Rotary frequencies of Llama 3.1: long wavelengths divided by ``factor``.

    ``f' = f`` where the wavelength ``2π/f`` is below ``original / high``, ``f / factor``
    where it is above ``original / low``, and a linear blend between the two.

    Reference: The Llama 3 herd of models, Dubey et al. 2024, arXiv:2407.21783.
    """

    factor: float
    low: float
    high: float
    original: int

    def __call__(self, frequency: np.ndarray) -> np.ndarray:
        wavelength = 2 * math.pi / frequency
        blend = (self.original / wavelength - self.low) / (self.high - self.low)
        kept = np.clip(blend, 0, 1)
        return kept * frequency + (1 - kept) * frequency / self.factor


@dataclasses.dataclass(frozen=True)
class Config:
    """Shape of a decoder of the Llama, SmolLM2, Qwen2/2.5 or Qwen3 family.

    ============  ==================================================================
    vocab         V, rows of the embedding table
    layers        number of blocks, stacked and scanned
    dim           D, width of the residual stream
    heads         query heads; ``heads % kv_heads == 0``
    kv_heads      key and value heads
    head_dim      d, size of a head (even)
    hidden        width of the gated MLP
    rope_theta    base of the rotary frequencies
    rope_scaling  None, `Linear` or `Llama3`
    norm_eps      added to the mean square in RMS norms
    qkv_bias      biases on q, k and v (Qwen2)
    o_bias        bias on the attention's output
    mlp_bias      biases in the MLP
    qk_norm       RMS norm of every query and key head (Qwen3)
    tied          logits from the embedding table
    context       positions the model was trained for; written into exports only
    dtype         of activations and memory, a name such as "bfloat16"
    param_dtype   of parameters
    ============  ==================================================================

    Raises:
      ValueError: heads do not divide, or an odd head_dim.
    """

    vocab: int
    layers: int
    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    rope_theta: float = 10000.0
    rope_scaling: Linear | Llama3 | None = None
    norm_eps: float = 1e-5
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tied: bool = True
    context: int = 2048
    dtype: str = "float32"
    param_dtype: str = "float32"

    def __post_init__(self):
        checks.require(
            self.kv_heads > 0 and self.heads % self.kv_heads == 0,
            f"heads={self.heads} must be a multiple of kv_heads={self.kv_heads}",
        )
        checks.require(
            self.head_dim % 2 == 0, f"head_dim={self.head_dim} must be even for rotary"
        )
        for name in ("dtype", "param_dtype"):
            object.__setattr__(self, name, jnp.dtype(getattr(self, name)).name)

    def replace(self, **fields) -> "Config":
        """Copy with some fields replaced."""
        return dataclasses.replace(self, **fields)

    def frequencies(self) -> np.ndarray:
        """(d/2,) rotary frequencies, ``theta^(-2i/d)`` scaled by ``rope_scaling``."""
        index = np.arange(0, self.head_dim, 2, dtype=np.float64)
        frequency = self.rope_theta ** (-index / self.head_dim)
        scaled = self.rope_scaling(frequency) if self.rope_scaling else frequency
        return scaled.astype(np.float32)


def tiny(
    vocab: int, layers: int = 2, dim: int = 64, heads: int = 4, **fields
) -> Config:
    """A small config for tests and arenas: the same decoder, few parameters.

    Args:
      vocab: V.
      layers: number of blocks.
      dim: D; must be divisible by ``heads``.
      heads: query heads; half as many key heads where that is possible.
      **fields: any other field of `Config`.
    Returns:
      A `Config` with ``hidden = 2 * dim`` unless given.
    Raises:
      ValueError: ``dim`` is not a multiple of ``heads``.
    Example:
      >>> tiny(32).kv_heads
      2

    Reference: library word.
    """
    checks.require(
        dim % heads == 0, f"dim={dim} must be a multiple of heads={heads}: change one"
    )
    kv_heads = heads // 2 if heads % 2 == 0 else heads
    defaults = {"kv_heads": kv_heads, "head_dim": dim // heads, "hidden": 2 * dim}
    return Config(vocab, layers, dim, heads, **{**defaults, **fields})
