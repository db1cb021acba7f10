"""Mechanisms of NumPy: the same law, the same numbers for any batch size, and errors in one line."""

import jax
import numpy as np
import pytest

import dpaudit
from dpaudit import Claim, _validate, distinguish, play
from dpaudit.auditing.bounds import sequential
from tests.interrupting import Killed, killed_at

KEY = jax.random.key(0)
ZERO, ONE = np.zeros(3), np.array([1.0, 0.0, 0.0])


def noisy(rng, x):
    return {"sum": x + rng.laplace(size=3), "n": rng.integers(0, 5)}


def half_noise(rng, x):
    return x + rng.laplace(size=3) / 2


def test_right_and_wrong_noise():
    right, wrong = (
        dpaudit.audit(dpaudit.on_host(fn), ZERO, ONE, key=KEY, trials=6000, claim=Claim(1.0))
        for fn in (noisy, half_noise)
    )
    assert right.verdict == "consistent"
    assert 0.6 < right.epsilon_lower <= 1
    assert wrong.verdict == "violation"
    assert wrong.epsilon_lower <= 2


def test_until_and_learned_run_on_it_too():
    early = dpaudit.audit(
        dpaudit.on_host(half_noise), ZERO, ONE, key=KEY, trials=20_000, claim=Claim(0.5), until=sequential.violation()
    )
    assert early.verdict == "violation"
    assert early.trials < 20_000
    number = dpaudit.on_host(lambda rng, x: x + rng.laplace())
    assert dpaudit.audit(number, 0.0, 3.0, key=KEY, distinguisher=distinguish.learned).epsilon_lower > 2


def test_a_trial_is_a_function_of_its_key_alone():
    release = dpaudit.on_host(lambda rng, x: x + rng.normal(size=2))
    game = (KEY, lambda key, world: release(key, np.full(2, world)), lambda z: z, 150)
    scores = play(*game)
    np.testing.assert_array_equal(play(*game, batch=1), scores)
    np.testing.assert_array_equal(play(*game, mesh=jax.make_mesh((1,), ("t",))), scores)
    assert len(np.unique(scores)) == scores.size
    one = jax.random.fold_in(KEY, 7)  # and by hand
    seeded = np.random.default_rng(np.asarray(jax.random.key_data(one)))
    np.testing.assert_allclose(release(one, ZERO[:2]), seeded.normal(size=2), rtol=1e-6)


def test_few_trials_are_played_for_nothing():
    """A whole block is played where fewer trials were asked for: it is small on the host."""
    calls = []
    release = dpaudit.on_host(lambda rng, x: calls.append(0) or x + rng.normal())
    play(KEY, lambda key, world: release(key, float(world)), lambda z: z, 10)
    assert 20 <= len(calls) <= 2 * 64 + 4


def fails_late(rng, x):
    z = x + rng.normal()
    if z > 3:
        raise ValueError("too large for me")
    return z


@pytest.mark.parametrize(
    "function, message",
    [
        (fails_late, r"^mechanism: .* in every trial, got ValueError: too large for me \(raised by fails_late\)$"),
        (lambda rng, x: "text", "^release: expected numbers, got type <U4$"),
        (
            lambda rng, x: np.zeros(rng.integers(1, 4)),
            "^mechanism: expected a release in every trial, got ValueError: ",
        ),
    ],
)
def test_failures_are_one_line(function, message):
    with pytest.raises(_validate.InputError, match=message):
        dpaudit.audit(dpaudit.on_host(function), 0.0, 1.0, key=KEY, trials=2000)


def test_only_functions_are_taken():
    with pytest.raises(_validate.InputError, match=r"^function: expected a function of \(rng, x\), got 5$"):
        dpaudit.on_host(5)  # pyright: ignore[reportArgumentType]


def test_a_function_that_ignores_its_generator_is_remarked_on():
    found = dpaudit.audit(dpaudit.on_host(lambda rng, x: x), ZERO, ONE, key=KEY, trials=400)
    assert "if the mechanism is deterministic, its epsilon is infinite" in found.method


def test_jax_s_arrays_reach_the_function_as_numpy_s():
    """While JAX traces, what is computed of an array of its own has no value yet."""
    summed = dpaudit.on_host(lambda rng, x: float(np.sum(x["a"])) + rng.laplace() / 3)
    pair = [{"a": jax.numpy.asarray(x)} for x in (ZERO, ONE)]
    assert dpaudit.audit(summed, *pair, key=KEY, trials=4000, claim=Claim(1.0)).verdict == "violation"


def test_a_resumed_audit_plays_no_trial_again(tmp_path):
    """Of a slow function, neither what was counted nor the pilot that the attacks were fitted on."""
    calls = []
    slow = dpaudit.on_host(lambda rng, x: calls.append(0) or x + rng.normal())
    file, trials, pilot, traced = tmp_path / "audit.npz", 2048, 2 * 128, 32

    def audited(**more):
        calls.clear()
        return dpaudit.audit(slow, 0.0, 1.0, key=KEY, trials=trials, batch=1, **more)

    whole = audited()
    assert trials <= len(calls) <= trials + pilot + traced
    with pytest.raises(Killed):
        audited(checkpoint=file, progress=killed_at(512))
    assert audited(checkpoint=file) == whole
    assert trials - 512 <= len(calls) <= trials - 512 + traced
