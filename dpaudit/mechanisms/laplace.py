"""Adds Laplace noise to a local client's clipped array, on a grid that leaves no traces in floating point."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from dpaudit import _validate
from dpaudit.mechanisms import sampling
from dpaudit.mechanisms.claim import Claim, Mechanism
from dpaudit.mechanisms.clipping import accepted, clip

STEPS = 256  # least number of grid steps in one scale of the noise
LEAST, MOST = 2.0**-117, 2.0**122  # scales: grid steps and 64 scales are normal float32 numbers


def mechanism(*, epsilon: float, clip_norm: float) -> Mechanism:
    """Releases clip(x) + independent Laplace noise of scale 2 L / epsilon on a grid, with x clipped to L1 norm L.

    Two clipped arrays are up to 2 L apart in L1, so densities differ by a factor of at most e^epsilon.
    ``log_prob(release, x)`` is sum(|z| - |z - c|) / scale with c the input on the grid: the log probability minus that
    of x = 0.

    Floating-point Laplace noise has gaps that differ between inputs, and an audit finds them at once: the last bits of
    the release reveal the input (Mironov 2012). So everything here is an integer multiple of a power of two between
    scale/512 and scale/256: the clipped input is rounded toward zero, which cannot lengthen the diameter of the clip
    ball, and the noise is a difference of two geometric variables, the discrete Laplace distribution. Sums of such
    multiples are exact. What remains is the resolution of a float32 exponential in the geometric variables.

    Args:
      epsilon: privacy loss in nats. Below 1/128 the grid may be coarser than L, and would hold nothing of x.
      clip_norm: L, L1 norm of the whole array, per release.

    Returns:
      A Mechanism on arrays of any shape; release and noise have the shape of x, float32 or wider.

    Raises:
      InputError: a value out of range; NaN or infinity in x. Under ``jax.jit`` and ``jax.vmap`` x is not known, and is
        not refused: the release is NaN where x is, which shows that it is, so make x finite before.

    Source: Dwork, McSherry, Nissim and Smith 2006; Ghosh, Roughgarden and Sundararajan 2009 for the discrete law.
    """
    claim = Claim(epsilon)
    clip_norm = _validate.positive(clip_norm=clip_norm)
    scale = 2 * clip_norm / claim.epsilon
    if not LEAST <= scale <= MOST:
        wanted = "2 clip_norm / epsilon from 6.1e-36 to 5.3e36, so that float32 holds the noise and its grid"
        raise _validate.expected("clip_norm", wanted, f"{scale:g}")
    step = 2.0 ** math.floor(math.log2(scale / STEPS))
    most = math.floor(clip_norm / step) * step  # the largest norm on the grid
    if most == 0:
        raise _validate.expected("epsilon", "1/128 or more, so that the grid of the noise is finer than L", epsilon)

    def on_grid(x: Any) -> jax.Array:
        clipped = clip(x, most, ord=1)
        nearly = (
            1 + 8 * jnp.finfo(clipped.dtype).eps
        )  # so that the rounding of the clip does not cost a grid step; it is too small to add one
        return jnp.trunc(clipped * nearly / step) * step

    def apply(key: jax.Array, x: Any) -> jax.Array:
        center = on_grid(accepted(x))
        up, down = jnp.floor(sampling.exponential(key, (2, *center.shape), center.dtype) * (scale / step))
        return center + (up - down) * step

    def log_prob(release: Any, x: Any) -> jax.Array:
        return jnp.sum(jnp.abs(release) - jnp.abs(release - on_grid(x))) / scale

    return Mechanism(apply, claim, log_prob)
