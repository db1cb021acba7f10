"""Mechanisms of NumPy: the same law, the same numbers for any batch size, and errors in one line."""

import itertools

import jax
import numpy as np
import pytest

import dpaudit
from dpaudit import Claim, _validate, distinguish, play
from dpaudit.auditing.attacks import learned
from dpaudit.auditing.bounds import sequential
from dpaudit.auditing.host import low_bits, prepare
from dpaudit.report.table import result_lines
from tests.interrupting import Killed, killed_at

KEY = jax.random.key(0)
QUICK = learned.distinguisher(steps=400)
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


@pytest.mark.integration
def test_until_and_learned_run_on_it_too():
    early = dpaudit.audit(
        dpaudit.on_host(half_noise), ZERO, ONE, key=KEY, trials=20_000, claim=Claim(0.5), until=sequential.violation()
    )
    assert early.verdict == "violation"
    assert early.trials < 20_000
    settings = {"key": KEY, "trials": 20_000, "claim": Claim(0.5, 1e-3), "until": sequential.violation()}
    named = dpaudit.audit(dpaudit.on_host(half_noise), ZERO, ONE, distinguisher=distinguish.projection, **settings)
    assert named.verdict == "violation"
    number = dpaudit.on_host(lambda rng, x: x + rng.laplace())
    assert dpaudit.audit(number, 0.0, 3.0, key=KEY, distinguisher=QUICK).epsilon_lower > 2


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


@pytest.mark.parametrize(
    ("form", "at_once"),
    [
        (lambda memory: (memory,), False),
        (lambda memory: [memory], False),
        (lambda memory: {"a": memory}, False),
        (lambda memory: memory, True),
        (lambda memory: {"a": memory}, True),
    ],
)
def test_a_function_may_write_every_release_to_the_same_memory(form, at_once):
    memory = np.empty(1 << 12)

    def reused(rng, x, n):
        memory[:n] = x + rng.laplace(size=n)
        return form(memory[:n])

    def fresh(rng, x, n):
        return form(x + rng.laplace(size=n))

    settings = {"key": KEY, "trials": 20_000, "claim": Claim(1.0), "distinguisher": distinguish.projection}
    again, once = (
        dpaudit.audit(
            dpaudit.on_host(function if at_once else lambda rng, x, of=function: of(rng, x, 1)), 0.0, 1.0, **settings
        )
        for function in (reused, fresh)
    )
    assert again == once
    assert once.epsilon_lower > 0.8


def test_a_game_of_releases_in_the_same_memory():
    memory = np.empty(1)

    def reused(rng, x):
        memory[:] = x + rng.laplace(size=1)
        return memory

    release = dpaudit.on_host(reused)
    scores = play(KEY, lambda key, world: release(key, np.float32(world)), lambda z: z[0], 50)
    assert len(np.unique(scores)) == scores.size


def test_few_trials_are_played_for_nothing():
    """A whole block is played where fewer trials were asked for: it is small on the host."""
    calls = []
    release = dpaudit.on_host(lambda rng, x: calls.append(0) or x + rng.normal())
    play(KEY, lambda key, world: release(key, float(world)), lambda z: z, 10)
    assert 20 <= len(calls) <= 2 * 64 + 4


def changes(rng, x):
    x[0] += 1
    return rng.normal()


def fails_late(rng, x):
    z = x[0] + rng.normal()
    if z > 3:
        raise ValueError("too large for me")
    return z


@pytest.mark.parametrize(
    "function, message",
    [
        (fails_late, r"^mechanism: .* in every trial, got ValueError: too large for me \(raised by fails_late\)$"),
        (
            lambda rng, x: iter("text"),
            r"^mechanism: .* expected a value that can be read, got a str_ascii_iterator \(raised by <lambda>\)$",
        ),
        (
            lambda rng, x, n: rng.normal(size=n - 1),
            r"^mechanism: .* ValueError: expected 8 releases from one call, ",
        ),
        (changes, r"^mechanism: expected a function that leaves its input as it is, got changes, which changes it$"),
    ],
)
def test_failures_are_one_line(function, message):
    with pytest.raises(_validate.InputError, match=message):
        dpaudit.audit(dpaudit.on_host(function), [0.0], [1.0], key=KEY, trials=2000)


def drops_a_row(rng, rows):
    """Releases a count that tells of the row once; then the row is gone."""
    if len(rows) > 1:
        rows.pop()
        return 5 + rng.normal()
    return rng.normal()


def drops_a_row_late(rng, rows, calls=[0]):  # noqa: B006 - it counts
    calls[0] += 1
    if calls[0] > 100 and len(rows) > 1:
        rows.pop()
    return len(rows) + rng.normal()


@pytest.mark.parametrize("function", [drops_a_row, drops_a_row_late])
def test_a_function_that_changes_an_input_only_in_one_world_or_late_is_refused(function):
    """The rest of its trials have the same input in both worlds, and show nothing."""
    with pytest.raises(_validate.InputError, match=rf"leaves its input as it is, got {function.__name__}, which chan"):
        dpaudit.audit(dpaudit.on_host(function), [0.0], [0.0, 1.0], key=KEY, trials=2000, claim=Claim(1.0))


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
    file, trials, twice = tmp_path / "audit.npz", 2048, 16

    def audited(**more):
        calls.clear()
        return dpaudit.audit(slow, 0.0, 1.0, key=KEY, trials=trials, batch=1, **more)

    whole = audited()
    assert len(calls) == trials + twice
    with pytest.raises(Killed):
        audited(checkpoint=file, progress=killed_at(512))
    assert audited(checkpoint=file) == whole
    assert len(calls) == trials - 512
    with pytest.raises(_validate.InputError, match=r"made by another mechanism or pair of inputs$"):
        dpaudit.audit(slow, 0.0, 1.5, key=KEY, trials=trials, batch=1, checkpoint=file)


def test_an_audit_does_not_go_on_with_another_attack_of_the_same_name(tmp_path):
    file = tmp_path / "audit.npz"

    def audited(place):
        attack = distinguish.Distinguisher(lambda key, mechanism, x0, x1: lambda z: z[place], 0.0, "mine")
        settings = {"key": KEY, "trials": 64, "distinguisher": attack, "checkpoint": file}
        return dpaudit.audit(dpaudit.on_host(half_noise), ZERO, ONE, **settings)

    assert audited(0) == audited(0)
    with pytest.raises(_validate.InputError, match=r"^checkpoint: .* made by another setting$"):
        audited(1)


@pytest.mark.parametrize("function", [half_noise, lambda rng, x, n: x + rng.laplace(size=(n, 3)) / 2])
def test_the_result_does_not_depend_on_the_batch(function):
    release = dpaudit.on_host(function, chunk=32)
    settings = {"key": KEY, "trials": 3000, "claim": Claim(1.0)}
    found = [dpaudit.audit(release, ZERO, ONE, batch=batch, **settings) for batch in (1, 100, None)]
    assert found[0] == found[1] == found[2]


def test_a_batched_function_has_the_law_of_its_trials():
    """It is told apart by its third parameter, and may return a list or arrays."""
    one = dpaudit.audit(dpaudit.on_host(half_noise), ZERO, ONE, key=KEY, trials=8000).epsilon_hat
    for function in (
        lambda rng, x, n: x + rng.laplace(size=(n, 3)) / 2,
        lambda rng, x, n: list(x + rng.laplace(size=(n, 3)) / 2),
        lambda rng, x, n: {"z": x + rng.laplace(size=(n, 3)) / 2, "n": rng.integers(0, 5, n)},
    ):
        found = dpaudit.audit(dpaudit.on_host(function), ZERO, ONE, key=KEY, trials=8000)
        assert abs(found.epsilon_hat - one) < 0.5


def test_setup_is_called_once_and_its_state_is_passed_on():
    calls = []

    def setup():
        calls.append(0)
        return 2.0

    def noisy_by_state(rng, x, state):
        return x + rng.laplace() / state

    found = dpaudit.audit(dpaudit.on_host(noisy_by_state, setup=setup), 0.0, 1.0, key=KEY, trials=4000)
    assert len(calls) == 1
    assert found.epsilon_lower > 1.2


SYSTEM = np.random.default_rng(0)  # stands for the operating system: no trial seeds it


@pytest.mark.parametrize(
    "function, reproducible",
    [
        (lambda rng, x: x + rng.laplace(), True),
        (lambda rng, x: x, True),
        (lambda rng, x: x + SYSTEM.laplace(), False),
        (lambda rng, x: x + rng.laplace() + 1e-9 * SYSTEM.normal(), False),
        (lambda rng, x: bool(SYSTEM.random() < 0.1), False),
    ],
)
def test_randomness_from_elsewhere_is_told(function, reproducible):
    found = dpaudit.audit(dpaudit.on_host(function), 0.0, 0.1, key=KEY, trials=4000, claim=Claim(1.0))
    assert found.reproducible == reproducible
    assert dpaudit.AuditResult.from_json(found.to_json()).reproducible == reproducible
    assert ("not reproducible" in dict(result_lines(found))) != reproducible


@pytest.mark.parametrize(
    "release",
    [
        lambda call, noisy: (call, noisy),  # a counter, or the time
        lambda call, noisy: noisy if call < 2500 else None,  # a budget
        lambda call, noisy: noisy + call / 1000,
    ],
)
def test_what_changes_from_call_to_call_says_nothing_of_the_world(release):
    calls = itertools.count()
    function = dpaudit.on_host(lambda rng, x: release(next(calls), x + rng.laplace()))
    found = dpaudit.audit(function, 0.0, 1.0, key=KEY, trials=4000, claim=Claim(1.0))
    assert found.verdict == "consistent"


def test_the_lowest_digits_of_float64_are_read_where_asked():
    """0 + z keeps all digits of z, 1 + z has lost some (Mironov 2012): epsilon is far above the claimed 1."""
    naive = dpaudit.on_host(lambda rng, x: x + rng.laplace())
    grid = dpaudit.on_host(lambda rng, x: np.round((x + rng.laplace()) * 2**20) / 2**20)
    settings = {"key": KEY, "trials": 8000, "claim": Claim(1.0), "attacks": (distinguish.lowest_bits,)}
    assert dpaudit.audit(naive, 0.0, 1.0, **settings).epsilon_lower > 2
    assert dpaudit.audit(grid, 0.0, 1.0, **settings).verdict == "consistent"


def in_words(rng, x):
    """A table with a noisy number, of any length."""
    return {"mean": x + rng.laplace(), "rows": ["a"] * int(rng.integers(1, 3))}


@pytest.mark.integration
@pytest.mark.parametrize("release", [lambda rng, x: x + rng.laplace(), in_words])
def test_the_last_digits_are_told_beside_the_verdict(release):
    """By themselves they show more than the claim; a grid has none, and no verdict rests on them."""
    settings = {"key": KEY, "trials": 8000, "claim": Claim(1.0)}
    naive = dpaudit.audit(dpaudit.on_host(release), 0.0, 1.0, **settings)
    assert naive.verdict == "consistent"
    assert naive.low_bits is not None
    assert naive.low_bits > 2
    assert "in no verdict" in dict(result_lines(naive))["last digits"]
    assert dpaudit.AuditResult.from_json(naive.to_json()) == naive


@pytest.mark.parametrize(
    "release",
    [
        lambda rng, x: np.round((x + rng.laplace()) * 2**20) / 2**20,
        lambda rng, x: x - np.diff(rng.geometric(1 - np.exp(-1), 2))[0],
    ],
)
def test_the_last_digits_of_a_grid_show_no_more_than_the_claim(release):
    sound = dpaudit.audit(dpaudit.on_host(release), 0.0, 1.0, key=KEY, trials=8000, claim=Claim(1.0))
    assert sound.low_bits is not None
    assert sound.low_bits <= 1
    assert "last digits" not in dict(result_lines(sound))


def test_the_last_digits_are_seldom_accused_where_they_tell_nothing():
    """At 95% at most 5% of bounds exceed the truth, 0: of 400, 37 or more by chance of 1 in 1,000."""
    rng = np.random.default_rng(0)
    bounds = [low_bits.lower([rng.laplace(size=(200, 2, 3))], delta=0.0, confidence=0.95) for _ in range(400)]
    assert sum(bool(bound) for bound in bounds) < 37
    told = rng.laplace(size=(200, 2, 3))
    told[:, 1, 2] = np.float32(told[:, 1, 2])
    assert (low_bits.lower([told], delta=0.0, confidence=0.95) or 0.0) > 2
    assert low_bits.lower([np.zeros((200, 2), int)], delta=0.0, confidence=0.95) is None


def test_a_difference_below_float32_is_seen():
    tiny = dpaudit.on_host(lambda rng, x: 1e9 + 1e-3 * x + 1e-3 * rng.laplace())
    assert dpaudit.audit(tiny, 0.0, 4.0, key=KEY, trials=4000, claim=Claim(1.0)).epsilon_lower > 2


def test_an_alternative_is_played_on_the_host_too():
    settings = {"key": KEY, "trials": 8000, "claim": Claim(1.0)}
    found = dpaudit.audit(
        dpaudit.on_host(noisy), ZERO, ONE, alternative=dpaudit.on_host(lambda rng, x: noisy(rng, 3 * x)), **settings
    )
    assert found.power == pytest.approx(1, abs=0.01)
    with pytest.raises(
        _validate.InputError, match=r"^alternative: expected releases like the mechanism's, got others$"
    ):
        dpaudit.audit(dpaudit.on_host(noisy), ZERO, ONE, alternative=dpaudit.on_host(half_noise), **settings)


def test_few_trials_are_refused_in_one_line():
    with pytest.raises(
        _validate.InputError, match=r"^trials: expected at least 64 where the attack is chosen, got 32$"
    ):
        dpaudit.audit(dpaudit.on_host(half_noise), ZERO, ONE, key=KEY, trials=32)
    found = dpaudit.audit(dpaudit.on_host(lambda rng, x: 9 * x + rng.normal()), 0.0, 1.0, key=KEY, trials=64)
    assert found.epsilon_lower > 0.5


def test_a_projection_that_is_computed_alone_is_the_same_to_the_last_bit():
    """Also where a number is not finite, which counts as 0."""

    def release(rng, x):
        return np.where(rng.random(3) < 0.01, np.inf, x + rng.laplace(size=3))

    terms = prepare.Terms(640, 160, False, 0.0, 0.95, None, None)
    how = {"distinguisher": None, "attacks": (), "worse": None, "terms": terms}
    keys = jax.random.split(KEY, 3)
    with prepare.prepared(dpaudit.Mechanism(dpaudit.on_host(release)), ZERO, ONE, *keys, **how) as found:
        assert found.family is not None
        whole = found.game.call(0)
        for number in range(5):  # along x1 - x0, the difference of means, what varies least, and a coordinate
            alone = found.family.narrowed(found.game, number, alone=True).call(0)
            np.testing.assert_array_equal(alone, whole[..., number])
