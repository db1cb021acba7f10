"""Item factors: the minimum of what their docstring says, by its gradient and by a dense least-squares problem."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

from dpaudit.personalization.als.steps import Prior, item_factors

ITEMS, RANK, FEATURES, STDDEV = 7, 3, 2, 0.6
PRIOR = Prior(jnp.array([0.25, 0.125, 0.5]), 2.0, 0.4)


found = jax.jit(item_factors)


@jax.jit
@jax.grad
def slope(factors, gram, moment, features, prior):
    """Of the objective, with the W that is best for the factors."""
    scaled = features[None] / prior.variance[:, None, None] ** 0.5
    gramian = jnp.einsum("ajf,ajg->afg", scaled, scaled) + prior.ridge * jnp.eye(FEATURES)
    right = jnp.einsum("jf,ja,a->af", features, factors, 1 / prior.variance)
    weights = jnp.linalg.solve(gramian, right[..., None])[..., 0].T
    left = moment - jnp.einsum("jab,jb->ja", gram, factors)
    noise = prior.rating_variance * gram + STDDEV**2 * jnp.eye(RANK)
    evidence = jnp.sum(left * jnp.linalg.solve(noise, left[..., None])[..., 0])
    strayed = jnp.sum((factors - features @ weights) ** 2 / prior.variance)
    return evidence + strayed + prior.ridge * jnp.sum(weights**2)


def case():
    """Noisy statistics, some of whose matrices are not positive: (A, b, x), float64."""
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(ITEMS, RANK, RANK))
    gram = matrix + np.swapaxes(matrix, 1, 2) + np.linspace(-2, 4, ITEMS)[:, None, None] * np.eye(RANK)
    assert (np.linalg.eigvalsh(gram).min(axis=1) < 0).any()
    return gram, rng.normal(size=(ITEMS, RANK)), rng.normal(size=(ITEMS, FEATURES))


def positive(gram):
    values, vectors = np.linalg.eigh(gram)
    return np.einsum("jab,jb,jcb->jac", vectors, np.maximum(values, 0), vectors)


def dense(gram, moment, features, prior):
    """All factors and W as one least-squares problem of whitened rows."""
    total, variance = (ITEMS + FEATURES) * RANK, np.asarray(prior.variance, np.float64)
    rows, right = [], []
    for j in range(ITEMS):
        factors = np.zeros((RANK, total))
        factors[:, j * RANK : (j + 1) * RANK] = np.eye(RANK)
        expected = np.zeros((RANK, total))
        expected[:, ITEMS * RANK :] = np.kron(features[j], np.eye(RANK))
        noise = prior.rating_variance * gram[j] + STDDEV**2 * np.eye(RANK)
        white = scipy.linalg.solve_triangular(np.linalg.cholesky(noise), np.eye(RANK), lower=True)
        rows += [white @ gram[j] @ factors, (factors - expected) / np.sqrt(variance)[:, None]]
        right += [white @ moment[j], np.zeros(RANK)]
    ridge = np.sqrt(prior.ridge) * np.eye(total)[ITEMS * RANK :]
    found = np.linalg.lstsq(np.vstack([*rows, ridge]), np.concatenate([*right, np.zeros(len(ridge))]), rcond=None)
    return found[0][: ITEMS * RANK].reshape(ITEMS, RANK)


def test_item_factors_are_generalised_least_squares():
    gram, moment, features = case()
    wanted = dense(positive(gram), moment, features, PRIOR)
    np.testing.assert_allclose(found(gram, moment, features, PRIOR, moment_stddev=STDDEV), wanted, atol=2e-5)
    with jax.enable_x64(True):
        wide = found(gram, moment, features, PRIOR, moment_stddev=STDDEV)
    np.testing.assert_allclose(wide, wanted, atol=1e-10)
    assert np.abs(dense(positive(gram), moment, features, PRIOR._replace(rating_variance=0.5)) - wanted).max() > 1e-3


def test_nothing_next_to_item_factors_is_better():
    gram, moment, features = case()
    with jax.enable_x64(True):
        best = found(gram, moment, features, PRIOR, moment_stddev=STDDEV)
        there, away = (slope(near, positive(gram), moment, features, PRIOR) for near in (best, 1.01 * best))
    assert np.abs(there).max() < 1e-10
    assert np.abs(away).max() > 1e-3


def test_without_noise_and_features_it_is_ridge_regression_and_items_without_ratings_stay_at_zero():
    rng = np.random.default_rng(3)
    users = rng.normal(size=(ITEMS, 2, RANK))  # two ratings an item: matrices of rank two
    users[0] = 0
    gram, moment = np.einsum("jua,jub->jab", users, users), np.einsum("jua,ju->ja", users, rng.normal(size=(ITEMS, 2)))
    with jax.enable_x64(True):
        plain = found(gram, moment, np.zeros((ITEMS, 0)), PRIOR, moment_stddev=0.0)
    ridge = PRIOR.rating_variance * np.diag(1 / PRIOR.variance)
    np.testing.assert_allclose(plain, np.linalg.solve(gram + ridge, moment[..., None])[..., 0], atol=1e-9)
    assert not plain[0].any()
