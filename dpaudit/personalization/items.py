"""The server's half of alternating minimisation: item factors from noisy statistics and public features.

The devices' ratings of item j say b_j = A_j v_j + noise, A_j = sum_i w_ij u_i u_i', b_j = sum_i w_ij y_ij u_i: to a
server that knows no more than the released A_j and b_j, a linear regression with noise of covariance

    s_w A_j + s_b^2 I,

s_w the ratings' own variance times a typical weight, s_b the standard deviation of the release's noise. With
v_j ~ N(W' x_j, diag(lambda)) beforehand, x_j the public features of item j, the most likely W and then every v_j have
closed forms. Whatever is done with released statistics costs no privacy, so nothing here is approximate.

Source: Chien et al. 2021, Algorithm 1 (the item step, projection); Krichene et al. 2023 (public features).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpaudit.personalization.symmetric import spectrum


class Prior(NamedTuple):
    """What is believed of item factors before anything is released.

    Attributes:
      variance: lambda, [r], > 0: how far a factor lies from what the features say.
      ridge: of the map W, > 0: the inverse variance of its entries.
      rating_variance: s_w, > 0.
    """

    variance: jax.Array
    ridge: float
    rating_variance: float


def item_factors(
    gram: jax.Array, moment: jax.Array, features: jax.Array, prior: Prior, *, moment_stddev: jax.Array | float
) -> jax.Array:
    """The most likely item factors [m, r].

    Minimises, over V and W at once,

        sum_j (b_j - A_j v_j)' (s_w A_j + s_b^2 I)^-1 (b_j - A_j v_j)
            + (v_j - W' x_j)' diag(lambda)^-1 (v_j - W' x_j)  +  ridge |W|_F^2

    with A_j projected to the nearest positive semi-definite matrix. Without noise and features, v_j is the ridge
    regression (A_j + s_w diag(lambda)^-1)^-1 b_j.

    Args:
      gram: A, [m, r, r], symmetric, as released.
      moment: b, [m, r], as released.
      features: x, [m, f]; a column of ones lets all items have a common factor, [m, 0] has all start at 0.
      prior: of the factors.
      moment_stddev: s_b, >= 0, of the noise on each entry of ``moment``.
    """
    variance = jnp.asarray(prior.variance)
    values, vectors = spectrum(gram)
    noise = prior.rating_variance * values + moment_stddev**2
    informed = values > 0
    gain = jnp.where(informed, values / jnp.where(informed, noise, 1.0), 0.0)  # A (s_w A + s_b^2)^-1, eigenvalues
    precision = jnp.einsum("jab,jb,jcb->jac", vectors, gain * values, vectors)
    evidence = jnp.einsum("jab,jb,jcb,jc->ja", vectors, gain, vectors, moment)
    covariance = jnp.linalg.inv(precision + jnp.diag(1 / variance))
    weights = _map(precision, evidence, covariance, features, variance, prior.ridge)
    expected = features @ weights
    return jnp.einsum("jab,jb->ja", covariance, evidence + expected / variance)


def _map(
    precision: jax.Array,
    evidence: jax.Array,
    covariance: jax.Array,
    features: jax.Array,
    variance: jax.Array,
    ridge: float,
) -> jax.Array:
    """W [f, r]: the regression of all items on their features, each item's factor integrated out."""
    f, r = features.shape[1], len(variance)
    if not f:
        return jnp.zeros((0, r))
    # what an item says of its expected factor: (Lambda + precision^-1)^-1 = Lambda^-1 covariance precision
    seen = jnp.einsum("a,jab,jbc->jac", 1 / variance, covariance, precision)
    said = jnp.einsum("a,jab,jb->ja", 1 / variance, covariance, evidence)
    matrix = jnp.einsum("jp,jab,jq->paqb", features, seen, features).reshape(f * r, f * r)
    rows = jnp.einsum("jp,ja->pa", features, said).reshape(f * r)
    return jnp.linalg.solve(matrix + ridge * jnp.eye(f * r), rows).reshape(f, r)
