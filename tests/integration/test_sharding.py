"""Networks, clients and users on several devices and several processes: the numbers of one device, the same noise."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh

from dpaudit._validate import InputError
from dpaudit.audits import federated_canary
from dpaudit.federated.clients import exact
from dpaudit.federated.clip_size import fixed
from dpaudit.federated.rounds import federated
from dpaudit.personalization.als import least_squares as als
from dpaudit.personalization.als import recommender, steps
from dpaudit.personalization.als.layout import arranged
from dpaudit.personalization.als.recommender import Catalogue, Recipe
from dpaudit.personalization.als.solve import user_factors
from dpaudit.personalization.als.steps import Prior, Step
from dpaudit.personalization.boundary.aggregator import run
from dpaudit.personalization.boundary.processes import memoryless
from dpaudit.personalization.user_level import NAME, dp_ftrl, dp_sgd, users
from dpaudit.training.many import train_many
from dpaudit.training.matrix_noise import tree
from dpaudit.training.sampling import poisson, spaced
from tests.audits import test_federated_canary
from tests.federated import test_rounds
from tests.personalization import people, test_least_squares, test_user_level
from tests.processes import said, start, together

KEY, ROUNDS, N = jax.random.key(12), 3, test_user_level.N
TOLERANCE: Any = {"rtol": 1e-4, "atol": 1e-4}  # of noise whose standard deviation is about 1


def least_squares(key: jax.Array, mesh: Mesh | None) -> list[Any]:
    """Rounds over buckets that no number of devices divides."""
    step = Step(0.8, 1.5, steps.adaptive(0.25))
    prior = Prior(jnp.array([0.5, 0.2]), 3.0, 0.4)
    protocol = als.alternating(
        step, noise_multiplier=2.0, features=test_least_squares.FEATURES, prior=prior, mesh=mesh
    )
    buckets = arranged(test_least_squares.ratings(people.honest(41, seed=5)))
    assert any(len(bucket.index) % 4 for bucket in buckets)
    model, _, transcript = run(key, protocol, test_least_squares.MODEL, memoryless(), buckets, ROUNDS)
    return [transcript.mu(), transcript.values("statistics"), model.factors]


def learned(key: jax.Array, mesh: Mesh | None) -> list[Any]:
    """All phases of a recommender, and of a ranking; not fast to compile."""
    buckets = arranged(test_least_squares.ratings())
    catalogue = Catalogue(jnp.ones((people.ITEMS, 1)), jnp.ones((people.ITEMS, 1)))
    model, spent = recommender.fit(key, buckets, catalogue, Recipe(0.0), noise_multiplier=1.5, mesh=mesh)
    seen, asked = recommender.seen(buckets), recommender.Ranking(rank=1, rounds=1)
    ranked, more = recommender.fit_ranking(key, seen, catalogue, asked, noise_multiplier=1.5, mesh=mesh)
    return [spent.mu(), model.factors, model.popularity, more.mu(), ranked.factors]


def canaries(key: jax.Array, mesh: Mesh | None) -> list[Any]:
    """A federation with canary clients in it."""
    make = partial(federated, mesh=mesh, chunk=7)
    federation = test_federated_canary.SOUND._replace(rounds=2, clients_per_round=40, make=make)
    found, params = federated_canary.one_run(key, federation, canaries=60)
    return [found.final, found.rounds, found.overlap, found.taken.astype(float), params]


def user_level(key: jax.Array, mesh: Mesh | None) -> list[Any]:
    """Secret cohorts of any size, and an order with correlated noise."""
    gradients = np.array(jax.random.normal(KEY, (len(test_user_level.OWNERS), 3)))
    everyone = users(KEY, gradients, test_user_level.OWNERS, count=N)
    how: Any = {"clip_norm": 1.5, "noise_multiplier": 1.0, "optimizer": optax.adam(0.1), "mesh": mesh}
    order = spaced(KEY, N, 4, ROUNDS, separation=2)
    found = []
    for training in (
        dp_sgd(test_user_level.linear, sampling=poisson(N, 4), **how),
        dp_ftrl(test_user_level.linear, sampling=order, strategy=tree(order.participation(ROUNDS)), **how),
    ):
        state, _, transcript = run(key, training.protocol, *training.init({"w": jnp.zeros(3)}), everyone, ROUNDS)
        found += [transcript.epsilon(1e-5), transcript.values(NAME), state.params]
    return found


def factors(key: jax.Array, mesh: Mesh | None) -> list[Any]:
    (bucket,) = arranged(test_least_squares.ratings(), buckets=[4], rows=4)
    items = jax.random.normal(key, (people.ITEMS, 3))
    return [user_factors(items, jnp.eye(3), bucket, ridge=0.1, mesh=mesh)]


def networks(key: jax.Array, mesh: Mesh | None) -> list[Any]:
    """Seven least-squares fits of common data by gradient descent; typed keys come back too."""
    design = jax.random.normal(KEY, (20, 3))

    def descended(key: jax.Array, rate: jax.Array, design: jax.Array) -> Any:
        targets = jax.random.normal(key, (20,))

        def step(_: int, w: jax.Array) -> jax.Array:
            return w - rate * design.T @ (design @ w - targets)

        return jax.lax.fori_loop(0, 5, step, jnp.zeros(3)), key

    arguments = jax.random.split(key, 7), jnp.linspace(0.01, 0.03, 7)
    found, keys = train_many(descended, arguments, shared=(design,), at_once=2, mesh=mesh)
    return [found, jax.random.key_data(keys)]


def clients(key: jax.Array, mesh: Mesh | None) -> list[Any]:
    return list(map(np.array, test_rounds.simulated(mesh=mesh, chunk=5)))


PROGRAMS = least_squares, user_level, factors, networks, clients


def numbers(program: Callable[[jax.Array, Mesh | None], list[Any]], mesh: Mesh | None = None, seed: int = 12) -> Any:
    """All that a program finds, as every process can read it."""
    return [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(program(jax.random.key(seed), mesh))]


def on_all_devices(*names: str) -> list[Any]:
    devices = np.array(jax.devices())
    grid = Mesh(devices.reshape(2, -1), ("host", "chip"))
    return [numbers(globals()[name], grid) for name in names]


alone = cache(numbers)


def assert_same(found: list[Any], programs: Sequence[Callable[..., Any]] = PROGRAMS) -> None:
    for leaves, program in zip(found, programs, strict=True):
        for mine, other in zip(alone(program), leaves, strict=True):
            how: Any = {"rtol": 0} if isinstance(mine, float) else TOLERANCE  # what is spent, exactly
            np.testing.assert_allclose(other, mine, err_msg=str(program), **how)


NAMES = [program.__name__ for program in PROGRAMS]


@pytest.mark.slow  # as two processes, which are two devices
def test_four_devices_find_what_one_finds():
    assert_same(said(start(__name__, "on_all_devices", *NAMES, devices=4)))


@pytest.mark.parametrize(
    "programs", [(factors, networks, clients), pytest.param((least_squares, user_level), marks=pytest.mark.slow)]
)
def test_two_processes_find_what_one_finds(programs):
    first, second = together(2, __name__, "on_all_devices", *(program.__name__ for program in programs))
    assert first == second
    assert_same(first, programs)


@pytest.mark.slow
def test_whole_recommenders_and_canary_clients_too():
    found = said(start(__name__, "on_all_devices", "learned", "canaries", devices=4))
    assert_same(found, [learned, canaries])


@pytest.mark.parametrize("program", [least_squares, user_level, factors, networks])
def test_another_key_is_told_apart(program):
    for mine, other in zip(alone(program), numbers(program, seed=13), strict=True):
        assert isinstance(mine, float) or np.abs(np.subtract(other, mine)).max() > 0.01


def test_rows_that_the_devices_do_not_divide_are_refused():
    mesh = Mesh(np.array(jax.devices() * 3), ("rows",))
    (bucket,) = arranged(test_least_squares.ratings(), buckets=[4])
    with pytest.raises(InputError, match="users: expected rows that the mesh's 3 devices divide, got 40"):
        user_factors(jnp.ones((people.ITEMS, 3)), jnp.eye(3), bucket, ridge=0.1, mesh=mesh)
    with pytest.raises(InputError, match="clients_per_round: expected a multiple of the mesh's 3 devices, got 10"):
        federated(exact(test_rounds.FEDSGD), fixed(1.0), clients_per_round=10, optimizer=optax.sgd(1.0), mesh=mesh)
