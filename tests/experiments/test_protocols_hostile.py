"""No user of any data moves a release of a documented protocol further than its noise is for, whatever the server
broadcasts, and every run is computed again from its transcript, bit for bit."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit.audits.protocol_audit import scaled
from dpaudit.personalization.boundary.aggregator import replay, run
from dpaudit.personalization.boundary.budget import mu_squared
from experiments.paper004.protocols import OTHERS, PROTOCOLS, page
from tests.personalization.test_hostile_users import numbers

pytestmark = pytest.mark.integration
CLOSE = 1 + 1e-5  # float32 sums
HOSTILE, SERVERS = 150, 6


def documented(name):
    """The protocol, its first state and its users."""
    names, given = page(), PROTOCOLS[name]
    return tuple(eval(text, names) for text in (given.protocol, given.state, given.users))


def like(tree, seed):
    random = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.asarray(numbers(random, jnp.shape(leaf), str(jnp.result_type(leaf)))), tree)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_hostile_users_stay_within_the_bound_and_some_attain_it(name):
    protocol, state, users = documented(name)
    one = jax.tree.map(lambda leaf: leaf[0], users)
    hostile = [like(one, seed) for seed in range(HOSTILE)]
    everyone = jax.tree.map(lambda *leaves: jnp.stack(leaves), *hostile)
    everyone = jax.tree.map(lambda some, leaf: jnp.concatenate([some, leaf[:OTHERS]]), everyone, users)

    @jax.jit
    def reach(state):
        def moved(user):
            alone = jax.tree.map(lambda leaf: leaf[None], user)
            return jnp.linalg.norm(
                scaled(protocol, protocol.devices(jax.random.key(0), protocol.broadcast(state), alone))
            )

        return jax.vmap(moved)(everyone)

    squared = [mu_squared(process.event(1)) for process in protocol.release.processes]
    most = math.sqrt(sum(filter(None, squared)))
    assert reach(state).max() > 0.99 * most, "no hostile user attains the bound, so this shows little"
    for seed in range(SERVERS):
        found = np.asarray(reach(like(state, seed)))
        assert np.isfinite(found).all()
        assert found.max() <= CLOSE * most
    assert reach(state).max() <= CLOSE * most


@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_transcript_alone_gives_the_last_state_bit_for_bit(name):
    protocol, state, users = documented(name)
    last, _, transcript = run(jax.random.key(1), protocol, state, None, users, 2)
    again = replay(protocol, state, transcript)
    jax.tree.map(np.testing.assert_array_equal, again, last)
    other, _, _ = run(jax.random.key(2), protocol, state, None, users, 2)
    if name != "federated evaluation":  # which leaves the state alone
        assert any(not np.array_equal(*both) for both in zip(*map(jax.tree.leaves, (other, last)), strict=True))
