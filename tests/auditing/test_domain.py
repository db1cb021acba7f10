"""Domains: what is drawn and what is brought back are neighbours, and every kind of pair is drawn."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit import _validate, domain

KEY = jax.random.key(2)
PAIRS = 200


def lengths(x, ord=2):
    return np.linalg.norm(x.reshape(len(x), -1).astype(np.float64), ord, axis=1)


@partial(jax.jit, static_argnums=0)
def _three(made, keys):
    drawn = jax.vmap(made.draw)(keys)
    back = jax.vmap(made.project)(jax.tree.map(lambda x: 3 * x + 1, drawn))
    return drawn, back, jax.vmap(made.project)(back)


def drawn_and_projected(made):
    """Pairs as drawn, and pairs brought back from far outside; both [PAIRS, ...]."""
    drawn, back, again = jax.tree.map(np.asarray, _three(made, jax.random.split(KEY, PAIRS)))
    jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, atol=1e-5), back, again)
    return drawn, back


@pytest.mark.parametrize("ord", [1, 2])
def test_ball(ord):
    drawn, back = drawn_and_projected(domain.ball((2, 3), 1.5, ord))
    for pair in (drawn, back):
        assert all(lengths(x, ord).max() <= 1.5 + 1e-5 for x in pair)
    short, long = np.quantile(lengths(drawn[0], ord), [0.1, 0.9])
    assert short < 0.3
    assert long > 1.2
    assert (lengths(drawn[1] - drawn[0]) > 0.1).mean() > 0.9


@pytest.mark.parametrize("low, high, dtype", [(-1.0, 2.0, np.float32), (0, 2, np.int32)])
def test_box(low, high, dtype):
    drawn, back = drawn_and_projected(domain.box(4, low, high, dtype))
    for x in (*drawn, *back):
        assert (x.shape, x.dtype) == ((PAIRS, 4), dtype)
        assert x.min() >= low
        assert x.max() <= high
    if dtype == np.int32:
        assert set(np.unique(drawn[0])) == {0, 1, 2}  # both ends included


@pytest.mark.parametrize(
    "low, high, dtype",
    [
        (0, 255, np.uint8),
        (-128, 127, np.int8),
        ([0, 3, -128, -128], [127, 127, 5, 127], np.int8),
        (0, (1 << 31) - 1, np.int32),
        (-(1 << 31), (1 << 31) - 1, np.int32),
        (7, (1 << 32) - 1, np.uint32),
    ],
)
def test_a_box_may_end_where_its_type_does(low, high, dtype):
    made = domain.box((500, 4), low, high, dtype)
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    for x in made.draw(KEY):
        assert x.dtype == dtype
        place = (np.asarray(x, np.float64) - low) / (high - low)
        assert place.min() >= 0
        assert place.max() <= 1
        # Uniform: a standard deviation of 12^-1/2, and some number in either twentieth of each of four columns
        np.testing.assert_allclose(place.mean(axis=0), 0.5, atol=4.5 / np.sqrt(12 * 500))
        assert place.min(axis=0).max() < 0.05
        assert place.max(axis=0).min() > 0.95


def test_integers_that_float32_does_not_hold_are_told_apart():
    large = jnp.array([1 << 24, (1 << 24) + 1])
    assert domain.choices(large).project((large[0], large[1])) == (large[0], large[1])
    two = domain.records(domain.choices(large), 2)
    x0, x1 = two.project((large[jnp.array([0, 0])], large[jnp.array([0, 1])]))
    np.testing.assert_array_equal((x0, x1), [[1 << 24, 1 << 24], [1 << 24, (1 << 24) + 1]])


def test_choices_are_the_values_and_nothing_else():
    rows = jnp.array([[0.0, 0.0], [1.0, 5.0], [-2.0, 1.0]])
    for pair in drawn_and_projected(domain.choices(rows)):
        for x in pair:
            assert (x[:, None] == np.asarray(rows)).all(axis=-1).any(axis=1).all()
    assert jax.jit(domain.choices([0, 1, 7]).project)((jnp.int32(5), jnp.int32(2))) == (7, 1)


@pytest.mark.parametrize("neighbouring", ["replace", "add_remove"])
def test_records_differ_in_one(neighbouring):
    made = domain.records(domain.ball(2, 1.0), 5, neighbouring)
    for x0, x1 in drawn_and_projected(made):
        assert x0.shape == (PAIRS, 5, 2)
        differ = (x0 != x1).any(axis=-1)
        assert (differ.sum(axis=1) == 1).all()
        assert set(differ.argmax(axis=1)) == set(range(5))
        assert (np.linalg.norm(x0, axis=-1) <= 1 + 1e-5).all()
        gone = x1[differ]
        assert (gone == 0).all() == (neighbouring == "add_remove")


def test_within_a_distance():
    made = domain.within(domain.box(3, 0.0, 1.0), 0.25, ord=1)
    for x0, x1 in drawn_and_projected(made):
        assert (np.abs(x1 - x0).sum(axis=1) <= 0.25 + 1e-5).all()
        assert ((x1 >= -1e-6) & (x1 <= 1 + 1e-6)).all()


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: domain.ball(3, 0.0), r"^radius: expected a finite number > 0, got 0.0$"),
        (lambda: domain.ball(0, 1.0), r"^shape: expected a whole number >= 1, got 0$"),
        (lambda: domain.ball(3, 1.0, 3), r"^ord: expected 1 or 2, got 3$"),
        (lambda: domain.box(3, 1.0, 1.0), r"^high: expected a number above low, got 1.0$"),
        (lambda: domain.choices([4]), r"^values: expected an array of at least two values, got shape \[1\]$"),
        (lambda: domain.records(domain.ball(2, 1.0), 0), r"^count: expected a whole number >= 1, got 0$"),
        (
            lambda: domain.records(domain.ball(2, 1.0), 2, "swap"),
            r"^neighbouring: expected one of replace, add_remove, got swap$",
        ),
        (
            lambda: domain.within("ball", 1.0),  # pyright: ignore
            r"^domain: expected a Domain, such as dpaudit.domain.ball\(10, 1.0\), got ball",
        ),
    ],
)
def test_refusals(make, message):
    with pytest.raises(_validate.InputError, match=message):
        make()
