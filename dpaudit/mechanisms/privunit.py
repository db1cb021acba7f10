"""Randomises directions by PrivUnit: a unit vector from the cap around the input's direction, or outside of it."""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import lax
from scipy import special

from dpaudit import _validate
from dpaudit.mechanisms import sampling
from dpaudit.mechanisms.claim import Claim, Mechanism
from dpaudit.mechanisms.clipping import accepted, norm_and_direction


class Cap(NamedTuple):
    """The cap {v : <v, u> >= gamma} of the unit sphere, and the probability of drawing from it.

    Attributes:
      gamma: the height at which the cap begins, in [0, 1].
      rest: 1 - gamma^2, stored separately because it may be tiny.
      miss: 1 - p, the probability that the release is drawn outside the cap.
      mass: q = Pr[<U, u> >= gamma] of a uniform U.
      moment: E[t; t >= gamma] of the coordinate t = <U, u>.
      scale: m = E<v, u>; v / m is unbiased for u.
      log_inside, log_outside: log density of v relative to the uniform law, log(p/q) and log((1-p)/(1-q)).
    """

    gamma: float
    rest: float
    miss: float
    mass: float
    moment: float
    scale: float
    log_inside: float
    log_outside: float


@lru_cache(maxsize=256)
def best_cap(dimension: int, epsilon: float) -> Cap:
    """Finds the cap of least variance among those that spend epsilon exactly.

    The densities inside and outside differ by the factor e^epsilon = p/(1-p) (1-q)/q, so epsilon is split into
    log(p/(1-p)), the coin, and log((1-q)/q), the cap. The coordinate t of a uniform point has density proportional
    to (1 - t^2)^((d-3)/2); hence t^2 is Beta(1/2, (d-1)/2), and::

        E[t; t >= gamma] = Gamma(d/2) / (sqrt(pi) Gamma((d-1)/2)) (1 - gamma^2)^((d-1)/2) / (d-1)
        m = E[t; t >= gamma] (p - q) / (q (1 - q))

    The release has norm 1/m, so the largest m is the least variance.

    Args:
      dimension: d >= 2.
      epsilon: privacy loss in nats.

    Raises:
      InputError: a value out of range.

    Source: Bhowmick et al. 2018, Algorithm 1 and Theorem 1; the exact accounting as in Asi, Feldman and Talwar 2022.
    """
    _validate.at_least(2, dimension=dimension)
    epsilon = _validate.positive(epsilon=epsilon)
    splits = np.linspace(0, min(epsilon, 300), 65)  # float64 holds no smaller cap
    best = int(np.argmax([_cap(dimension, epsilon, split).scale for split in splits]))
    found = scipy.optimize.minimize_scalar(
        lambda split: -_cap(dimension, epsilon, split).scale,
        bounds=(splits[max(best - 1, 0)], splits[min(best + 1, 64)]),
        method="bounded",
    )
    return _cap(dimension, epsilon, float(found.x))


def mechanism(*, epsilon: float) -> Mechanism:
    """Releases v / m with v uniform in the cap around x / |x| with probability p, else uniform outside it.

    Unbiased for the direction u = x / |x|; the length of x is not released. A zero x has no direction: its v is
    uniform on the sphere, whose density lies between the two. ``log_prob(release, x)`` is relative to the uniform law.

    The cap's edge is exact only up to float32 rounding, and rounding leaves gaps that depend on u: for simulation and
    audits, not for deployment.

    Args:
      epsilon: privacy loss in nats.

    Returns:
      A Mechanism on vectors [d], d >= 2; release and noise are [d], float32 or wider, the release of norm 1/m.

    Raises:
      InputError: a value out of range; x not [d] with d >= 2; NaN or infinity in x. Under ``jax.jit`` and ``jax.vmap``
        x is not known, and is not refused: the release of such an x is NaN, which shows it, so make x finite before.

    Source: Bhowmick et al. 2018, Algorithm 1.
    """
    claim = Claim(epsilon)

    def apply(key: jax.Array, x: Any) -> jax.Array:
        cap = _cap_for(x, claim.epsilon)
        norm, u = norm_and_direction(accepted(x))
        coin_key, height_key, around_key = jax.random.split(key, 3)
        t, sine = lax.cond(  # under vmap, in a block of trials, both are drawn
            sampling.bernoulli(coin_key, sampling.rare(cap.miss)),
            lambda key: _height_outside(key, cap, u.size, u.dtype),
            lambda key: _height_inside(key, cap, u.size, u.dtype),
            height_key,
        )
        w = _orthogonal(around_key, u)
        return jnp.where(norm > 0, t * u + sine * w, w) / cap.scale

    def log_prob(release: Any, x: Any) -> jax.Array:
        cap = _cap_for(x, claim.epsilon)
        norm, u = norm_and_direction(x)
        inside = cap.scale * jnp.sum(release * u) >= cap.gamma
        return jnp.where(norm > 0, jnp.where(inside, cap.log_inside, cap.log_outside), 0.0)

    return Mechanism(apply, claim, log_prob)


def _cap_for(x: Any, epsilon: float) -> Cap:
    dimension = _validate.vector(x=x).shape[0]
    if dimension < 2:
        raise _validate.expected("x", "an array of shape [d] with d >= 2", f"shape {list(x.shape)}")
    return best_cap(dimension, epsilon)


def _cap(dimension: int, epsilon: float, split: float) -> Cap:
    """Returns the cap that spends ``split`` of epsilon on its size and the rest on the coin."""
    log_mass, log_rest = special.log_expit(-split), special.log_expit(split)
    log_hit, log_miss = special.log_expit(epsilon - split), special.log_expit(split - epsilon)
    mass, half = math.exp(log_mass), (dimension - 1) / 2
    cosine_squared = float(special.betainccinv(0.5, half, 2 * mass))
    sine_squared = float(special.betaincinv(half, 0.5, 2 * mass))
    log_sine_squared = math.log1p(-cosine_squared) if cosine_squared < 0.5 else math.log(sine_squared)
    moment = math.exp(
        special.gammaln(dimension / 2)
        - special.gammaln(half)
        - math.log(math.pi) / 2
        + half * log_sine_squared
        - math.log(dimension - 1)
    )
    log_inside, log_outside = log_hit - log_mass, log_miss - log_rest
    return Cap(
        gamma=math.sqrt(cosine_squared),
        rest=math.exp(log_sine_squared),
        miss=math.exp(log_miss),
        mass=mass,
        moment=moment,
        scale=moment * (math.exp(log_inside) - math.exp(log_outside)),
        log_inside=float(log_inside),
        log_outside=float(log_outside),
    )


def _height_inside(key: jax.Array, cap: Cap, dimension: int, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """Draws (t, sqrt(1 - t^2)) of a uniform point given t >= gamma.

    The density of s = 1 - t^2 is s^((d-3)/2) / t. Without 1/t it is the law of (1 - gamma^2) e^(-2 E/(d-1)), E
    exponential; accepting with probability gamma / t puts it back. This accepts gamma q / moment of its proposals,
    plain draws accept q of theirs; the better one is used.
    """
    if cap.gamma <= cap.moment:
        return _uniform_height(key, lambda t: t >= cap.gamma, dimension, dtype)

    def propose(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        proposal_key, coin_key = jax.random.split(key)
        shrink = -2 / (dimension - 1) * sampling.exponential(proposal_key, (), dtype)
        t = jnp.sqrt(cap.gamma**2 - cap.rest * jnp.expm1(shrink))
        return t, jnp.sqrt(cap.rest * jnp.exp(shrink)), sampling.bernoulli(coin_key, cap.gamma / t)

    return _rejection(key, propose)


def _height_outside(key: jax.Array, cap: Cap, dimension: int, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """Draws (t, sqrt(1 - t^2)) of a uniform point given t < gamma, which is at least half of all points."""
    return _uniform_height(key, lambda t: t < cap.gamma, dimension, dtype)


def _uniform_height(
    key: jax.Array, wanted: Callable[[jax.Array], jax.Array], dimension: int, dtype: Any
) -> tuple[jax.Array, jax.Array]:
    """Draws (t, sqrt(1 - t^2)) of a uniform point given wanted(t).

    Two coordinates of a uniform point are r (cos a, sin a), a uniform and 1 - r^2 = e^(-2 E/(d-2)), E exponential.
    """
    shrink = -2 / (dimension - 2) if dimension > 2 else -math.inf  # on the circle r = 1

    def propose(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        radius_key, angle_key = jax.random.split(key)
        exponent = shrink * (sampling.exponential(radius_key, (), dtype) + jnp.finfo(dtype).tiny)  # never inf * 0
        radius_squared, angle = -jnp.expm1(exponent), jax.random.uniform(angle_key, (), dtype, maxval=2 * math.pi)
        t = jnp.sqrt(radius_squared) * jnp.cos(angle)
        return t, jnp.sqrt(jnp.exp(exponent) + radius_squared * jnp.sin(angle) ** 2), wanted(t)

    return _rejection(key, propose)


def _rejection(
    key: jax.Array, propose: Callable[[jax.Array], tuple[jax.Array, jax.Array, jax.Array]]
) -> tuple[jax.Array, jax.Array]:
    """Returns the first (t, sqrt(1 - t^2)) that is accepted."""

    def again(state: tuple[Any, ...]) -> tuple[Any, ...]:
        key, used = jax.random.split(state[0])
        return key, *propose(used)

    first = again((key,))
    return lax.while_loop(lambda state: ~state[3], again, first)[1:3]


def _orthogonal(key: jax.Array, u: jax.Array) -> jax.Array:
    """Draws a uniform unit vector orthogonal to u, on the whole sphere for u = 0; a second pass removes rounding."""
    w = sampling.sphere(key, u.size, u.dtype)
    for _ in range(2):
        w = norm_and_direction(w - jnp.sum(w * u) * u)[1]
    return w
