import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpaudit.mechanisms import sampling


@pytest.mark.parametrize("p", [0.0, 1e-9, 2.0**-41, 3e-12, 1 / 3, 0.5, 0.75, 0.9, 1 - 2.0**-24])
def test_bernoulli_threshold_is_p_to_the_last_bit(p: float) -> None:
    """The coin is B < threshold of a 64-bit integer B, so its probability is threshold / 2^64."""
    single = np.float32(p)
    high, low = jax.jit(sampling._fixed_point)(single)
    assert Fraction((int(high) << 32) + int(low), 2**64) == Fraction(float(single))


@pytest.mark.parametrize(
    ("high", "low", "coin"),
    [(4, 0, True), (3, 2**32 - 1, True), (4, 1266874368 - 1, True), (4, 1266874368, False), (5, 0, False)],
)
def test_bernoulli_at_its_threshold(monkeypatch: pytest.MonkeyPatch, high: int, low: int, coin: bool) -> None:
    assert Fraction(float(np.float32(1e-9))) == Fraction((4 << 32) + 1266874368, 2**64)
    monkeypatch.setattr(jax.random, "bits", lambda *_: jnp.array([high, low], jnp.uint32))
    assert bool(sampling.bernoulli(jax.random.key(0), 1e-9)) == coin


def test_bernoulli_never_and_always() -> None:
    coins = jax.jit(sampling.bernoulli, static_argnums=2)
    assert not coins(jax.random.key(0), 0.0, (10_000,)).any()
    assert coins(jax.random.key(0), 1.0, (10_000,)).all()


def test_bernoulli_rate_and_broadcast() -> None:
    p = jnp.array([0.01, 0.3, 0.9])
    coins = jax.jit(sampling.bernoulli, static_argnums=2)
    heads = np.asarray(coins(jax.random.key(1), p, (100_000, 3))).sum(axis=0)
    for seen, rate, wrong in zip(heads, p.tolist(), (0.014, 0.32, 0.92), strict=True):
        assert stats.binomtest(int(seen), 100_000, rate).pvalue > 1e-3
        assert stats.binomtest(int(seen), 100_000, wrong).pvalue < 1e-6  # 10 deviations away, 4.9 are enough


@pytest.mark.parametrize("dimension", [1, 2, 5])
def test_sphere_is_uniform(dimension: int) -> None:
    draw = jax.jit(jax.vmap(lambda key: sampling.sphere(key, dimension)))
    points = np.asarray(draw(jax.random.split(jax.random.key(2), 20_000)), np.float64)
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1, rtol=1e-6)
    if dimension == 1:
        assert stats.binomtest(int((points > 0).sum()), 20_000).pvalue > 1e-3
        return
    square = points[:, 0] ** 2
    assert stats.kstest(square, stats.beta(0.5, (dimension - 1) / 2).cdf).pvalue > 1e-3
    assert stats.kstest(square, stats.beta(0.5, dimension / 2).cdf).pvalue < 1e-6


def test_sphere_is_never_narrow() -> None:
    assert jax.eval_shape(lambda key: sampling.sphere(key, 4, jnp.bfloat16), jax.random.key(0)).dtype == jnp.float32


def test_exponential_and_normal_laws() -> None:
    draws = ((sampling.exponential, 3, (200_000,)), (sampling.normal, 4, (99_999, 2)))
    drawn = [jax.jit(draw, static_argnums=1)(jax.random.key(seed), shape) for draw, seed, shape in draws]
    exponential, normal = (np.asarray(array, np.float64) for array in drawn)
    assert stats.kstest(exponential, stats.expon.cdf).pvalue > 1e-3
    # sqrt(n) D of the twins has mean 5.2 and 5.7 and deviation 0.3, and 2.7 makes a p-value of 1e-6.
    assert stats.kstest(exponential, stats.expon(scale=1.03).cdf).pvalue < 1e-6
    assert stats.kstest(normal.ravel(), stats.norm.cdf).pvalue > 1e-3
    assert stats.kstest(normal.ravel(), stats.norm(scale=1.05).cdf).pvalue < 1e-6
    for spread, error in ((exponential.mean(), 1 / math.sqrt(200_000)), (normal.std(), 1 / math.sqrt(2 * 199_998))):
        assert abs(spread - 1) < 4 * error < 0.03 - 5 * error  # 3% more or less would be seen
    assert abs(np.corrcoef(normal.T).min()) < 4 / math.sqrt(99_999)


@pytest.mark.parametrize(("bits", "size"), [(0, 45.05), (2**32 - 1, 0.0)])
def test_exponential_reaches_its_ends(monkeypatch: pytest.MonkeyPatch, bits: int, size: float) -> None:
    monkeypatch.setattr(jax.random, "bits", lambda *_: jnp.full((2,), bits, jnp.uint32))
    np.testing.assert_allclose(sampling.exponential(jax.random.key(0)), size, rtol=1e-3)
    assert math.copysign(1, sampling.exponential(jax.random.key(0))) == 1
