"""One table, every mechanism: what all of them must keep."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit import check
from dpaudit.mechanisms import gaussian, laplace, ldp_sgd, privunit, randomized_response
from dpaudit.mechanisms.claim import Mechanism

EPSILON = 1.5
RELEASES = 20_000


class Case(NamedTuple):
    """A mechanism by its epsilon, and inputs of which the first two are the worst pair."""

    make: Callable[[float], Mechanism]
    inputs: list[jax.Array]
    delta: float = 0.0


LONG = jnp.array([0.0, 3.0, 0.0, 0.0, 0.0])  # beyond every clip_norm below
VECTORS = [LONG, -LONG, jnp.array([0.1, -0.2, 0.3, 0.0, 0.05]), jnp.zeros(5), jnp.array([7e37, 1.0, -9e37, 2.0, 1.0])]
CASES = {
    "ldp_sgd": Case(lambda epsilon: ldp_sgd.mechanism(epsilon=epsilon, clip_norm=1.0), VECTORS),
    "gaussian": Case(lambda epsilon: gaussian.mechanism(epsilon=epsilon, delta=1e-2, clip_norm=0.5), VECTORS, 1e-2),
    "laplace": Case(lambda epsilon: laplace.mechanism(epsilon=epsilon, clip_norm=2.0), VECTORS),
    "privunit": Case(lambda epsilon: privunit.mechanism(epsilon=epsilon), VECTORS),
    "randomized_response": Case(
        lambda epsilon: randomized_response.mechanism(epsilon=epsilon, num_categories=3),
        [jnp.int32(0), jnp.int32(2), jnp.int32(1)],
    ),
}
VECTOR_CASES = [name for name, case in CASES.items() if case.inputs[0].ndim == 1]
every = pytest.mark.parametrize("name", CASES)
every_vector = pytest.mark.parametrize("name", VECTOR_CASES)


def releases(mechanism: Mechanism, x: jax.Array, seed: int, count: int = RELEASES) -> jax.Array:
    return jax.jit(jax.vmap(mechanism.apply, (0, None)))(jax.random.split(jax.random.key(seed), count), x)


def log_ratio(mechanism: Mechanism, released: jax.Array, x0: jax.Array, x1: jax.Array) -> np.ndarray:
    """log p(z | x0) / p(z | x1) of each release, in float64."""
    assert mechanism.log_prob is not None
    log_prob = jax.jit(jax.vmap(mechanism.log_prob, (0, None)))
    return np.asarray(log_prob(released, x0), np.float64) - np.asarray(log_prob(released, x1), np.float64)


def pairs(case: Case) -> list[tuple[jax.Array, jax.Array]]:
    return [(x0, x1) for x0 in case.inputs for x1 in case.inputs if x0 is not x1]


def change_of_measure(case: Case, sampled: Mechanism, scored: Mechanism) -> float:
    """The largest |z| of the mean of p(z | x0) / p(z | x1) over releases of x1, whose expectation is 1."""
    worst = 0.0
    for seed, x1 in enumerate(case.inputs):
        released = releases(sampled, x1, seed)
        for x0 in case.inputs:
            ratios = np.exp(log_ratio(scored, released, x0, x1))
            error = max(ratios.std() / math.sqrt(RELEASES), 1e-5)  # a constant ratio has no error but rounding
            worst = max(worst, abs(ratios.mean() - 1) / error)
    return worst


def test_table_holds_every_mechanism() -> None:
    modules = (gaussian, laplace, ldp_sgd, privunit, randomized_response)
    assert set(CASES) == {module.__name__.rsplit(".", 1)[-1] for module in modules}
    assert len(VECTOR_CASES) == 4


@every
def test_shape_type_and_purity(name: str) -> None:
    case = CASES[name]
    mechanism = case.make(EPSILON)
    for x in case.inputs:
        release = mechanism.apply(jax.random.key(3), x)
        assert release.shape == x.shape
        assert release.dtype == (jnp.float32 if name in VECTOR_CASES else jnp.int32)
        assert jnp.isfinite(release).all()
        np.testing.assert_array_equal(release, mechanism.apply(jax.random.key(3), x))


@every
def test_claim_is_what_was_asked_for(name: str) -> None:
    claim = CASES[name].make(EPSILON).claim
    assert claim is not None
    assert claim == (EPSILON, CASES[name].delta, "replace")


@every
def test_distinct_keys_distinct_noise(name: str) -> None:
    case = CASES[name]
    drawn = np.asarray(releases(case.make(EPSILON), case.inputs[0], 0, 1000)).reshape(1000, -1)
    distinct = len(np.unique(drawn, axis=0))
    assert distinct == (1000 if name in VECTOR_CASES else 3)


@every
def test_compiles_once(name: str) -> None:
    case = CASES[name]
    mechanism, traces = case.make(EPSILON), []

    @jax.jit
    def apply(key: jax.Array, x: jax.Array) -> jax.Array:
        traces.append(1)
        return mechanism.apply(key, x)

    for seed, x in enumerate(case.inputs):
        apply(jax.random.key(seed), x)
    assert len(traces) == 1


@every
def test_vmap_is_a_loop(name: str) -> None:
    case = CASES[name]
    mechanism, keys, inputs = case.make(EPSILON), jax.random.split(jax.random.key(5), 3), jnp.stack(case.inputs[:3])
    batched = jax.vmap(mechanism.apply)(keys, inputs)
    looped = jnp.stack([mechanism.apply(key, x) for key, x in zip(keys, inputs, strict=True)])
    np.testing.assert_allclose(batched, looped, rtol=1e-5, atol=1e-6)


@every
def test_claim_is_not_violated(name: str) -> None:
    case = CASES[name]
    mechanism = case.make(EPSILON)
    for seed, (x0, x1) in enumerate(pairs(case)):
        loss = log_ratio(mechanism, releases(mechanism, x0, seed), x0, x1)
        if case.delta == 0:
            assert loss.max() <= EPSILON + 1e-4
        else:
            excess = np.maximum(0, -np.expm1(EPSILON - loss))  # its mean is the hockey-stick divergence
            assert excess.mean() <= case.delta + 4 * excess.std() / math.sqrt(RELEASES)


@every
def test_claim_is_attained_by_the_worst_pair(name: str) -> None:
    case = CASES[name]
    mechanism = case.make(EPSILON)
    x0, x1 = case.inputs[:2]
    loss = log_ratio(mechanism, releases(mechanism, x0, 0), x0, x1)
    if case.delta == 0:
        np.testing.assert_allclose(loss.max(), EPSILON, rtol=1e-4)
    else:
        excess = np.maximum(0, -np.expm1(EPSILON - loss))
        assert abs(excess.mean() - case.delta) <= 4 * excess.std() / math.sqrt(RELEASES)


@every
def test_log_prob_is_the_law_of_the_releases(name: str) -> None:
    case = CASES[name]
    right, wrong = case.make(EPSILON), case.make(0.8 * EPSILON)
    assert change_of_measure(case, right, right) < 4.5
    assert change_of_measure(case, right, wrong) > 8


@every_vector
def test_narrow_input_gets_wide_noise(name: str) -> None:
    case = CASES[name]
    release = jax.vmap(case.make(EPSILON).apply, (0, None))(
        jax.random.split(jax.random.key(0), 2000), case.inputs[0].astype(jnp.bfloat16)
    )
    assert release.dtype == jnp.float32
    assert len(np.unique(release[:, 0])) > 1500  # bfloat16 would give a few hundred


@every
@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_refuses_bad_epsilon(name: str, epsilon: float) -> None:
    with pytest.raises(check.InputError, match="epsilon: expected a finite number > 0"):
        CASES[name].make(epsilon)


@every_vector
@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_refuses_nan_and_infinity(name: str, bad: float) -> None:
    with pytest.raises(check.InputError, match="x: expected finite numbers, got 1 NaN or infinite of 5"):
        CASES[name].make(EPSILON).apply(jax.random.key(0), LONG.at[2].set(bad))
