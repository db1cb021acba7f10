"""An attack that asks for nothing: each number of a release is read as a normal variable of its own."""

from typing import Any

import jax
import jax.numpy as jnp

from dpaudit.auditing.attack import Distinguisher, Score, flat
from dpaudit.auditing.game import trial_key
from dpaudit.mechanisms.claim import Mechanism

PILOT = 500  # releases per world behind the means and variances; no bound will count them
FARTHEST = 1e3  # the most that one number may say, in nats


def _fit(key: jax.Array, mechanism: Mechanism, x0: Any, x1: Any) -> Score:
    def release(key: jax.Array, x: Any) -> jax.Array:
        return flat(mechanism.apply(key, x))

    @jax.jit  # one program for both worlds, of which the inputs are data
    def pilot(key: jax.Array, worlds: Any) -> tuple[jax.Array, jax.Array]:
        keys = jax.random.split(trial_key(key), PILOT)  # the same in both worlds: what they share cancels
        releases = jax.vmap(jax.vmap(release, (0, None)), (None, 0))(keys, worlds)
        means, variances = releases.mean(axis=1), releases.var(axis=1)
        least = 1e-6 * (variances.sum(axis=0) + (means[1] - means[0]) ** 2) + jnp.finfo(means.dtype).tiny
        return means, jnp.maximum(variances, least)

    (mean0, mean1), (variance0, variance1) = pilot(key, jax.tree.map(lambda *leaves: jnp.stack(leaves), x0, x1))

    def score(release: Any) -> jax.Array:
        z = flat(release)
        losses = ((z - mean0) ** 2 / variance0 - (z - mean1) ** 2 / variance1 + jnp.log(variance0 / variance1)) / 2
        return jnp.sum(jnp.clip(losses, -FARTHEST, FARTHEST))

    return score


moments = Distinguisher(_fit, None, "moments")
"""The log likelihood ratio of releases whose numbers are independent and normal, with means and variances estimated
from a pilot: finds shifts, also of releases that have not their input's size, and leaks in a variance."""
