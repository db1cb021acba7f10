"""Groups of users who are solved for by calls that wait for threads are computed one after the other.

On two threads such groups stand still only now and then, so the tests look at the programs.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Jaxpr, Literal

from dpaudit._engine import worlds
from dpaudit.data.ratings import from_arrays
from dpaudit.personalization.als import layout, least_squares, metrics, solve, steps
from dpaudit.personalization.als.steps import Model, Prior, Step
from dpaudit.personalization.boundary.protocol import Protocol

ITEMS, RANK, USERS = 12, 20, 12  # a rank that a CPU solves for by LAPACK
STEP = Step(1.0, 1.0, steps.uniform)
KEY = jax.random.key(2)


def people(widths: list[int]) -> tuple[layout.Users, ...]:
    """As many users with 2, 4 and 8 ratings."""
    rng = np.random.default_rng(3)
    counts = np.repeat([2, 4, 8], USERS // 3)
    items = np.concatenate([rng.choice(ITEMS, count, replace=False) for count in counts])
    users, values = np.repeat(np.arange(USERS), counts), rng.normal(size=counts.sum())
    return layout.arranged(
        from_arrays(users, items, values, num_users=USERS, num_items=ITEMS, low=-9, high=9), buckets=widths
    )


def model(rank: int = RANK) -> Model:
    factors = jax.random.normal(KEY, (ITEMS, rank))
    return Model(jnp.ones((ITEMS, 1)), factors, jnp.ones(ITEMS), jnp.zeros(1 + rank), jnp.ones(1 + rank))


def alternating(chunk: int, rank: int = RANK) -> Protocol:
    prior = Prior(jnp.ones(rank), 1.0, 1.0)
    protocol = least_squares.alternating(STEP, noise_multiplier=1.0, features=jnp.ones((ITEMS, 1)), prior=prior)
    return protocol._replace(devices=protocol.devices.in_chunks(chunk))


def chained(jaxpr: Jaxpr) -> list[bool]:
    """For every equation of a program that waits for threads, and of its branches, whether it needs what the waiting
    one before has computed."""
    needs, before, found = {}, None, []  # variable -> the numbers of the waiting equations that it is computed from
    for number, equation in enumerate(jaxpr.eqns):
        given = set().union(*(needs.get(one, set()) for one in equation.invars if not isinstance(one, Literal)))
        if worlds.waits(Jaxpr([], [], [], [equation])):
            found.append(before is None or before in given)
            before, given = number, given | {number}
            if equation.primitive.name == "cond":
                found += [each for branch in equation.params["branches"] for each in chained(branch.jaxpr)]
        needs |= dict.fromkeys(equation.outvars, given)
    return found


@pytest.mark.integration
@pytest.mark.skipif(not worlds.BEFORE_0_11, reason="this jaxlib's LAPACK does not wait for threads")
@pytest.mark.parametrize(
    ("widths", "chunk", "groups"), [([8], USERS, 1), ([8], 5, 2), ([2, 4, 8], USERS, 3), ([2, 8], 3, 4)]
)
def test_no_group_of_users_is_computed_before_the_last_one_is_added(widths, chunk, groups, monkeypatch):
    buckets, devices = people(widths), alternating(chunk).devices

    def totals(model):
        return devices(KEY, model, buckets)

    found = chained(jax.make_jaxpr(totals)(model()).jaxpr)
    assert len(found) >= groups
    assert all(found)
    in_turn = totals(model())
    monkeypatch.setattr(worlds, "after", lambda first, then: then(first))
    assert all(chained(jax.make_jaxpr(lambda model: totals(model))(model()).jaxpr)) == (groups == 1)
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5), in_turn, totals(model())
    )


def test_where_nothing_waits_groups_are_left_side_by_side():
    devices, buckets = alternating(5, rank=2).devices, people([2, 8])
    program = jax.make_jaxpr(lambda model: devices(KEY, model, buckets))(model(2)).jaxpr
    assert not any(equation.primitive.name == "cond" for equation in program.eqns)


@pytest.mark.integration
@pytest.mark.parametrize("which", ["user_factors", "own_factors"])
def test_programs_are_waited_for_before_the_next_is_dispatched(which, monkeypatch):
    known, buckets, events = model(), people([2, 8]), []
    place, name = (solve, "_shared_out") if which == "user_factors" else (steps, "solved")
    dispatch, wait = getattr(place, name), jax.block_until_ready
    monkeypatch.setattr(place, name, lambda *given: events.append("dispatched") or dispatch(*given))
    monkeypatch.setattr(jax, "block_until_ready", lambda result: events.append("waited for") or wait(result))
    if which == "user_factors":
        for users in buckets:
            solve.user_factors(known.factors, jnp.eye(RANK), users, ridge=0.1)
    else:
        metrics.own_factors(known, buckets, STEP, num_users=USERS)
    assert events == 2 * ["dispatched", "waited for"]


def test_what_is_traced_is_not_waited_for():
    (users,) = people([8])
    factors = jax.jit(lambda known: solve.user_factors(known, jnp.eye(RANK), users, ridge=0.1))(model().factors)
    np.testing.assert_allclose(
        factors, solve.user_factors(model().factors, jnp.eye(RANK), users, ridge=0.1), rtol=1e-4, atol=1e-5
    )
