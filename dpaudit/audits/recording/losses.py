"""Composes what the noise of one pair of runs gives away: Gaussian and Laplace noise, and choices at random."""

import math
from collections import Counter
from typing import NamedTuple

import numpy as np
from dp_accounting.pld import privacy_loss_distribution
from scipy import integrate, stats

from dpaudit.mechanisms.claim import Claim

DISTINCT = 16  # different Laplace ratios that are composed one by one
INTERVAL = 1e-3  # of the discretised losses of Laplace noise with a delta
SLACK = 1e-6  # relative
GRID = np.linspace(0.0, 12.0, 49)  # epsilons at which a curve is compared


class Loss(NamedTuple):
    """The composed privacy loss of independent releases.

    Attributes:
      mu: of all Gaussian noise together, |difference| / deviation in the L2 norm.
      ratios: of Laplace noise, |difference| / scale of each coordinate.
      pure: epsilon of choices at random, added up.
      apart: the probability with which some release of one world cannot occur in the other.
    """

    mu: float = 0.0
    ratios: tuple[float, ...] = ()
    pure: float = 0.0
    apart: float = 0.0

    def epsilon(self, delta: float) -> float:
        """Returns the least epsilon at this delta, infinity where there is none.

        It is exact for Laplace noise alone without a delta and for Gaussian noise alone. Otherwise losses are
        discretised, rounded down to multiples of 0.001, and the epsilon is that much too small at most for each
        different ratio.
        """
        if self.apart > delta:
            return math.inf
        total = math.fsum(self.ratios)
        if delta == 0.0:
            return math.inf if self.mu else total + self.pure
        if not self.ratios:
            return (Claim.gaussian(self.mu).epsilon_at(delta) if self.mu else 0.0) + self.pure
        if not math.isfinite(total + self.mu):
            return math.inf
        distribution = None
        counted = Counter(float(f"{ratio:.9g}") for ratio in self.ratios)
        for ratio, count in counted.most_common(DISTINCT):
            one = privacy_loss_distribution.from_laplace_mechanism(
                1 / ratio, value_discretization_interval=INTERVAL, pessimistic_estimate=False
            ).self_compose(count)
            distribution = one if distribution is None else distribution.compose(one)
        if self.mu:
            one = privacy_loss_distribution.from_gaussian_mechanism(
                1 / self.mu, value_discretization_interval=INTERVAL, pessimistic_estimate=False
            )
            distribution = one if distribution is None else distribution.compose(one)
        assert distribution is not None
        left = sum(ratio * count for ratio, count in counted.most_common()[DISTINCT:])
        return min(float(distribution.get_epsilon_for_delta(delta)) + left, math.inf if self.mu else total) + self.pure

    def exceeds(self, claim: Claim) -> bool:
        """Tells whether this is more than the claim allows; a curve is compared at 49 values of epsilon."""
        if not claim.is_curve:
            return self.epsilon(claim.delta) > claim.epsilon * (1 + SLACK)
        if self.apart > claim.delta_at(float(GRID[-1])):
            return True
        promised = [(e, claim.delta_at(float(e))) for e in GRID]
        return any(self.epsilon(d * (1 + SLACK)) > e * (1 + SLACK) + 1e-9 for e, d in promised if 1e-12 < d < 1)


def two_scales(law: str, centre0: float, scale0: float, centre1: float, scale1: float, epsilon: float) -> float:
    """Returns delta at this epsilon between the same noise at two places and of two scales, in the worse direction."""
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


def choice(law: str, then: dict, now: dict) -> float | None:
    """Returns the epsilon between two choices at random of different parameters, or None where it is not known."""
    try:
        if law == "choice":
            p, q = (np.asarray(one["p"], float) for one in (then, now))
            if p.shape != q.shape:
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
    return between(p, q)


def between(p: np.ndarray, q: np.ndarray) -> float:
    """Returns max |log p/q| over outcomes that occur."""
    occurs = (p > 0) | (q > 0)
    with np.errstate(divide="ignore"):
        return float(np.max(np.abs(np.log(p[occurs]) - np.log(q[occurs]))))
