"""Adds Gaussian noise to a local client's clipped array, calibrated exactly."""

from typing import Any

import jax
import jax.numpy as jnp

from dpaudit import _validate
from dpaudit.mechanisms import sampling
from dpaudit.mechanisms.claim import Claim, Mechanism
from dpaudit.mechanisms.clipping import accepted, clip

LEAST = 2.0**-100  # standard deviation: of less, what float32 flushes to zero, below 2^-126, is not rare


def noise_std(*, epsilon: float, delta: float, clip_norm: float) -> float:
    """Finds the smallest sigma that makes clip(x) + N(0, sigma^2 I) (epsilon, delta)-LDP.

    Two clipped vectors are up to Delta = 2 L apart, and sigma solves, with Phi the normal distribution function::

        Phi(Delta/(2 sigma) - epsilon sigma/Delta) - e^epsilon Phi(-Delta/(2 sigma) - epsilon sigma/Delta) = delta

    Args:
      epsilon: privacy loss in nats.
      delta: in (0, 1).
      clip_norm: L, L2 norm, per release.

    Returns:
      sigma, per coordinate, in the units of x.

    Raises:
      InputError: a value out of range.

    Source: Balle and Wang 2018, Theorem 8, solved by dp-accounting.
    """
    epsilon = _validate.positive(epsilon=epsilon)
    delta = _validate.open_unit(delta=delta)
    clip_norm = _validate.positive(clip_norm=clip_norm)
    import dp_accounting  # takes as long to import as all of this package

    return 2 * clip_norm * dp_accounting.get_sigma_gaussian(epsilon, delta)


def mechanism(*, epsilon: float, delta: float, clip_norm: float) -> Mechanism:
    """Releases clip(x) + N(0, sigma^2 I) with the sigma of :func:`noise_std`.

    ``log_prob(release, x)`` is <c, z - c/2> / sigma^2 with c = clip(x): the log density minus that of x = 0.

    Args:
      epsilon: privacy loss in nats.
      delta: in (0, 1).
      clip_norm: L, L2 norm of the whole array, per release.

    Returns:
      A Mechanism on arrays of any shape; release and noise have the shape of x, float32 or wider.

    Raises:
      InputError: a value out of range; a sigma below 8e-31, of which float32 would flush a part to zero; NaN or
        infinity in x. Under ``jax.jit`` and ``jax.vmap`` x is not known, and is not refused: the release is NaN where
        x is, which shows that it is, so make x finite before.

    Source: Balle and Wang 2018.
    """
    sigma = float(noise_std(epsilon=epsilon, delta=delta, clip_norm=clip_norm))  # NumPy's would widen the noise
    if sigma < LEAST:
        wanted = "one whose noise float32 holds, of standard deviation 8e-31 or more"
        raise _validate.expected("clip_norm", wanted, f"{clip_norm:g}, of {sigma:g}")

    def apply(key: jax.Array, x: Any) -> jax.Array:
        clipped = clip(accepted(x), clip_norm)
        return clipped + sigma * sampling.normal(key, clipped.shape, clipped.dtype)

    def log_prob(release: Any, x: Any) -> jax.Array:
        clipped = clip(x, clip_norm)
        return jnp.sum(clipped * (release - clipped / 2)) / sigma**2

    return Mechanism(apply, Claim(epsilon, delta), log_prob)
