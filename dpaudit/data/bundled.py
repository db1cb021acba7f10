"""The data sets that come with scikit-learn, and the fixed split of those that have no official one."""

from typing import Any

import numpy as np

# scikit-learn takes a second to import, so it is imported where it is used


def digits(split: str) -> tuple[np.ndarray, np.ndarray]:
    """1,797 handwritten digits ``[n, 8, 8, 1]``, whole numbers 0 to 16 scaled to [0, 1]; 1,437 train, 360 test."""
    from sklearn.datasets import load_digits

    bunch: Any = load_digits()
    rows = stratified(bunch["target"], split, train_size=1437)
    return bunch["images"][rows, :, :, None] / 16, bunch["target"][rows]


def breast_cancer(split: str) -> tuple[np.ndarray, np.ndarray]:
    """569 biopsies ``[n, 30]``, 0 malignant and 1 benign; 390 train, 179 test, the sizes of paper 001."""
    from sklearn.datasets import load_breast_cancer

    bunch: Any = load_breast_cancer()
    rows = stratified(bunch["target"], split, train_size=390)
    return bunch["data"][rows], bunch["target"][rows]


def stratified(labels: np.ndarray, split: str, *, train_size: int) -> np.ndarray:
    """Row numbers, in order, of one side of a fixed split: each class has its share, the permutation has seed 0.

    Args:
      labels: ``[n]``.
      split: ``"train"`` or ``"test"``.
      train_size: records in train; the rest is test.
    """
    from sklearn.model_selection import train_test_split

    rows = np.arange(len(labels))
    train, test = train_test_split(rows, train_size=train_size, stratify=labels, random_state=0)
    return np.sort(train if split == "train" else test)
