import math
from collections.abc import Callable
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from dpaudit import _validate
from dpaudit.mechanisms import privunit, sampling

COUNT = 20_000
GRID = [(d, epsilon) for d in (2, 3, 30) for epsilon in (0.5, 4.0)]  # both ways of drawing inside the cap


@lru_cache
def released(epsilon: float) -> Callable[[int, np.ndarray], np.ndarray]:
    """(seed, x) -> COUNT releases, times m: unit vectors."""
    every = jax.jit(jax.vmap(privunit.mechanism(epsilon=epsilon).apply, (0, None)))

    def release(seed: int, x: np.ndarray) -> np.ndarray:
        found = every(jax.random.split(jax.random.key(seed), COUNT), jnp.asarray(x, jnp.float32))
        unit = np.asarray(found, np.float64) * privunit.best_cap(x.size, epsilon).scale
        np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, rtol=1e-5)
        return unit

    return release


@lru_cache
def heights(dimension: int, epsilon: float) -> np.ndarray:
    """The coordinate t along the input of COUNT releases."""
    x = np.arange(1.0, dimension + 1)
    return released(epsilon)(dimension, x) @ (x / np.linalg.norm(x))


@pytest.mark.parametrize(("dimension", "epsilon"), [*GRID, (26_010, 8.0), (1_000_000, 1.0)])
def test_cap_spends_epsilon_exactly(dimension: int, epsilon: float) -> None:
    cap = privunit.best_cap(dimension, epsilon)
    mass = stats.beta(0.5, (dimension - 1) / 2).sf(cap.gamma**2) / 2
    np.testing.assert_allclose(cap.mass, mass, rtol=1e-8)
    ratio = (1 - cap.miss) / cap.miss * (1 - mass) / mass
    np.testing.assert_allclose(math.log(ratio), epsilon, rtol=1e-8)
    np.testing.assert_allclose(cap.log_inside - cap.log_outside, epsilon, rtol=1e-12)
    np.testing.assert_allclose(mass * math.exp(cap.log_inside) + (1 - mass) * math.exp(cap.log_outside), 1, rtol=1e-8)


@pytest.mark.parametrize(("dimension", "epsilon"), GRID)
def test_scale_by_numerical_integration(dimension: int, epsilon: float) -> None:
    """m = E<v, u> in the angle a from u, of density proportional to sin(a)^(d-2)."""
    cap = privunit.best_cap(dimension, epsilon)
    edge = math.acos(cap.gamma)

    def integral(low: float, high: float, power: int) -> float:
        return integrate.quad(lambda a: math.cos(a) ** power * math.sin(a) ** (dimension - 2), low, high)[0]

    inside = integral(0, edge, 1) / integral(0, edge, 0)
    outside = integral(edge, math.pi, 1) / integral(edge, math.pi, 0)
    np.testing.assert_allclose(cap.scale, (1 - cap.miss) * inside + cap.miss * outside, rtol=1e-7)


@pytest.mark.parametrize(("dimension", "epsilon"), GRID)
def test_no_other_split_has_less_variance(dimension: int, epsilon: float) -> None:
    others = [privunit._cap(dimension, epsilon, split).scale for split in np.linspace(0, epsilon, 1001)]
    assert privunit.best_cap(dimension, epsilon).scale >= max(others) * (1 - 1e-9)


@pytest.mark.parametrize(("dimension", "epsilon"), GRID)
def test_unbiased_and_in_the_cap_with_probability_p(dimension: int, epsilon: float) -> None:
    cap, t = privunit.best_cap(dimension, epsilon), heights(dimension, epsilon)
    error = t.std() / math.sqrt(COUNT)
    assert abs(t.mean() - cap.scale) < 4 * error
    assert abs(t.mean() - (cap.scale + 0.1)) > 4 * error  # a wrong m
    inside = int((t >= cap.gamma).sum())
    assert stats.binomtest(inside, COUNT, 1 - cap.miss).pvalue > 1e-3
    assert stats.binomtest(inside, COUNT, 1 - cap.miss - 0.03).pvalue < 1e-6  # 8 deviations away, 4.9 are enough


@pytest.mark.parametrize(("dimension", "epsilon"), GRID)
def test_uniform_inside_and_outside(dimension: int, epsilon: float) -> None:
    """Given its side, t follows the law of one coordinate of a uniform point: (1 + t)/2 is Beta((d-1)/2, (d-1)/2)."""
    cap, t = privunit.best_cap(dimension, epsilon), heights(dimension, epsilon)

    def cdf(t: np.ndarray, dimension: float) -> np.ndarray:
        return stats.beta((dimension - 1) / 2, (dimension - 1) / 2).cdf((1 + t) / 2)

    def pvalues(dimension: float) -> list[float]:
        edge = float(cdf(np.array(cap.gamma), dimension))
        inside, outside = t[t >= cap.gamma], t[t < cap.gamma]
        return [
            stats.kstest(inside, lambda t: (cdf(t, dimension) - edge) / (1 - edge)).pvalue,
            stats.kstest(outside, lambda t: cdf(t, dimension) / edge).pvalue,
        ]

    assert min(pvalues(dimension)) > 1e-3
    assert min(pvalues(dimension + max(0.5, dimension / 5))) < 1e-6


def test_around_the_direction_all_are_alike() -> None:
    """The mean and covariance orthogonal to u are those of a rotation-invariant law."""
    across = released(4.0)(1, np.array([0.0, 0.0, 2.0, 0.0]))[:, [0, 1, 3]]
    error = across.std() / math.sqrt(COUNT)
    assert (abs(across.mean(axis=0)) < 4 * error).all()
    assert (abs(np.corrcoef(across.T) - np.eye(3)) < 4 / math.sqrt(COUNT)).all()
    spread = (across**2).mean(axis=0)
    assert (abs(spread / spread.mean() - 1) < 4 * math.sqrt(2 / COUNT)).all()


def test_zero_input_is_uniform() -> None:
    mechanism, units = privunit.mechanism(epsilon=4.0), released(4.0)(1, np.zeros(4))
    for coordinate in units.T:
        assert stats.kstest((1 + coordinate) / 2, stats.beta(1.5, 1.5).cdf).pvalue > 1e-3
        assert stats.kstest((1 + coordinate) / 2, stats.beta(1.8, 1.8).cdf).pvalue < 1e-6
    assert mechanism.log_prob is not None
    assert mechanism.log_prob(units[0] / privunit.best_cap(4, 4.0).scale, jnp.zeros(4)) == 0


@pytest.mark.parametrize(("dimension", "epsilon"), [(2, 1e-3), (2, 1000.0), (1000, 50.0)])
def test_extreme_epsilon_stays_finite(dimension: int, epsilon: float) -> None:
    x = jnp.ones(dimension)
    release = jax.jit(privunit.mechanism(epsilon=epsilon).apply)(jax.random.key(0), x)
    assert jnp.isfinite(release).all()
    if epsilon == 1000 and dimension == 2:
        np.testing.assert_allclose(release, x / math.sqrt(2), rtol=1e-5)


@pytest.mark.parametrize("shape", [(1,), (2, 3)])
def test_refuses_what_has_no_cap(shape: tuple[int, ...]) -> None:
    with pytest.raises(_validate.InputError, match=r"x: expected an array of shape \[d\] with d >= "):
        privunit.mechanism(epsilon=1.0).apply(jax.random.key(0), jnp.ones(shape))


@pytest.mark.parametrize("epsilon", [60.0, 100.0])
def test_a_release_outside_the_cap_is_never_rarer_than_epsilon_allows(
    monkeypatch: pytest.MonkeyPatch, epsilon: float
) -> None:
    """In the plane most of such an epsilon is the coin's, which was rounded down: at 100 no release was outside."""

    def asked(_: jax.Array, p: float) -> None:
        raise Asked(p)

    monkeypatch.setattr(sampling, "bernoulli", asked)
    with pytest.raises(Asked) as found:
        privunit.mechanism(epsilon=epsilon).apply(jax.random.key(0), jnp.array([1.0, 0.0]))
    high, low = sampling._fixed_point(jnp.float32(found.value.args[0]))
    miss = ((int(high) << 32) + int(low)) / 2**64
    mass = privunit.best_cap(2, epsilon).mass
    assert miss > 0
    assert math.log((1 - miss) / miss) + math.log((1 - mass) / mass) <= epsilon


class Asked(Exception):
    """Carries the probability of the first coin."""
