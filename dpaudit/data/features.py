"""Tables of numbers in units of their own, made fit for a network: from the training records' statistics alone."""

import numpy as np

from dpaudit import check


def standardised(train: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """(x - mean)/std of every feature, by the training records; 0 for a feature that never varies.

    The statistics are computed without noise: an accounting of what is trained on them leaves them out.

    Args:
      train: [n, features].
      inputs: [m, features].

    Returns:
      float32 [m, features].
    """
    mean, std = train.mean(axis=0, dtype=np.float64), train.std(axis=0, dtype=np.float64)
    return ((inputs - mean) / np.where(std > 0, std, np.inf)).astype(np.float32)


def one_hot_bins(train: np.ndarray, inputs: np.ndarray, *, bins: int) -> np.ndarray:
    """Which of ``bins`` parts a feature lies in, one-hot: parts with as many training records each, as ties allow.

    The quantiles are taken without noise, as above.

    Args:
      train: [n, features].
      inputs: [m, features].
      bins: >= 2.

    Returns:
      float32 [m, features * bins] of 0 and 1.

    Raises:
      InputError: fewer than two bins.
    """
    edges = np.quantile(train, np.arange(1, check.at_least(2, bins=bins)) / bins, axis=0)
    chosen = (inputs >= edges[:, None]).sum(axis=0)
    return np.eye(bins, dtype=np.float32)[chosen].reshape(len(inputs), -1)
