"""Computes trade-off functions: the lowest false negative rate that a promise allows at a false positive rate.

A test of P (world 0) against Q (world 1) has error rates (fpr, fnr) = (a, b). A promise is a convex curve f with
b >= f(a) for every test, or equivalently all pairs (epsilon, delta) with ::

    delta(epsilon) = max over a of 1 - f(a) - e^epsilon a
    f(a) = max over epsilon of 1 - delta(epsilon) - e^epsilon a

A maximum over only some values of epsilon lies below f, so it is still a valid, slightly weaker promise.

Source: Dong, Roth and Su 2022, Gaussian Differential Privacy, Definition 2.2 and Proposition 2.12.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, log_expit, log_ndtr, ndtr, ndtri

from dpaudit import _validate

LINES = 1000  # number of lines, all below it, that approximate a curve that is not a polygon
ENDS = 28.0  # the largest log-odds of a rate at which a line touches the curve: 1e-12
FARTHEST = 700.0  # the largest loss in nats, or its negative, whose exponential float64 holds
RESOLVED = 1e-13  # the least distance from 1 that a rate in float64 tells with three digits
ROUNDING = 1e-9  # error allowed in a user's points, which may be rounded in float64


class TradeOff(NamedTuple):
    """One direction of a promise.

    Attributes:
      fnr: ``fnr(fpr)``, the lowest false negative rate that is allowed, for rates in [0, 1] of any shape.
      delta: ``delta(epsilon)``, the least delta of the promise at this epsilon >= 0.
      epsilon: ``epsilon(delta)``, the least epsilon >= 0 at this delta in [0, 1); infinite if there is none.
    """

    fnr: Callable[[Any], np.ndarray]
    delta: Callable[[float], float]
    epsilon: Callable[[float], float]


def approximate(epsilon: float, delta: float) -> TradeOff:
    """Returns the curve of (epsilon, delta): max(0, 1 - delta - e^epsilon a, e^-epsilon (1 - delta - a)).

    Source: Wasserman and Zhou 2010, Theorem 2.4; Dong, Roth and Su 2022, Eq. (4).
    """
    corner = (1 - delta) * float(expit(-epsilon))
    lines = polygon(np.array([0.0, corner, 1 - delta, 1.0]), np.array([1 - delta, corner, 0.0, 0.0]))

    def delta_of(other: float) -> float:  # at and above epsilon delta itself, without rounding; below it the corner's
        corners = log_expit(-epsilon) - log_expit(-other)
        return delta if other >= epsilon else max(delta, -math.expm1(math.log1p(-delta) + corners))

    def epsilon_of(other: float) -> float:
        if other < delta:
            return math.inf
        share = (1 - other) / (1 - delta)
        left = share - (1 - share) * math.exp(-epsilon)
        return max(0.0, epsilon + math.log(left)) if left > 0 else 0.0

    return TradeOff(lines.fnr, delta_of, epsilon_of)


def gaussian(mu: float) -> TradeOff:
    """Returns the curve of N(0, 1) against N(mu, 1): Phi(Phi^-1(1 - a) - mu).

    Source: Dong, Roth and Su 2022, Eq. (6) and Corollary 2.13; Balle and Wang 2018, Theorem 8.
    """

    def fnr(fpr: Any) -> np.ndarray:
        return np.asarray(ndtr(-ndtri(np.asarray(fpr, np.float64)) - mu))

    def delta(epsilon: float) -> float:
        seen = math.exp(log_ndtr(mu / 2 - epsilon / mu))
        return max(0.0, seen - math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu)))

    def epsilon(delta: float) -> float:
        import dp_accounting  # takes as long to import as all of this package

        return float(dp_accounting.get_epsilon_gaussian(1 / mu, delta)) if delta > 0 else math.inf

    return TradeOff(fnr, delta, epsilon)


def polygon(fpr: np.ndarray, fnr: np.ndarray) -> TradeOff:
    """Returns the curve of straight lines between vertices whose fpr goes from 0 to 1."""
    ends = np.append(
        np.flatnonzero(np.diff(fpr) > 0), len(fpr) - 1
    )  # keep the lowest of the vertices that share an fpr
    x, y = fpr[ends], fnr[ends]

    def delta(epsilon: float) -> float:
        with np.errstate(over="ignore", invalid="ignore"):
            above = 1 - y - np.where(x > 0, np.exp(epsilon) * x, 0.0)
        return float(max(0.0, above.max()))

    def epsilon(delta: float) -> float:
        over = 1 - y - delta
        with np.errstate(divide="ignore", invalid="ignore"):
            needed = np.where(over > 0, np.log(over) - np.log(x), 0.0)
        return float(max(0.0, needed.max()))

    return TradeOff(lambda a: np.interp(a, x, y), delta, epsilon)


def vertices(fpr: Any, fnr: Any) -> tuple[np.ndarray, np.ndarray]:
    """Checks a user's curve and returns its vertices.

    Raises:
      InputError: points that are no trade-off curve: not from fpr 0 to fpr 1, rising, above 1 - fpr, not convex.
    """
    try:
        x, y = np.asarray(fpr, np.float64), np.asarray(fnr, np.float64)
    except (TypeError, ValueError):
        raise _validate.expected("fpr, fnr", "numbers", fpr) from None
    if x.ndim != 1 or x.shape != y.shape or len(x) < 2:
        raise _validate.expected(
            "fpr, fnr", "two lists of equal length >= 2", f"shapes {list(x.shape)}, {list(y.shape)}"
        )
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise _validate.expected("fpr, fnr", "finite numbers", "NaN or infinity")
    if x[0] != 0 or x[-1] != 1 or (np.diff(x) < 0).any():
        raise _validate.expected("fpr", "rates that rise from 0 to 1", x.tolist())
    if (y < 0).any() or (np.diff(y) > ROUNDING).any():
        raise _validate.expected("fnr", "rates >= 0 that never rise with fpr", y.tolist())
    above = y - (1 - x)
    if above.max() > ROUNDING:
        where = int(above.argmax())
        raise _validate.expected("fnr", f"at most 1 - fpr at fpr {x[where]:g}", float(y[where]))
    kinks = np.diff(y)[:-1] * np.diff(x)[1:] - np.diff(y)[1:] * np.diff(x)[:-1]  # slopes compared, without division
    if len(kinks) and kinks.max() > ROUNDING:
        raise _validate.expected("fnr", "a convex curve", f"a bend downward at fpr {x[1:-1][kinks.argmax()]:g}")
    return x, np.minimum(y, 1 - x)


def renyi(orders: Any, epsilons: Any) -> tuple[np.ndarray, np.ndarray]:
    """Turns bounds on the Renyi divergences in both directions into vertices just below the lowest b that they allow.

    A test's answer is a function of the release, so its divergences have the same bounds (data processing). For all
    orders::

        (1 - b)^alpha a^(1 - alpha) + b^alpha (1 - a)^(1 - alpha) <= e^((alpha - 1) epsilon_alpha)

    and the same with (1 - b, b) and (a, 1 - a) exchanged. The region that these inequalities allow is convex
    (the left side is jointly convex), and each of its points is a test of two coins that satisfies them, so the bounds
    imply nothing sharper. The vertices are those of tangents, which lie below the curve.

    Raises:
      InputError: orders that are not above 1, bounds that are negative or all infinite, lists of unequal or no length.

    Source: van Erven and Harremoes 2014, Theorems 9 and 11; for privacy Balle, Barthe, Gaboardi, Hsu and Sato 2020,
    Hypothesis testing interpretations and Renyi differential privacy.
    """
    try:
        alphas, bounds = np.asarray(orders, np.float64), np.asarray(epsilons, np.float64)
    except (TypeError, ValueError):
        raise _validate.expected("orders, epsilons", "numbers", orders) from None
    if alphas.ndim != 1 or alphas.shape != bounds.shape or not len(alphas):
        shapes = f"shapes {list(alphas.shape)}, {list(bounds.shape)}"
        raise _validate.expected("orders, epsilons", "two lists of equal length >= 1", shapes)
    if not (np.isfinite(alphas).all() and (alphas > 1).all()):
        raise _validate.expected("orders", "finite numbers > 1", alphas.tolist())
    if not (bounds >= 0).all() or not np.isfinite(bounds).any():
        raise _validate.expected("epsilons", "numbers >= 0, at least one of them finite", bounds.tolist())
    known = np.isfinite(bounds)
    alphas, bounds = alphas[known], bounds[known]
    far = np.geomspace(ENDS, FARTHEST, LINES // 4)[:0:-1]  # large losses occur at far smaller rates than delta
    a = expit(np.concatenate([-far, np.linspace(-ENDS, ENDS, LINES)]))
    if bounds.min() == 0:
        return np.array([0.0, 1.0]), np.array([1.0, 0.0])
    low, high = np.zeros_like(a), 1 - a  # b is allowed at 1 - a, and not below f(a)
    for _ in range(70):
        middle = (low + high) / 2
        kept = (_beyond(middle, a, alphas, bounds) <= 0).all(axis=(0, 1))
        low, high = np.where(kept, low, middle), np.where(kept, middle, high)
    touched = (low > 0) & (1 - low > RESOLVED)
    a, b = a[touched], low[touched]
    beyond = _beyond(b, a, alphas, bounds).reshape(2 * len(alphas), len(a))
    way, order = np.divmod(beyond.argmax(axis=0), len(alphas))
    slopes = np.where(way == 0, _slope(alphas[order], a, b), 1 / _slope(alphas[order], b, a))
    return from_lines(b - slopes * a, slopes)


def _beyond(b: np.ndarray, a: np.ndarray, alphas: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Computes by how much the divergences exceed their bounds: [2 directions, orders, points]."""
    alpha, found = alphas[:, None], []
    with np.errstate(divide="ignore"):
        worlds = [(np.log(a), np.log1p(-a)), (np.log1p(-b), np.log(b))]
    for q, p in (worlds, worlds[::-1]):
        terms = [alpha * of_p + (1 - alpha) * of_q for of_p, of_q in zip(p, q, strict=True)]
        found.append(np.logaddexp(*terms) / (alpha - 1) - bounds[:, None])
    return np.stack(found)


def _slope(alpha: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Computes db/da where the divergence of a coin p = 1 - b from a coin q = a is constant: G_q/G_p of its sum G."""
    up, down = np.log1p(-b) - np.log(a), np.log(b) - np.log1p(-a)  # log p/q and log (1 - p)/(1 - q)
    return (1 - alpha) / alpha * np.exp(up) * np.expm1(alpha * (down - up)) / np.expm1((alpha - 1) * (down - up))


def of_losses(losses: np.ndarray, shares: np.ndarray, infinite: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns vertices of a privacy loss distribution's curve, from lines whose slopes are -e^loss.

    Args:
      losses: on its grid, increasing.
      shares: their probabilities.
      infinite: the probability of an infinite loss.

    Source: Doroshenko et al. 2022: between grid points delta is linear in e^epsilon, so the maximum of all lines is
    exactly the distribution's curve. Losses above ``FARTHEST`` are taken for infinite.
    """
    shares, far = np.maximum(shares, 0.0), losses > FARTHEST
    infinite, shares = infinite + float(shares[far].sum()), np.where(far, 0.0, shares)
    if not shares.any():
        return np.array([0.0, 1.0]), np.zeros(2)
    kept = (np.abs(losses) < FARTHEST) | (shares > 0)
    losses, shares = np.maximum(losses[kept], -FARTHEST), shares[kept]
    above = infinite + np.cumsum(shares[::-1])[::-1]  # probability of a loss at least this large, in each world
    other = np.cumsum((shares * np.exp(-losses))[::-1])[::-1]
    below = np.cumsum(shares)
    wanted = np.searchsorted(below, expit(np.linspace(-ENDS, ENDS, LINES)) * below[-1])
    chosen = np.unique(np.concatenate([wanted, np.flatnonzero(shares > 0)[[0, -1]]]).clip(0, len(losses) - 1))
    slopes = np.exp(losses[chosen])
    return from_lines(1 - (above[chosen] - slopes * other[chosen]), -slopes)


def from_lines(intercepts: np.ndarray, slopes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the vertices of the maximum of some lines and of 0, for fpr in [0, 1]."""
    order = np.lexsort((intercepts, slopes))
    hull: list[tuple[float, float]] = []
    for slope, intercept in zip([*slopes[order], 0.0], [*intercepts[order], 0.0], strict=True):
        if slope > 0:
            continue
        while hull:
            last_slope, last = hull[-1]
            crossing = (last - intercept) / (slope - last_slope) if slope > last_slope else -math.inf
            left = _crossing(hull[-2], hull[-1]) if len(hull) > 1 else 0.0
            if crossing > left:
                break
            hull.pop()
        hull.append((float(slope), float(intercept)))
    crossings = [_crossing(first, second) for first, second in pairwise(hull)]
    values = [first[1] + first[0] * x for first, x in zip(hull[:-1], crossings, strict=True)]
    inside = [(x, y) for x, y in zip(crossings, values, strict=True) if 0 < x < 1]
    fpr = np.array([0.0, *(x for x, _ in inside), 1.0])
    fnr = np.array([hull[0][1], *(y for _, y in inside), 0.0])
    return fpr, np.clip(fnr, 0.0, 1 - fpr)


def _crossing(first: tuple[float, float], second: tuple[float, float]) -> float:
    return (first[1] - second[1]) / (second[0] - first[0])
