"""What is published of a network's samples, and how useful it stays: a defence's other side.

published = quantise(MeanStd(found.mean, found.std), 0.01)  # found: mc_dropout.statistics
accuracy(published.mean, labels), calibration_error(published.mean, labels)
error_auroc(std_of_prediction(*published), published.mean, labels), error_auroc(entropy(published.mean), ...)

The softmax temperature, the other defence, is ``mc_dropout.probabilities(model, temperature=...)``. Where the two
highest classes are tied (after rounding), an input has no label: it counts as an error.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import entr
from sklearn.metrics import roc_auc_score

from dpaudit import check

UNDECIDED = -1


class MeanStd(NamedTuple):
    """The mean and the standard deviation of the samples only."""

    mean: Any  # [n, k]
    std: Any  # [n, k]


class Accuracy(NamedTuple):
    """Of n inputs."""

    accuracy: float  # share with the right label
    undecided: float  # share with no label


def quantise(values: Any, unit: float) -> Any:
    """The nearest multiple of ``unit``, halves to the even one; equal multiples are equal numbers.

    Args:
      values: a pytree of arrays.
      unit: > 0.

    Raises:
      InputError: a unit out of range.

    Source: paper 003, section 4.2, research question 3.
    """
    check.positive(unit=unit)
    return jax.tree.map(lambda x: jnp.round(x / unit) * unit, values)


def label_only(mean: Any) -> np.ndarray:
    """[n, k] -> [n] int: the class of the highest value, ``UNDECIDED`` where two share it."""
    mean = np.asarray(mean)
    highest = mean == mean.max(axis=-1, keepdims=True)
    return np.where(highest.sum(axis=-1) == 1, mean.argmax(axis=-1), UNDECIDED)


def accuracy(mean: Any, labels: Any) -> Accuracy:
    """How often the highest value is the label's, and how often there is none (paper 003, Fig. 8(a)).

    Args:
      mean: [n, k], probabilities, n >= 1.
      labels: [n], integer.

    Raises:
      InputError: other shapes.
    """
    mean, labels = _checked(mean, labels)
    found = label_only(mean)
    return Accuracy(float(np.mean(found == labels)), float(np.mean(found == UNDECIDED)))


def calibration_error(mean: Any, labels: Any, *, bins: int = 15) -> float:
    """sum_b |B_b| / n |accuracy(B_b) - confidence(B_b)| over bins ((b - 1)/bins, b/bins] of the highest probability.

    Args:
      mean, labels: as for :func:`accuracy`.
      bins: >= 1.

    Raises:
      InputError: other shapes; a value out of range.

    Source: Guo, Pleiss, Sun and Weinberger 2017, "On Calibration of Modern Neural Networks", Eq. (3).
    """
    mean, labels = _checked(mean, labels)
    bins = check.at_least(1, bins=bins)
    confidence, right = mean.max(axis=-1), label_only(mean) == labels
    inside = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)  # rounded values may leave [0, 1]
    gaps = np.bincount(inside, weights=right - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(labels))


def entropy(mean: Any) -> np.ndarray:
    """[n, k] -> [n]: -sum_j p_j ln p_j, in nats."""
    return entr(np.asarray(mean, np.float64)).sum(axis=-1)


def std_of_prediction(mean: Any, std: Any) -> np.ndarray:
    """[n, k], [n, k] -> [n]: the standard deviation of the class with the highest mean, of the first where tied."""
    mean, std = np.asarray(mean), np.asarray(std, np.float64)
    return np.take_along_axis(std, mean.argmax(axis=-1)[..., None], axis=-1)[..., 0]


def error_auroc(uncertainty: Any, mean: Any, labels: Any) -> float:
    """P(a wrong prediction is less certain than a right one), ties one half; NaN where all are right or all wrong.

    Args:
      uncertainty: [n], larger for less certain, such as :func:`entropy` or :func:`std_of_prediction`.
      mean, labels: as for :func:`accuracy`.

    Raises:
      InputError: other shapes; an uncertainty that is not finite.
    """
    mean, labels = _checked(mean, labels)
    uncertainty = np.asarray(check.finite(uncertainty=uncertainty), np.float64)
    if uncertainty.shape != labels.shape:
        raise check.expected("uncertainty", f"shape {list(labels.shape)}, one per input", list(uncertainty.shape))
    wrong = label_only(mean) != labels
    return float(roc_auc_score(wrong, uncertainty)) if 0 < wrong.sum() < wrong.size else float("nan")


def _checked(mean: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    mean, labels = np.asarray(mean, np.float64), np.asarray(labels)
    if mean.ndim != 2 or len(mean) < 1:
        raise check.expected("mean", "an array of shape [n, k] with n >= 1", f"shape {list(mean.shape)}")
    if labels.shape != mean.shape[:1]:
        raise check.expected("labels", f"shape [{len(mean)}], one per input", f"shape {list(labels.shape)}")
    return mean, labels
