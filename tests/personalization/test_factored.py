"""Factored models with encoders of one's own: what is solved for stays on the device, the towers are released."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpaudit.personalization import user_level
from dpaudit.personalization.als import factored
from dpaudit.personalization.als.factored import Factored, Person
from dpaudit.personalization.als.layout import Users
from dpaudit.personalization.boundary.aggregator import run
from dpaudit.training.sampling import poisson

ITEMS, RANK, WIDTH = 6, 2, 4
TABLE = jnp.asarray(np.random.default_rng(0).normal(size=(ITEMS, RANK)), jnp.float32)
BY_TABLE = Factored(lambda params, items: params["items"][items], precision=3.0)
BOTH = BY_TABLE._replace(users=lambda params, features: features @ params["users"])


def person(seed: int, *, features=()) -> Person:
    rng = np.random.default_rng(seed)
    items = np.sort(rng.permutation(ITEMS)[:WIDTH]).astype(np.int32)
    values = rng.normal(size=WIDTH).astype(np.float32)
    return Person(
        Users(jnp.asarray(items), jnp.asarray(values), jnp.array([1.0, 1.0, 1.0, 0.0]), jnp.int32(0)), features
    )


def by_hand(table: np.ndarray, one: Person, precision: float) -> tuple[np.ndarray, np.ndarray]:
    """The user's own factor and what their ratings say of each row, in float64 and without the code that is tested."""
    items, values = np.asarray(one.ratings.items)[:3], np.asarray(one.ratings.values, float)[:3]
    rows = table[items].astype(float)
    own = np.linalg.solve(rows.T @ rows + precision * np.eye(RANK), rows.T @ values)
    gradient = np.zeros((ITEMS, RANK))
    gradient[items] -= np.outer(values - rows @ own, own) / 3
    return own, gradient


@pytest.mark.integration
def test_the_gradient_is_that_of_the_items_at_the_best_factor() -> None:
    one = person(1)
    own, expected = by_hand(np.asarray(TABLE), one, 3.0)
    found = jax.grad(factored.loss(BY_TABLE, items=ITEMS))({"items": TABLE}, one)["items"]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    asked = jnp.arange(ITEMS)
    np.testing.assert_allclose(
        factored.predicted(BY_TABLE, {"items": TABLE}, one, asked), np.asarray(TABLE) @ own, atol=1e-6
    )
    wrong = jax.grad(factored.loss(BY_TABLE._replace(precision=0.3), items=ITEMS))({"items": TABLE}, one)["items"]
    assert np.abs(wrong - expected).max() > 0.01


def test_a_shared_user_tower_is_learned_and_the_own_part_is_what_it_leaves() -> None:
    one = person(2, features=jnp.array([1.0, -2.0, 0.5]))
    params = {"items": TABLE, "users": jnp.full((3, RANK), 0.3)}
    fixed = BOTH._replace(precision=jnp.inf)
    shared = np.asarray(one.features @ params["users"])
    np.testing.assert_allclose(
        factored.predicted(fixed, params, one, jnp.arange(ITEMS)), np.asarray(TABLE) @ shared, rtol=1e-5
    )
    slope = jax.grad(factored.loss(BOTH, items=ITEMS))(params, one)["users"]
    assert np.abs(slope).max() > 1e-3
    left = one._replace(ratings=one.ratings._replace(values=one.ratings.values - TABLE[one.ratings.items] @ shared))
    own, _ = by_hand(np.asarray(TABLE), left, 3.0)
    np.testing.assert_allclose(
        factored.predicted(BOTH, params, one, jnp.arange(ITEMS)), np.asarray(TABLE) @ (shared + own), atol=1e-5
    )


@pytest.mark.parametrize(
    "broken", [{"values": jnp.full(WIDTH, jnp.nan)}, {"items": jnp.array([2, 2, 3, 4])}, {"items": jnp.arange(4) + 9}]
)
def test_a_broken_device_has_no_gradient(broken) -> None:
    one = person(3)
    found = jax.grad(factored.loss(BY_TABLE, items=ITEMS))(
        {"items": TABLE}, one._replace(ratings=one.ratings._replace(**broken))
    )
    np.testing.assert_array_equal(found["items"], 0.0)


@pytest.mark.integration
def test_steps_learn_and_only_the_towers_are_released() -> None:
    """The transcript has the shape of the parameters, whatever is on the devices; and the items' error falls."""
    rng = np.random.default_rng(5)
    true, tastes = rng.normal(size=(ITEMS, 1)), rng.normal(size=(200, 1))
    items = np.tile(np.arange(ITEMS, dtype=np.int32), (200, 1))
    values = (tastes @ true.T).astype(np.float32)
    ratings = Users(
        *map(jnp.asarray, (items, values, np.ones((200, ITEMS), np.float32), np.arange(200, dtype=np.int32)))
    )
    model = Factored(lambda params, items: params[items], precision=0.1)
    sampling = poisson(200, 100)
    training = user_level.dp_sgd(
        factored.loss(model, items=ITEMS),
        sampling=sampling,
        clip_norm=1.0,
        noise_multiplier=1.0,
        optimizer=optax.sgd(1.0),
    )
    start = 0.3 * jax.random.normal(jax.random.key(0), (ITEMS, 1))
    everyone = factored.everyone(jax.random.key(1), ratings)
    state, _, transcript = run(jax.random.key(2), training.protocol, *training.init(start), everyone, 40)
    assert jax.tree.map(jnp.shape, transcript.values(user_level.NAME)) == (40, ITEMS, 1)

    def error(params: jax.Array) -> float:
        found = jax.vmap(lambda row: factored.predicted(model, params, Person(row, ()), row.items))(ratings)
        return float(jnp.sqrt(jnp.mean((found - ratings.values) ** 2)))

    assert error(state.params) < 0.4 * error(start)
