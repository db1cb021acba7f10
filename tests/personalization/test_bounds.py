"""What the aggregator leaves of a message, by brute force over what hostile devices send."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit._validate import InputError
from dpaudit.personalization.boundary.bounds import Bound, Bounded, bounded, clipped

HOSTILE = [0.0, 1.0, -1.0, 1e-3, 7.0, 1e30, -3e38, 1e-38, 1e-45, np.inf, -np.inf, np.nan]


def length(tree):
    return np.sqrt(sum(np.sum(np.square(np.asarray(leaf, np.float64))) for leaf in jax.tree.leaves(tree)))


def hostile(seed, dtype, size=6):
    """A message of two arrays, of hostile numbers in any places, or of ordinary ones of any length."""
    random = np.random.default_rng(seed)
    numbers = random.choice(HOSTILE, size) if seed % 2 else random.normal(size=size) * 10.0 ** random.integers(-6, 6)
    with np.errstate(over="ignore"):
        low, high = (part.astype(np.float32).astype(dtype) for part in (numbers[:2], numbers[2:]))
    return {"a": low, "b": high.reshape(2, -1)}


@pytest.mark.parametrize("bound", [clipped(1.0), clipped(0.3), bounded(-2.0, 0.5), bounded(0.0, 9.0, clip_norm=2.0)])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_no_message_is_longer_than_its_bound(bound, dtype):
    """And so no user, who comes or goes, moves a sum further, up to the rounding of a float32 sum."""
    messages = jax.tree.map(lambda *leaves: np.stack(leaves), *(hostile(seed, dtype) for seed in range(400)))
    most = bound.sensitivity(hostile(0, dtype))
    left = jax.tree.map(np.asarray, jax.jit(jax.vmap(bound))(messages))
    lengths = np.array([length(jax.tree.map(lambda leaf, i=i: leaf[i], left)) for i in range(400)])
    assert (lengths <= most).all()
    assert lengths.max() > 0.99 * most  # nor is it shorter than it has to be
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(left))
    numbers = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(left)])
    assert np.isfinite(numbers).all()
    assert bound.low <= numbers.min() <= numbers.max() <= bound.high
    total = jax.jit(lambda messages: Bounded((bound,))(None, messages))
    for gone in range(6):
        rest = total(jax.tree.map(lambda leaf, gone=gone: np.delete(leaf[:20], gone, axis=0), messages))
        moved = jax.tree.map(np.subtract, total(jax.tree.map(lambda leaf: leaf[:20], messages)), rest)
        assert length(moved) <= most * (1 + 1e-5)


def test_long_messages_of_many_equal_numbers_are_not_longer():
    """Rounding has one sign where all squares are equal."""
    for value in (0.1, 1 / 3, 300_001**-0.5 * (1 + 1e-6), 77.7):
        assert 0.9999 < length(clipped(1.0)(jnp.full(300_001, value, jnp.float32))) <= 1.0


def test_without_a_bound_hostile_messages_are_longer():
    none = Bound(-np.inf, np.inf, np.inf)
    assert max(length(none(hostile(seed, jnp.float32))) for seed in range(0, 50, 2)) > 100


def test_honest_messages_are_left_as_they_are_and_broken_ones_are_nothing():
    honest = {"a": jnp.array([0.3, -0.4]), "b": jnp.array([[1, 0]], jnp.int32)}
    within = bounded(-1.0, 1.0)(honest)
    np.testing.assert_array_equal(within["a"], honest["a"])
    np.testing.assert_array_equal(within["b"], [[1.0, 0.0]])
    np.testing.assert_allclose(clipped(5.0)(honest)["a"], honest["a"])
    np.testing.assert_allclose(clipped(0.5)(jnp.array([3.0, 4.0])), [0.3, 0.4], rtol=2e-5)
    np.testing.assert_array_equal(bounded(0.0, 1.0)(jnp.array([jnp.inf, -jnp.inf])), [1.0, 0.0])
    for broken in (jnp.array([1.0, jnp.nan]), jnp.array([1.0, jnp.inf])):
        np.testing.assert_array_equal(clipped(1.0)(broken), 0.0)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: clipped(0), "clip_norm: expected a finite number > 0, got 0"),
        (lambda: bounded(1, 1), "high: expected a number > 1, got 1"),
        (lambda: bounded(0, np.inf), "high: expected finite numbers"),
        (lambda: bounded(0, 1, clip_norm=-1), "clip_norm: expected a finite number > 0, got -1"),
    ],
)
def test_bad_bounds_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()
