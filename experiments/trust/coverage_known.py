"""Defines pairs of inputs whose trade-off curve is known, with the rule that attains the whole of the mechanism's
epsilon."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtr

from dpaudit import Mechanism, distinguish, oracle, play
from dpaudit._engine import hosts
from dpaudit.mechanisms import gaussian, laplace, ldp_sgd, randomized_response

Rates = Callable[[Any], tuple[np.ndarray, np.ndarray]]


class Known(NamedTuple):
    """A mechanism on its worst pair (on equal inputs: on any), scored by the likelihood ratio."""

    name: str  # for tables
    mechanism: Mechanism
    x0: Any
    x1: Any
    epsilon: float  # the truth: no larger delta-loss exists between x0 and x1, and ``threshold`` attains it
    delta: float
    threshold: float  # of the rule "world 1 where score > threshold"
    rates: Rates  # the exact (FPR, FNR) of such a rule for any threshold
    score: Callable[[Any], jax.Array]  # of one release

    def play(self, key: jax.Array, audits: int, half: int) -> np.ndarray:
        """Scores of complete audits, [2, audits, half]: releases of the mechanism as shipped."""

        def release(key: jax.Array, world: int) -> Any:
            return self.mechanism.apply(key, (self.x0, self.x1)[world])

        scores = play(key, release, self.score, audits * half, mesh=hosts.mesh("trials"))
        return scores.reshape(2, audits, half)


def atoms(losses: np.ndarray, world0: np.ndarray, world1: np.ndarray) -> Rates:
    """Returns the rates of a score that takes a few values only: ``losses``, with these probabilities in the two
    worlds."""

    def rates(threshold: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        above = losses > np.asarray(threshold)[..., None] + 1e-3  # scores are float32
        return np.sum(world0 * above, axis=-1), np.sum(world1 * ~above, axis=-1)

    return rates


def _known(name: str, mechanism: Mechanism, x0: Any, x1: Any, threshold: float, rates: Rates) -> Known:
    assert mechanism.claim is not None
    score = distinguish.likelihood_ratio.fit(jax.random.key(0), mechanism, x0, x1)
    return Known(name, mechanism, x0, x1, *mechanism.claim[:2], threshold, rates, score)


def equal_inputs() -> Known:
    """Nothing leaks, and the score is as good as continuous."""
    mechanism, x = laplace.mechanism(epsilon=1.0, clip_norm=1.0), jnp.zeros(1)

    def rates(threshold: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.full(np.shape(threshold), 0.5), np.full(np.shape(threshold), 0.5)  # any two with sum 1

    return Known("equal inputs", mechanism, x, x, 0.0, 0.0, 0.0, rates, jnp.sum)


def coin(epsilon: float) -> Known:
    """Randomised response."""
    lie = 1 / (1 + math.exp(epsilon))
    rates = atoms(np.array([-epsilon, epsilon]), np.array([1 - lie, lie]), np.array([lie, 1 - lie]))
    mechanism = randomized_response.mechanism(epsilon=epsilon)
    return _known(f"randomised response, ε = {epsilon:g}", mechanism, 0, 1, 0.0, rates)


def double_exponential(epsilon: float) -> Known:
    """Laplace noise on the grid of the mechanism: -L against L."""
    scale = 2 / epsilon
    step = 2.0 ** math.floor(math.log2(scale / laplace.STEPS))
    fall = math.exp(-step / scale)

    def beyond(steps: np.ndarray) -> np.ndarray:
        """Pr[noise >= steps]."""
        tail = fall ** np.where(steps >= 0, steps, 1 - steps) / (1 + fall)
        return np.where(steps >= 0, tail, 1 - tail)

    def rates(threshold: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        first = np.floor(np.asarray(threshold) * scale / 2 / step + 1e-3) + 1  # the first release of world 1's side
        first = np.where(threshold < -epsilon, -np.inf, np.where(threshold >= epsilon - 1e-6, np.inf, first))
        return beyond(first + 1 / step), 1 - beyond(first - 1 / step)

    mechanism = laplace.mechanism(epsilon=epsilon, clip_norm=1.0)
    pair = (jnp.array([-1.0]), jnp.array([1.0]))
    return _known(f"Laplace, ε = {epsilon:g}", mechanism, *pair, 0.999 * epsilon, rates)


def normal(epsilon: float, delta: float) -> Known:
    """Gaussian noise: -L against L, mu = 2 L/sigma standard deviations apart."""
    mu = 2 / gaussian.noise_std(epsilon=epsilon, delta=delta, clip_norm=1.0)

    def rates(threshold: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        middle = np.asarray(threshold) / mu
        return ndtr(-middle - mu / 2), ndtr(middle - mu / 2)

    mechanism = gaussian.mechanism(epsilon=epsilon, delta=delta, clip_norm=1.0)
    pair = (jnp.array([-1.0]), jnp.array([1.0]))
    return _known(f"Gaussian, ε = {epsilon:g}, δ = {delta:g}", mechanism, *pair, epsilon, rates)


def sphere(epsilon: float, degrees: int) -> Known:
    """LDP-SGD on two gradients of norm L in ten dimensions."""
    angle = math.radians(degrees)
    x0 = jnp.zeros(10).at[0].set(1.0)
    x1 = jnp.zeros(10).at[0].set(math.cos(angle)).at[1].set(math.sin(angle))
    pair = oracle.Pair(np.ones(()), np.ones(()), np.asarray(angle))
    world0, world1 = oracle.wedges(pair, epsilon=epsilon, clip_norm=1.0).T
    rates = atoms(np.array([epsilon, 0, 0, -epsilon]), world0, world1)
    mechanism = ldp_sgd.mechanism(epsilon=epsilon, clip_norm=1.0)
    return _known(f"LDP-SGD at {degrees}°, ε = {epsilon:g}", mechanism, x0, x1, epsilon / 2, rates)
