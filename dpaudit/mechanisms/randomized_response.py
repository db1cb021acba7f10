"""Randomises one category by randomised response: the true one, or with a known probability another one."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from dpaudit import _validate
from dpaudit.kernels.philox import by_halves
from dpaudit.mechanisms.claim import Claim, Mechanism
from dpaudit.mechanisms.sampling import bernoulli, rare

MOST = 2**31 - 1  # a release is an int32


def mechanism(*, epsilon: float, num_categories: int = 2) -> Mechanism:
    """Releases x with probability e^epsilon / (e^epsilon + k - 1), else one of the k - 1 others, uniformly.

    The coin is drawn for the rarer outcome, so that no epsilon and no k is too large for it. Its probability is
    rounded to float32, which spends up to 1.2e-7 nats more than epsilon; at 1e-7 that is more than epsilon itself. A
    lie's is rounded up to a multiple of 2^-64 first, so that nothing more is spent where it is below 2^-40.

    Args:
      epsilon: privacy loss in nats.
      num_categories: k in 2..2^31 - 1.

    Returns:
      A Mechanism on one category 0, ..., k - 1, an integer (or bool) scalar; the release is an int32 scalar. A traced
      x has no value to check and is taken modulo k.

    Raises:
      InputError: a value out of range; x that is no category.

    Source: Warner 1965; Kairouz, Oh and Viswanath 2014 for k > 2.
    """
    claim = Claim(epsilon)
    num_categories = _validate.at_least(2, num_categories=num_categories)
    if num_categories > MOST:
        raise _validate.expected("num_categories", f"at most {MOST}, the largest int32", num_categories)
    others = (num_categories - 1) * math.exp(-claim.epsilon)  # odds of lying
    lie, keep = rare(others / (1 + others)), 1 / (1 + others)
    log_keep = -math.log1p(others)

    def apply(key: jax.Array, x: Any) -> jax.Array:
        truth = _category(x, num_categories)
        coin_key, other_key = jax.random.split(key)
        lies = bernoulli(coin_key, lie) if others <= 1 else ~bernoulli(coin_key, keep)
        other = (truth.astype(jnp.uint32) + _up_to(num_categories - 1, other_key)) % num_categories  # below 2^32
        return jnp.where(lies, other.astype(jnp.int32), truth)

    def log_prob(release: Any, x: Any) -> jax.Array:
        return jnp.where(release == _category(x, num_categories), log_keep, log_keep - claim.epsilon)

    return Mechanism(apply, claim, log_prob)


def _up_to(most: int, key: jax.Array) -> jax.Array:
    """Draws one of 1, ..., most: 1 + floor(most B / 2^64), B of 64 bits.

    The numbers of jax.random.randint below 1.5e9 are as likely as 3 to 2: its sums of two words are modulo 2^32.
    """
    high, low = jax.random.bits(key, (2,), jnp.uint32)
    carried, _ = by_halves(np.uint32(most), low)
    upper, lower = by_halves(np.uint32(most), high)
    return 1 + upper + (lower + carried < carried)


def _category(x: Any, num_categories: int) -> jax.Array:
    wanted = f"one category, an integer in 0..{num_categories - 1}"
    array = x if isinstance(x, Tracer) else np.asarray(x)
    whole = jnp.issubdtype(array.dtype, jnp.integer) or array.dtype == bool
    if array.shape != () or not whole:
        raise _validate.expected("x", wanted, x)
    if not isinstance(array, Tracer) and not 0 <= int(array) < num_categories:
        raise _validate.expected("x", wanted, int(array))
    return jnp.asarray(array, jnp.int32) % num_categories
