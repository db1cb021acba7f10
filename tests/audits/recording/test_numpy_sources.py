"""Recorded methods return what the methods of NumPy and of the module ``random`` return."""

import random

import numpy as np
import pytest

from dpaudit import record

TABLE = np.arange(12).reshape(3, 4)


def shuffled(rng, x):
    made = TABLE.copy()
    rng.shuffle(made, axis=1)
    return made


def into(rng, x):
    made = np.zeros_like(TABLE)
    assert rng.permuted(TABLE, axis=1, out=made) is made
    return made


COLUMNS = {
    "permutation": lambda rng, x: rng.permutation(TABLE, axis=1),
    "shuffle": shuffled,
    "choice": lambda rng, x: rng.choice(TABLE, 4, replace=False, axis=1),
}
EACH_ROW = {"permuted": lambda rng, x: rng.permuted(TABLE, axis=1), "out": into}


def returned(fn):
    """Returns what a function returned while it was recorded."""
    found = []
    record(lambda rng, x: found.append(np.array(fn(rng, x))), 0.0, 0.0, trials=0)
    return found[0]


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_are_moved_together(name):
    made = returned(COLUMNS[name])
    assert sorted(made.T.tolist()) == TABLE.T.tolist()
    assert made.T.tolist() != TABLE.T.tolist()


@pytest.mark.parametrize("name", EACH_ROW)
def test_each_row_is_permuted_on_its_own(name):
    made = returned(EACH_ROW[name])
    np.testing.assert_array_equal(np.sort(made, 1), TABLE)
    assert len({tuple(row % 4) for row in made}) > 1


def test_all_numbers_are_permuted():
    made = returned(lambda rng, x: rng.permuted(TABLE))
    np.testing.assert_array_equal(np.sort(made, None), TABLE.ravel())
    assert any(set(row // 4) != {0} and len(set(row // 4)) > 1 for row in made)


@pytest.mark.parametrize("method", ["standard_normal", "random", "standard_exponential"])
def test_numbers_have_the_type_that_was_asked_for(method):
    assert returned(lambda rng, x: getattr(rng, method)(3, dtype=np.float32)).dtype == np.float32
    assert returned(lambda rng, x: getattr(rng, method)(3)).dtype == np.float64


@pytest.mark.parametrize(
    "fn",
    [
        lambda rng, x: rng.permutation(x=[1, 2, 3]),
        lambda rng, x: random.sample(population=[1, 2, 3], k=3),
        lambda rng, x: [random.choice(seq=[1]), *random.choices(population=[2], weights=[1], k=1), 3],
    ],
)
def test_items_may_be_named(fn):
    assert sorted(returned(fn).tolist()) == [1, 2, 3]
