import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.training.dropout import publishing
from dpaudit.training.dropout.publishing import MeanStd

MEAN = np.array([[0.7, 0.2, 0.1], [0.4, 0.4, 0.2], [0.1, 0.3, 0.6], [0.55, 0.35, 0.1]])
LABELS = np.array([0, 0, 1, 0])  # right, undecided, wrong, right


def test_quantise_by_hand_and_makes_ties_exact() -> None:
    found = publishing.quantise(MeanStd(jnp.array([0.014, 0.0151, 0.996]), jnp.array([0.26, -0.26])), 0.01)
    np.testing.assert_allclose(found.mean, [0.01, 0.02, 1.0], rtol=1e-6)
    np.testing.assert_allclose(found.std, [0.26, -0.26], rtol=1e-6)
    values = np.random.default_rng(0).uniform(size=1_000).astype(np.float32)
    for unit in (0.001, 0.03, 0.1):
        rounded = np.asarray(publishing.quantise(values, unit))
        assert np.abs(rounded - values).max() <= unit / 2 + 1e-6
        assert len(np.unique(rounded)) == len(np.unique(np.rint(values.astype(np.float64) / unit)))


def test_labels_and_accuracy_by_hand() -> None:
    np.testing.assert_array_equal(publishing.label_only(MEAN), [0, publishing.UNDECIDED, 2, 0])
    assert publishing.accuracy(MEAN, LABELS) == (0.5, 0.25)
    assert publishing.accuracy(publishing.quantise(MEAN, 0.5), LABELS) == (0.25, 0.75)  # .5/0, 0.5/0.5, tie, .5/.5
    np.testing.assert_array_equal(publishing.label_only(np.stack([MEAN, MEAN[:, ::-1]])[1]), [2, -1, 0, 2])


def test_calibration_error_against_a_loop() -> None:
    rng = np.random.default_rng(0)
    mean, labels = rng.dirichlet([1, 1, 2], size=500), rng.integers(3, size=500)
    mean[0] = [1, 0, 0]
    for bins in (1, 10):
        wanted = 0.0
        for b in range(bins):
            chosen = [i for i in range(500) if b / bins < max(mean[i]) <= (b + 1) / bins]
            if chosen:
                right = sum(int(np.argmax(mean[i]) == labels[i]) for i in chosen) / len(chosen)
                wanted += len(chosen) / 500 * abs(right - sum(max(mean[i]) for i in chosen) / len(chosen))
        assert publishing.calibration_error(mean, labels, bins=bins) == pytest.approx(wanted, rel=1e-9)
    # By hand: confidences 0.7 and 0.55 right, 0.4 undecided and 0.6 wrong, two bins: ]0, 1/2] and ]1/2, 1].
    assert publishing.calibration_error(MEAN, LABELS, bins=2) == pytest.approx((0.4 + abs(2 - 1.85)) / 4)


def test_auroc_against_all_pairs() -> None:
    rng = np.random.default_rng(1)
    mean, labels = rng.dirichlet([1, 1, 1], size=60), rng.integers(3, size=60)
    scores = rng.integers(8, size=60) / 8  # with ties
    wrong = mean.argmax(axis=1) != labels
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[wrong] for b in scores[~wrong]]
    assert publishing.error_auroc(scores, mean, labels) == pytest.approx(np.mean(pairs), rel=1e-12)
    assert publishing.error_auroc([0.1, 0.9, 0.8, 0.2], MEAN, LABELS) == 1.0
    assert math.isnan(publishing.error_auroc(scores, mean, mean.argmax(axis=1)))


def test_uncertainties_by_hand() -> None:
    np.testing.assert_allclose(publishing.entropy([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]), [math.log(2), 0.0])
    std = np.arange(12).reshape(4, 3)
    np.testing.assert_array_equal(publishing.std_of_prediction(MEAN, std), [0, 3, 8, 9])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: publishing.quantise(MEAN, 0.0), "unit: expected a finite number > 0, got 0.0"),
        (
            lambda: publishing.accuracy(MEAN, LABELS[:2]),
            r"labels: expected shape \[4\], one per input, got shape \[2\]",
        ),
        (
            lambda: publishing.accuracy([[0.5, 0.5], [0.3, 0.7]], [-1, 1]),  # no class is not the label of a tie
            r"labels: expected classes 0..1, got -1",
        ),
        (
            lambda: publishing.accuracy(MEAN[0], LABELS),
            r"mean: expected an array of shape \[n, k\] .* got shape \[3\]",
        ),
        (lambda: publishing.calibration_error(MEAN, LABELS, bins=0), "bins: expected a whole number >= 1, got 0"),
        (
            lambda: publishing.error_auroc([0.1], MEAN, LABELS),
            r"uncertainty: expected shape \[4\], one per input, got",
        ),
        (
            lambda: publishing.error_auroc([0, 0, 0, math.nan], MEAN, LABELS),
            "uncertainty: expected finite numbers, got",
        ),
    ],
)
def test_refuses(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(_validate.InputError, match=message):
        call()
