"""Records of several splits as one data set."""

from itertools import combinations

import numpy as np

from dpaudit import check
from dpaudit.data.sources import Dataset


def pooled(*datasets: Dataset) -> Dataset:
    """All records of several splits of one data set, in the order given, such as train and test of ``mnist``.

    An exact copy and one that went through JPEG are refused together: which copy a record is of can be read from its
    pixels, so an attack on membership would tell the copies apart and not the members.

    Args:
      datasets: at least one; the same name, shape of a record and number of classes.

    Returns:
      A :class:`Dataset` whose ``origin`` is those of its parts.

    Raises:
      InputError: no data set; two that differ; the same records twice.
    """
    if not datasets:
        raise check.expected("datasets", "at least one", "none")
    for one, other in combinations(datasets, 2):
        if one.lossy != other.lossy:
            wanted = "pixels that all went through JPEG, or none"
            raise check.expected("datasets", wanted, f"{one.label} with {other.label}")
        for what, of in _FACTS.items():
            if of(one) != of(other):
                raise check.expected("datasets", f"one {what}", f"{of(one)} with {of(other)}")
        if np.array_equal(one.inputs, other.inputs):
            raise check.expected("datasets", "different records", f"twice those of {one.origin}")
    first = datasets[0]
    return Dataset(
        first.name,
        np.concatenate([dataset.inputs for dataset in datasets]),
        np.concatenate([dataset.labels for dataset in datasets]),
        first.num_classes,
        " + ".join(dataset.origin for dataset in datasets),
        first.lossy,
    )


_FACTS = {
    "name": lambda dataset: dataset.name,
    "shape of a record": lambda dataset: list(dataset.inputs.shape[1:]),
    "number of classes": lambda dataset: dataset.num_classes,
}
