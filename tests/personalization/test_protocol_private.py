"""The boundary enforces: what a developer writes moves no total beyond the boundary's own bound, nor its noise."""

import pickle
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NoOpDpEvent

from dpaudit._validate import InputError
from dpaudit.audits.user_canary import mu_bounds
from dpaudit.personalization.boundary import aggregator
from dpaudit.personalization.boundary.aggregator import enforced, run
from dpaudit.personalization.boundary.bounds import Bounded, Noised, bounded, clipped
from dpaudit.personalization.boundary.budget import Budget, noise_for
from dpaudit.personalization.boundary.channels import Network
from dpaudit.personalization.boundary.parties import assemble
from dpaudit.personalization.boundary.processes import Memory, gaussian, memoryless, poisson_gaussian
from dpaudit.personalization.boundary.protocol import Protocol, each, everything, private
from tests.personalization.protocols import START, people, steps, two_parts

KEY = jax.random.key(0)
HOSTILE = {  # by what they send; those of a kind are one program, which is told which of them to compute
    "float32": [
        lambda user: 100.0 * user,
        lambda user: 1e38 * user,
        lambda user: jnp.full_like(user, jnp.inf),
        lambda user: jnp.full_like(user, jnp.nan),
        lambda user: user.at[0].set(-3e38),
        lambda user: 1e-40 * user,
    ],
    "bfloat16": [lambda user: (100 * user).astype(jnp.bfloat16)],
    "int32": [lambda user: (100 * user).astype(jnp.int32)],
}


def totals(compute: Any, users: Any, **bound: Any) -> Any:
    return each(everything, lambda key, model, user: compute(user), chunk=4, **bound)(KEY, (), users)


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("bound", [{"clip_norm": 0.5}, {"bound": bounded(-0.1, 0.2)}, {"bound": {"a": clipped(0.5)}}])
def test_no_user_moves_a_total_further_than_the_bound(kind, bound):
    """Every user removed in turn, whatever devices compute: gradients times 100 without clipping included."""
    users = np.asarray(people(9))
    most = 0.5 if "clip_norm" in bound or isinstance(bound["bound"], dict) else 0.2 * np.sqrt(5)

    @jax.jit
    def own(users, which):
        def sent(user):
            computed = jax.lax.switch(which, HOSTILE[kind], user)
            return {"a": computed} if isinstance(bound.get("bound"), dict) else computed

        return totals(sent, users, **bound)

    for which in range(len(HOSTILE[kind])):
        whole = own(users, which)
        for gone in range(9):
            moved = jax.tree.map(np.subtract, whole, own(np.delete(users, gone, axis=0), which))
            assert np.linalg.norm(np.ravel(jax.tree.leaves(moved)[0])) <= most * (1 + 1e-5)


def test_without_the_bound_the_same_gradients_move_it_far():
    """The twin: an ``add`` of the developer's own, accounted for a sensitivity of 1."""
    add = lambda total, messages: jnp.sum(messages, 0) + (0 if total is None else total)  # noqa: E731
    whole, rest = (totals(lambda user: 100 * user, users, add=add) for users in (people(9), people(9)[1:]))
    assert jnp.linalg.norm(whole - rest) > 100


@pytest.mark.integration
def test_noise_is_made_for_the_boundary_s_own_sensitivity():
    nobody = jnp.zeros((3, 5))
    told = run(KEY, two_parts(2.0), START, None, nobody, rounds=1500)[2]
    for name, stddev in (("sums", 2.0 * 1.5), ("positive", 4.0 * np.sqrt(5))):
        off = abs(np.std(told.values(name)) / stddev - 1) * np.sqrt(2 * told.values(name).size)
        assert off < 4
        assert abs(np.std(told.values(name)) / (0.9 * stddev) - 1) * np.sqrt(2 * told.values(name).size) > 5
    assert told.mu() == pytest.approx(np.sqrt(1500 * (1 / 4 + 1 / 16)), rel=1e-12)


@pytest.mark.integration
def test_totals_are_right_by_hand_and_for_separate_parties():
    users = np.asarray(people(3))
    quiet = two_parts(1e-6)
    told = run(KEY, quiet, START, None, users, rounds=1)[2]
    np.testing.assert_allclose(told.values("positive")[0], (users > 0).sum(0), atol=1e-3)
    within = np.clip(users, -1, 1)
    within = within * np.minimum(1, 1.5 / np.linalg.norm(within, axis=1, keepdims=True))
    np.testing.assert_allclose(told.values("sums")[0], within.sum(0), atol=1e-3)
    protocol = two_parts(1.0)
    parties = assemble(protocol, START, None, {f"{i}": user for i, user in enumerate(users)}, Network())
    releases = [parties.play(KEY, t) for t in range(2)]
    told = run(KEY, protocol, START, None, users, rounds=2)[2]
    for name, place in (("positive", 0), ("sums", 1)):
        np.testing.assert_allclose([r[place].value for r in releases], told.values(name), rtol=1e-4, atol=1e-4)


@pytest.mark.integration
def test_a_run_stops_before_it_would_overspend():
    z = noise_for(1.0, 1e-6, rounds=2)
    paid, budget = steps(z), Budget(1.0, 1e-6)
    play = partial(run, KEY, paid, START, None, people(9), budget=budget)
    for asked, made in ((20, 2), (2, 2), (1, 1)):
        told = play(rounds=asked)[2]
        assert told.values("steps").shape == (made, 5)
        assert told.epsilon(1e-6) <= 1.0 + 1e-9
    state, memory, first = play(rounds=1)
    again = run(jax.random.key(1), paid, state, memory, people(9), rounds=20, budget=budget)
    assert again[2].values("steps").shape == (1, 5)  # what the memory has released counts
    with pytest.raises(InputError, match=r"budget: expected one that pays for a round, of epsilon 1\.\d+, got Budget"):
        run(KEY, paid, again[0], again[1], people(9), rounds=1, budget=budget)
    with pytest.raises(InputError, match="budget: expected one that pays for a round, of epsilon inf, got Budget"):
        run(KEY, steps(0.0), START, None, people(9), rounds=1, budget=Budget(1e6, 1e-6))
    assert first.mu() == pytest.approx(1 / z)


@pytest.mark.integration
def test_a_budget_counts_releases_of_its_own_processes_alone():
    """Those of another process would cost what this one's do: too little if it has more noise."""
    same, other, structure = steps(15.0), steps(20.0), jax.tree.structure
    play = partial(run, state=START, users=people(3), rounds=1)
    paid = partial(play, budget=Budget(1.0, 1e-6))
    _, memory, _ = play(KEY, same, memory=(memoryless(),))
    message = "memory: expected one whose releases are all of this process 'steps', which the budget counts, got 1 of"
    with pytest.raises(InputError, match=message):
        paid(jax.random.key(1), other, memory=memory)
    kept = pickle.loads(pickle.dumps(memory))
    assert structure(kept) == structure(same.release.init()) != structure(other.release.init())
    _, after, told = paid(jax.random.key(1), steps(15.0), memory=kept)  # a protocol that was made again
    assert told.values("steps").shape == (1, 5)
    own = other._replace(release=lambda *given: other.release(*given))
    for between in (other, own):
        _, mixed, _ = play(jax.random.key(2), between, memory=after)
        for protocol in (same, other):
            with pytest.raises(InputError, match="memory: expected one whose releases are all of this process"):
                paid(jax.random.key(3), protocol, memory=mixed)


def test_a_cohort_that_is_too_small_releases_nothing():
    state, memory, told = run(KEY, steps(1.0), START, None, people(4), rounds=2, minimum_users=5)
    assert told.parts == ()
    assert state is START
    assert [int(part.number) for part in memory] == [0]
    assert run(KEY, steps(1.0), START, None, people(5), rounds=2, minimum_users=5)[2].values("steps").shape == (2, 5)


def cancelling(key, total, memory):
    """Draws the noise first, of nothing, and takes it off the total."""
    noise, _ = STEPS.release.processes[0].release(key, 0 * total, memory[0], sensitivity=1.0)
    out, after = STEPS.release.processes[0].release(key, total - noise.value, memory[0], sensitivity=1.0)
    return (out,), (after,)


STEPS = steps(4.0)
DEVICES: Any = STEPS.devices
TWO: Any = two_parts(1.0).devices
LOOSE = each(everything, lambda key, state, user: 100 * user, lambda total, messages: jnp.sum(messages, 0))
FREE = gaussian("steps", noise_multiplier=4.0)._replace(event=lambda n: NoOpDpEvent())
WEAK = gaussian("steps", noise_multiplier=4.0)._replace(noise=gaussian("steps", noise_multiplier=0.01).noise)
ATTACKS = {
    "gradients of any length": STEPS._replace(devices=LOOSE),
    "noise that is taken off again": STEPS._replace(release=cancelling),
    "a smaller bound for the noise": STEPS._replace(
        release=Noised(STEPS.release.processes, Bounded((clipped(0.01),)))
    ),
    "releases that cost nothing": STEPS._replace(release=Noised((FREE,), STEPS.devices.add)),
    "less noise than accounted": STEPS._replace(release=Noised((WEAK,), STEPS.devices.add)),
    "a memory of one's own": STEPS._replace(release=lambda *given: (STEPS.release(*given)[0], given[2])),
    "devices of one's own": STEPS._replace(devices=lambda *given: 100 * STEPS.devices(*given)),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_no_budget_is_kept_by_what_the_boundary_does_not_enforce(attack):
    assert enforced(STEPS)
    assert not enforced(attack)
    with pytest.raises(
        InputError, match=r"protocol: expected one that the boundary bounds .*, or trusted=True, got one"
    ):
        run(KEY, attack, START, STEPS.release.init(), people(3), rounds=1, budget=Budget(9.0, 1e-6))


@pytest.mark.integration
@pytest.mark.parametrize(
    "protocol, caught",
    [
        (STEPS._replace(devices=LOOSE), True),
        (STEPS._replace(release=cancelling), True),
        (STEPS._replace(release=Noised((WEAK,), DEVICES.add)), True),
        (steps(4.0, stretch=100.0), False),
    ],
    ids=["gradients of any length", "noise taken off again", "less noise", "clipped by the boundary"],
)
def test_an_audit_sees_what_goes_round_the_boundary_s_own_bound(protocol, caught):
    """Runs outside of a budget: one user of three, who is there or is not, and what one round is accounted with."""

    @jax.jit
    def played(keys, present):
        there = people(3).at[0].multiply(10 * present)
        return jax.vmap(lambda key: run(key, protocol, START, STEPS.release.init(), there, rounds=1)[2])(keys)

    keys = jax.random.split(jax.random.key(5), (2, 4_000))
    told = [played(keys[world], float(world)) for world in (0, 1)]
    scores = np.array([transcript.values("steps")[:, 0] @ people(3)[0] for transcript in told])
    tried, counted = np.split(scores, 2, axis=1)
    lower, _ = mu_bounds(counted, threshold=float(np.median(tried, axis=1).mean()), confidence=0.999)
    assert (lower > told[0].mu()) == caught


def test_noise_that_is_taken_off_again_is_why():
    """Outside of a budget a developer's release may do that: it is trusted, as its documentation says."""
    told = run(KEY, STEPS._replace(release=cancelling), START, STEPS.release.init(), people(3), rounds=1)[2]
    total = totals(lambda user: user, people(3), clip_norm=1.0)
    np.testing.assert_allclose(told.values("steps")[0], total, atol=1e-4)
    assert told.mu() == 1 / 4


def test_a_shipped_protocol_is_trusted_only_where_one_says_so():
    own = STEPS._replace(release=lambda *given: STEPS.release(*given))
    start, budget = STEPS.release.init(), Budget(2.0, 1e-6)
    told = run(KEY, own, START, start, people(3), rounds=99, budget=budget, trusted=True)[2]
    assert 1 < len(told.values("steps")) < 99
    assert told.epsilon(1e-6) <= 2.0
    with pytest.raises(InputError, match="memory: expected one of each of 1 processes, or None to begin, got"):
        run(KEY, own, START, (), people(3), rounds=9, budget=budget, trusted=True)


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: private(LOOSE, gaussian("a", noise_multiplier=1.0)),
            r"devices: expected what each\(\.\.\., clip_norm=",
        ),
        (lambda: private(DEVICES), "processes: expected one for each bound, of any one name, got none"),
        (
            lambda: private(TWO, gaussian("sums", noise_multiplier=1.0)),
            "processes: expected one for each bound, positive, sums, got sums",
        ),
        (lambda: private(DEVICES, FREE), r"processes: expected those of processes\.gaussian, as they are"),
        (
            lambda: private(DEVICES, poisson_gaussian("a", rate=0.5, noise_multiplier=1.0)),
            r"processes: expected those of processes\.gaussian, as they are",
        ),
        (lambda: each(everything, lambda *given: 0), "each: expected one of add, clip_norm and bound"),
        (lambda: each(everything, lambda *given: 0, sum, clip_norm=1.0), "each: expected one of add, clip_norm and"),
        (lambda: each(everything, lambda *given: 0, clip_norm=0.0), "clip_norm: expected a finite number > 0, got 0"),
        (
            lambda: totals(lambda user: {"b": user}, people(2), bound={"a": clipped(1.0)}),
            r"compute: expected a message of the parts that have bounds, \['a'\], got \['b'\]",
        ),
        (
            lambda: run(KEY, STEPS, START, None, people(2), rounds=1, who=["anna"]),
            "who: expected a name for each of 2 users, got 1 of them",
        ),
        (
            lambda: totals(lambda user: user["a"], {"a": people(8), "b": people(6)}, clip_norm=1.0),
            r"users: expected arrays with one leading axis of users, got leading axes \[6\], \[8\]$",
        ),
        (lambda: run(KEY, STEPS, START, None, None, 1), "users: expected arrays with one .*, got leading axes none$"),
        (
            lambda: run(KEY, STEPS, START, None, 1.0, 1),
            r"users: expected arrays with one leading axis of users, got leading axes \[\]$",
        ),
        (
            lambda: cast(Any, run)(STEPS, KEY, START, None, people(2), 1),
            r"protocol: expected a Protocol, such as private\(\.\.\.\)",
        ),
        (
            lambda: run(KEY, STEPS._replace(devices=lambda *given: 0), START, None, people(2), 1, minimum_users=2),
            r"devices: expected what protocol.each makes, where users are counted or named",
        ),
        (
            lambda: run(KEY, STEPS, START, (Memory(jnp.int32(-5), ()),), people(2), 1, budget=Budget(9.0, 1e-6)),
            "memory: expected a whole number >= 0, got",
        ),
        (
            lambda: jax.vmap(lambda at: run(KEY, STEPS, at, None, people(2), 1, budget=Budget(9.0, 1e-6))[0])(
                jnp.zeros((2, 5))
            ),
            "budget: expected a run that is not mapped or traced, since every run costs, got a traced one",
        ),
        (
            lambda: jax.vmap(lambda key: run(key, STEPS, START, None, people(2), 1, budget=Budget(9.0, 1e-6))[0])(
                jax.random.split(KEY, 2)
            ),
            "budget: expected a run that is not mapped or traced, since every run costs, got a traced one",
        ),
    ],
)
def test_misuse_is_one_line_before_anything_is_spent(call, message):
    with pytest.raises(InputError, match=message) as error:
        call()
    assert len(str(error.value).splitlines()) == 1


def test_replay_is_exact():
    assert isinstance(STEPS, Protocol)
    state, _, told = run(KEY, STEPS, START, None, people(3), 2)
    np.testing.assert_array_equal(aggregator.replay(STEPS, START, told), state)
    assert np.any(state != START)
