"""Federations whose rounds share their noise are refused, those with fresh noise are not."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.tree_util import Partial

import dpaudit
from dpaudit.audits.federated_canary import Federation, one_run
from dpaudit.audits.fresh_noise import refuse_alike
from dpaudit.federated import clients, clip_size
from dpaudit.federated.population import Population

KEY = jax.random.key(23)
NUMBERS = 400  # in the model


def of_one_draw(update):
    """Clients whose noise is that of a constant key: two sums tell their messages' difference exactly."""
    fresh = clients.gaussian(update, noise_multiplier=4.0)
    return fresh._replace(noise=lambda key, *others: fresh.noise(jax.random.key(7), *others))


PEOPLE = Partial(lambda client: client + jnp.arange(1))
FRESH = Federation(
    lambda params, example: jnp.vdot(params, example),
    jnp.zeros(NUMBERS),
    Population(10, PEOPLE, PEOPLE),
    jax.random.normal(jax.random.key(1), (10, NUMBERS)),
    clients_per_round=11,
    rounds=5,
    rule=clip_size.fixed(0.5),
    optimizer=optax.sgd(1.0),
    client=partial(clients.gaussian, noise_multiplier=4.0),
)


def test_rounds_that_share_their_noise_are_refused():
    one_run(KEY, FRESH, canaries=10)
    with pytest.raises(dpaudit.InputError, match="client: expected one that draws the noise of every round afresh"):
        one_run(KEY, FRESH._replace(client=of_one_draw), canaries=10)


def test_sums_that_are_mostly_signal_are_refused():
    """Scores are by the length of a sum: with little noise and one signal they would hide nearly all of mu."""
    same = FRESH._replace(data=jnp.ones((10, NUMBERS)))
    one_run(KEY, same, canaries=1)
    with pytest.raises(dpaudit.InputError, match=r"client: .* sums of rounds \d and \d with a cosine of 0\.9"):
        one_run(KEY, same._replace(client=partial(clients.gaussian, noise_multiplier=0.05)), canaries=1)


@pytest.mark.parametrize("dimension", [1, 2, 5, 30, 1_000])
def test_fresh_noise_is_not_taken_for_shared_noise(dimension):
    """In few dimensions two sums are alike by chance, beyond what signal alone would explain."""
    noise = np.random.default_rng(3).normal(size=(100, dimension))
    unit = noise / np.linalg.norm(noise, axis=1, keepdims=True)
    refuse_alike(unit @ unit.T, dimension)
    signal = np.sqrt(0.78) * np.ones(dimension) / np.sqrt(dimension)  # of every sum alike
    whole = signal + np.sqrt(0.22) * unit
    whole /= np.linalg.norm(whole, axis=1, keepdims=True)
    assert np.sort(whole @ whole.T, axis=None)[-101] > 0.8  # the largest but those of a sum with itself
    refuse_alike(whole @ whole.T, dimension)


def test_one_pair_of_rounds_with_the_same_noise_is_found():
    unit = np.random.default_rng(4).normal(size=(200, 500))
    unit[150] = unit[20] + 0.2 * unit[150]
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    with pytest.raises(dpaudit.InputError, match=r"sums of rounds 150 and 20 with a cosine of 0\.9"):
        refuse_alike(unit @ unit.T, 500)
