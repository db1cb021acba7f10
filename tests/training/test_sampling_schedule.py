"""Schedules keep to the participation that they declare, or are refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from dpaudit import InputError
from dpaudit.training.sampling import Participation, cyclic, scheduled, spaced

KEY = jax.random.key(3)


def rounds_of(sampling, rounds):
    """[rounds, examples]: how often each example takes part."""
    indices, weights = jax.vmap(lambda t: sampling.draw(KEY, t))(jnp.arange(rounds))
    counts = np.zeros((rounds, sampling.examples))
    np.add.at(counts, (np.arange(rounds)[:, None], np.asarray(indices)), np.asarray(weights))
    return counts


def test_a_schedule_is_followed_to_the_letter():
    sampling = scheduled([[2, 0], [-1, 3], [-1, -1], [0, 1]], examples=5, separation=3, most=2)
    expected = np.zeros((6, 5))
    expected[[0, 0, 1, 3, 3], [2, 0, 3, 0, 1]] = 1
    np.testing.assert_array_equal(rounds_of(sampling, 6), expected)  # the last two rounds are past the end: nobody
    assert sampling.draw(KEY, 1)[1].tolist() == [1.0, 0.0]  # padding behind
    assert sampling.participation(4) == Participation(4, 3, 2)
    assert sampling.participation(3) == Participation(3, 3, 1)
    assert (sampling.batch_size, sampling.capacity, sampling.examples) == (2, 2, 5)


@pytest.mark.parametrize("separation", [1, 5, 7])
def test_spaced_orders_are_random_and_keep_their_distance(separation):
    examples, size, rounds = 23, 3, 200  # 7 rounds an epoch, two examples left over
    sampling = spaced(KEY, examples, size, rounds, separation=separation)
    taken = rounds_of(sampling, rounds)
    assert (taken.sum(axis=1) == size).all()
    assert taken.max() == 1
    epochs = taken[: rounds // 7 * 7].reshape(-1, 7, examples).sum(axis=1)
    assert epochs.max() == 1
    gaps = np.concatenate([np.diff(np.flatnonzero(column)) for column in taken.T])
    assert gaps.min() == separation
    assert len(np.unique(gaps)) > 1
    assert taken.sum(axis=0).max() <= sampling.participation(rounds).most == 29
    other = rounds_of(spaced(jax.random.key(4), examples, size, rounds, separation=separation), rounds)
    assert not np.array_equal(taken, other)


def test_within_an_epoch_the_order_is_uniform():
    """Epochs of 4 rounds of 2 of 8: each example is in the first round in a quarter of them."""
    first = rounds_of(spaced(KEY, 8, 2, 4_000, separation=1), 4_000)[::4]
    error = np.sqrt(0.25 * 0.75 / len(first))
    assert np.abs(first.mean(axis=0) - 0.25).max() < 4 * error < 0.06
    together = (first[:, 0] * first[:, 1]).mean()
    assert abs(together - 2 / (8 * 7)) < 4 * np.sqrt(1 / 28 / len(first)) < abs(together - 1 / 16)


def test_spaced_by_a_whole_epoch_is_one_order_again_and_again():
    taken = rounds_of(spaced(KEY, 12, 3, 12, separation=4), 12)
    np.testing.assert_array_equal(taken[:4], taken[4:8])
    assert spaced(KEY, 12, 3, 12, separation=4).participation(12) == cyclic(12, 3).participation(12)


REPLACE, ADD_REMOVE = NeighboringRelation.REPLACE_ONE, NeighboringRelation.ADD_OR_REMOVE_ONE
TWICE = [[0, 1], [2, 3], [0, 2], [0, 1]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: scheduled(TWICE, examples=4, separation=2),
            "at least 2 rounds from one participation to the next, got 1 of example 0, in rounds 2 and 3",
        ),
        (
            lambda: scheduled([[1, 1]], examples=4),
            "at least 1 rounds from one participation to the next, got 0 of example 1, in rounds 0 and 0",
        ),
        (
            lambda: scheduled(TWICE, examples=4, most=2),
            "table: expected at most 2 participations, got 3 of example 0",
        ),
        (lambda: scheduled(TWICE, examples=3), r"table: expected examples in 0\.\.2, or -1 for nobody, got 3"),
        (lambda: scheduled([[-2]], examples=3), r"table: expected examples in 0\.\.2, or -1 for nobody, got -2"),
        (lambda: scheduled([0, 1], examples=3), r"table: expected whole numbers \[rounds, m\], got int64\[2\]"),
        (lambda: scheduled([[0.5]], examples=3), r"table: expected whole numbers \[rounds, m\], got float64\[1, 1\]"),
        (
            lambda: scheduled(TWICE, examples=4).participation(5),
            "rounds: expected at most the 4 of the schedule, got 5",
        ),
        (
            lambda: scheduled(TWICE, examples=4).event(1.0, 2, ADD_REMOVE),
            "neighbouring: expected replace for scheduled batches, got add_remove",
        ),
        (lambda: spaced(KEY, 23, 3, 10, separation=8), "separation: expected at most the 7 rounds of an epoch, got 8"),
        (lambda: spaced(KEY, 2, 3, 10, separation=1), "batch_size: expected at most 2, the number of examples, got 3"),
        (lambda: spaced(KEY, 5, 2, 0, separation=1), "rounds: expected a whole number >= 1, got 0"),
    ],
)
def test_what_is_declared_and_not_kept_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_steps_cost_as_many_gaussians_as_participations():
    event: Any = scheduled(TWICE, examples=4, most=3).event(2.0, 4, REPLACE)
    assert event.count == 3
    assert event.event.noise_multiplier == 2.0
