"""The Laplace mechanism of a local client."""

from typing import Any

import jax
import jax.numpy as jnp

from dpaudit import check
from dpaudit.mechanisms import sampling
from dpaudit.mechanisms.claim import Claim, Mechanism
from dpaudit.mechanisms.clipping import clip


def mechanism(*, epsilon: float, clip_norm: float) -> Mechanism:
    """clip(x) + independent Laplace noise of scale 2 L / epsilon, with x clipped to L1 norm L.

    Two clipped arrays are up to 2 L apart in L1, so densities differ by a factor of at most e^epsilon.
    ``log_prob(release, x)`` is sum(|z| - |z - clip(x)|) / scale: the log density less that of x = 0.

    The promise is about real numbers. Floating-point noise leaves gaps, different ones for different inputs, and
    whoever reads the release's last bits can tell inputs apart (Mironov 2012). This mechanism is for simulation and
    audits; a deployed client needs discrete or snapped noise.

    Args:
      epsilon: privacy loss in nats.
      clip_norm: L, L1 norm of the whole array, per release.

    Returns:
      A Mechanism on arrays of any shape; the release has the shape of x, float32 or wider, and so has the noise.

    Raises:
      InputError: a value out of range; NaN or infinity in x.

    Source: Dwork, McSherry, Nissim and Smith 2006.
    """
    claim = Claim(epsilon)
    scale = 2 * check.positive(clip_norm=clip_norm) / epsilon

    def apply(key: jax.Array, x: Any) -> jax.Array:
        clipped = clip(check.finite(x=x), clip_norm, ord=1)
        size_key, sign_key = jax.random.split(key)
        size = sampling.exponential(size_key, clipped.shape, clipped.dtype)
        return clipped + scale * size * jax.random.rademacher(sign_key, clipped.shape, clipped.dtype)

    def log_prob(release: Any, x: Any) -> jax.Array:
        clipped = clip(x, clip_norm, ord=1)
        return jnp.sum(jnp.abs(release) - jnp.abs(release - clipped)) / scale

    return Mechanism(apply, claim, log_prob)
