"""One table, every mechanism: what all of them must keep."""

import importlib
import itertools
import math
import pkgutil
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit import _validate, mechanisms
from dpaudit.mechanisms import gaussian, laplace, ldp_sgd, privunit, randomized_response
from dpaudit.mechanisms.claim import Mechanism

EPSILON = 1.5
RELEASES = 10_000


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


@lru_cache
def apply(name: str) -> Callable[[jax.Array, jax.Array], jax.Array]:
    return jax.jit(chex.assert_max_traces(CASES[name].make(EPSILON).apply, n=1))


@lru_cache
def batched(name: str, epsilon: float = EPSILON) -> tuple[Callable[..., jax.Array], Callable[..., jax.Array]]:
    """(apply, log_prob) over keys and over releases."""
    mechanism = CASES[name].make(epsilon)
    assert mechanism.log_prob is not None
    return jax.jit(jax.vmap(mechanism.apply, (0, None))), jax.jit(jax.vmap(mechanism.log_prob, (0, None)))


@lru_cache
def releases(name: str, of: int) -> np.ndarray:
    """Releases of the input of this number."""
    keys = jax.random.split(jax.random.key(of), RELEASES)
    return np.asarray(batched(name)[0](keys, CASES[name].inputs[of]))


@lru_cache
def log_prob(name: str, of: int, x: int, epsilon: float) -> np.ndarray:
    """log p(z | input x) of each release z of the input ``of``, in float64."""
    return np.asarray(batched(name, epsilon)[1](releases(name, of), CASES[name].inputs[x]), np.float64)


def log_ratio(name: str, of: int, x0: int, x1: int, epsilon: float = EPSILON) -> np.ndarray:
    """log p(z | x0) / p(z | x1) of each release of the input ``of``, all by their numbers."""
    return log_prob(name, of, x0, epsilon) - log_prob(name, of, x1, epsilon)


def excess(loss: np.ndarray) -> np.ndarray:
    """What each release of x0 adds to the hockey-stick divergence at EPSILON."""
    return np.maximum(0, -np.expm1(EPSILON - loss))


def change_of_measure(name: str, epsilon: float) -> float:
    """The largest |z| of the mean of p(z | x0) / p(z | x1) over releases of x1, whose expectation is 1.

    The releases are drawn at EPSILON, the densities are those of ``epsilon``.
    """
    worst = 0.0
    every = range(len(CASES[name].inputs))
    for x0, x1 in itertools.product(every, every):
        if x0 != x1:
            ratios = np.exp(log_ratio(name, x1, x0, x1, epsilon))
            error = max(ratios.std() / math.sqrt(RELEASES), 1e-5)  # a constant ratio has no error but rounding
            worst = max(worst, abs(ratios.mean() - 1) / error)
    return worst


def test_table_holds_every_mechanism() -> None:
    names = [module.name for module in pkgutil.iter_modules(mechanisms.__path__)]
    with_one = {name for name in names if hasattr(importlib.import_module(f"dpaudit.mechanisms.{name}"), "mechanism")}
    assert set(CASES) == with_one
    assert len(CASES) >= 5


@pytest.fixture(autouse=True)
def traces() -> None:
    """Counts traces anew: what was compiled may have been let go of since."""
    chex.clear_trace_counter()


@every
def test_shape_type_and_purity(name: str) -> None:
    for x in CASES[name].inputs:
        release = apply(name)(jax.random.key(3), x)
        assert release.shape == x.shape
        assert release.dtype == (jnp.float32 if name in VECTOR_CASES else jnp.int32)
        chex.assert_tree_all_finite(release)
        np.testing.assert_array_equal(release, apply(name)(jax.random.key(3), x))


@every
def test_the_type_is_the_same_where_jax_computes_in_64_bits(name: str) -> None:
    case = CASES[name]
    with jax.enable_x64(True):
        release = jax.eval_shape(case.make(EPSILON).apply, jax.random.key(3), case.inputs[0])
    assert release.dtype == (jnp.float32 if name in VECTOR_CASES else jnp.int32)


@every
def test_claim_is_what_was_asked_for(name: str) -> None:
    claim = CASES[name].make(EPSILON).claim
    assert claim is not None
    assert claim == (EPSILON, CASES[name].delta, "replace")


@every
def test_distinct_keys_distinct_noise(name: str) -> None:
    drawn = releases(name, 0).reshape(RELEASES, -1)
    assert len(np.unique(drawn, axis=0)) == (RELEASES if name in VECTOR_CASES else 3)


@every_vector
def test_every_coordinate_has_noise_of_its_own(name: str) -> None:
    """Correlations over releases of zeros; rows of a matrix would have 1 if noise were drawn once for all of them."""
    mechanism = CASES[name].make(EPSILON)
    keys = jax.random.split(jax.random.key(6), RELEASES)
    anything = name in ("gaussian", "laplace")  # the others release unit vectors
    released = jax.jit(jax.vmap(mechanism.apply, (0, None)))(keys, jnp.zeros((3, 4) if anything else 12))
    flat = np.asarray(released, np.float64).reshape(RELEASES, 12)
    for of in [flat, flat**2] if anything else [flat]:  # the squares of a unit vector have one sum
        assert np.abs(np.corrcoef(of.T) - np.eye(12)).max() < 5 / math.sqrt(RELEASES)


@every
def test_compiles_once(name: str) -> None:
    compiled = apply.__wrapped__(name)  # not traced so far
    for seed, x in enumerate(CASES[name].inputs):
        compiled(jax.random.key(seed), x)  # refuses a second trace
    with pytest.raises(AssertionError, match="is traced > 1 times"):
        compiled(jax.random.split(jax.random.key(0))[0], jnp.stack([CASES[name].inputs[0]] * 2))


@every
def test_vmap_is_a_loop(name: str) -> None:
    case = CASES[name]
    keys, inputs = jax.random.split(jax.random.key(5), 3), jnp.stack(case.inputs[:3])
    mapped = jax.vmap(apply(name))(keys, inputs)
    looped = np.stack([apply(name)(key, x) for key, x in zip(keys, inputs, strict=True)])
    np.testing.assert_allclose(mapped, looped, rtol=1e-5, atol=1e-6)


@every
def test_claim_is_not_violated(name: str) -> None:
    case = CASES[name]
    for x0, x1 in itertools.permutations(range(len(case.inputs)), 2):
        loss = log_ratio(name, x0, x0, x1)
        if case.delta == 0:
            assert loss.max() <= EPSILON + 1e-4
        else:
            assert excess(loss).mean() <= case.delta + 4 * excess(loss).std() / math.sqrt(RELEASES)


@every
def test_claim_is_attained_by_the_worst_pair(name: str) -> None:
    loss, delta = log_ratio(name, 0, 0, 1), CASES[name].delta
    if delta == 0:
        np.testing.assert_allclose(loss.max(), EPSILON, rtol=1e-4)
    else:
        assert abs(excess(loss).mean() - delta) <= 4 * excess(loss).std() / math.sqrt(RELEASES)


@every
def test_log_prob_is_the_law_of_the_releases(name: str) -> None:
    assert change_of_measure(name, EPSILON) < 4.5
    assert change_of_measure(name, 0.8 * EPSILON) > 8


@every_vector
def test_narrow_input_gets_wide_noise(name: str) -> None:
    keys = jax.random.split(jax.random.key(0), RELEASES)
    release = batched(name)[0](keys, CASES[name].inputs[0].astype(jnp.bfloat16))
    assert release.dtype == jnp.float32
    assert len(np.unique(release[:, 0])) > 1000  # bfloat16 would give a few hundred


@every
@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_refuses_bad_epsilon(name: str, epsilon: float) -> None:
    with pytest.raises(_validate.InputError, match="epsilon: expected a finite number > 0"):
        CASES[name].make(epsilon)


@every_vector
@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_refuses_nan_and_infinity(name: str, bad: float) -> None:
    with pytest.raises(_validate.InputError, match="x: expected finite numbers, got 1 NaN or infinite of 5"):
        CASES[name].make(EPSILON).apply(jax.random.key(0), LONG.at[2].set(bad))
