"""A user's own factor and what leaves the device: against float64 normal equations, pinned coordinates, clipping."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit.personalization.als import solve, steps
from dpaudit.personalization.als.steps import Step
from tests.personalization import people

USERS = people.batch(people.honest(12, seed=1), 4)


@partial(jax.jit, static_argnums=0)
def solved(step, model, users=USERS):
    return steps.solved(step, steps.common(model), steps.taken(model, users.items), users)


@partial(jax.jit, static_argnums=0)
def statistics(step, model, users=USERS):
    return steps.statistics(step, steps.common(model), steps.taken(model, users.items), users)


def by_hand(model, unobserved, users=USERS):
    """The normal equations of the docstring's objective, user by user, float64."""
    public, factors, _, mean, precision = (np.asarray(leaf, np.float64) for leaf in model)
    embedding = np.concatenate([public, factors], axis=1)
    found = []
    for items, values, present in zip(*map(np.asarray, users[:3]), strict=True):
        own = embedding[items[present > 0]]
        matrix = own.T @ own + unobserved * embedding.T @ embedding + np.diag(precision)
        found.append(np.linalg.solve(matrix, own.T @ values[present > 0].astype(float) + precision * mean))
    return np.array(found)


@pytest.mark.parametrize("unobserved", [0.0, 0.3])
def test_factors_are_the_minimum_of_the_objective(unobserved):
    model = people.model()
    model = model._replace(precision=jnp.array([0.5, 2.0, 1.0, 4.0]))
    found = solved(Step(1.0, 1.0, steps.uniform, unobserved), model)
    np.testing.assert_allclose(found, by_hand(model, unobserved), atol=2e-5)
    assert np.abs(by_hand(model, unobserved + 0.01) - found).max() > 1e-3
    without = ~np.asarray(USERS.weights).any(axis=1)
    assert without.any()
    if not unobserved:
        np.testing.assert_allclose(found[without], jnp.broadcast_to(model.mean, found[without].shape), atol=1e-6)


@pytest.mark.parametrize("unobserved", [0.0, 0.3])
def test_infinite_precision_pins_a_coordinate_and_is_the_limit_of_large_ones(unobserved):
    model = people.model()
    pinned = model._replace(precision=model.precision.at[1:3].set(jnp.inf))
    found = solved(Step(1.0, 1.0, steps.uniform, unobserved), pinned)
    np.testing.assert_array_equal(found[:, 1:3], jnp.broadcast_to(model.mean[1:3], (12, 2)))
    close = model._replace(precision=model.precision.at[1:3].set(1e9))
    np.testing.assert_allclose(found, by_hand(close, unobserved), atol=2e-5)


def test_further_factors_are_nothing_and_every_user_has_their_own_half_as_given():
    model, own, wide = people.model(), jnp.array([1.0, -0.5]), Step(1.0, 1.0, steps.uniform, 0.3)
    widened = steps.widened(model, own)
    np.testing.assert_allclose(solved(wide, widened)[:, :-2], solved(wide, model), atol=1e-6)
    learned = widened._replace(factors=widened.factors.at[:, -2:].set(1.0))  # where others would move it
    np.testing.assert_array_equal(solved(wide, learned)[:, -2:], jnp.broadcast_to(own, (12, 2)))


@pytest.mark.integration
def test_what_leaves_the_device_is_of_the_clipped_factor_and_the_clipped_rest_of_the_rating():
    model, step = people.model(), Step(0.7, 0.4, steps.adaptive(0.5))
    found = statistics(step, model)
    own = by_hand(model, 0.0)
    public, learned = own[:, : people.PUBLIC], own[:, people.PUBLIC :]
    norms = np.linalg.norm(learned, axis=1, keepdims=True)
    assert (norms > step.factor_norm).any()
    assert (norms < step.factor_norm).any()
    rated = np.asarray(USERS.weights) > 0
    learned = learned * np.minimum(1, step.factor_norm / norms) * rated.any(axis=1, keepdims=True)
    left = USERS.values - np.einsum("uwp,up->uw", np.asarray(model.public)[USERS.items], public)
    assert (np.abs(left[rated]) > step.rating_clip).any()
    left = np.clip(left, -step.rating_clip, step.rating_clip)
    share = np.asarray(jax.vmap(step.weights)(model.popularity[USERS.items], USERS.weights))
    square = np.einsum("ua,ub->uab", learned, learned)
    sent = solve.unpacked(found.gram, people.RANK), solve.unpacked(found.users, people.RANK)
    np.testing.assert_allclose(sent[0], share[..., None, None] * square[:, None], atol=1e-5)
    np.testing.assert_allclose(sent[1], square, atol=1e-5)
    np.testing.assert_allclose(found.moment, (share * left)[..., None] * learned[:, None], atol=1e-5)


def test_nothing_that_the_server_broadcasts_makes_a_device_send_more():
    step = Step(0.7, 0.4, steps.adaptive(0.5), unobserved=0.2)
    for strange in (np.nan, np.inf, -np.inf, 1e30, -1e30, 1e-30, 0.0, -1.0):
        for name in ("public", "factors", "popularity", "mean", "precision"):
            model = people.model()
            leaf = getattr(model, name)
            for broadcast in (jnp.full_like(leaf, strange), leaf.at[..., 0].set(strange)):
                found = statistics(step, model._replace(**{name: broadcast}))
                for part, most in zip(found, (0.49, 0.28, 0.49), strict=True):
                    lengths = np.linalg.norm(np.asarray(part, np.float64).reshape(len(part), -1), axis=1)
                    assert lengths.max() <= most, (name, strange)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_no_user_sends_more_than_the_bounds_in_any_type(dtype):
    """Not more by a rounding error either, of 2,000 users most of whom are clipped."""
    users = people.batch(people.honest(2_000, seed=2), 4)
    users = users._replace(values=5 * users.values)
    model = jax.tree.map(lambda leaf: leaf.astype(dtype), people.model())
    found = statistics(Step(0.7, 0.4, steps.uniform), model, users)
    for part, most in zip(found, (0.49, 0.28, 0.49), strict=True):
        assert part.dtype == jnp.float32
        lengths = np.linalg.norm(np.asarray(part, np.float64).reshape(len(part), -1), axis=1)
        assert 0.99 * most < lengths.max() <= most
