"""Who takes part in a step: the law of each way of sampling, and the events it may claim."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from scipy.stats import binom, chisquare

from dpaudit import InputError
from dpaudit.training.sampling import cyclic, fixed_size, participation, poisson, shuffled

KEY = jax.random.key(5)
ADD_REMOVE, REPLACE = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE


def participations(sampling, steps):
    """[steps, examples]: who takes part, one at most once a step."""
    indices, weights = jax.vmap(lambda t: sampling.draw(KEY, t))(jnp.arange(steps))
    counts = np.zeros((steps, sampling.examples))
    np.add.at(counts, (np.arange(steps)[:, None], np.asarray(indices)), np.asarray(weights))
    return counts


def deviation(counts, probability):
    """Largest distance of the rates of examples from ``probability``, in standard errors."""
    return np.abs(counts.mean(axis=0) - probability).max() / np.sqrt(probability * (1 - probability) / len(counts))


def test_poisson_examples_are_independent_coins_of_the_stated_rate():
    sampling = poisson(40, 8)
    taken = participations(sampling, 20_000)
    assert set(np.unique(taken)) == {0.0, 1.0}
    assert deviation(taken, 0.2) < 4 < deviation(taken, 0.22)
    sizes = np.bincount(taken.sum(axis=1).astype(int), minlength=41)
    law = binom.pmf(np.arange(41), 40, 0.2)
    middle = law > 1e-3
    assert chisquare(sizes[middle], law[middle] / law[middle].sum() * sizes[middle].sum()).pvalue > 1e-3
    neighbours = np.corrcoef(taken[:-1, 0], taken[1:, 0])[0, 1], np.corrcoef(taken[:, 0], taken[:, 1])[0, 1]
    assert np.abs(neighbours).max() < 4 / np.sqrt(20_000)


def test_poisson_puts_the_examples_that_take_part_in_front():
    weights = np.asarray(jax.vmap(lambda t: poisson(100, 20).draw(KEY, t)[1])(jnp.arange(50)))
    assert (np.diff(weights, axis=1) <= 0).all()
    assert weights.sum() > 0


def test_a_truncated_batch_is_a_random_subset():
    taken = participations(poisson(20, 10, capacity=10), 20_000)
    assert taken.sum(axis=1).max() == 10
    rate = np.minimum(np.arange(21), 10) @ binom.pmf(np.arange(21), 20, 0.5) / 20
    assert deviation(taken, rate) < 4 < deviation(taken, 0.5)


def test_the_default_capacity_is_practically_never_exceeded_and_not_wasteful():
    """1e-30 a step, as the docstring promises; by less than a tenth more room than the exact tail needs."""
    for examples, batch_size in ((50_000, 256), (4_000, 40), (200, 50), (10_000_000, 1_000)):
        capacity = poisson(examples, batch_size).capacity
        assert binom.logsf(capacity, examples, batch_size / examples) < np.log(1e-30)
        assert binom.logsf(int(0.9 * capacity), examples, batch_size / examples) > np.log(1e-30)
    assert poisson(10, 10).capacity == 10


def test_the_accounted_rate_is_the_rate_of_the_uniforms():
    event: Any = poisson(60_000, 7).event(1.0, 3, ADD_REMOVE)
    rate = event.event.sampling_probability
    assert rate * 2**23 == int(rate * 2**23)
    assert 0 <= rate - 7 / 60_000 < 2**-23


def test_fixed_size_takes_uniform_subsets():
    taken = participations(fixed_size(30, 6), 10_000)
    assert (taken.sum(axis=1) == 6).all()
    assert taken.max() == 1
    assert deviation(taken, 0.2) < 4 < deviation(taken, 0.22)


def test_shuffled_takes_each_example_once_an_epoch_in_a_new_order():
    sampling = shuffled(12, 5)  # two steps an epoch, two examples left out
    taken = participations(sampling, 2_000).reshape(1_000, 2, 12).sum(axis=1)
    assert taken.max() == 1
    assert (taken.sum(axis=1) == 10).all()
    assert deviation(taken, 10 / 12) < 4 < deviation(taken, 0.9)
    assert len(np.unique(taken, axis=0)) > 30


@pytest.mark.parametrize("make", [poisson, fixed_size, shuffled, cyclic])
def test_examples_take_part_no_more_often_than_promised(make):
    sampling, rounds = make(12, 5), 9
    promised = sampling.participation(rounds)
    draw = jax.vmap(jax.vmap(sampling.draw, (None, 0)), (0, None))
    indices, weights = draw(jax.random.split(KEY, 50), jnp.arange(rounds))
    taken = np.any((np.asarray(indices)[..., None] == np.arange(12)) & (np.asarray(weights)[..., None] > 0), axis=2)
    gaps = [np.diff(np.flatnonzero(column)) for run in taken for column in run.T]
    assert (promised.rounds, promised.separation) == (rounds, np.concatenate(gaps).min())
    most = taken.sum(axis=1).max()
    assert most <= promised.most
    assert most == promised.most or make in (poisson, fixed_size)


def test_cyclic_repeats_one_random_order():
    sampling = cyclic(12, 5)
    first, second, again = (sampling.draw(KEY, t)[0] for t in (0, 1, 4))
    assert len({*first.tolist(), *second.tolist()}) == 10
    assert np.array_equal(first, again)
    assert not np.array_equal(first, sampling.draw(jax.random.key(6), 0)[0])


@pytest.mark.parametrize("make", [poisson, fixed_size, shuffled])
def test_a_batch_depends_on_key_and_step_alone(make):
    sampling = make(50, 10)
    again = sampling.draw(KEY, 3)
    assert all(np.array_equal(a, b) for a, b in zip(sampling.draw(KEY, 3), again, strict=True))
    assert not np.array_equal(again[0], sampling.draw(KEY, 30)[0])
    assert not np.array_equal(again[0], sampling.draw(jax.random.key(6), 3)[0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: poisson(10, 11), "batch_size: expected at most 10, the number of examples, got 11"),
        (lambda: shuffled(10, 0), "batch_size: expected a whole number >= 1, got 0"),
        (lambda: fixed_size(0, 1), "examples: expected a whole number >= 1, got 0"),
        (lambda: participation(0), "rounds: expected a whole number >= 1, got 0"),
        (lambda: participation(5, separation=0), "separation: expected a whole number >= 1, got 0"),
        (lambda: participation(5, most=0), "most: expected a whole number >= 1, got 0"),
        (lambda: poisson(10, 4, capacity=3), r"capacity: expected a size in 4\.\.10, got 3"),
        (lambda: fixed_size(10, 2).event(1.0, 1, REPLACE), "accounting: expected rdp for batches of a fixed size"),
        (lambda: fixed_size(10, 2).renyi_event(1.0, 1, ADD_REMOVE), "neighbouring: expected replace for batches"),
        (lambda: shuffled(10, 2).event(1.0, 1, ADD_REMOVE), "neighbouring: expected replace for shuffled batches"),
        (lambda: poisson(10, 2).renyi_event(1.0, 1, REPLACE), "accounting: expected pld for Poisson batches under"),
        (lambda: poisson(10, 2, capacity=4).renyi_event(1.0, 1, ADD_REMOVE), "accounting: expected pld where Poisson"),
    ],
)
def test_what_is_not_true_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
