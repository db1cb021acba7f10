"""jax-privacy: a clipped sum of gradients, and the noise that its own privatizer adds to it."""

import jax
import jax.numpy as jnp
import numpy as np
from jax_privacy import noise_addition
from jax_privacy.clipping import clipped_grad

from dpaudit import Claim
from experiments.libraries.promise import Promise

LIBRARY = "jax-privacy"


@jax.jit
def step(key, x):
    """A private step on records x [n, 2], each of which moves the sum by at most 1."""
    summed = clipped_grad(lambda w, record: jnp.sum(w * record), l2_clip_norm=1.0, batch_argnums=1)
    privatizer = noise_addition.gaussian_privatizer(stddev=1.0, prng_key=key)
    return privatizer.update(summed(jnp.zeros(2), x), privatizer.init(jnp.zeros(2)))[0]


def promises():
    def release(rng, x):
        return np.asarray(step(jax.random.key(int(rng.integers(2**32))), jnp.asarray(x)))

    x1 = [[1.0, 0.0], [0.0, 1.0], [9.0, 0.0]]
    curve = Claim.gaussian(1.0, neighbouring="add_remove")
    yield Promise("clipped sum and noise", curve, release, [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], x1, trials=2_000)
