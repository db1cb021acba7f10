"""The worst user is found where there is only one, and moves the releases as far as the bound allows."""

import jax
import jax.numpy as jnp
import pytest

from dpaudit import InputError, domain
from dpaudit.audits.protocol_audit import of_protocol
from dpaudit.audits.user_search import worst_user
from dpaudit.personalization.boundary.bounds import bounded
from dpaudit.personalization.boundary.processes import gaussian
from dpaudit.personalization.boundary.protocol import each, everything, private
from tests.personalization.protocols import START, WIDTH, people, steps

KEY = jax.random.key(4)
QUICK = {"rounds": 2, "starts": 16, "steps": 12}


def reach(protocol, state, users, canary):
    """|Delta| of one run, by the audit's own reader, without noise that matters: [rounds]."""
    mechanism = of_protocol(protocol, state, users, canary, rounds=2)
    return mechanism.apply(KEY, 1.0).seen.reach


@pytest.mark.integration
def test_the_clip_norm_is_attained_in_every_round():
    """Most users of this domain are short of it: random ones reach a tenth."""
    small = domain.box((WIDTH,), -0.02, 0.6)
    protocol = steps(4.0, rate=1e-4)
    found = worst_user(KEY, protocol, START, people(6), small, **QUICK)
    assert found.shape == (1, WIDTH)
    attained = reach(protocol, START, people(6), found)
    assert (attained > 0.99 / 4.0).all()
    assert reach(protocol, START, people(6), jnp.full((1, WIDTH), 0.05))[0] < 0.5 / 4.0


@pytest.mark.integration
def test_one_of_many_words_is_found_by_what_it_moves():
    """Words count 1, one of them 3; users are dictionaries, whose parts have domains of their own."""

    def counted(key, _, user):
        return user["weight"] * jnp.where(user["word"] == 40, 3.0, 1.0)

    protocol = private(each(everything, counted, bound=bounded(0, 3)), gaussian("sum", noise_multiplier=1.0))
    users = {"word": jnp.arange(3), "weight": jnp.ones(3)}
    anybody = {"word": domain.box((), 0, 63, jnp.int32), "weight": domain.box((), 0.0, 1.0)}
    found = worst_user(KEY, protocol, (), users, anybody, **QUICK)
    assert found["word"].tolist() == [40]
    assert found["weight"][0] > 0.95


@pytest.mark.integration
def test_a_user_among_the_others_may_be_the_worst():
    """One of 2^31 codes moves the sum: drawn at random, it would not be found."""
    protocol = private(
        each(everything, lambda key, _, code: jnp.where(code == 123_456_789, 1.0, 0.0), bound=bounded(0, 1)),
        gaussian("sum", noise_multiplier=1.0),
    )
    anybody = domain.box((), 0, 2**31 - 2, jnp.int32)
    codes = jnp.array([5, 123_456_789, 7], jnp.int32)
    assert worst_user(KEY, protocol, (), codes, anybody, **QUICK).tolist() == [123_456_789]
    assert worst_user(KEY, protocol, (), codes[:1], anybody, **QUICK).tolist() != [123_456_789]


def test_a_domain_of_other_users_is_refused():
    with pytest.raises(InputError, match="canary: expected one user, with a leading axis of 1 and leaves"):
        worst_user(KEY, steps(4.0), START, people(6), domain.box((3,), -1.0, 1.0), **QUICK)
    with pytest.raises(InputError, match="rounds: expected a whole number >= 1, got 0"):
        worst_user(KEY, steps(4.0), START, people(6), domain.box((WIDTH,), -1.0, 1.0), rounds=0)
