"""Sensitivity by brute force: every single user of a hostile population is removed, and no release's total, as it is
before noise, moves further than what its noise is for."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from dpaudit.personalization.als import least_squares, steps
from dpaudit.personalization.als.least_squares import Shares
from dpaudit.personalization.als.steps import Prior, Step
from dpaudit.personalization.boundary.processes import memoryless
from tests.personalization import people

ROWS = [*people.HOSTILE, *people.honest(9, seed=3)]
EVERYBODY = people.batch([*ROWS, []], 6)  # and a last row that is nobody's, without which they are all there
RULES = {"uniform": steps.uniform, "tail": steps.tail(2), "adaptive": steps.adaptive(0.5)}
CLOSE = 1 + 1e-5  # float32 sums
MODEL = people.model()
PINNED = MODEL._replace(factors=MODEL.factors[:, :1], mean=MODEL.mean.at[2].set(1.0)[:3])
PINNED = PINNED._replace(precision=jnp.array([5.0, 2.0, jnp.inf]))  # the bias of each item
CROOKED = MODEL._replace(  # by a server that hopes for a user who stands out
    factors=MODEL.factors.at[0].set(jnp.nan).at[1].set(1e20).at[3].set(0.0),
    popularity=jnp.array([jnp.nan, jnp.inf, 1e38, -1e38, 0.0, 1.0]),
)
MODELS = {"rounds": MODEL, "bias": PINNED, "crooked server": CROOKED}


@partial(jax.jit, static_argnums=0)
def moved(protocol, model, everybody=EVERYBODY):
    """How far each user moves what is released without noise, together, [u]."""

    def without(user):
        others = jnp.arange(len(ROWS))
        left = jax.tree.map(lambda leaf: leaf[others + (others >= user)], everybody)
        inside = protocol.devices(jax.random.key(0), protocol.broadcast(model), (left,))
        (release,), _ = protocol.release(jax.random.key(0), inside, memoryless())
        return ravel_pytree(release.value)[0]

    totals = jax.vmap(without)(jnp.arange(len(ROWS) + 1))
    return jnp.linalg.norm(totals[:-1] - totals[-1], axis=1)


@cache
def alternating(rule, unobserved, rank, *, rating_clip=1.5, together=False):
    """Rounds, the same object for the same settings: one program for all models."""
    return least_squares.alternating(
        Step(0.8, rating_clip, rule, unobserved, together),
        noise_multiplier=0.0,
        features=jnp.zeros((people.ITEMS, 0)),
        prior=Prior(jnp.ones(rank), 1.0, 1.0),
        shares=Shares(0.3, 0.4, 0.3) if unobserved else Shares(0.3, 0.7),
    )


@pytest.mark.parametrize("unobserved, together", [(0.0, False), (0.5, False), (0.0, True)])
@pytest.mark.parametrize("rule", RULES)
def test_no_user_moves_the_statistics_further_than_the_sensitivity(rule, unobserved, together):
    for name, model in MODELS.items():
        protocol = alternating(RULES[rule], unobserved, model.factors.shape[1], together=together)
        found = np.asarray(moved(protocol, model))
        assert np.isfinite(found).all(), name
        assert found.max() <= CLOSE, name
        if name != "crooked server":
            assert found.max() > 0.97, (
                name
            )  # some user of the hostile attains it, so the noise is no larger than need be


def test_no_user_moves_the_counts_further_than_the_sensitivity():
    found = np.asarray(moved(least_squares.counted(items=people.ITEMS, noise_multiplier=0.0), MODEL))
    assert 1 / CLOSE**3 < found.max() <= CLOSE
    broken = range(3, 9)  # of the hostile: not numbers, twice the same, out of order, unknown
    counted = [bool(row) and i not in broken for i, row in enumerate(ROWS)]
    np.testing.assert_array_equal(found > 0.5, counted)


def test_without_clipping_of_ratings_a_user_does():
    """The devices of a protocol that clips at 3, behind the noise of one that clips at 1.5; and no clipping at all."""
    sound = alternating(steps.uniform, 0.0, people.RANK)
    for reach in (3.0, 1e9):
        careless = alternating(steps.uniform, 0.0, people.RANK, rating_clip=reach)
        found = np.asarray(moved(sound._replace(devices=careless.devices), MODEL))
        most = np.sqrt(0.3 + 0.7 * (reach / 1.5) ** 2)
        assert 0.97 * most < found.max() <= CLOSE * most
