"""Describes the three data sets of the paper, each with its network and batch, and loads them."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import flax.linen as nn
import numpy as np
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import KBinsDiscretizer, StandardScaler

from dpaudit import data
from experiments.paper001 import published
from experiments.paper001.networks import CancerNetwork, DiabetesNetwork, MNISTNetwork

OWNERS, CLIP_NORM, DELTA, EPSILONS = 3, 1.0, 1e-3, (0.5, 2.0, 8.0)

Prepared = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Task(NamedTuple):
    """What is learned, and how."""

    dataset: str  # its name in :mod:`dpaudit.data`
    model: nn.Module  # of one record
    prepared: Prepared  # ``prepared(train inputs, inputs)``, what the network is given
    examples: int  # m, of a batch
    epochs: int  # not in the paper's text
    learning_rate: float  # Adam's, not in the paper
    paper: dict[tuple[str, float | None], float]  # (scheme, epsilon) -> accuracy at the end, percent


class Records(NamedTuple):
    """One split, prepared."""

    inputs: np.ndarray
    labels: np.ndarray


def thirds(train: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """Which third of the training records each feature lies in, one-hot: float32 [m, 3 features] of 0 and 1."""
    bins: Any = KBinsDiscretizer(3, encode="onehot-dense", quantile_method="linear")
    return np.asarray(bins.fit(train).transform(inputs), np.float32)


def standardised(train: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """(x - mean)/std of every feature, by the training records: float32 [m, features]."""
    return np.asarray(StandardScaler().fit(train.astype(np.float64)).transform(inputs), np.float32)


TASKS = {
    "MNIST": Task("mnist", MNISTNetwork(), lambda _, inputs: inputs, 3_000, 30, 3e-3, published.ACCURACY["MNIST"]),
    "Cancer": Task("breast_cancer", CancerNetwork(), thirds, 30, 100, 3e-3, published.ACCURACY["Cancer"]),
    "Diabetes": Task("pima_diabetes", DiabetesNetwork(), standardised, 30, 100, 3e-3, published.ACCURACY["Diabetes"]),
}


@lru_cache(maxsize=1)
def load(name: str, data_dir: str | None, trial: int) -> tuple[Records, Records]:
    """(train, test) of a task: trial 0 has the data set's own split, a table's others have one each.

    Raises:
      InputError: the data are not there.
    """
    task = TASKS[name]
    sets = [data.load(task.dataset, split=split, data_dir=data_dir) for split in data.SPLITS]
    train, test = (Records(each.inputs, each.labels) for each in sets)
    if trial and train.inputs.ndim == 2:
        rows, labels = (np.concatenate(both) for both in zip(train, test, strict=True))
        split: Any = train_test_split(rows, labels, train_size=len(train.labels), stratify=labels, random_state=trial)
        train, test = Records(split[0], split[2]), Records(split[1], split[3])
    return Records(task.prepared(train.inputs, train.inputs), train.labels), Records(
        task.prepared(train.inputs, test.inputs), test.labels
    )
