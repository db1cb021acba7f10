"""Predicts the error rates of an audit's attack on mechanisms that lose more than the audited one.

With equally many trials, audits of Laplace noise and of Gaussian noise do not detect the same losses: the best event
of Laplace noise attains epsilon with probability 1/2, that of Gaussian noise at a small delta is rare. The smallest
loss that an audit would have detected therefore depends on the mechanism. It is computed for a family of mechanisms
that lose more than the audited one: :func:`event` keeps the probability of the event that the attack looks for,
:func:`gaussian` and :func:`laplace` lower the noise, as :func:`spread` does of a loss that the attack sees a part of.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.special import bdtr, bdtrik, ndtr

from dpaudit import _validate
from dpaudit.auditing.bounds import gdp, plan, threshold
from dpaudit.auditing.bounds.estimate import epsilon_from_rates, upper_bound

ALIKE = 0.75  # both events of a rule show about as much from this ratio on
CHANCE = 2.0  # standard errors of their difference, within which they pass for equal
THRESHOLDS = np.linspace(-5.0, 5.0, 101)  # standard deviations from the middle between both means
NODES = 24  # equally likely counts of false positives
CHOICES = 24  # simulated choices of a threshold
BETWEEN = 10  # thresholds for each of which rates were seen
DISTINCT = 15  # thresholds with rates of their own, from which on a score hardly ever repeats

GAUSSIAN = "the best threshold for Gaussian noise"
SPREAD = "an attack that sees no more of a loss than this one does"
PART = "an attack that sees as little of a loss as this one may"

Rates = tuple[np.ndarray, np.ndarray]
Refuted = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Alternative(NamedTuple):
    """A family of mechanisms with increasing loss, by the error rates of an audit's attack.

    Attributes:
      rates: ``rates(epsilon) -> (fpr, fnr)``, each [k]: of k equally likely rules that the audit would choose for the
        mechanism that loses epsilon.
      name: in words, for tables.
    """

    rates: Callable[[float], Rates]
    name: str


def event(fpr: float, fnr: float, *, delta: float = 0.0, trials: float = np.inf) -> Alternative:
    """Extrapolates a rule's error rates to larger losses, keeping the probability of its better event.

    The rule's events, "world 1" and "world 0", show s1 = ln((1 - delta - FNR)/FPR) and s0 = ln((1 - delta - FPR)/FNR).
    If one shows much more than the other, as the tail of Laplace noise does, a mechanism that loses epsilon gives that
    event the same probability b in its own world and (b - delta) e^-epsilon in the other, unless the other event would
    then show more than epsilon: b is at most (1 + delta e^-epsilon)/(1 + e^-epsilon). If both show about as much,
    as in randomised response, they continue to do so: FPR = FNR = (1 - delta)/(1 + e^epsilon) if they are equal.

    Args:
      fpr, fnr: of the rule, as seen; in [0, 1].
      delta: of every epsilon.

    Raises:
      InputError: a rate out of range.
    """
    _validate.probability(delta=delta)
    for name, rate in (("fpr", fpr), ("fnr", fnr)):
        if not 0 <= rate <= 1:
            raise _validate.expected(name, "a rate in [0, 1]", rate)
    whole = 1 - delta
    shown1, shown0 = _log_ratio(whole - fnr, fpr), _log_ratio(whole - fpr, fnr)
    says1 = shown1 >= shown0  # the better event is "world 1"
    most, least = max(shown1, shown0), max(min(shown1, shown0), 0.0)
    kept = max(1 - fnr if says1 else 1 - fpr, delta)
    if least >= ALIKE * most > 0:
        errors = ((rate, 1 / max(rate, 1e-12) - 1 / max(whole - rate, 1e-12)) for rate in (fpr, fnr))
        spread = np.sqrt(sum(rate * (1 - rate) * slope**2 for rate, slope in errors) / trials)
        least = most if most - least <= CHANCE * spread else least

    def rates(epsilon: float) -> Rates:
        rarer = np.exp(-epsilon)
        if least >= ALIKE * most > 0:  # a = (whole - b) rarer and b = (whole - a) rarer^(least/most)
            other = np.exp(-epsilon * least / most)
            both = whole / (1 - rarer * other)
            wrong, missed = both * rarer * (1 - other), both * other * (1 - rarer)
        else:
            own = min(kept, (1 + delta * rarer) / (1 + rarer))
            wrong, missed = max(own - delta, 0.0) * rarer, 1 - own
        wrong, missed = np.array([wrong]), np.array([missed])
        return (wrong, missed) if says1 else (missed, wrong)

    return Alternative(rates, f"a rule like this one, with FPR {fpr:.2g} and FNR {fnr:.2g}")


def gaussian(aside: int, *, delta: float, confidence: float) -> Alternative:
    """Extrapolates Gaussian noise: the mechanism that loses epsilon at ``delta`` has two normal scores mu apart.

    Which threshold the trials set aside would choose is simulated from one fixed seed: a small delta needs rare
    events, whose counts vary much.

    Args:
      aside: trials of each world on which the threshold is chosen.
      delta: of every epsilon, > 0: at 0 no Gaussian noise has a finite loss.
      confidence: of the bound.

    Raises:
      InputError: delta out of range.
    """
    _validate.open_unit(delta=delta)
    _validate.at_least(1, aside=aside)

    settings: dict[str, Any] = {"delta": delta, "confidence": confidence}
    return Alternative(
        lambda epsilon: _normal(float(gdp.mu_from_epsilon(epsilon, delta)), aside, **settings), GAUSSIAN
    )


def spread(aside: int, *, mu: float, epsilon: float, delta: float, confidence: float) -> Alternative:
    """Extrapolates a loss that is spread over many coordinates, whose sum has normal scores.

    Of a mechanism that loses t times ``epsilon`` the scores lie t times as far apart, mu t in standard deviations. No
    threshold shows all of such a loss, as rare events do in which every coordinate agrees.

    Args:
      aside, delta, confidence: as for :func:`gaussian`; delta may be 0.
      mu: how far apart the scores of a mechanism that loses ``epsilon`` are, > 0.
      epsilon: in nats, > 0.

    Raises:
      InputError: aside below 1.
    """
    _validate.at_least(1, aside=aside)

    settings: dict[str, Any] = {"delta": delta, "confidence": confidence}
    return Alternative(lambda true: _normal(mu * true / epsilon, aside, **settings), SPREAD)


def in_part(worse: Alternative, share: float) -> Alternative:
    """Extrapolates an attack that shows a share of any loss, in (0, 1], as another one would show it whole."""
    share = max(share, 1e-9)
    return Alternative(lambda true: worse.rates(share * true), worse.name if share == 1 else PART)


def _normal(mu: float, aside: int, **settings: Any) -> Rates:
    """Returns the rates of thresholds that trials set aside would choose for normal scores this far apart."""
    fpr, fnr = 1 - ndtr(THRESHOLDS + mu / 2), ndtr(THRESHOLDS - mu / 2)  # of a score, in each world
    return _chosen(fpr, fnr, aside, **settings, averaged=True)


def laplace(aside: int, *, delta: float, confidence: float) -> Alternative:
    """Extrapolates Laplace noise: the mechanism that loses epsilon at ``delta`` has less of it.

    Args:
      aside, delta, confidence: as for :func:`gaussian`; delta may be 0.

    Raises:
      InputError: aside below 1.
    """
    _validate.at_least(1, aside=aside)
    settings: dict[str, Any] = {"delta": delta, "confidence": confidence}

    def rates(epsilon: float) -> Rates:
        pure = _pure(epsilon, delta)
        places = pure / 2 + THRESHOLDS
        fpr, fnr = _laplace_above(places), 1 - _laplace_above(places - pure)
        return _chosen(fpr, fnr, aside, **settings, averaged=True)

    return Alternative(rates, "the best threshold for Laplace noise")


def looks_laplace(fpr: Any, fnr: Any, *, shown: float, delta: float) -> bool:
    """Tells whether Laplace noise that shows as much has error rates within all bounds that were measured.

    Args:
      fpr, fnr: (low, high) of both rates at several thresholds, [2, t] each.
      shown: epsilon that the best threshold shows, in nats.
      delta: of epsilon.
    """
    (least, most), (lowest, highest) = np.asarray(fpr, np.float64), np.asarray(fnr, np.float64)
    pure = max(_pure(shown, delta), 0.0)
    if len(np.unique(fpr, axis=1)[0]) < DISTINCT or not np.isfinite(pure):
        return False
    first, last = (1 - _laplace_above(_laplace_place(rate) - pure) for rate in (least, most))  # the curve falls
    return bool(((last <= highest) & (first >= lowest)).all())


def _pure(epsilon: float, delta: float) -> float:
    """Returns the epsilon at delta 0 of Laplace noise that loses ``epsilon`` at ``delta``: the least delta at epsilon
    is 1 - exp((epsilon - pure)/2)."""
    return epsilon - 2 * float(np.log1p(-delta))


def _laplace_above(x: np.ndarray) -> np.ndarray:
    """Returns the probability that a standard Laplace number is above x."""
    tail = 0.5 * np.exp(-np.abs(x))
    return np.where(x > 0, tail, 1 - tail)


def _laplace_place(rate: np.ndarray) -> np.ndarray:
    """Returns x with this probability above it."""
    with np.errstate(divide="ignore"):
        return np.where(rate < 0.5, -np.log(2 * rate), np.log(2 * (1 - rate)))


def of_curve(
    fpr: Any, fnr: Any, aside: int, *, shown: float, delta: float, confidence: float, trials: float = np.inf
) -> Alternative:
    """Extrapolates a score's error rates at several thresholds to larger losses, as :func:`event` does for one.

    A threshold that shows a fraction of the mechanism's loss keeps showing that fraction.

    Which threshold the trials set aside would choose is simulated from one fixed seed: with few trials it is often
    one that looked good by chance.

    Args:
      fpr, fnr: at the thresholds, [t], in any order.
      aside: trials of each world on which the threshold is chosen.
      shown: epsilon that the best of them shows, in nats.
      delta: of every epsilon.
      confidence: of the bound.
      trials: as for :func:`event`.

    Raises:
      InputError: a value out of range.
    """
    _validate.at_least(1, aside=aside)
    fpr, fnr = np.unique(np.stack([-np.asarray(fpr, np.float64), np.asarray(fnr, np.float64)]), axis=1)
    averaged = len(fpr) >= DISTINCT
    if averaged:
        whole = np.concatenate([[1.0], -fpr, [0.0]]), np.concatenate([[0.0], np.maximum.accumulate(fnr), [1.0]])
        between = np.linspace(0, len(fpr) + 1, BETWEEN * (len(fpr) + 1) + 1)[1:-1]
        fpr, fnr = (np.interp(between, np.arange(len(fpr) + 2), rate) for rate in whole)
    else:
        fpr = -fpr
    rules = [event(float(a), float(b), delta=delta, trials=trials) for a, b in zip(fpr, fnr, strict=True)]
    part = np.minimum(epsilon_from_rates(fpr, fnr, delta) / max(shown, 1e-9), 1.0).tolist()

    def rates(epsilon: float) -> Rates:
        each = np.array([rule.rates(epsilon * own) for rule, own in zip(rules, part, strict=True)])[..., 0]
        wrong, missed = np.minimum.accumulate(each[:, 0]), np.maximum.accumulate(each[:, 1])
        return _chosen(wrong, missed, aside, delta=delta, confidence=confidence, averaged=averaged)

    return Alternative(rates, f"the threshold that {aside:,} trials of each world would choose")


def _chosen(fpr: np.ndarray, fnr: np.ndarray, aside: int, **settings: Any) -> Rates:
    """Simulates, from one fixed seed, which rule so many trials of each world would choose among thresholds with these
    true rates, rising; returns the rates of each choice."""
    draws = np.random.default_rng(0)
    cells = (np.diff(below, prepend=0.0, append=1.0) for below in (1 - fpr, fnr))
    below0, below1 = (np.cumsum(draws.multinomial(aside, cell, CHOICES), axis=1)[:, :-1] for cell in cells)
    best, above = threshold.best(aside - below0, aside - below1, aside, **settings)
    return np.where(above, fpr[best], 1 - fpr[best]), np.where(above, fnr[best], 1 - fnr[best])


def normal(aside: int, *, mu: float, delta: float, confidence: float) -> Alternative:
    """Returns one mechanism, of normal scores this far apart, whatever it loses.

    Args:
      aside, delta, confidence: as for :func:`gaussian`; delta may be 0.
      mu: in standard deviations, >= 0.

    Raises:
      InputError: aside below 1.
    """
    _validate.at_least(1, aside=aside)
    settings: dict[str, Any] = {"delta": delta, "confidence": confidence}
    return Alternative(lambda _: _normal(mu, aside, **settings), "normal scores")


def power(
    alternative: Alternative,
    epsilon: float,
    claimed: float,
    negatives: int,
    positives: int,
    *,
    delta: float,
    confidence: float,
    refuted: Refuted | None = None,
) -> float:
    """Returns the probability that an audit calls the mechanism of the family that loses ``epsilon`` a violation.

    The mean over the rules it may choose and over equally likely numbers of false positives; given these, the
    probability of few enough false negatives.

    Args:
      alternative: the family.
      epsilon: the true loss in nats.
      claimed: the promised loss in nats.
      negatives, positives: counted trials of world 0 and of world 1.
      delta, confidence: those of the bound.
      refuted: ``refuted(false_positives, false_negatives)``, of whole numbers of any shape; None for the bounds of
        Clopper and Pearson.
    """
    if refuted is not None:
        return _power(alternative.rates(epsilon), negatives, positives, refuted)
    fpr, fnr = (np.asarray(rate, np.float64)[:, None] for rate in alternative.rates(epsilon))
    alpha, shares = (1 - confidence) / 2, (np.arange(NODES) + 0.5) / NODES
    counts, place = np.unique(_quantile(shares, negatives, fpr), return_inverse=True)
    high = upper_bound(counts, negatives, alpha=alpha)
    steep = np.exp(min(claimed, 700.0))
    allowed = np.maximum((1 - delta - high) / steep, 1 - delta - high * steep)  # FNR bounded below it: a violation
    inside = np.clip(allowed, 1e-300, 1 - 1e-16)
    # so many false negatives have an upper bound below it: Pr[Binomial(n, allowed) <= k] < alpha
    most = np.where(allowed > 0, np.ceil(_real_quantile(alpha, positives, inside)) - 1, -1.0)
    most = most[place].reshape(len(fpr), NODES)
    seen = np.where(most >= 0, bdtr(np.maximum(most, 0), positives, fnr), 0.0)
    return float(seen.mean())


def _power(rates: Rates, negatives: int, positives: int, refuted: Refuted) -> float:
    """Returns the share of equally likely pairs of counts that are refuted, over all rules."""
    shares = (np.arange(NODES) + 0.5) / NODES
    false_positives = _quantile(shares, negatives, rates[0][:, None])[:, :, None].astype(int)
    false_negatives = _quantile(shares, positives, rates[1][:, None])[:, None, :].astype(int)
    return float(np.mean(refuted(false_positives, false_negatives)))


def detectable(
    alternative: Alternative,
    claimed: float,
    negatives: int,
    positives: int,
    *,
    delta: float,
    confidence: float,
    refuted: Refuted | None = None,
) -> float:
    """Finds the smallest loss of the family that is called a violation with probability 0.8; infinite where there is
    none.

    Args:
      alternative: the family.
      claimed: the promised loss in nats.
      negatives, positives: counted trials of world 0 and of world 1.
      delta, confidence, refuted: as for :func:`power`.
    """
    settings: dict[str, Any] = {"delta": delta, "confidence": confidence, "refuted": refuted}
    return plan.smallest_seen(
        lambda epsilon: power(alternative, epsilon, claimed, negatives, positives, **settings), claimed
    )


def _real_quantile(share: Any, trials: int, rate: np.ndarray) -> np.ndarray:
    """Returns the real k with Pr[Binomial(trials, rate) <= k] = share, at least -1."""
    found = bdtrik(share, trials, rate)
    return np.where(np.isnan(found), -1.0, found)


def _quantile(share: Any, trials: int, rate: np.ndarray) -> np.ndarray:
    """Returns the smallest count k with Pr[Binomial(trials, rate) <= k] >= share; rates, [k, 1], may come twice."""
    rate, place = np.unique(rate, return_inverse=True)
    return _smallest_count(share, trials, rate[:, None])[place.ravel()]


def _smallest_count(share: Any, trials: int, rate: np.ndarray) -> np.ndarray:
    return np.clip(np.ceil(_real_quantile(share, trials, np.clip(rate, 0.0, 1.0))), 0, trials)


def _log_ratio(likely: float, rare: float) -> float:
    """Returns ln(likely/rare), with both rates raised to at least 1e-12."""
    return float(np.log(max(likely, 1e-12)) - np.log(max(rare, 1e-12)))
