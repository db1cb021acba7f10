"""No user of any data moves a release further than its sensitivity: brute force over hostile messages and examples."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit._validate import InputError
from dpaudit.mechanisms.clipping import clip
from dpaudit.personalization.boundary.bounds import Bound, bounded, clipped
from dpaudit.personalization.boundary.processes import gaussian
from dpaudit.personalization.boundary.protocol import each, everything, private
from dpaudit.personalization.user_level import clipped_sum

EXTREME = [0.0, -0.0, 1.0, -1.0, 0.1, 1e-45, -1e-45, 1.2e-38, 1e-20, 1e19, -1e20, 3.4e38, -3.4e38, np.inf, -np.inf]
BOUNDS = {
    "clipped": clipped(1.0),
    "clipped to almost nothing": clipped(1e-30),
    "clipped to almost everything": clipped(1e30),
    "in a range": bounded(-2.0, 0.5),
    "in a range, clipped": bounded(0.0, 9.0, clip_norm=2.0),
    "in a tiny range": bounded(0.0, 1e-30),
}


def numbers(random, shape, dtype):
    """Extreme numbers, one extreme number everywhere, ordinary ones of any length, or these with a NaN."""
    kind = random.integers(4)
    if kind == 0:
        found = random.choice(EXTREME, shape)
    elif kind == 1:
        found = np.full(shape, random.choice(EXTREME))
    else:
        found = random.normal(size=shape) * 10.0 ** random.integers(-38, 38)
        if kind == 3 and found.size:
            found.flat[random.integers(found.size)] = np.nan
    with np.errstate(all="ignore"):
        wide = found.astype(np.float32)
        if dtype == "bool" or "int" in dtype:
            ends = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            return np.clip(np.nan_to_num(found), *ends).astype(dtype)
        return np.asarray(jnp.asarray(wide).astype(dtype))


STRUCTURES = [  # of messages: shapes and types, in any nesting
    {"a": ((7,), "float32"), "b": [((3, 2), "bfloat16"), ((), "uint32"), ((0,), "float32")]},
    ((300,), "float16"),
    (((1,), "bool"), {"c": (((5,), "int8"), ((2, 2), "int32"))}),
    ((), "float32"),
]


def messages(structure, count=150):
    """Hostile messages of one structure, with a leading axis."""

    def one(seed):
        random = np.random.default_rng(seed)
        return jax.tree.map(lambda kind: numbers(random, *kind), structure, is_leaf=is_kind)

    return jax.tree.map(lambda *leaves: np.stack(leaves), *map(one, range(count)))


def is_kind(node):
    return isinstance(node, tuple) and len(node) == 2 and isinstance(node[1], str)


def length(tree):
    """The L2 norm of all numbers together, in float64."""
    return np.sqrt(sum(np.sum(np.square(np.asarray(leaf).astype(np.float64))) for leaf in jax.tree.leaves(tree)))


@pytest.mark.parametrize("name", BOUNDS)
def test_messages_of_any_structure_shape_and_type_are_within_their_bound(name):
    bound, attained = BOUNDS[name], 0.0
    for structure in STRUCTURES:
        given = messages(structure)
        left = jax.tree.map(np.asarray, jax.jit(jax.vmap(bound))(given))
        most = bound.sensitivity(jax.tree.map(lambda leaf: leaf[0], left))
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(left))
        lengths = [length(jax.tree.map(lambda leaf, i=i: leaf[i], left)) for i in range(150)]
        assert max(lengths) <= most, f"{structure}: message {np.argmax(lengths)}"
        attained = max(attained, max(lengths) / most)
    assert attained > 0.99, "no hostile user attains the bound, so this shows little"


def test_without_a_bound_the_same_messages_are_longer():
    left = jax.vmap(Bound(-np.inf, np.inf, np.inf))(messages(STRUCTURES[0]))
    assert length(left) > 1e30


@pytest.mark.parametrize("ord", [1, 2])
def test_the_clip_below_all_bounds_is_never_exceeded(ord):
    run = jax.jit(partial(clip, ord=ord))
    for seed in range(60):
        random = np.random.default_rng(seed)
        most = float(10.0 ** random.integers(-30, 30))
        given = numbers(random, (300,), "float32")
        found = np.asarray(run(given, most)).astype(np.float64)
        if np.isfinite(np.asarray(given)).all():
            size = np.linalg.norm(found, ord)
            assert size <= most, f"seed {seed}"
            assert size >= 0.999 * min(most, np.linalg.norm(np.asarray(given, np.float64), ord)) - 1e-35, (
                f"seed {seed}"
            )


@pytest.mark.parametrize("mean", [True, False])
def test_no_user_s_examples_move_a_training_further_than_the_clip_norm(mean):
    """One user alone, with hostile examples and weights, and a hostile model of a server that wants them."""

    def loss(params, example):
        return jnp.sum(params * example["x"]) ** 2 + jnp.exp(params[0]) * example["y"]

    @jax.jit
    def moved(params, examples, weights):
        return clipped_sum(loss, params, examples, weights, clip_norm=0.3, mean=mean, most=1)

    found = []
    for seed in range(200):
        random = np.random.default_rng(seed)
        examples = {"x": numbers(random, (1, 2, 4), "float32"), "y": numbers(random, (1, 2), "float32")}
        params = numbers(random, (4,), "float32") if seed % 2 else jnp.ones(4)
        weights = jnp.ones((1, 2)) if seed % 3 else numbers(random, (1, 2), "float32")
        found.append(length(moved(params, examples, weights)))
    assert max(found) <= 0.3
    assert max(found) > 0.299


@pytest.mark.parametrize(
    "sent, wanted",
    [
        (lambda key, _, user: user + 1j, "a message of real numbers, got some of type complex64"),
        (lambda key, _, user: key, r"a message of real numbers, got some of type key<"),
        (lambda key, _, user: {}, r"a message of at least one array, got \{\}"),
    ],
)
def test_messages_that_are_no_numbers_are_refused(sent, wanted):
    protocol = private(each(everything, sent, clip_norm=1.0), gaussian("a", noise_multiplier=1.0))
    with pytest.raises(InputError, match=f"^compute: expected {wanted}"):
        jax.eval_shape(lambda *given: protocol.devices(*given), jax.random.key(0), (), jnp.ones((3, 2)))
