"""Composes the privacy loss of one pair of runs: of Gaussian and Laplace noise, and of random choices."""

import math
from collections import Counter
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import numpy as np
from dp_accounting.pld import privacy_loss_distribution
from scipy import integrate, stats

from dpaudit.mechanisms.claim import Claim

DISTINCT = 16  # most different Laplace ratios that are composed
INTERVAL = 1e-3  # of the discretised losses of Laplace noise with a delta
FINEST = 20_000  # steps of the whole loss
SLACK = 1e-6  # relative
GRID = np.linspace(0.0, 12.0, 49)  # epsilons at which a curve is compared


class Loss(NamedTuple):
    """The composed privacy loss of independent releases.

    Attributes:
      mu: of all Gaussian noise together, |difference| / deviation in the L2 norm.
      ratios: of Laplace noise, |difference| / scale of each coordinate.
      pure: epsilon of choices at random, added up.
      apart: the probability with which some release of one world cannot occur in the other.
      least: whether what is not exact is rounded down, for a lower bound, or up; losses are rounded down either way.
    """

    mu: float = 0.0
    ratios: tuple[float, ...] = ()
    pure: float = 0.0
    apart: float = 0.0
    least: bool = False

    def epsilon(self, delta: float) -> float:
        """Returns the least epsilon at this delta, infinity if there is none.

        It is exact for only Laplace noise without a delta, for a single Laplace noise, and for only Gaussian noise.
        Otherwise losses are rounded down to multiples of 0.001, or of a 20,000th of the whole loss, which makes
        epsilon too small by at most that much for each noise; and more than 16 different ratios are rounded to 16, up,
        or down for a lower bound.
        """
        if self.apart > delta:
            return math.inf
        if not self.least:  # what is apart takes its part of delta; a lower bound may leave those releases out
            delta = (delta - self.apart) / (1 - self.apart)
        total = math.fsum(self.ratios)
        if delta == 0.0:
            return math.inf if self.mu else total + self.pure
        if not self.ratios:
            return (Claim.gaussian(self.mu).epsilon_at(delta) if self.mu else 0.0) + self.pure
        if not math.isfinite(total + self.mu):
            return math.inf
        counted = Counter(_rounded(np.array([float(f"{ratio:.9g}") for ratio in self.ratios]), self.least).tolist())
        if not self.mu and list(counted.values()) == [1]:
            return max(0.0, total + 2 * math.log1p(-delta)) + self.pure
        found = _composed(float(f"{self.mu:.9g}"), tuple(sorted(counted.items()))).get_epsilon_for_delta(delta)
        return min(float(found), math.inf if self.mu else total) + self.pure

    def exceeds(self, claim: Claim) -> bool:
        """Tells whether this loss is more than the claim allows; curves are compared at 49 values of epsilon."""
        if not claim.is_curve:
            return self.epsilon(claim.delta) > claim.epsilon * (1 + SLACK)
        if self.apart > claim.delta_at(float(GRID[-1])):
            return True
        promised = [(e, claim.delta_at(float(e))) for e in GRID]
        return any(self.epsilon(d * (1 + SLACK)) > e * (1 + SLACK) + 1e-9 for e, d in promised if 1e-12 < d < 1)


def _rounded(ratios: np.ndarray, least: bool) -> np.ndarray:
    """Rounds ratios to at most 16 different ones, up, or down to the ``least``; each stands for an equal share."""
    if len(np.unique(ratios)) <= DISTINCT:
        return ratios
    ratios = np.sort(ratios)
    share = np.cumsum(ratios) / ratios.sum()
    group = np.minimum((DISTINCT * share).astype(int), DISTINCT - 1)
    ends = [ratios[group == one][0 if least else -1] for one in np.unique(group)]
    return np.asarray(ends)[np.unique(group, return_inverse=True)[1]]


@lru_cache(64)
def _composed(mu: float, ratios: tuple[tuple[float, int], ...]) -> privacy_loss_distribution.PrivacyLossDistribution:
    """Composes Gaussian noise and Laplace noise of these ratios, each with its number of repetitions."""
    how: dict[str, Any] = {"pessimistic_estimate": False, "use_connect_dots": False}
    how["value_discretization_interval"] = max(INTERVAL, sum(ratio * count for ratio, count in ratios) / FINEST)
    parts = [
        privacy_loss_distribution.from_laplace_mechanism(1 / ratio, **how).self_compose(count)
        for ratio, count in ratios
    ]
    parts += [privacy_loss_distribution.from_gaussian_mechanism(1 / mu, **how)] if mu else []
    return reduce(lambda one, other: one.compose(other), parts)


def apart(shifts: list[tuple[str, float]], *, least: bool) -> float:
    """Returns the probability with which some uniform or exponential noise has a value that cannot occur in the other
    world.

    Args:
      shifts: the law of each noise, and how far it is shifted in units of its scale.
      least: bound it from below; exponential noise is apart in one of both worlds only, by the sign of its shift.
    """
    uniform, kept = 1.0, {True: 1.0, False: 1.0}
    for law, shift in shifts:
        if law == "uniform":
            uniform *= max(0.0, 1 - abs(shift))
        else:
            kept[shift > 0] *= math.exp(-abs(shift))
    return 1 - uniform * (min(kept.values()) if least else math.prod(kept.values()))


def two_scales(law: str, centre0: float, scale0: float, centre1: float, scale1: float, epsilon: float) -> float:
    """Returns delta at this epsilon between noise of one law at two locations and scales, in the worse direction."""
    of = {"laplace": stats.laplace, "gaussian": stats.norm}[law]
    first, second = of(centre0, abs(scale0)), of(centre1, abs(scale1))
    reach = 40 * max(abs(scale0), abs(scale1)) + abs(centre0 - centre1)
    middle = (centre0 + centre1) / 2
    places = np.unique(
        np.concatenate([middle + reach * np.sinh(np.linspace(-8, 8, 4001)) / np.sinh(8), [centre0, centre1]])
    )
    p, q = first.pdf(places), second.pdf(places)
    both = (np.maximum(one - math.exp(epsilon) * other, 0.0) for one, other in ((p, q), (q, p)))
    return float(max(integrate.trapezoid(one, places) for one in both))


def choice(law: str, draws: int, then: dict, now: dict) -> float | None:
    """Bounds the epsilon between so many random choices with different parameters; None if it is not known."""
    try:
        if law == "choice":
            p, q = (np.asarray(one["p"], float) for one in (then, now))
            if p.shape != q.shape or then.get("replace", True) != now.get("replace", True):
                return math.inf
        elif law == "binomial":
            n = int(then["n"])
            if n != int(now["n"]):
                return math.inf
            p, q = (stats.binom.pmf(np.arange(n + 1), n, float(one["p"])) for one in (then, now))
        else:
            return None
    except (KeyError, TypeError, ValueError):
        return None
    if then.get("replace", True):
        return between(p, q) * draws
    # what is left after a draw has a share that changes by a mean of the log-ratios
    return between(p, q) + max(0, draws - 1) * float(np.ptp(_log_ratios(p, q)))


def between(p: np.ndarray, q: np.ndarray) -> float:
    """Returns max |log p/q| over outcomes that occur."""
    return float(np.max(np.abs(_log_ratios(p, q))))


def _log_ratios(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    occurs = (p > 0) | (q > 0)
    with np.errstate(divide="ignore"):
        return np.log(p[occurs]) - np.log(q[occurs])
