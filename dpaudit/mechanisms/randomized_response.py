"""Randomises one category by randomised response: the true one, or with a known probability another one."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from dpaudit import _validate
from dpaudit.mechanisms.claim import Claim, Mechanism
from dpaudit.mechanisms.sampling import bernoulli, rare

MOST = 2**31 - 1  # a release is an int32


def mechanism(*, epsilon: float, num_categories: int = 2) -> Mechanism:
    """Releases x with probability e^epsilon / (e^epsilon + k - 1), else one of the k - 1 others, uniformly.

    The coin is drawn for the rarer outcome, with its probability rounded up to a multiple of 2^-64, so that no epsilon
    is too large for it.

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
    if _validate.at_least(2, num_categories=num_categories) > MOST:
        raise _validate.expected("num_categories", f"at most {MOST}, the largest int32", num_categories)
    others = (num_categories - 1) * math.exp(-epsilon)  # odds of lying
    lie = rare(others / (1 + others))
    log_keep = -math.log1p(others)

    def apply(key: jax.Array, x: Any) -> jax.Array:
        truth = _category(x, num_categories)
        coin_key, other_key = jax.random.split(key)
        shift = jax.random.randint(other_key, (), 1, num_categories, jnp.int32)
        return jnp.where(bernoulli(coin_key, lie), (truth + shift) % num_categories, truth)

    def log_prob(release: Any, x: Any) -> jax.Array:
        return jnp.where(release == _category(x, num_categories), log_keep, log_keep - epsilon)

    return Mechanism(apply, claim, log_prob)


def _category(x: Any, num_categories: int) -> jax.Array:
    wanted = f"one category, an integer in 0..{num_categories - 1}"
    array = x if isinstance(x, Tracer) else np.asarray(x)
    whole = jnp.issubdtype(array.dtype, jnp.integer) or array.dtype == bool
    if array.shape != () or not whole:
        raise _validate.expected("x", wanted, x)
    if not isinstance(array, Tracer) and not 0 <= int(array) < num_categories:
        raise _validate.expected("x", wanted, int(array))
    return jnp.asarray(array, jnp.int32) % num_categories
