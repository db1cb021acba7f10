"""Computes what each pair of inputs of ``sniper_mechanisms`` can show at most, by quadrature in float64.

For a release with countably many outcomes that is the largest |ln P0(outcome)/P1(outcome)|; for a density, its
supremum. Integrals over a Laplace or exponential variable are midpoint sums over its quantiles.
"""

import itertools
from collections.abc import Callable

import numpy as np
from scipy import stats

from experiments.trust import sniper_mechanisms as mechanisms
from experiments.trust.sniper_mechanisms import ABORTED, EPSILON, FALSE, TRUE

POINTS = 8_000  # of a quadrature


def quantiles(law: stats.rv_continuous, scale: float) -> np.ndarray:
    """Equally likely representatives of a law, [POINTS]."""
    return law.ppf((np.arange(POINTS) + 0.5) / POINTS) * scale


def argmax_law(x: np.ndarray, law: stats.rv_continuous, scale: float) -> np.ndarray:
    """P[argmax of x + noise = i], [n]: the i-th noise is v, and every other stays below x_i + v."""
    noise = quantiles(law, scale)[:, None]
    below = [law.cdf(x[i] + noise - np.delete(x, i), scale=scale).prod(1).mean() for i in range(len(x))]
    return np.array(below)


def pattern_law(
    x: np.ndarray, patterns: np.ndarray, *, threshold: float, threshold_scale: float, query_scale: float
) -> np.ndarray:
    """P[pattern] of sparse vector answers with one noisy threshold: patterns [m, n] of TRUE, FALSE, ABORTED -> [m].

    Given the threshold, the queries are independent; what follows an abortion is certain.
    """
    bar = threshold + quantiles(stats.laplace, threshold_scale)
    reached = x - bar[:, None]
    above = stats.laplace.cdf(reached, scale=query_scale) if query_scale else (reached >= 0).astype(float)
    chances = np.ones((POINTS, len(patterns)))
    for i in range(len(x)):
        column = patterns[:, i]
        chances *= np.where(column == ABORTED, 1.0, np.where(column == TRUE, above[:, i, None], 1 - above[:, i, None]))
    return chances.mean(0)


def first_true(n: int) -> np.ndarray:
    """All patterns of n answers that abort after the first TRUE, [n + 1, n]."""
    index = np.arange(n)
    rows = [np.where(index < i, FALSE, np.where(index == i, TRUE, ABORTED)) for i in range(n + 1)]
    return np.array(rows)


def all_bits(n: int) -> np.ndarray:
    """All patterns of n answers that never abort, [2^n, n]."""
    return np.array(list(itertools.product((FALSE, TRUE), repeat=n)))


def svt3_log_density(
    x: np.ndarray, *, epsilon: float = EPSILON, threshold: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """(values [grid], ln density of svt3's release [n, grid]): entry (i, v) for the first TRUE at i, of value v.

    The answer at i is v, the noisy threshold is at most v, and all answers before i are below that threshold.
    """
    scale, step = 2 / epsilon, 1e-3
    noise = np.arange(-30, 30, step) * scale
    weight = stats.laplace.pdf(noise, scale=scale) * step * scale  # of the threshold's noise
    values, rows = noise + threshold, []
    for answer in x:
        rows.append(stats.laplace.logpdf(values - answer, scale=scale) + np.log(np.cumsum(weight)))
        weight = weight * stats.laplace.cdf(values - answer, scale=scale)
    return values, np.array(rows)


def largest_ratio(p0: np.ndarray, p1: np.ndarray) -> float:
    """max |ln p0/p1| over outcomes that are possible at all; infinite where one of the two is zero."""
    possible = (p0 > 0) | (p1 > 0)
    with np.errstate(divide="ignore"):
        return float(np.abs(np.log(p0[possible]) - np.log(p1[possible])).max())


def _sparse(patterns: Callable[[int], np.ndarray], threshold: float, bar: float, query: float) -> Callable:
    settings = {"threshold": threshold, "threshold_scale": bar / EPSILON, "query_scale": query / EPSILON}
    return lambda x: pattern_law(x, patterns(len(x)), **settings)


LAWS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "truncated_geometric": lambda x: mechanisms.truncated_geometric_pmf(int(x[0])),
    "report_noisy_max1": lambda x: argmax_law(x, stats.laplace, 2 / EPSILON),
    "report_noisy_max2": lambda x: argmax_law(x, stats.expon, 2 / EPSILON),
    "svt1": _sparse(first_true, 0.5, 2, 4),
    "svt2": _sparse(first_true, 1.0, 2, 4),
    "svt4": _sparse(first_true, 1.0, 4, 4 / 3),
    "svt5": _sparse(all_bits, 1.0, 2, 0),
    "svt6": _sparse(all_bits, 1.0, 2, 2),
}


def pair_epsilon(name: str, x0: np.ndarray, x1: np.ndarray) -> float | None:
    """Returns the epsilon that the pair attains under the best test; None where it was not worked out."""
    if name in LAWS:
        return largest_ratio(LAWS[name](x0), LAWS[name](x1))
    moved = np.abs(x0 - x1).sum()
    if name in ("laplace", "noisy_hist1", "laplace_parallel", "prefix_sum"):  # shifted Laplace noise, 20 x 0.005 = 0.1
        return float(EPSILON * moved)
    if name == "noisy_hist2":
        return float(moved / EPSILON)
    if name in ("rappor", "one_time_rappor"):
        differing = np.sum(mechanisms.bloom_filter(int(x0[0])) != mechanisms.bloom_filter(int(x1[0])))
        kept = {"rappor": 0.55 * 0.625 + 0.45 * 0.375, "one_time_rappor": 0.525}[name]
        return float(differing * np.log(kept / (1 - kept)))
    if name == "report_noisy_max3":  # the lowest maxima: every entry has to be that low
        return float(max(EPSILON / 2 * abs(np.sum(x0 - x1)), EPSILON / 2 * np.abs(x0 - x1).max()))
    if name == "report_noisy_max4":
        return np.inf if x0.max() != x1.max() else None
    if name == "svt3":
        return float(np.abs(svt3_log_density(x0)[1] - svt3_log_density(x1)[1]).max())
    return None
