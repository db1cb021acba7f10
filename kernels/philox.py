"""Implements Philox-4x32-10 as a JAX key type, on which mechanisms run unchanged and faster than on threefry.

One block is a keyed bijection of 128-bit counters, ten rounds of two 32x32 -> 64-bit products (Salmon, Moraes, Dror
and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011). Like threefry it is a generator for simulation, not
for cryptography.

A key is 128 bits: the cipher key (k0, k1) and the upper counter words (c2, c3). The lower counter words state what
a block is for, so that no block is used twice:

    random bits  (block number, 0)         fold_in  (data, 2^31)         split  (child number, 2^31 + 1)

A derived key is the whole block. Children of one parent never coincide; at 10^8 keys any two coincide with
probability 10^-23.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import define_prng_impl

from dpaudit import _platform, _validate

Words = tuple[jax.Array, jax.Array, jax.Array, jax.Array]
Multiply = Callable[[np.uint32, jax.Array], tuple[jax.Array, jax.Array]]

_MULTIPLIERS = np.uint32(0xD2511F53), np.uint32(0xCD9E8D57)
_KEY_STEPS = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
_BITS, _FOLD_IN, _SPLIT, _SEED = 0, 1 << 31, (1 << 31) + 1, 0xFFFFFFFF
_MOST_WORDS = 4 << 32  # block numbers are 32-bit


def widening(multiplier: np.uint32, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the upper and lower words of the 64-bit product, whether or not the caller has enabled 64-bit types.

    A widening product is one vector instruction; products of 16-bit halves take two to three times as long, and
    ``lax.mulhi``, as fast as this, does not compile under ``shard_map``.
    """
    with jax.enable_x64(True):
        product = lax.convert_element_type(x, np.uint64) * np.uint64(multiplier)
        return lax.convert_element_type(product >> np.uint64(32), np.uint32), x * multiplier


def by_halves(multiplier: np.uint32, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the same words from products of 16-bit halves, for chips without 64-bit integers."""
    low, high = np.uint32(multiplier & 0xFFFF), np.uint32(multiplier >> 16)
    x_low, x_high = x & np.uint32(0xFFFF), x >> np.uint32(16)
    cross, other = low * x_high, high * x_low
    carried = (low * x_low >> np.uint32(16)) + (cross & np.uint32(0xFFFF)) + (other & np.uint32(0xFFFF))
    upper = high * x_high + (cross >> np.uint32(16)) + (other >> np.uint32(16)) + (carried >> np.uint32(16))
    return upper, x * multiplier


def block(
    key: Sequence[jax.Array], counter: Sequence[jax.Array], *, rounds: int = 10, multiply: Multiply = widening
) -> Words:
    """Encrypts: four words that are a bijective function of the four counter words, for each key.

    In each round, with (hi, lo) the halves of the 64-bit product:
    (c0, c1, c2, c3) <- (hi(M1 c2) ^ c1 ^ k0, lo(M1 c2), hi(M0 c0) ^ c3 ^ k1, lo(M0 c0)), then k0 += W0, k1 += W1.

    Args:
      key: (k0, k1), uint32 arrays that broadcast with the counter.
      counter: (c0, c1, c2, c3), uint32 arrays that broadcast.
      rounds: 10 is the published generator; fewer are for tests of the tests.
      multiply: how 64-bit products are made, :func:`widening` or :func:`by_halves`; results do not depend on it.

    Returns:
      Four uint32 arrays of the common shape.

    Source: Salmon et al. 2011, section 3.3.
    """
    c0, c1, c2, c3, k0, k1 = jnp.broadcast_arrays(*counter, *key)
    for _ in range(rounds):
        high0, low0 = multiply(_MULTIPLIERS[0], c0)
        high1, low1 = multiply(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + _KEY_STEPS[0], k1 + _KEY_STEPS[1]
    return c0, c1, c2, c3


def from_key(key: jax.Array) -> jax.Array:
    """Draws a Philox key from a key of any type.

    Args:
      key: a typed jax.random key or array of keys, consumed.

    Returns:
      As many Philox keys, of the same shape.

    Raises:
      InputError: not a typed key.
    """
    if not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
        raise _validate.expected("key", "a typed key, as made by jax.random.key", key)
    data = jax.vmap(lambda one: jax.random.bits(one, (4,), jnp.uint32))(key.reshape(-1))
    return jax.random.wrap_key_data(data.reshape(*key.shape, 4), impl=IMPL)


def _blocks(key: jax.Array, numbers: jax.Array, purpose: int) -> jax.Array:
    """Returns the four words of every block, [..., 4], for numbers [...]."""
    upper = jnp.full_like(numbers, purpose)
    if _platform.on_cpu():
        words = block((key[0], key[1]), (numbers, upper, key[2], key[3]))
        return jnp.stack(_in_one_loop(words), axis=-1)
    shape = (*numbers.shape, 4)
    place = lax.broadcasted_iota(jnp.uint32, shape, numbers.ndim)
    return _word(key, jnp.broadcast_to(numbers[..., None], shape), purpose, place)


def _word(key: jax.Array, numbers: jax.Array, purpose: int, place: jax.Array) -> jax.Array:
    """Returns word ``place`` of every block, an array like ``numbers``, for accelerators.

    Each word is computed by a cipher of its own, four times the arithmetic. In return every draw fuses with what uses
    it, and no array has a last axis of 4, which a TPU pads to 128: compiled for an H100 or a TPU, trials of 26,010
    normals move half or a third of the bytes.
    """
    multiply = by_halves if _platform.current() == "tpu" else widening
    upper = jnp.full_like(numbers, purpose)
    first, second, third, fourth = block((key[0], key[1]), (numbers, upper, key[2], key[3]), multiply=multiply)
    return jnp.where(place < 2, jnp.where(place == 0, first, second), jnp.where(place == 2, third, fourth))


def _in_one_loop(words: Words) -> Words:
    """Returns the same words, computed in one loop on a CPU.

    XLA's CPU compiler gives each output its own loop and would run the cipher four times (and once more for each
    word of a key that is used); a reduction of four operands is one loop. So each word is reduced with a copy of
    itself, by OR, which changes nothing: x | x = x.
    """
    twice = [jnp.broadcast_to(word, (2, *word.shape)) for word in words]
    return lax.reduce(twice, [np.uint32(0)] * 4, lambda a, b: [x | y for x, y in zip(a, b, strict=True)], (0,))


@partial(jax.jit, static_argnums=(1, 2), inline=True)
def random_bits(key: jax.Array, bit_width: int, shape: tuple[int, ...]) -> jax.Array:
    """Returns the words of blocks 0, 1, 2, ... in order, cut or joined to ``bit_width``, least significant first."""
    size = math.prod(shape)
    words = -(-size * bit_width // 32)
    if words > _MOST_WORDS:
        raise _validate.expected("shape", f"at most {_MOST_WORDS} random words from one key", shape)
    if _platform.on_cpu() or words > 1 << 32:
        stream = _blocks(key, lax.iota(jnp.uint32, -(-words // 4)), _BITS)
    else:
        at = lax.iota(jnp.uint32, words)
        stream = _word(key, at >> 2, _BITS, at & 3)
    if bit_width == 64:
        stream = stream.reshape(-1, 2)
    bits = lax.bitcast_convert_type(stream, jnp.dtype(f"uint{bit_width}"))
    return bits.reshape(-1)[:size].reshape(shape)


@partial(jax.jit, static_argnums=2, inline=True)
def _child(key: jax.Array, number: jax.Array, purpose: int) -> jax.Array:
    return _blocks(key, number, purpose)


def _fold_in(key: jax.Array, data: int | jax.Array) -> jax.Array:
    return _child(key, jnp.asarray(data, jnp.uint32), _FOLD_IN)


def _split(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return _child(key, lax.iota(jnp.uint32, math.prod(shape)), _SPLIT).reshape(*shape, 4)


@partial(jax.jit, inline=True)
def _seed(seed: jax.Array) -> jax.Array:
    """Returns the block of the seed's 64 bits under the zero key, sign-extended so that x64 mode does not matter."""
    low = seed.astype(jnp.uint32)
    top = seed >> 32 if seed.dtype.itemsize == 8 else jnp.where(seed < 0, -1, 0)
    zero, ones = jnp.zeros_like(low), jnp.full_like(low, _SEED)
    return jnp.stack(block((zero, zero), (low, top.astype(jnp.uint32), ones, ones)))


IMPL = define_prng_impl(
    key_shape=(4,),
    seed=_seed,
    split=_split,
    random_bits=random_bits,
    fold_in=_fold_in,
    name="philox4x32-10",
    tag="philox",
)
