"""Computes what the adversary sees of one step: one server, and all owners but one.

Everything is in whole units, as between the servers, and in int32, which wraps modulo 2^32: a multiple of the ring.
``x``, int32 [d], is the sum of the honest owner's gradients; the others' sums are known, so that the adversary takes
them off what was released. Keys are for simulation: real servers draw from their operating system.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpaudit.mechanisms import sampling
from dpaudit.secure.noise.binomial import Binomial
from dpaudit.secure.protocol import fixed_point
from dpaudit.secure.protocol.fixed_point import Scale

View = Callable[[jax.Array, jax.Array], jax.Array]


class Aggregation(NamedTuple):
    """What the servers have agreed upon."""

    scale: Scale  # the fixed point
    noise: Binomial  # SPGC's, of one release
    noise_multiplier: float  # z, of one release, in clip norms

    @property
    def std(self) -> float:
        """Returns the standard deviation of one release's noise, in units."""
        return self.noise.std


def aggregation(noise_multiplier: float, *, examples: int = 30, ring_bits: int = 25) -> Aggregation:
    """SPGC's fixed point and noise for a batch; the schemes beside it get the same, and differ in who knows what."""
    found, noise = fixed_point.with_binomial(
        noise_multiplier=noise_multiplier, examples=examples, clip_norm=1.0, ring_bits=ring_bits
    )
    return Aggregation(found, noise, noise.std / found.levels)


def smod(values: jax.Array, ring_bits: int) -> jax.Array:
    """Returns the representative modulo 2^ring_bits in [-2^(ring_bits - 1), 2^(ring_bits - 1)), int32."""
    spare = 32 - ring_bits
    return jnp.left_shift(values.astype(jnp.int32), spare) >> spare


def words(key: jax.Array, noise: Binomial, shape: tuple[int, ...]) -> jax.Array:
    """Returns one server's secret bits, uint32 [words, *shape]: the coins, 32 a word, and then a word for each
    uniform."""
    return jax.random.bits(key, (-(-noise.coins // 32) + 2, *shape), jnp.uint32)


def noise_of(noise: Binomial, bits: jax.Array) -> jax.Array:
    """Z of the mixed bits, as :func:`dpaudit.secure.noise.binomial.from_bits` has it; int32, units."""
    *coins, first, second = bits
    last = jnp.uint32((1 << (noise.coins - 32 * (len(coins) - 1))) - 1 & 0xFFFFFFFF)
    heads = sum(map(jax.lax.population_count, [*coins[:-1], coins[-1] & last]))
    uniforms = (first & (noise.step - 1)) + (second & (noise.step - 1))
    return (noise.step * jnp.asarray(heads) + uniforms).astype(jnp.int32) - noise.reach


def gaussian(key: jax.Array, std: float, shape: tuple[int, ...]) -> jax.Array:
    """Normal noise in whole units, int32; where it is thousands of units wide, a discrete Gaussian in all but name."""
    return jnp.rint(std * sampling.normal(key, shape)).astype(jnp.int32)


def others(key: jax.Array, agreed: Aggregation, owners: int, shape: tuple[int, ...]) -> jax.Array:
    """Returns the sum of the colluding owners' contributions: any that leave the sum its room."""
    most = agreed.scale.levels // max(owners - 1, 1)
    return jax.random.randint(key, (owners - 1, *shape), -most, most + 1).sum(axis=0, dtype=jnp.int32)


def spgc(agreed: Aggregation, owners: int) -> View:
    """Returns the noisy sum less the known owners' contributions. One server's bits say nothing of the noise."""

    def view(key: jax.Array, x: jax.Array) -> jax.Array:
        known_key, *server_keys = jax.random.split(key, 3)
        known = others(known_key, agreed, owners, x.shape)
        first, second = (words(each, agreed.noise, x.shape) for each in server_keys)
        released = smod(x + known + noise_of(agreed.noise, first ^ second), agreed.scale.ring_bits)
        return smod(released - known, agreed.scale.ring_bits)

    return view


def ldp(agreed: Aggregation, owners: int) -> View:
    """Returns the honest owner's own message: the server is told each owner's, so the others' do not come into it."""
    del owners
    return lambda key, x: x + gaussian(key, agreed.std, x.shape)


def reduced(agreed: Aggregation, owners: int) -> View:
    """Returns the noisy sum less the known owners' contributions and noise: 1/k of the variance remains."""

    def view(key: jax.Array, x: jax.Array) -> jax.Array:
        known_key, noise_key = jax.random.split(key)
        known = others(known_key, agreed, owners, x.shape)
        parts = gaussian(noise_key, agreed.std / owners**0.5, (owners, *x.shape))
        released = smod(x + known + parts.sum(axis=0, dtype=jnp.int32), agreed.scale.ring_bits)
        return smod(released - known - parts[1:].sum(axis=0, dtype=jnp.int32), agreed.scale.ring_bits)

    return view


def own_noise(agreed: Aggregation, owners: int) -> View:
    """Returns the noisy sum less the known owners' contributions and the server's own noise."""

    def view(key: jax.Array, x: jax.Array) -> jax.Array:
        known_key, *server_keys = jax.random.split(key, 3)
        known = others(known_key, agreed, owners, x.shape)
        mine, peers = (gaussian(each, agreed.std, x.shape) for each in server_keys)
        released = smod(x + known + mine + peers, agreed.scale.ring_bits)
        return smod(released - known - mine, agreed.scale.ring_bits)

    return view


class Transcript(NamedTuple):
    """What one server holds of a step, apart from what is garbled (:mod:`experiments.spgc_evaluator`)."""

    share: jax.Array  # of the owner's sum
    bits: jax.Array  # the noise that its own bits alone would make
    released: jax.Array  # the noisy sum


def transcript(agreed: Aggregation, server: int, *, mask_bits: int | None = None) -> Callable[..., Transcript]:
    """Returns what H1 (``server`` 0) or H2 (1) holds of one owner's record.

    Args:
      agreed: the servers' parameters.
      server: 0 or 1.
      mask_bits: of the owner's mask; the ring's, unless something is wrong.
    """
    ring_bits = agreed.scale.ring_bits

    def view(key: jax.Array, x: jax.Array) -> Transcript:
        mask_key, *server_keys = jax.random.split(key, 3)
        spare = 32 - (ring_bits if mask_bits is None else mask_bits)
        mask = (jax.random.bits(mask_key, x.shape, jnp.uint32) >> spare).astype(jnp.int32)
        share = smod(x + mask, ring_bits), smod(mask, ring_bits)
        bits = [words(each, agreed.noise, x.shape) for each in server_keys]
        released = smod(share[0] - share[1] + noise_of(agreed.noise, bits[0] ^ bits[1]), ring_bits)
        return Transcript(share[server], noise_of(agreed.noise, bits[server]), released)

    return view
