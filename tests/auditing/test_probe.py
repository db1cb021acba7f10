"""Mechanisms that cannot be audited: one line each, with the cause and the mechanism's name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpaudit
from dpaudit import check, distinguish
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


def one_argument(key):
    return jax.random.normal(key)


REFUSED = [
    (raises, r"^mechanism: expected a release of x1, got RuntimeError: no luck today \(raised by raises\)$"),
    (one_argument, r"^mechanism: expected a release of x0, got TypeError: one_argument\(\) takes 1 positional .*\)$"),
    (branches, r"^mechanism: .* jax.jit can trace, got branches, .* as dpaudit\.on_host\(branches\)$"),
    (numpys, r"^mechanism: .* jax.jit can trace, got numpys, .* \(TracerArrayConversionError\); .*on_host\(numpys\)$"),
    (nothing, "^mechanism: expected a release of at least one array, got none from nothing$"),
    (
        deterministic,
        "^mechanism: expected releases that depend on the key, got a deterministic deterministic whose releases of x0 "
        "and x1 differ: its epsilon is infinite$",
    ),
]


@pytest.mark.parametrize("mechanism, message", REFUSED, ids=[mechanism.__name__ for mechanism, _ in REFUSED])
def test_refused_in_one_line(mechanism, message):
    with pytest.raises(check.InputError, match=message):
        dpaudit.audit(mechanism, 0.0, 1.0, key=KEY, trials=200)


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
    assert ", all scores equal: this attack saw nothing; " in always.method
    blind = distinguish.Distinguisher(lambda key, mechanism, x0, x1: lambda z: jnp.sign(z * z), 0.0)
    seen = dpaudit.audit(lambda key, x: x + jax.random.normal(key), 0.0, 1.0, key=KEY, trials=400, distinguisher=blind)
    assert ", all scores equal" in seen.method


def test_a_choice_by_the_input_is_jittable():
    """The inputs are given, not traced: Python may branch on them."""
    branching = lambda key, x: jax.random.normal(key) + (3.0 if x > 0 else 0.0)  # noqa: E731
    assert dpaudit.audit(branching, 0.0, 1.0, key=KEY, trials=2000).epsilon_lower > 1
