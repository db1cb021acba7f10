"""Dropout from the binary digits of its rate, 32 elements a word: at rate 0.5 one random bit an element."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

DIGITS = 24  # of the probability, as fine as a float32 uniform


class Dropout(nn.Module):
    """``flax.linen.Dropout`` from fewer random words: an element is 0 with probability ``rate``, else x / (1 - rate).

    Attributes:
      rate: in [0, 1), to 24 binary digits.
    """

    rate: float

    def __call__(self, x: jax.Array, active: bool) -> jax.Array:
        """[...] -> [...]; with ``active`` the mask comes from the generator ``dropout``, else x is returned."""
        if not active or self.rate == 0:
            return x
        return jnp.where(kept(self.make_rng("dropout"), x.shape, self.rate), x / (1 - self.rate), 0)


def kept(key: jax.Array, shape: tuple[int, ...], rate: float) -> jax.Array:
    """A mask of ``shape``, every element True with probability 1 - ``rate``, independent.

    With 1 - rate = 0.d_1 d_2 ... d_k in binary and fair bits r_i, m_i = r_i or m_{i+1} where d_i = 1, r_i and m_{i+1}
    where d_i = 0, and m_{k+1} = 0, m_1 is 1 with probability 1 - rate: P(m_i) = (d_i + P(m_{i+1})) / 2.
    """
    whole = min(max(round((1 - rate) * 2**DIGITS), 1), 2**DIGITS - 1)
    digits = f"{whole:0{DIGITS}b}".rstrip("0")
    size = math.prod(shape)
    words = jax.random.bits(key, (len(digits), -(-size // 32)), jnp.uint32)
    mask = jnp.zeros_like(words[0])
    for digit, fair in zip(reversed(digits), reversed(words), strict=True):
        mask = fair | mask if digit == "1" else fair & mask
    bits = (_once(mask)[:, None] >> jnp.arange(32, dtype=jnp.uint32)) & 1
    return bits.ravel()[:size].reshape(shape) == 1


def _once(words: jax.Array) -> jax.Array:
    """The same words, made once: XLA's CPU compiler makes them anew for every element, but not a reduction (x | 0)."""
    return lax.reduce(jnp.stack([words, jnp.zeros_like(words)]), np.uint32(0), lax.bitwise_or, (0,))
