"""Defines a planted fault beside its correct twin, and the pieces that the families share."""

from collections.abc import Callable
from typing import Any, NamedTuple

import dp_accounting
import jax
import jax.numpy as jnp

from dpaudit import Case, Claim
from dpaudit.auditing.attacks.distinguish import Distinguisher, learned, projection
from dpaudit.mechanisms import laplace, sampling

GAUSSIAN = Claim(1.0, 1e-5, "add_remove")
SIGMA = dp_accounting.get_sigma_gaussian(GAUSSIAN.epsilon, GAUSSIAN.delta)  # 3.73, for sensitivity 1


class Fault(NamedTuple):
    """One mistake, the same mechanism without it, and how to look for it.

    The twin keeps its claim for all neighbours, up to the rounding of float32 where the fault is not one of rounding.
    """

    name: str  # the mistake in a few words
    source: str  # where it was made, or what it gets wrong
    fault: Case
    twin: Case
    true_epsilon: float  # at the claim's delta: of the pair where the noise is Gaussian, else of the mechanism
    attacks: tuple[Distinguisher, ...] = (projection,)  # to try, each in an audit of its own
    trials: int = 200_000  # of each audit, at most
    last_bits: bool = False  # the loss is in a float's last bits alone, so that moving by 2^20 rounds it away
    look: dict[str, Any] = {}  # noqa: RUF012  # what :func:`dpaudit.inspect` is told, such as the sensitivity


def event(name: str, happens: Callable[[Any], jax.Array]) -> Distinguisher:
    """Returns the rule "world 1 where ``happens(release)``", fixed before any trial: no trials are spent on
    choosing."""
    return Distinguisher(lambda *_: lambda release: jnp.asarray(happens(release), jnp.float32), 0.5, name)


def beyond(standard_deviations: float, direction: jax.Array, sigma: float = SIGMA) -> Distinguisher:
    """Returns the rule "world 1 where the release has gone so far along ``direction``": the best test of Gaussian
    noise."""
    unit = direction / jnp.linalg.norm(direction)
    return event(
        f"beyond {standard_deviations:g} sigma", lambda release: jnp.sum(release * unit) > standard_deviations * sigma
    )


def with_learned(*attacks: Distinguisher) -> tuple[Distinguisher, ...]:
    """Returns the two that know nothing of the fault, before those made for it."""
    return projection, learned, *attacks


def clip(x: jax.Array, norm: float = 1.0, axis: int | None = None) -> jax.Array:
    """x, or every slice of it along ``axis``, scaled down to at most this L2 norm."""
    return x / jnp.maximum(1.0, jnp.linalg.norm(x, axis=axis, keepdims=axis is not None) / norm)


def noisy(key: jax.Array, x: jax.Array, sigma: float = SIGMA) -> jax.Array:
    """x + N(0, sigma^2 I)."""
    return x + sigma * sampling.normal(key, x.shape)


def noisy_count(key: jax.Array, x: jax.Array, *, scale: float, limit: float) -> jax.Array:
    """Returns a number of at most ``limit`` in size with Laplace noise on a grid, so without gaps."""
    return laplace.mechanism(epsilon=2 * limit / scale, clip_norm=limit).apply(key, x)


def whole_noise(key: jax.Array, shape: tuple[int, ...] = (), *, scale: float = 1.0) -> jax.Array:
    """Discrete Laplace noise, float32 whole numbers: k with probability (1 - a)/(1 + a) a^|k|, a = e^(-1/scale)."""
    up, down = jnp.floor(scale * sampling.exponential(key, (2, *shape)))
    return up - down


def gaussian_epsilon(shift: float, *, delta: float = GAUSSIAN.delta) -> float:
    """Returns the epsilon of N(0, 1) against N(shift, 1), exactly.
    Source: Balle and Wang 2018, Theorem 8, solved by dp-accounting.
    """
    return dp_accounting.get_epsilon_gaussian(1 / shift, delta)
