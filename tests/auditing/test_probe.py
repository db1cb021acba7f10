"""Mechanisms that cannot be audited: one line each, with the cause and the mechanism's name."""

import random
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.core import Tracer
from jax.experimental import io_callback

import dpaudit
from dpaudit import _validate, distinguish
from dpaudit.auditing.attacks.distinguish import moments
from dpaudit.auditing.lint import probe
from dpaudit.mechanisms import randomized_response

KEY = jax.random.key(0)


def raises(key, x):
    if x > 0:
        raise RuntimeError("no luck\ntoday")
    return x + jax.random.normal(key)


def branches(key, x):
    z = x + jax.random.normal(key)
    return z if z > 0 else -z


def numpys(key, x):
    return np.asarray(jax.random.normal(key)) + x


@jax.jit
def deterministic(key, x):
    return {"sum": x + 1.0, "of": jax.random.split(jax.random.key(1))[0:0].shape[0]}


def nothing(key, x):
    return None


def of_no_numbers(key, x):
    return (x + jax.random.laplace(key)) * jnp.zeros((0, 3))


def one_argument(key):
    return jax.random.normal(key)


def complex_numbers(key, x):
    return {"z": x + 1j * jax.random.normal(key, (3,))}


def text(key, x):
    return {"answer": "yes", "at": x + jax.random.laplace(key)}


def other_order(x, key):
    return x + jax.random.laplace(key)


def a_key(key, x):
    return jax.random.split(key, 2), x


def numpy_generator(rng, x):
    return x + rng.normal()


def old_generator(rng, x):
    return x + rng.randn()


def not_vectorized(key, x):
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    return x + jax.pure_callback(lambda words: np.float32(words[0]), shape, jax.random.key_data(key))


def draws_on_the_host(key, x):
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    return x + io_callback(lambda: np.float32(np.random.default_rng().normal()), shape)


def mapped_on_the_host(key, x):
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    draw = lambda at: np.float32(at + np.random.default_rng().normal())  # noqa: E731
    return jax.jit(lambda x: jax.pure_callback(draw, shape, x, vmap_method="sequential"))(jnp.float32(x))


REFUSED = [
    (
        complex_numbers,
        r"^mechanism: expected a release of real numbers, got complex64\[3\] from complex_numbers; release its real "
        "and its imaginary part$",
    ),
    (
        a_key,
        r"^mechanism: expected a release of real numbers, got key<fry>\[2\] from a_key; release jax\.random\.key_data"
        r"\(key\) if a key is what is released$",
    ),
    (
        text,
        r"^mechanism: expected a release of numbers, got a str from text; a function that releases text or other "
        r"objects runs as dpaudit\.on_host\(text\)$",
    ),
    (other_order, r"^mechanism: expected a function of \(key, x\), got other_order, of \(x, key\)$"),
    (
        numpy_generator,
        r"^mechanism: expected a function of \(key, x\), got numpy_generator, which takes its key for a NumPy "
        r"generator \(\.normal\); it runs as dpaudit\.on_host\(numpy_generator\)$",
    ),
    (old_generator, r"^mechanism: .* NumPy generator \(\.randn\); it runs as dpaudit\.on_host\(old_generator\)$"),
    (raises, r"^mechanism: expected a release of x1, got RuntimeError: no luck today \(raised by raises\)$"),
    (one_argument, r"^mechanism: expected a release of x0, got TypeError: one_argument\(\) takes 1 positional .*\)$"),
    (branches, r"^mechanism: .* jax.jit can trace, got branches, .* as dpaudit\.on_host\(branches\)$"),
    (numpys, r"^mechanism: .* jax.jit can trace, got numpys, .* \(TracerArrayConversionError\); .*on_host\(numpys\)$"),
    (
        not_vectorized,
        r"^mechanism: expected a release that jax.vmap can batch, got NotImplementedError: .* \(by not_vectorized\)$",
    ),
    (
        draws_on_the_host,
        "^mechanism: expected a pure function of .key, x., got draws_on_the_host, which calls Python without the key",
    ),
    (
        mapped_on_the_host,
        "^mechanism: expected a pure function of .key, x., got mapped_on_the_host, which calls Python without the key",
    ),
    (nothing, "^mechanism: expected a release of at least one number, got none from nothing$"),
    (of_no_numbers, "^mechanism: expected a release of at least one number, got none from of_no_numbers$"),
    (
        deterministic,
        "^mechanism: expected releases that depend on the key, got a deterministic deterministic whose releases of x0 "
        "and x1 differ: its epsilon is infinite$",
    ),
]


@pytest.mark.parametrize("mechanism, message", REFUSED, ids=[mechanism.__name__ for mechanism, _ in REFUSED])
def test_refused_in_one_line(mechanism, message):
    with pytest.raises(_validate.InputError, match=message):
        dpaudit.audit(mechanism, 0.0, 1.0, key=KEY, trials=200)


@pytest.mark.parametrize("distinguisher", [None, distinguish.projection, moments])
def test_the_bits_of_a_key_are_a_release(distinguisher):
    """Trials have keys of another kind, and so of another length, than those of jax.random.key."""
    found = dpaudit.audit(
        lambda key, x: (x + jax.random.normal(key), jax.random.key_data(key)),
        0.0,
        8.0,
        key=KEY,
        trials=2_000,
        claim=dpaudit.Claim(1.0),
        distinguisher=distinguisher,
    )
    assert found.verdict == "violation"


def test_what_only_seems_deterministic_is_played():
    """At epsilon 8 randomised response answers alike for nearly every key, and its key is used all the same."""
    honest = randomized_response.mechanism(epsilon=8.0, num_categories=2)
    found = dpaudit.audit(honest, jnp.array(0), jnp.array(1), key=KEY, trials=400)
    assert found.verdict == "underpowered"
    looped = jax.jit(lambda key, x: jax.lax.fori_loop(0, 3, lambda i, z: z + jax.random.normal(key), x))
    assert dpaudit.audit(looped, 0.0, 1.0, key=KEY, trials=400).epsilon_hat < 2


def test_equal_scores_say_that_nothing_was_seen():
    always = dpaudit.audit(lambda key, x: jnp.ones(3), 0.0, 1.0, key=KEY, trials=400)
    assert (always.epsilon_lower, always.accuracy) == (0, 0.5)
    assert always.reason == "all scores are equal: this attack saw nothing"
    blind = distinguish.Distinguisher(lambda key, mechanism, x0, x1: lambda z: jnp.sign(z * z), 0.0)
    seen = dpaudit.audit(lambda key, x: x + jax.random.normal(key), 0.0, 1.0, key=KEY, trials=400, distinguisher=blind)
    assert seen.reason == always.reason


def test_a_choice_by_the_input_is_jittable():
    """The inputs are given, not traced: Python may branch on them."""
    branching = lambda key, x: jax.random.normal(key) + (3.0 if x > 0 else 0.0)  # noqa: E731
    assert dpaudit.audit(branching, 0.0, 1.0, key=KEY, trials=2000).epsilon_lower > 1


class Counts:
    calls = 0

    def __call__(self, key, x):
        self.calls += 1
        return x + self.calls * jax.random.normal(key)


def counts(key, x, seen=[]):  # noqa: B006
    seen.append(x)
    return x + len(seen) * jax.random.normal(key)


@jax.jit
def counts_under_jit(key, x, seen=[]):  # noqa: B006
    seen.append(x)
    return x + len(seen) * jax.random.normal(key)


def by_numpy(key_or_generator, x):
    return x + np.random.normal()  # noqa: NPY002


def by_numpy_in_part(key, x):
    return x + jax.random.normal(key) + 0 * np.random.normal(size=3)  # noqa: NPY002


def coin(key, x):
    """Two tracings of it are alike every other time."""
    return x + jax.random.normal(key) * (1 if random.random() < 0.5 else 2)


def by_time(key, x):
    return x + jax.random.normal(key) * (time.perf_counter() % 1)  # float32 does not tell two large times apart


STATE = np.zeros(3, np.float32)


def in_place(key, x):
    STATE[:] += 1
    return x + STATE * jax.random.normal(key)


class OwnKey:
    __name__ = "own_key"

    def __init__(self):
        self.key = jax.random.key(0)

    def __call__(self, key, x):
        self.key, sub = jax.random.split(self.key)
        return x + jax.random.normal(sub)


def once(key, x, left=[1.0, 1.0]):  # noqa: B006
    return x + left.pop() * jax.random.normal(key)


def other_when_traced(key, x):
    z = jax.random.normal(key)
    return x + (z if isinstance(z, Tracer) else 0.0)


FROZEN = "another program each time it is traced, since what Python counts or draws without the key .* is frozen"
WHAT_TO_DO = r"; draw all that is random from key with jax\.random, or audit .* as dpaudit\.on_host\({}\)$"
IMPURE = [
    (counts, FROZEN),
    (counts_under_jit, FROZEN),
    (Counts(), FROZEN),
    (by_numpy, FROZEN),
    (by_numpy_in_part, FROZEN),
    (coin, FROZEN),
    (by_time, FROZEN),
    (in_place, FROZEN),
    (OwnKey(), "keeps what it computed in one call, such as a jax.random key of its own, for the next"),
    (once, "fails when it is traced again .*IndexError: pop from empty list.*"),
    (other_when_traced, "with one key releases something else when it is called than when it is compiled"),
]


@pytest.mark.parametrize("mechanism, fault", IMPURE, ids=[probe.name_of(mechanism) for mechanism, _ in IMPURE])
def test_what_is_not_pure_is_refused_in_one_line(mechanism, fault):
    name = probe.name_of(mechanism)
    message = f"^mechanism: expected a pure function of .key, x., got {name}, which .*{fault}.*"
    message += WHAT_TO_DO.format(name)
    with pytest.raises(_validate.InputError, match=message) as refused:
        dpaudit.audit(mechanism, 0.0, 1.0, key=KEY, trials=200)
    assert "\n" not in str(refused.value)


def test_a_coin_of_python_is_found_whatever_its_seed():
    """Tracing twice alone would miss one in four, for either input."""
    for seed in range(40):
        random.seed(seed)
        with pytest.raises(_validate.InputError, match=FROZEN):
            probe.examine(dpaudit.Mechanism(coin), 0.0, 1.0)


def seeded_inside(key, x):
    np.random.seed(3)  # noqa: NPY002
    random.seed(3)
    return x + np.random.normal(size=3) + random.random() + jax.random.normal(key, (3,))  # noqa: NPY002


def last_bits(key, x):
    """Operations that are fused round otherwise, and these bits show it."""
    z = (jax.random.normal(key, (100,)) + x) / 3.0
    return jax.lax.bitcast_convert_type(z * 1.1 + 0.3, jnp.int32) & 1


def rounds_to_bfloat16(key, x):
    return (x + jax.random.normal(key, (100,))).astype(jnp.bfloat16).astype(jnp.float32) * 3


def looped(key, x):
    return jax.lax.fori_loop(0, 100, lambda i, z: jnp.cos(50 * z) + jax.random.normal(jax.random.fold_in(key, i)), x)


PURE = [seeded_inside, last_bits, rounds_to_bfloat16, looped]


@pytest.mark.integration
@pytest.mark.parametrize("mechanism", PURE, ids=[mechanism.__name__ for mechanism in PURE])
def test_what_is_pure_is_played(mechanism):
    """Tracing them again, and compiled operations that round otherwise, are no fault of theirs."""
    for one in (mechanism, jax.jit(mechanism)):
        assert dpaudit.audit(one, 0.0, 1.0, key=KEY, trials=64).trials == 64  # refused before, were it not pure


def test_a_function_on_the_host_may_draw_from_what_it_likes():
    found = dpaudit.audit(dpaudit.on_host(by_numpy), 0.0, 1.0, key=KEY, trials=400)
    assert found.accuracy < 0.9


def test_a_program_with_a_loop_is_not_run():
    """It may be a whole training: nothing runs before the trials but small programs."""
    ran = []

    def training(key, x):
        def step(i, z):
            jax.debug.callback(lambda: ran.append(0))
            return z + jax.random.normal(jax.random.fold_in(key, i))

        return jax.lax.fori_loop(0, 3, step, x)

    probe.examine(dpaudit.Mechanism(training), 0.0, 1.0)
    jax.effects_barrier()
    assert ran == []
