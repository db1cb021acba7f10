"""The learned distinguisher: it finds what a projection cannot, accuses nobody falsely, and takes any release."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import dpaudit
from dpaudit import Claim, Mechanism, _validate, distinguish
from dpaudit.auditing.attacks import learned
from dpaudit.mechanisms import laplace

KEY = jax.random.key(3)
KEPT = 0.95  # with which the planted pattern tells the world: epsilon ln 19 = 2.94


def parity(key, x):
    """Five bits, any four of them uniform: only the parity of all tells the world. As a tree with whole numbers."""
    bits_key, flip_key = jax.random.split(key)
    bits = jax.random.randint(bits_key, (4,), 0, 2)
    flip = jax.random.bernoulli(flip_key, jnp.where(x > 0, KEPT, 1 - KEPT))
    return {"bits": bits, "last": ((bits.sum() + flip) % 2).astype(bool)}


def of_strength(leak, strength):
    """The leak of ``strength`` times its input, which is data: both strengths are one compiled program."""
    strength = jnp.full(1, strength, jnp.float32)
    return lambda key, x: leak(key, strength[0] * x)


def spread(key, x):
    return (1 + x) * jax.random.normal(key)


QUICK = learned.distinguisher(steps=400)  # the long proof trains as long as users do


def audited(mechanism, x0: Any = 0.0, x1: Any = 1.0, attack=QUICK, key=KEY, claim=2.0):
    return dpaudit.audit(mechanism, x0, x1, key=key, trials=20_000, claim=Claim(claim), distinguisher=attack)


@pytest.mark.slow
def test_a_pattern_that_no_projection_sees():
    found, missed = (audited(parity, attack=attack) for attack in (distinguish.learned, distinguish.projection))
    assert (found.verdict, missed.verdict) == ("violation", "underpowered")
    assert 2.5 < found.epsilon_lower < math.log(KEPT / (1 - KEPT))
    assert missed.epsilon_lower < 0.3
    assert found.method.startswith("learned, threshold from the first quarter")
    assert audited(parity, attack=distinguish.learned) == found  # the key decides


@pytest.mark.integration
def test_a_leak_in_the_variance_and_a_twin_without():
    assert audited(of_strength(spread, 1)).verdict == "violation"
    assert audited(of_strength(spread, 0)).epsilon_lower < 0.2


@pytest.mark.parametrize("seed", range(2))
def test_an_honest_mechanism_is_found_consistent_and_nearly_to_its_claim(seed):
    mechanism, end = laplace.mechanism(epsilon=1.0, clip_norm=0.5), jnp.array([0.5])
    found = audited(mechanism, -end, end, key=jax.random.key(seed), claim=1.0)
    assert found.verdict == "consistent"
    assert 0.7 < found.epsilon_lower <= 1.0


@pytest.mark.integration
def test_training_releases_are_not_played_again():
    """Trained on a handful of null releases a network knows them by heart; the bound must not."""
    by_heart = learned.distinguisher(trials=20, steps=300, hidden=128)
    null = Mechanism(lambda key, x: jax.random.normal(key, (50,)))
    assert audited(null, attack=by_heart).epsilon_lower < 0.2


@pytest.mark.integration
def test_infinite_and_constant_entries_do_no_harm():
    def overflowing(key, x):
        z = jax.random.normal(key, (3,)) + 2 * x
        return z.at[0].set(jnp.where(z[1] > 3, jnp.inf, 5.0))

    assert audited(overflowing, claim=1.0).verdict == "violation"


def test_a_value_that_returns_is_a_symbol_even_to_a_linear_rule():
    """The middle one of three categories is likelier in one world: no line through their sizes can tell."""
    linear = learned.distinguisher(layers=0, steps=400)

    def category(key, x):
        return jax.random.categorical(key, jnp.log(jnp.array([1.0, 1.0 + 8 * x, 1.0]))) * 500.0

    found = audited(of_strength(category, 1), attack=linear)
    assert 1.1 < found.epsilon_lower < math.log(11 / 3)
    assert found.method.startswith("learned, linear")
    assert audited(of_strength(category, 0), attack=linear).epsilon_lower < 0.2


def test_refusals():
    with pytest.raises(_validate.InputError, match=r"^hidden: expected a whole number >= 1, got 0$"):
        learned.distinguisher(hidden=0)
    with pytest.raises(_validate.InputError, match=r"^layers: expected a whole number >= 0, got -1$"):
        learned.distinguisher(layers=-1)
