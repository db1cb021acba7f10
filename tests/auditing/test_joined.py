"""Parts of a release that tell nothing alone: shares of a secret, and two places with the same noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpaudit
from dpaudit.auditing.attacks import features, pilot
from dpaudit.auditing.host.reader import read
from tests.auditing.test_portfolio import noisy, of_strength, plain


def parts(key, count):
    return jax.random.bits(key, (count, 5), jnp.uint32)


def secret(x):
    return jnp.arange(5).astype(jnp.uint32) + (x[0] > 0.5)


def added(key, x):
    own = parts(key, 2)
    return own[0], own[1], secret(x) - own[0] - own[1]


def subtracted(key, x):
    """As the owners of two-server aggregation share a gradient: the first share less the second is the secret."""
    own = parts(key, 1)[0]
    return jnp.stack([secret(x) + own, own])


def xored(key, x):
    own = parts(key, 2)
    return jnp.stack([own[0] ^ secret(x), own[0] ^ own[1], own[1]]).astype(jnp.uint8)


@pytest.mark.integration
@pytest.mark.parametrize("shares", [added, subtracted, xored])
def test_all_shares_together_are_the_secret_and_one_fewer_are_nothing(shares):
    found = plain(of_strength(shares, 1))
    assert (found.verdict, found.fpr, found.fnr) == ("violation", 0, 0)
    assert plain(of_strength(shares, 0)).verdict != "violation"
    assert plain(lambda key, x: shares(key, x)[1:]).verdict != "violation"


RING, PRIME = 1 << 128, (1 << 127) - 1
LARGE = {
    "added": lambda s, x: [s, (x - s) % RING],
    "added in a field": lambda s, x: [s % PRIME, (x - s) % PRIME],
    "subtracted": lambda s, x: {"first": (s + x) % RING, "second": s},
    "xored": lambda s, x: (s, s ^ x),
}


@pytest.mark.parametrize("how", LARGE)
def test_shares_of_any_size_are_joined_on_the_host(how):
    def shares(rng, x, told=True):
        return LARGE[how](int.from_bytes(rng.bytes(16), "big"), x if told else 0)

    settings = {"key": jax.random.key(8), "trials": 1000, "claim": dpaudit.Claim(0.5)}
    found = dpaudit.audit(dpaudit.on_host(shares), 3, 4, **settings)
    assert found.epsilon_lower > 3
    assert dpaudit.audit(dpaudit.on_host(lambda rng, x: shares(rng, x, False)), 3, 4, **settings).epsilon_lower < 0.5


def test_large_integers_are_joined_exactly_on_the_host():
    a, b, c, d = own = [RING + 3, PRIME, 5, 2 * RING + PRIME]
    found, low = read(own).numbers, 1 << 24
    assert found["sum, last 24 bits"] == (a + b + c + d) % low
    assert found["first half less the second, last 24 bits"] == (a + b - c - d) % low
    assert found["all xored, last 24 bits"] == (a ^ b ^ c ^ d) % low


def test_the_order_of_a_set_is_not_read():
    """Numbers of one hash lie in a set in the order in which they came."""
    large = [((1 << 61) - 1) * i + 5 for i in range(1, 9)]
    one, other = {*large}, {*reversed(large)}
    assert list(one) != list(other)
    assert read(one).numbers == read(other).numbers


@pytest.mark.integration
@pytest.mark.parametrize("d", [500, 5_000])
def test_noise_of_two_places_is_compared_wherever_they_are(d):
    def reused(key, x, told=1.0):
        z = noisy(key, (d,))
        return z.at[d - 9].set(told * z[3] + (1 - told) * z[d - 9]).at[3].add(0.2 * x[0])

    assert plain(reused).epsilon_lower > 5
    assert plain(lambda key, x: reused(key, x, 0.0)).verdict != "violation"


@pytest.mark.parametrize("d", [40, pilot.ALL_PAIRS + 100])
def test_places_with_the_same_noise_are_found(d):
    z = np.random.default_rng(0).normal(size=(2, 100, d)).astype(np.float32)
    z[..., d - 2] = 5 - 3 * z[..., 7]
    assert pilot._partners(z, np.arange(10, 30)).tolist() == [7, d - 2]
    z[..., d - 2] = 0
    assert pilot._partners(z, np.arange(10, 30)).tolist() == []


def test_integers_are_joined_exactly():
    rows = np.random.default_rng(0).integers(0, 1 << 32, (6, 4), dtype=np.uint32)
    leaves = [rows, rows[:, :1].astype(np.uint8), np.zeros((6, 3), np.float32), rows[:, 0] > 1 << 31]
    exact = np.concatenate([leaves[0], leaves[1], leaves[3][:, None]], 1).astype(object)
    total, apart = exact.sum(1) % 2**32, (exact[:, :3].sum(1) - exact[:, 3:].sum(1)) % 2**32
    for xp in (np, jnp):
        view = features.View(xp, [xp.asarray(leaf) for leaf in leaves], [leaf[0] for leaf in leaves], lead=1)
        found = np.asarray(view.ring)
        assert found[:, 0].tolist() == total.tolist()
        assert found[:, 1].tolist() == apart.tolist()
        assert found[:, 2].tolist() == [int(np.bitwise_xor.reduce(row)) for row in exact]
    alone = features.View(np, [rows[:, :1]], [rows[0, :1]], lead=1)
    assert alone.ring.shape == (6, 0)
