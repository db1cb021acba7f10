"""One compilation for a configuration: other keys, epsilons and rounds find the program that is there."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpaudit
from dpaudit import Claim, Mechanism, audit, distinguish, play
from dpaudit.audits import engines
from dpaudit.federated.rounds import federated, simulate
from dpaudit.personalization.als.layout import arranged
from dpaudit.personalization.boundary.aggregator import run
from dpaudit.personalization.boundary.processes import memoryless
from dpaudit.training.many import train_many
from tests.federated import test_rounds
from tests.personalization import test_least_squares

COMPILED = "/jax/core/compile/backend_compile_duration"
HEARD: list[str] = []


def _listen(event: str, duration_secs: float, **kwargs: Any) -> None:
    if event == COMPILED:
        HEARD.append(event)


jax.monitoring.register_event_duration_secs_listener(_listen)


@contextmanager
def compilations() -> Iterator[list[int]]:
    """How many programs are compiled, or fetched from where compiled ones are kept, inside."""
    before, found = len(HEARD), []
    yield found
    found.append(len(HEARD) - before)


def release(key: jax.Array, world: int) -> jax.Array:
    return jax.random.normal(key, (10,)) + world


def score(z: jax.Array) -> jax.Array:
    return z.sum()


def trials(key: jax.Array, change: int) -> Any:
    return play(key, release, score, 300 + change)


def searches(key: jax.Array, change: int) -> Any:
    """By functions that are made anew for each."""
    where, noise = dpaudit.domain.ball(2, 1.0 + change), jnp.full(2, 1.0 + change)
    settings: dict[str, Any] = {"starts": 4, "steps": 2, "trials": 1000, "distinguishers": [distinguish.projection]}
    return dpaudit.search(lambda key, x: x + noise * jax.random.normal(key, (2,)), where, key=key, **settings).x1


def directions(key: jax.Array, change: int) -> Any:
    """Of releases that have not their inputs' size, by the named attacks that play a pilot."""
    x1 = jnp.array([1.0 + change, 0.5])
    mechanism = Mechanism(lambda key, x: x.sum() + jax.random.laplace(key, (3,)))
    scores = [attack.fit(key, mechanism, jnp.zeros(2), x1) for attack in (distinguish.projection, distinguish.moments)]
    return [score(jnp.ones(3)) for score in scores]


def audits(key: jax.Array, change: int) -> Any:
    """By functions that are made anew for each."""
    x1 = jnp.array([1.0 + change, 0.5])
    found = audit(lambda key, x: x + jax.random.laplace(key, (2,)), jnp.zeros(2), x1, key=key, claim=Claim(2.0))
    return found.epsilon_hat


def gradients(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    one, other = jax.random.normal(key, (2, 5))
    return one, other


def engine(key: jax.Array, change: int) -> Any:
    epsilons = [1.0 + change, 2.0]
    return engines.full(key, gradients, 200, epsilons=epsilons, clip_norm=1.0, pair_key=jax.random.key(1))


def training(key: jax.Array, scale: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, 3, lambda i, w: 0.9 * w + scale * jax.random.normal(key), 0.0)


def networks(key: jax.Array, change: int) -> Any:
    return train_many(training, (jax.random.split(key, 6), jnp.arange(6.0) + change), at_once=2)


SERVER = federated(
    test_rounds.twice_noisy(0.5), test_rounds.RULE, clients_per_round=6, optimizer=optax.sgd(1.0), chunk=6
)


def rounds(key: jax.Array, change: int) -> Any:
    """Parts of two rounds: more of them are the same program."""
    how = key, SERVER, test_rounds.START, test_rounds.POPULATION, test_rounds.DATA
    return simulate(*how, 4 + 2 * change, every=2).state.params


BUCKETS = arranged(test_least_squares.ratings(), buckets=[4])


def least_squares(key: jax.Array, change: int) -> Any:
    model, memory = test_least_squares.MODEL, memoryless()
    for part in jax.random.split(key, 1 + change):
        model, memory, _ = run(part, test_least_squares.protocol(), model, memory, BUCKETS, 2)
    return model.factors


@pytest.mark.integration
@pytest.mark.parametrize("work", [trials, searches, directions, audits, engine, networks, rounds, least_squares])
def test_another_key_or_setting_compiles_nothing(work: Callable[[jax.Array, int], Any]):
    with compilations() as first:
        one = work(jax.random.key(0), 0)
        work(jax.random.key(0), 1)  # with whatever small programs cut and join what is found
    with compilations() as again:
        other = work(jax.random.key(1), 0)
        work(jax.random.key(2), 1)
    assert first[0] > 0
    assert again == [0]
    assert any(
        np.any(np.asarray(a) != np.asarray(b)) for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True)
    )


def test_another_program_is_heard():
    with compilations() as other:
        play(jax.random.key(0), release, partial(jnp.max), 300)
    assert other[0] > 0
