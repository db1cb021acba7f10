"""Describes to the client's audit the randomizers that it can test: LDP-SGD, Gaussian noise and PrivUnit.

Each is one :class:`Randomizer`: how a release is made and read, and the exact rates of both tests. Nothing else in the
audit depends on which randomizer it is.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from scipy.special import ndtr

from dpaudit import _validate
from dpaudit.auditing.bounds import estimate, gdp, plan
from dpaudit.audits import engines, oracle, oracle_gaussian, oracle_privunit
from dpaudit.mechanisms import gaussian as gaussian_noise
from dpaudit.mechanisms import ldp_sgd as ldp_sgd_noise
from dpaudit.mechanisms import privunit as privunit_noise
from dpaudit.mechanisms import trade_off
from dpaudit.mechanisms.privunit import best_cap

Setting = dict[str, Any]


class Randomizer(NamedTuple):
    """A client's randomizer as its audit sees it. A setting is ``epsilon=, clip_norm=, dimension=``.

    Attributes:
      name: as in rows.
      delta: of the promise (epsilon, delta).
      offers: the engines that can play or compute it.
      randomize: ``randomize(key, x, *, epsilon, clip_norm) -> release``, the program that ``full`` runs.
      observe: for :func:`dpaudit.audits.engines.full`.
      cosine: ``cosine(pairs, **setting) -> (fpr, fnr)`` of the cosine rule, exact, one of each for a pair.
      optimal: ``optimal(pairs, **setting) -> OptimalTest``, exact.
      bounds: ``bounds(false_positives, false_negatives, negatives, positives, *, confidence) -> (low, high)``, the
        epsilon at delta that counts of the optimal test show.
      columns: ``columns(pairs, trials_per_world, confidence, **setting)``, further columns of a row.
    """

    name: str
    delta: float
    offers: tuple[str, ...]
    randomize: Callable[..., Any]
    observe: Callable[..., engines.Observer]
    cosine: Callable[..., tuple[np.ndarray, np.ndarray]]
    optimal: Callable[..., oracle.OptimalTest]
    bounds: Callable[..., tuple[Any, Any]]
    columns: Callable[..., dict[str, Any]]


def ldp_sgd() -> Randomizer:
    """Returns LDP-SGD (paper 000, Algorithm 1): the optimal test is the region in which the signs of <z, g> differ."""
    return Randomizer(
        name="ldp_sgd",
        delta=0.0,
        offers=("full", "plane", "exact", "kernel"),
        randomize=ldp_sgd_noise.randomize,
        observe=engines.signs,
        cosine=lambda pairs, *, dimension, **at: oracle.cosine_rates(pairs, **at),
        optimal=lambda pairs, *, dimension, **at: oracle.optimal_test(pairs, **at),
        bounds=partial(estimate.epsilon_bounds, delta=0.0),
        columns=lambda pairs, trials, confidence, **at: {},
    )


def gaussian(*, delta: float) -> Randomizer:
    """Returns the Gaussian client: clip to L, add N(0, sigma^2) for two updates 2 L apart (paper 002's message).

    It promises the whole trade-off curve of N(0, 1) against N(mu, 1), mu = 2 L/sigma, of which (epsilon, delta) is one
    point. Its optimal test is the likelihood ratio; counts that no mu as small as the promised one allows are a
    violation, and the epsilon of the optimal test is that of its mu at delta.

    Args:
      delta: of the promise, in (0, 1).

    Raises:
      InputError: delta out of range.
    """
    _validate.open_unit(delta=delta)

    def columns(pairs: oracle.Pair, trials: int, confidence: float, *, dimension: int, **at: Any) -> dict[str, Any]:
        mu = float(gdp.mu_from_epsilon(at["epsilon"], delta))
        rates = partial(oracle_gaussian.likelihood_rates, pairs, delta=delta, **at)
        allowed = trade_off.gaussian(mu).fnr
        bounds = partial(gdp.epsilon_bounds, delta=delta)
        known = {"noise_std": gaussian_noise.noise_std(delta=delta, **{k: at[k] for k in ("epsilon", "clip_norm")})}
        known |= {"mu": mu} | _optimal_columns(*rates(), float(ndtr(mu / 2)))
        return {"mechanism": "gaussian"} | known | _reach(trials, confidence, at["epsilon"], bounds, allowed, rates)

    return Randomizer(
        name="gaussian",
        delta=delta,
        offers=("full", "exact"),
        randomize=partial(_gaussian, delta=delta),
        observe=partial(_observe, sides=_likelier),
        cosine=lambda pairs, *, dimension, **at: oracle_gaussian.cosine_rates(pairs, delta=delta, **at),
        optimal=lambda pairs, *, dimension, **at: oracle_gaussian.optimal_test(pairs, delta=delta, **at),
        bounds=partial(gdp.epsilon_bounds, delta=delta),
        columns=columns,
    )


def privunit() -> Randomizer:
    """Returns PrivUnit: the optimal test is the region inside one gradient's cap and outside the other's."""

    def columns(pairs: oracle.Pair, trials: int, confidence: float, *, clip_norm: float, **at: Any) -> dict[str, Any]:
        best = oracle_privunit.optimal_test(pairs, **at)
        likely = 1 if best.pattern == 0 else 0

        def rates(true_epsilon: float | None = None) -> tuple[float, float]:
            both = oracle_privunit.wedges(pairs, true_epsilon=true_epsilon, **at).reshape(-1, 4, 2).mean(axis=0)
            return float(both[best.pattern, 1 - likely]), float(both[best.pattern, likely])

        opposite = oracle.Pair(np.array(1.0), np.array(1.0), np.array(np.pi))
        most = 1 - float(np.mean(oracle_privunit.cosine_rates(opposite, **at)))
        allowed = trade_off.approximate(at["epsilon"], 0.0).fnr
        bounds = partial(estimate.epsilon_bounds, delta=0.0)
        known = {"mechanism": "privunit"} | _optimal_columns(*rates(), most)
        return known | _reach(trials, confidence, at["epsilon"], bounds, allowed, rates)

    return Randomizer(
        name="privunit",
        delta=0.0,
        offers=("full", "exact"),
        randomize=_privunit,
        observe=partial(_observe, sides=_in_caps),
        cosine=lambda pairs, *, clip_norm, **at: oracle_privunit.cosine_rates(pairs, **at),
        optimal=lambda pairs, *, clip_norm, **at: oracle_privunit.optimal_test(pairs, **at),
        bounds=partial(estimate.epsilon_bounds, delta=0.0),
        columns=columns,
    )


def of(name: str, delta: float | None) -> Randomizer:
    """Returns the randomizer of this name.

    Args:
      name: ldp_sgd, gaussian or privunit.
      delta: of the promise; only Gaussian noise has one.

    Raises:
      InputError: another name; a delta where there is none, or none where there is one.
    """
    if _validate.one_of((*PURE, "gaussian"), mechanism=name) not in PURE:
        return gaussian(delta=_validate.open_unit(delta=delta))
    if delta is not None:
        raise _validate.expected("delta", f"none for {name}, which promises epsilon alone", delta)
    return PURE[name]()


def _optimal_columns(fpr: float, tpr: float, most: float) -> dict[str, float]:
    """Names the exact rates of the optimal test, and the most right guesses that the randomizer allows for any two
    updates, which may be fewer than (epsilon, delta) does."""
    return {"optimal_fpr": fpr, "optimal_tpr": tpr, "accuracy_most": most}


def _reach(
    trials: int,
    confidence: float,
    epsilon: float,
    bounds: Callable[..., Any],
    allowed: Callable[[Any], Any],
    rates: Callable[..., tuple[float, float]],
) -> dict[str, float]:
    """Computes the ceiling of the optimal test, and the smallest true epsilon that it calls a violation with
    probability 0.8 in this very setting; nothing without trials."""
    if not trials:
        return {}

    def seen(true_epsilon: float) -> float:
        fpr, tpr = rates(true_epsilon=true_epsilon)
        return plan.power_against(allowed, fpr, 1 - tpr, trials, trials, confidence=confidence)

    ceiling = float(bounds(0, 0, trials, trials, confidence=confidence)[0])
    return {"ceiling": ceiling, "detectable": plan.smallest_seen(seen, epsilon)}


PURE = {"ldp_sgd": ldp_sgd, "privunit": privunit}  # those that promise epsilon alone


def _gaussian(key: jax.Array, x: jax.Array, *, epsilon: float, clip_norm: float, delta: float) -> jax.Array:
    return gaussian_noise.mechanism(epsilon=epsilon, delta=delta, clip_norm=clip_norm).apply(key, x)


def _privunit(key: jax.Array, x: jax.Array, *, epsilon: float, clip_norm: float) -> jax.Array:
    del clip_norm
    return privunit_noise.mechanism(epsilon=epsilon).apply(key, x)


def _observe(
    randomize: Callable[..., Any], epsilons: Sequence[float], clip_norm: float, *, sides: Callable[..., engines.Sides]
) -> engines.Observer:
    """Returns an observer of a randomizer whose parameters are computed on the host, one branch for each epsilon."""
    branches = [partial(randomize, epsilon=epsilon, clip_norm=clip_norm) for epsilon in epsilons]

    def release(key: jax.Array, x: jax.Array, place: jax.Array) -> jax.Array:
        return jax.lax.switch(place, branches, key, x)

    return engines.Observer(Partial(release), Partial(partial(sides, epsilons, clip_norm)))


def _likelier(
    epsilons: Sequence[float], clip_norm: float, inner: engines.Sides, norms: engines.Sides, place: Any, dimension: int
) -> engines.Sides:
    """Tells whether the release is likelier under g1, and under g0, of two Gaussians of one width at c0 and c1."""
    del epsilons, place, dimension
    norm0, norm1 = (jnp.minimum(norm, clip_norm) for norm in norms)
    ahead = norm1 * inner[1] - norm0 * inner[0] - (norm1 - norm0) * (norm1 + norm0) / 2
    return ahead > 0, ahead < 0


def _in_caps(
    epsilons: Sequence[float], clip_norm: float, inner: engines.Sides, norms: engines.Sides, place: Any, dimension: int
) -> engines.Sides:
    """Tells whether the release lies in the cap around g1, and in the cap around g0."""
    del clip_norm, norms
    caps = [best_cap(dimension, epsilon) for epsilon in epsilons]
    edge = jnp.asarray([cap.gamma / cap.scale for cap in caps], inner[0].dtype)[place]
    return inner[1] >= edge, inner[0] >= edge
