"""Compares what published statistics leak, by two attacks on the same networks, and how useful they remain.

Every network is guessed by a rule that was chosen on the other half of them; an attack's advantage is

    1 - FPR - FNR = P(guess D' | D') - P(guess D' | D),

0 for random guesses, 1 for perfect ones. Both attacks use the same halves and guess the same networks, so what the
networks have in common cancels in their difference. Several ways of halving are averaged (:func:`compare`).

**It is an estimate with an approximate interval, and bounds no epsilon**; for that use :mod:`membership`. That bound
depends on the rarest errors, while this counts all guesses, so it tells attacks apart with far fewer networks. It is
valid for these two attacks on this target, by rules that were chosen on half of the networks.

The usefulness of what is published, after rounding or at another softmax temperature
(``mc_dropout.probabilities(model, temperature=...)``)::

    published = quantise(MeanStd(found.mean, found.std), 0.01)  # found: mc_dropout.statistics
    accuracy(published.mean, labels), calibration_error(published.mean, labels)
    error_auroc(std_of_prediction(*published), published.mean, labels), error_auroc(entropy(published.mean), ...)

An input whose two highest classes are tied (after rounding) has no label and counts as an error.

Source: Yeom et al. 2018 ([7] of paper 003), the membership advantage; Chernozhukov et al. 2018, "Double/debiased
machine learning", Definition 3.3: what the variance of several ways of halving is.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import entr
from scipy.stats import t as student

from dpaudit import _validate
from dpaudit.training.dropout import membership, threshold_search

with _validate.extra("data"):
    from sklearn.metrics import roc_auc_score

LEAST = 4  # networks of each world: two in a half
HALVINGS = 5
UNDECIDED = -1  # the label of an input whose two highest classes are tied

Guess = Callable[[np.ndarray], np.ndarray]  # statistics [m, k] -> [m] booleans, D' or not


class Difference(NamedTuple):
    """The difference between two attacks' advantages."""

    first: float  # advantage in [-1, 1]; below 0 where guesses were worse than random
    second: float
    difference: float  # second - first
    low: float  # of the interval for the difference
    high: float


def thresholds(statistics: np.ndarray, member: np.ndarray) -> Guess:
    """Chooses the rule of Algorithm 2 with the largest advantage, of both kinds and all subsets of the columns.

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
    """Fits the attack of :func:`membership.audit_likelihood_ratio`, with the threshold of the largest advantage.

    Args:
      features: [n, k], finite, such as from :func:`membership.gaussian_features`.
      member: as for :func:`thresholds`.

    Raises:
      InputError: features that are not finite; otherwise as for :func:`membership.likelihood_ratio`.
    """
    score = membership.likelihood_ratio(_validate.finite(features=features), member)
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
    """Estimates the difference of two advantages, with an interval from the paired guesses.

    With d_i = (second's guess of network i) - (first's), 1 for D' and 0 for D, and means and variances over the
    networks of each world, a way h of halving them gives

        difference_h = mean_1(d) - mean_0(d),    se_h^2 = var_1(d)/n_1 + var_0(d)/n_0.

    The difference is the mean over five ways, with se^2 = mean_h(se_h^2 + (difference_h - difference)^2), whose last
    term covers the choice of a rule, and Student's t with min(n_0, n_1) - 1 degrees of freedom. Each variance also
    counts one d of +1 and one of -1, so that a few networks that are all guessed alike do not look certain.

    With a ``first`` of zeros, which carries no information, the difference is the second's advantage. More columns are
    more rules to choose from: with few networks the choice may cost more than the columns reveal, so a difference
    below 0 does not show that publishing them is safe.

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
        raise _validate.expected("second", f"shape [{len(member)}, l] as first", f"shape {list(np.shape(second))}")
    second, _ = threshold_search.checked(second, member, name="second")
    worlds = ~member, member
    sizes = np.array([world.sum() for world in worlds])
    if sizes.min() < LEAST:
        wanted = f"at least {LEAST} networks of each world"
        raise _validate.expected("member", wanted, f"{sizes[0]} of D and {sizes[1]} of D'")
    _validate.open_unit(confidence=confidence)

    found = []
    for way in jax.random.split(_validate.key(key=key), HALVINGS):
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
    """Guesses each half by the rule that was chosen on the other: [n] of 0 and 1."""
    guesses = np.empty(len(member))
    for chosen in (half, ~half):
        guesses[~chosen] = attack(statistics[chosen], member[chosen])(statistics[~chosen])
    return guesses


def _gain(guesses: np.ndarray, member: np.ndarray) -> float:
    """Computes the advantage of guesses [n] of 0 and 1; for differences of guesses, the difference of advantages."""
    return float(guesses[member].mean() - guesses[~member].mean())


class MeanStd(NamedTuple):
    """The published statistics: mean and standard deviation of the samples."""

    mean: Any  # [n, k]
    std: Any  # [n, k]


class Accuracy(NamedTuple):
    """Accuracy on n inputs."""

    accuracy: float  # share with the right label
    undecided: float  # share with no label


def quantise(values: Any, unit: float) -> Any:
    """Rounds to the nearest multiple of ``unit``, halves to even; equal multiples are equal numbers.

    Args:
      values: a pytree of arrays.
      unit: > 0.

    Raises:
      InputError: a unit out of range.

    Source: paper 003, section 4.2, research question 3.
    """
    _validate.positive(unit=unit)
    return jax.tree.map(lambda x: jnp.round(x / unit) * unit, values)


def label_only(mean: Any) -> np.ndarray:
    """Returns the class of the highest value of [n, k], ``UNDECIDED`` where two share it: [n] int."""
    mean = np.asarray(mean)
    highest = mean == mean.max(axis=-1, keepdims=True)
    return np.where(highest.sum(axis=-1) == 1, mean.argmax(axis=-1), UNDECIDED)


def accuracy(mean: Any, labels: Any) -> Accuracy:
    """Computes how often the highest value is the label's, and how often two tie for it (paper 003, Fig. 8(a)).

    Args:
      mean: [n, k], probabilities, n >= 1.
      labels: [n], integer.

    Raises:
      InputError: other shapes; a label that is no class.
    """
    mean, labels = _checked(mean, labels)
    found = label_only(mean)
    return Accuracy(float(np.mean(found == labels)), float(np.mean(found == UNDECIDED)))


def calibration_error(mean: Any, labels: Any, *, bins: int = 15) -> float:
    """Computes the calibration error: sum_b |B_b| / n |accuracy(B_b) - confidence(B_b)| over bins of the confidence.

    Bin b holds the inputs whose highest probability lies in ((b - 1)/bins, b/bins].

    Args:
      mean, labels: as for :func:`accuracy`.
      bins: >= 1.

    Raises:
      InputError: other shapes; a value out of range; a label that is no class.

    Source: Guo, Pleiss, Sun and Weinberger 2017, "On Calibration of Modern Neural Networks", Eq. (3).
    """
    mean, labels = _checked(mean, labels)
    bins = _validate.at_least(1, bins=bins)
    confidence, right = mean.max(axis=-1), label_only(mean) == labels
    inside = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)  # rounded values may leave [0, 1]
    gaps = np.bincount(inside, weights=right - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(labels))


def entropy(mean: Any) -> np.ndarray:
    """Computes -sum_j p_j ln p_j in nats: [n, k] -> [n]."""
    return entr(np.asarray(mean, np.float64)).sum(axis=-1)


def std_of_prediction(mean: Any, std: Any) -> np.ndarray:
    """Returns the standard deviation of the class with the highest mean, the first where tied: [n, k] twice -> [n]."""
    mean, std = np.asarray(mean), np.asarray(std, np.float64)
    return np.take_along_axis(std, mean.argmax(axis=-1)[..., None], axis=-1)[..., 0]


def error_auroc(uncertainty: Any, mean: Any, labels: Any) -> float:
    """Estimates P(a wrong prediction is less certain than a right one), ties one half; NaN where all are alike.

    Args:
      uncertainty: [n], larger for less certain, such as :func:`entropy` or :func:`std_of_prediction`.
      mean, labels: as for :func:`accuracy`.

    Raises:
      InputError: other shapes; a label that is no class; an uncertainty that is not finite.
    """
    mean, labels = _checked(mean, labels)
    uncertainty = np.asarray(_validate.finite(uncertainty=uncertainty), np.float64)
    if uncertainty.shape != labels.shape:
        raise _validate.expected("uncertainty", f"shape {list(labels.shape)}, one per input", list(uncertainty.shape))
    wrong = label_only(mean) != labels
    return float(roc_auc_score(wrong, uncertainty)) if 0 < wrong.sum() < wrong.size else float("nan")


def _checked(mean: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    mean, labels = np.asarray(mean, np.float64), np.asarray(labels)
    if mean.ndim != 2 or len(mean) < 1:
        raise _validate.expected("mean", "an array of shape [n, k] with n >= 1", f"shape {list(mean.shape)}")
    if labels.shape != mean.shape[:1]:
        raise _validate.expected("labels", f"shape [{len(mean)}], one per input", f"shape {list(labels.shape)}")
    if (strange := labels[~np.isin(labels, np.arange(mean.shape[1]))]).size:  # -1 would be the label of a tie
        raise _validate.expected("labels", f"classes 0..{mean.shape[1] - 1}", strange[0].item())
    return mean, labels
