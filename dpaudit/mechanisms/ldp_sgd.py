"""Randomises gradients by LDP-SGD: one unit vector per client, which depends on the gradient only through a sign.

Paper 000 (after Erlingsson et al. 2020): Algorithm 1 is :func:`randomize`, Algorithm 2 is :func:`aggregate` followed
by :func:`server_update`.

Simulation draws its randomness from ``jax.random``; a deployed client must use a cryptographic generator.
"""

import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.flatten_util import ravel_pytree
from scipy.special import expit, gammaln

from dpaudit import _validate
from dpaudit.mechanisms.claim import Claim, Mechanism
from dpaudit.mechanisms.clipping import accepted, norm_and_direction, wide
from dpaudit.mechanisms.sampling import bernoulli, rare, sphere

if TYPE_CHECKING:
    import optax  # takes as long to import as all of this module

LARGE = 28.0  # nats: of more, the coin of 64 bits would round its rare side down, and does for a traced epsilon


def randomize(key: jax.Array, x: jax.Array, *, epsilon: Any, clip_norm: Any) -> jax.Array:
    """One client's release (Algorithm 1): a unit vector on the gradient's side with probability about q.

    With r = min(|x|, L) and v uniform on the unit sphere::

        z    =  L x/|x|      with probability 1/2 + r/(2L),               else its negative  (Norm Projection)
        zhat =  sgn<z, v> v  with probability e^epsilon/(1 + e^epsilon),  else its negative  (Gradient Sampling)

    Whatever the law of v, zhat = w arises from v = w and from v = -w with the same sign of the coins, so the ratio of
    two inputs' densities is at most that of the second coin's sides, in floating point too. It is e^epsilon up to the
    rounding of 1/(1 + e^epsilon) to float32: at most 2.4e-7 nats more for an epsilon up to 4, which at 1e-7 is more
    than epsilon itself, and 7e-8 of epsilon above. Over 28 nats the coin is rounded to the safe side; but a traced
    epsilon is not known to be so large, and loses up to 2e-4 nats at 36, 0.7 at 44, and all privacy over 44.3. The
    zero vector has no direction: its release is v itself, uniform on the sphere, which is also the limit as |x| -> 0.

    Args:
      key: a jax.random key, consumed.
      x: the gradient, [d], any floating type; must be finite (checked where it is concrete).
      epsilon: privacy loss in nats, > 0.
      clip_norm: L, L2 norm, per client, > 0.

    Returns:
      The release, [d], of unit L2 norm, float32 or wider.

    Raises:
      InputError: x is not a vector or not finite; epsilon or clip_norm not positive.

    Source: paper 000, Algorithm 1.
    """
    epsilon = _validate.positive(epsilon=epsilon)
    clip_norm = _validate.positive(clip_norm=clip_norm)
    x = accepted(_validate.vector(x=x))
    coin_key, sphere_key = jax.random.split(key)
    norm, direction = norm_and_direction(x)
    turned = turns(coin_key, norm, epsilon=epsilon, clip_norm=clip_norm)
    v = sphere(sphere_key, x.shape[0], dtype=direction.dtype)
    on_gradient_side = jnp.sum(direction * v) >= 0
    return jnp.where(on_gradient_side ^ turned, v, -v)


def turns(key: jax.Array, norm: jax.Array, *, epsilon: Any, clip_norm: Any) -> jax.Array:
    """Draws whether a release ends on the far side of its gradient, by both coins of Algorithm 1.

    Args:
      key: a jax.random key, consumed.
      norm: |x|, a scalar.
      epsilon, clip_norm: as for :func:`randomize`.

    Source: paper 000, Algorithm 1, lines 2 and 3.
    """
    epsilon, clip_norm = _validate.positive(epsilon=epsilon), _validate.positive(clip_norm=clip_norm)
    against_projection = 0.5 - jnp.minimum(norm, clip_norm) / (2 * clip_norm)  # line 2: of -L x/|x|
    against_sampling = jax.nn.sigmoid(-jnp.asarray(epsilon, norm.dtype))  # line 3: of -sgn<z, v> v
    if not isinstance(epsilon, Tracer) and float(epsilon) > LARGE:
        against_sampling = jnp.asarray(rare(float(expit(-float(epsilon)))), norm.dtype)
    flips = bernoulli(key, jnp.stack([against_projection, against_sampling]), (2,))
    return flips[0] ^ flips[1]


def randomize_tree(key: jax.Array, gradients: Any, *, epsilon: Any, clip_norm: Any) -> Any:
    """Applies :func:`randomize` to a pytree of gradients as one vector, and restores its structure.

    Each leaf keeps its shape and type; rounding a release to a narrower type is post-processing.

    Args:
      key: a jax.random key, consumed.
      gradients: a pytree of floating-point arrays with d entries in all.
      epsilon: privacy loss in nats, of the whole tree.
      clip_norm: L, L2 norm of the whole tree, per client.

    Returns:
      A pytree like ``gradients`` whose entries together have unit L2 norm.

    Raises:
      InputError: a leaf that is not floating-point; otherwise as for :func:`randomize`.

    Source: paper 000, Algorithm 1.
    """
    for leaf in jax.tree.leaves(gradients):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise _validate.expected("gradients", "floating-point arrays", f"a leaf of type {jnp.result_type(leaf)}")
    flat, unravel = ravel_pytree(gradients)
    return unravel(randomize(key, flat, epsilon=epsilon, clip_norm=clip_norm).astype(flat.dtype))


def unbiasing_factor(dimension: int, *, epsilon: float, clip_norm: float) -> float:
    """The factor that makes a release unbiased for the clipped gradient.

    E[zhat] = clip(x)/L * tanh(epsilon/2) * E|v_1| with E|v_1| = Gamma(d/2) / (sqrt(pi) Gamma((d+1)/2)), so::

        L sqrt(pi) Gamma((d+1)/2)/Gamma(d/2) (e^epsilon + 1)/(e^epsilon - 1)

    computed through log-gamma. Line 4 of Algorithm 2 prints (1/2) Gamma((d-1)/2 + 1)/Gamma(d/2 + 1) instead, which is
    smaller by the factor d and would shrink every update by it.

    Raises:
      InputError: a value out of range.

    Source: paper 000, Algorithm 2, line 4 (corrected).
    """
    dimension = _validate.at_least(1, dimension=dimension)
    epsilon = _validate.positive(epsilon=epsilon)
    clip_norm = _validate.positive(clip_norm=clip_norm)
    gamma_ratio = math.exp(float(gammaln((dimension + 1) / 2) - gammaln(dimension / 2)))
    return clip_norm * math.sqrt(math.pi) * gamma_ratio / math.tanh(epsilon / 2)


def aggregate(releases: jax.Array, *, epsilon: float, clip_norm: float) -> jax.Array:
    """Estimates the mean clipped gradient on the server, without bias.

    Args:
      releases: one release per client, [n, d].
      epsilon: privacy loss in nats, the clients' own.
      clip_norm: L, the clients' own.

    Returns:
      The estimate g_t, [d], in the units of the gradient.

    Raises:
      InputError: another shape; a value out of range.

    Source: paper 000, Algorithm 2, line 4; the constant as in :func:`unbiasing_factor`.
    """
    if jnp.ndim(releases) != 2 or jnp.shape(releases)[0] < 1:
        raise _validate.expected(
            "releases", "an array of shape [n, d] with n >= 1", f"shape {list(jnp.shape(releases))}"
        )
    factor = unbiasing_factor(releases.shape[1], epsilon=epsilon, clip_norm=clip_norm)
    return factor * jnp.mean(releases, axis=0)


def server_update(
    parameters: jax.Array, releases: jax.Array, *, epsilon: float, clip_norm: float, radius: float
) -> jax.Array:
    """Takes one server step: theta <- projection of (theta - eta_t g_t) onto the ball C of the given radius.

    eta_t = |C| sqrt(n) / (L sqrt(d)) (e^epsilon - 1)/(e^epsilon + 1), with |C| read as the radius of C.

    Args:
      parameters: theta_t, [d].
      releases: one release per client, [n, d].
      epsilon: privacy loss in nats.
      clip_norm: L.
      radius: of the parameter set C, an L2 ball about the origin.

    Returns:
      theta_{t+1}, [d].

    Raises:
      InputError: shapes that do not fit; a value out of range.

    Source: paper 000, Algorithm 2, lines 4 and 5.
    """
    from optax.projections import projection_l2_ball

    radius = _validate.positive(radius=radius)
    epsilon, clip_norm = _validate.positive(epsilon=epsilon), _validate.positive(clip_norm=clip_norm)
    estimate = aggregate(releases, epsilon=epsilon, clip_norm=clip_norm)
    n, d = releases.shape
    if jnp.shape(parameters) != (d,):
        raise _validate.expected(
            "parameters", f"shape [{d}], as of one release", f"shape {list(jnp.shape(parameters))}"
        )
    step_size = radius * math.sqrt(n) / (clip_norm * math.sqrt(d)) * math.tanh(epsilon / 2)
    return projection_l2_ball(parameters - step_size * estimate, radius)


def privatize(key: jax.Array, *, epsilon: float, clip_norm: float) -> "optax.GradientTransformation":
    """Wraps Algorithm 1 and its unbiasing constant as an optax transformation, for a client's own training loop.

    Each update is replaced by the unbiased randomised one; each call spends epsilon again.

    Args:
      key: a jax.random key, of one client and one training: the state carries it on and splits it at each update.
        ``init`` returns it, so a state that is initialised again, restored or copied to another client repeats its
        draws, and two releases with the same draws are not epsilon each.
      epsilon: privacy loss in nats, per update.
      clip_norm: L, L2 norm of the whole update.

    Returns:
      A transformation for ``optax.chain``, e.g. ``optax.chain(privatize(...), optax.sgd(0.1))``.

    Raises:
      InputError: a value out of range.
    """
    from optax import GradientTransformation

    epsilon = _validate.positive(epsilon=epsilon)
    clip_norm = _validate.positive(clip_norm=clip_norm)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        state, used = jax.random.split(state)
        dimension = sum(leaf.size for leaf in jax.tree.leaves(updates))
        factor = unbiasing_factor(dimension, epsilon=epsilon, clip_norm=clip_norm)
        released = randomize_tree(used, updates, epsilon=epsilon, clip_norm=clip_norm)
        return jax.tree.map(lambda leaf: (factor * wide(leaf)).astype(leaf.dtype), released), state

    return GradientTransformation(lambda params: key, update)


def far_side_probability(norm: Any, *, epsilon: Any, clip_norm: Any) -> Any:
    """Returns 1 - Q, the probability that a release lies on the far side of its gradient, <zhat, x> < 0.

    keep = 1/2 + min(norm, L)/(2L), q = e^epsilon/(1 + e^epsilon), Q = q keep + (1 - q)(1 - keep), in NumPy float64 as
    1 - Q = 1/(1 + e^epsilon) + tanh(epsilon/2) (1 - min(norm, L)/L)/2, which does not cancel at large epsilon.

    Args:
      norm: L2 norm of the gradient, any shape.
      epsilon: privacy loss in nats.
      clip_norm: L.

    Source: paper 000, Algorithm 1, lines 2 and 3.
    """
    share = np.minimum(np.asarray(norm, np.float64), clip_norm) / clip_norm
    epsilon = np.asarray(epsilon, np.float64)
    return expit(-epsilon) + 0.5 * np.tanh(epsilon / 2) * (1 - share)


def mechanism(*, epsilon: float, clip_norm: float) -> Mechanism:
    """Returns LDP-SGD's client as a :class:`Mechanism`, epsilon-LDP for any two gradients.

    ``log_prob(release, x)`` is taken with respect to the uniform law on the sphere: log 2Q on the gradient's side and
    log 2(1 - Q) on the other, with Q of :func:`far_side_probability`.

    Args:
      epsilon: privacy loss in nats.
      clip_norm: L, L2 norm, per client.

    Raises:
      InputError: a value out of range.
    """
    claim = Claim(epsilon)
    clip_norm = _validate.positive(clip_norm=clip_norm)

    def apply(key: jax.Array, x: jax.Array) -> jax.Array:
        return randomize(key, x, epsilon=epsilon, clip_norm=clip_norm)

    def log_prob(release: jax.Array, x: jax.Array) -> jax.Array:
        norm, direction = norm_and_direction(x)
        share = jnp.minimum(norm, clip_norm) / clip_norm
        other_side = (1 - share) + share * 2 * float(expit(-claim.epsilon))  # 2(1 - Q) without cancellation
        return jnp.log(jnp.where(jnp.sum(direction * release) >= 0, 2 - other_side, other_side))

    return Mechanism(apply, claim, log_prob)
