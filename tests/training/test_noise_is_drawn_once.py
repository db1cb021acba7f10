"""One key, several calls: whatever goes on with its old key draws noise that it has not drawn before."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial

from dpaudit.federated import clients, clip_size, rounds
from dpaudit.federated.population import Population
from dpaudit.mechanisms import ldp_sgd
from dpaudit.training import dp_ftrl, dp_sgd
from dpaudit.training.matrix_noise import banded
from dpaudit.training.sampling import cyclic, participation, poisson

KEY, WIDTH, ROUNDS = jax.random.key(3), 900, 6
PARAMS = {"w": jnp.zeros(WIDTH)}
DATA = jnp.zeros((12, WIDTH))
STRATEGY = banded(participation(ROUNDS, separation=3), bands=3)
STEP = optax.sgd(-1.0)  # parameters are the sum of all releases


def silent(params, example):
    """A loss whose gradient is zero: what is released is noise alone."""
    return 0.0 * jnp.sum(params["w"] * example)


SETTINGS: dict[str, Any] = {"clip_norm": 1.0, "noise_multiplier": 1.0, "batch_size": 4, "optimizer": STEP}
TRAININGS = {  # made once: all calls are one program
    "dp_sgd": (dp_sgd.dp_sgd(silent, **SETTINGS), poisson(12, 4)),
    "dp_ftrl": (dp_ftrl.dp_ftrl(silent, strategy=STRATEGY, **SETTINGS), cyclic(12, 4)),
}
ROWS = Partial(lambda client: client[None])
SERVERS = {
    each: rounds.federated(
        clients.gaussian(clients.gradients(silent), noise_multiplier=1.0, each=each),
        clip_size.fixed(1.0),
        clients_per_round=3,
        optimizer=STEP,
    )
    for each in (False, True)
}


def trained(name, state, key):
    trainer, sampling = TRAININGS[name]
    return dp_sgd.train(key, trainer, state or trainer.init(PARAMS), DATA, sampling, 2)[0]


def of_rounds(each, state, key):
    server = SERVERS[each]
    return rounds.run(key, server, state or server.init(PARAMS), Population(12, ROWS, ROWS), DATA, 2)[0]


def overlap(one, other):
    """The correlation of two draws, in standard errors of independent ones."""
    return abs(np.corrcoef(one, other)[0, 1]) * np.sqrt(WIDTH)


WAYS = {
    "dp_sgd": partial(trained, "dp_sgd"),
    "dp_ftrl": partial(trained, "dp_ftrl"),
    "rounds": partial(of_rounds, False),
    "rounds, every client": partial(of_rounds, True),
}


@pytest.mark.parametrize("go_on", WAYS.values(), ids=WAYS)
def test_a_run_that_goes_on_with_its_old_key_draws_other_noise(go_on):
    """Three calls of two releases each. Whoever forgets the state draws the same again: that is the caller's duty."""
    states = [go_on(None, KEY)]
    for _ in range(2):
        states.append(go_on(states[-1], KEY))
    sums = np.array([ravel_pytree(state.params)[0] for state in states])
    noise = np.diff(sums, axis=0, prepend=0 * sums[:1])
    independent = np.eye(3)
    if go_on is WAYS["dp_ftrl"]:  # whose releases are C^-1 z
        calls = np.add.reduceat(np.linalg.inv(STRATEGY.matrix()[:ROUNDS, :ROUNDS]), [0, 2, 4], axis=0)
        calls /= np.linalg.norm(calls, axis=1, keepdims=True)
        independent = calls @ calls.T
    assert np.abs(np.corrcoef(noise) - independent).max() * np.sqrt(WIDTH) < 4
    again = ravel_pytree(go_on(None, KEY).params)[0]
    assert overlap(sums[0], again) > 20


def test_a_client_s_state_carries_its_key_on():
    """Gradients of zero: releases are directions, which repeat where the state is made anew."""
    client = ldp_sgd.privatize(KEY, epsilon=1.0, clip_norm=1.0)
    gradient = PARAMS["w"]
    first, state = client.update(gradient, client.init(gradient))
    second, _ = client.update(gradient, state)
    anew, _ = client.update(gradient, client.init(gradient))
    assert overlap(first, second) < 4
    assert overlap(first, anew) > 20
