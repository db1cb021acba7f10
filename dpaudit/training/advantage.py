"""Does publishing more leak more? Two attacks on the same networks, each judged by rules that have not seen them.

Every network is guessed by a rule that was chosen on the other half of them; an attack's advantage is

    1 - FPR - FNR = P(guess D' | D') - P(guess D' | D),

0 for one who guesses, 1 for one who knows. Both attacks have the same halves and guess the same networks, so what the
networks have in common cancels in their difference. Several ways of halving are averaged.

**It is an estimate with an approximate interval, and bounds no epsilon**, for which there is :mod:`membership`. That
bound hangs on the rarest errors, this counts all guesses, so it tells attacks apart with far fewer networks. It speaks
of these two on this target, by rules that were chosen on half of the networks.

Source: Yeom et al. 2018 ([7] of paper 003), the membership advantage; Chernozhukov et al. 2018, "Double/debiased
machine learning", Definition 3.3: what the variance of several ways of halving is.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.stats import t as student

from dpaudit import check
from dpaudit.training import membership, threshold_search

LEAST = 4  # networks of each world: two in a half
HALVINGS = 5

Guess = Callable[[np.ndarray], np.ndarray]  # statistics [m, k] -> [m] booleans, D' or not


class Difference(NamedTuple):
    """By how much one attack's advantage exceeds another's."""

    first: float  # advantage in [-1, 1]; below 0 where guesses were worse than none
    second: float
    difference: float  # second - first
    low: float  # of the interval for the difference
    high: float


def thresholds(statistics: np.ndarray, member: np.ndarray) -> Guess:
    """The attack of Algorithm 2: the rule of the largest advantage, of both kinds and all subsets of the columns.

    Args:
      statistics: [n, k], larger for members; +inf allowed.
      member: [n] booleans, trained on D'; at least one of each.
    """
    positives = int(member.sum())
    negatives = len(member) - positives
    value = 1 - np.arange(negatives + 1)[:, None] / negatives - np.arange(positives + 1) / positives
    found = threshold_search.search(statistics, member, value, subsets=[range(statistics.shape[1])])
    return max(found.values(), key=lambda best: best.value).rule.guesses


def likelihood_ratio(features: np.ndarray, member: np.ndarray) -> Guess:
    """The attack of :func:`membership.audit_likelihood_ratio`, its threshold chosen for the largest advantage.

    Args:
      features: [n, k], finite, such as from :func:`membership.gaussian_features`.
      member: as for :func:`thresholds`.
    """
    score = membership.likelihood_ratio(check.finite(features=features), member)
    guess = thresholds(score(features)[:, None], member)
    return lambda points: guess(score(points)[:, None])


def compare(
    key: jax.Array,
    first: Any,
    second: Any,
    member: Any,
    *,
    attack: Callable[[np.ndarray, np.ndarray], Guess] = thresholds,
    confidence: float = 0.95,
) -> Difference:
    """The difference of two advantages, with an interval from the paired guesses.

    With d_i = (second's guess of network i) - (first's), 1 for D' and 0 for D, and means and variances over the
    networks of each world, a way h of halving them says

        difference_h = mean_1(d) - mean_0(d),    se_h^2 = var_1(d)/n_1 + var_0(d)/n_0.

    The difference is the mean over five ways, with se^2 = mean_h(se_h^2 + (difference_h - difference)^2), whose last
    term is for the luck of choosing a rule, and Student's t with min(n_0, n_1) - 1 degrees of freedom. Each variance
    counts a d of +1 and one of -1 besides, so that few networks of which all are guessed alike do not pass for
    certainty.

    A ``first`` of zeros tells nothing, and the difference is the second's advantage. More columns are more rules to
    choose from: with few networks the choice may cost more than they give away, so a difference below 0 does not show
    that publishing them is safe.

    Args:
      key: JAX random key, consumed; decides the halves, drawn within each world.
      first, second: [n, k] and [n, l], the same networks in the same order: the columns that an attacker sees, as from
        :func:`membership.statistics`, :func:`membership.of_loss` or :func:`membership.gaussian_features`.
      member: [n] booleans, trained on D'; at least four of each.
      attack: ``attack(statistics, member) -> guess``, for both: :func:`thresholds`, :func:`likelihood_ratio` or
        another.
      confidence: of the interval, in (0, 1).

    Returns:
      :class:`Difference`.

    Raises:
      InputError: a value out of range, shapes that do not fit, too few networks.
    """
    first, member = threshold_search.checked(first, member, name="first")
    if np.shape(second)[:1] != member.shape:
        raise check.expected("second", f"shape [{len(member)}, l] as first", f"shape {list(np.shape(second))}")
    second, _ = threshold_search.checked(second, member, name="second")
    worlds = ~member, member
    sizes = np.array([world.sum() for world in worlds])
    if sizes.min() < LEAST:
        wanted = f"at least {LEAST} networks of each world"
        raise check.expected("member", wanted, f"{sizes[0]} of D and {sizes[1]} of D'")
    check.open_unit(confidence=confidence)

    found = []
    for way in jax.random.split(check.key(key=key), HALVINGS):
        half = membership.halves(way, member)
        guesses = [_guesses(attack, statistics, member, half) for statistics in (first, second)]
        apart = guesses[1] - guesses[0]
        variances = [np.var(np.append(apart[world], [1.0, -1.0]), ddof=1) / world.sum() for world in worlds]
        found.append((*(_gain(guess, member) for guess in guesses), sum(variances)))
    gains, others, variances = np.array(found).T
    difference = float(np.mean(others - gains))
    error = np.sqrt(np.mean(variances + (others - gains - difference) ** 2))
    margin = float(student.ppf((1 + confidence) / 2, sizes.min() - 1) * error)
    return Difference(float(gains.mean()), float(others.mean()), difference, difference - margin, difference + margin)


def _guesses(
    attack: Callable[[np.ndarray, np.ndarray], Guess], statistics: np.ndarray, member: np.ndarray, half: np.ndarray
) -> np.ndarray:
    """[n] of 0 and 1: each half guessed by the rule that was chosen on the other."""
    guesses = np.empty(len(member))
    for chosen in (half, ~half):
        guesses[~chosen] = attack(statistics[chosen], member[chosen])(statistics[~chosen])
    return guesses


def _gain(guesses: np.ndarray, member: np.ndarray) -> float:
    """The advantage of guesses [n] of 0 and 1; of their differences, the difference of advantages."""
    return float(guesses[member].mean() - guesses[~member].mean())
