"""Faults that reading the program finds, each beside its correct twin: keys and types; no false alarm; bad input."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.extend.core.primitives import threefry2x32_p

from dpaudit import InputError, inspect
from dpaudit.mechanisms import gaussian, laplace, ldp_sgd, privunit, randomized_response

X0 = jnp.array([0.6, -0.3, 0.2])
X1 = jnp.array([-0.5, 0.1, 0.7])
BATCH0 = jnp.array([[0.6, -0.3], [0.1, 0.2], [0.3, 0.4], [-0.2, 0.8]])
BATCH1 = BATCH0.at[2].set(jnp.array([-0.9, 0.3]))
normal, fold_in, split = jax.random.normal, jax.random.fold_in, jax.random.split


def clip(x, norm=1.0):
    return x / jnp.maximum(1.0, jnp.linalg.norm(x) / norm)


def block(key, x, counter):
    """Gaussian noise from the bare generator."""
    a, b = jax.random.key_data(key)
    words = jnp.stack(threefry2x32_p.bind(a, b, jnp.uint32(counter), jnp.uint32(0)))
    return x + lax.erf_inv(words.astype(jnp.float32) / 2.0**31 - 0.99999)[:1]


def remembered(key, x, second):
    """The gradient of a step that is computed again on the way back: its noise is drawn a second time."""
    step = jax.checkpoint(lambda x: jnp.sum(jnp.sin(x + normal(key, x.shape))))
    value, gradient = jax.value_and_grad(step)(x)
    return value + gradient + normal(second(key), x.shape)


def rounds(key, x, key_of_round, steps=3):
    return lax.scan(lambda total, i: (total + normal(key_of_round(key, i), x.shape), i), x, jnp.arange(steps))[0]


def carried(key, x, advance):
    def step(state):
        i, key, total = state
        key, used = advance(key)
        return i + 1, key, total + normal(used, x.shape)

    return lax.while_loop(lambda state: state[0] < 3, step, (0, key, x))[2]


def raw_twice(key, x, second):
    words = jax.random.key_data(key)
    return x + normal(words, x.shape) + normal(second(words), x.shape)


def in_a_function(key, x, second):
    noise = jax.custom_jvp(lambda key, x: x + normal(key, x.shape))
    noise.defjvp(lambda primals, tangents: (noise(*primals), tangents[1]))
    return jax.jit(lambda key, x: noise(key, x) + normal(second(key), x.shape))(key, x)


def by_branch(key, x, second):
    noisy = lax.cond(x[0] > 0, lambda k: normal(k, x.shape), lambda k: jax.random.laplace(k, x.shape), key)
    return x + noisy + normal(second(key), x.shape)


def per_row(key, xs, keys_of):
    return jax.vmap(lambda key, x: x + normal(key, x.shape))(keys_of(key, len(xs)), xs)


def successes(key, share):
    return jnp.sum(jax.random.binomial(key, 40, share))


def same(key):
    return key


def other(key):
    return fold_in(key, 1)


KEY_REUSE = [
    (
        lambda k, x: x + normal(k, x.shape) * normal(k, x.shape),
        lambda k, x: x + jnp.prod(normal(k, (2, 3)), axis=0),
        X0,
    ),
    (lambda k, x: x + normal(k, x.shape) + normal(split(k)[0], x.shape), lambda k, x: x + sum_of_split(k, x), X0),
    (
        lambda k, x: x + normal(split(k, 2)[0], x.shape) + jax.random.laplace(split(k, 3)[0], x.shape),
        lambda k, x: x + normal(split(k, 2)[0], x.shape) + jax.random.laplace(split(k, 3)[1], x.shape),
        X0,
    ),
    (
        lambda k, x: x + normal(fold_in(k, 1), x.shape) + jax.random.uniform(fold_in(k, 1), x.shape),
        lambda k, x: x + normal(fold_in(k, 1), x.shape) + jax.random.uniform(fold_in(k, 2), x.shape),
        X0,
    ),
    (lambda k, x: rounds(k, x, lambda k, i: k), lambda k, x: rounds(k, x, fold_in), X0),
    (
        lambda k, x: carried(k, x, lambda k: (k, k)),
        lambda k, x: carried(k, x, lambda k: tuple(split(k))),
        X0,
    ),
    (
        lambda k, x: raw_twice(k, x, lambda words: words),
        lambda k, x: raw_twice(k, x, lambda words: fold_in(words, 1)),
        X0,
    ),
    (lambda k, x: block(k, block(k, x, 7), 7), lambda k, x: block(k, block(k, x, 7), 8), X0),
    (lambda k, x: remembered(k, x, same), lambda k, x: remembered(k, x, other), X0),
    (lambda k, x: in_a_function(k, x, same), lambda k, x: in_a_function(k, x, other), X0),
    (lambda k, x: by_branch(k, x, same), lambda k, x: by_branch(k, x, other), X0),
    (
        lambda k, x: x + successes(k, 0.5) + successes(k, 0.02),
        lambda k, x: x + successes(k, jnp.array([0.5, 0.02])),
        X0,
    ),
    (
        lambda k, x: per_row(k, x, lambda k, n: jnp.stack([k] * n)),
        lambda k, x: per_row(k, x, split),
        BATCH0,
    ),
    (
        lambda k, x: jax.vmap(lambda i, x: x + normal(fold_in(k, i // 2), x.shape))(jnp.arange(len(x)), x),
        lambda k, x: jax.vmap(lambda i, x: x + normal(fold_in(k, i), x.shape))(jnp.arange(len(x)), x),
        BATCH0,
    ),
]


def sum_of_split(key, x):
    a, b = split(key)
    return normal(a, x.shape) + normal(b, x.shape)


@pytest.mark.parametrize("faulty, correct, x", KEY_REUSE)
def test_a_key_consumed_twice_is_found_wherever_it_travels(faulty, correct, x):
    found = inspect(faulty, x, -x)
    assert "key_reuse" in found.kinds
    assert re.search(r"test_inspect\.py:\d+$", found.findings[0].where)
    assert inspect(correct, x, -x).findings == ()


@pytest.mark.integration
def test_only_draws_that_reach_the_release_together_are_reuse():
    def either(key, x):  # a mapped cond is a where: both branches draw, one is used
        return jax.vmap(
            lambda k, x: lax.cond(x[0] > 0, lambda k: normal(k, (2,)), lambda k: jax.random.laplace(k, (2,)), k)
        )(split(key, len(x)), x)

    def until_positive(key):
        def again(state):
            key, used = split(state[0])
            return key, normal(used)

        return lax.while_loop(lambda state: state[1] < 0, again, (key, -1.0))[1]

    def unused(key, x):
        normal(key, x.shape)
        return x + normal(key, x.shape)

    def positive(keys):
        return jnp.asarray(jax.vmap(until_positive)(keys))

    assert inspect(either, BATCH0, BATCH1).findings == ()
    assert inspect(unused, X0, X1).findings == ()
    # mapped rejection: rows that are done go on drawing from a key that no longer changes
    assert inspect(lambda k, x: x + positive(split(k, len(x)))[:, None], BATCH0, BATCH1).findings == ()


def test_the_finding_names_both_lines():
    def reused(key, x):
        first = normal(key, x.shape)
        return x + first + jax.random.laplace(key, x.shape)

    (finding,) = inspect(reused, X0, X1).findings
    line = reused.__code__.co_firstlineno
    assert finding.where.endswith(f"test_inspect.py:{line + 1}")
    assert f"test_inspect.py:{line + 2}" in finding.sentence
    assert str(finding).startswith("key_reuse: A key of one value is drawn from twice")


@pytest.mark.parametrize(
    "faulty, correct",
    [
        (
            lambda k, x: x + normal(k, x.shape, jnp.bfloat16),
            lambda k, x: (x + normal(k, x.shape)).astype(jnp.bfloat16),
        ),
        (
            lambda k, x: x.astype(jnp.float16) + (0.1 * normal(k, x.shape)).astype(jnp.float16),
            lambda k, x: (x.astype(jnp.float16) + 0.1 * normal(k, x.shape)).astype(jnp.float16),
        ),
        (
            lambda k, x: x + (jnp.sum(jnp.abs(x)) * jax.random.laplace(k, x.shape)).astype(jnp.bfloat16),
            lambda k, x: clip(x).astype(jnp.bfloat16).astype(jnp.float32) + jax.random.laplace(k, x.shape),
        ),
        (
            lambda k, x: x + rounds(k, jnp.zeros(x.shape, jnp.float32), fold_in).astype(jnp.bfloat16),
            lambda k, x: rounds(k, x, fold_in).astype(jnp.bfloat16),
        ),
        (
            lambda k, x: x + jax.random.uniform(k, x.shape, jnp.bfloat16),
            lambda k, x: jnp.where(jax.random.bernoulli(k, 0.3, x.shape), x, -x).astype(jnp.bfloat16),
        ),
    ],
)
def test_noise_must_be_wide_until_it_is_added(faulty, correct):
    (finding,) = inspect(faulty, X0, X1).findings
    assert finding.kind == "low_precision"
    assert "float16" in finding.sentence
    assert "test_inspect.py" in finding.where
    assert inspect(correct, X0, X1).findings == ()


@pytest.mark.parametrize(
    "deterministic",
    [
        lambda k, x: clip(x),
        lambda k, x: x + normal(jax.random.key(7), x.shape),
        lambda k, x: (x, normal(k, x.shape))[0],
    ],
)
def test_a_release_that_ignores_its_key(deterministic):
    assert inspect(deterministic, X0, X1).kinds == {"ignores_key"}
    public = jax.random.rademacher(jax.random.key(7), X0.shape)
    assert inspect(lambda k, x: public * x + normal(k, x.shape), X0, X1).findings == ()


def dp_sgd_step(key, batch, *, clip_norm=1.0, params=None):
    """Linear regression: one gradient per example, clipped over all leaves, summed, one draw per leaf."""
    params = {"w": jnp.array([0.3, -0.2]), "b": jnp.array(0.1)} if params is None else params

    def clipped(x):
        gradient = jax.grad(lambda p: (jnp.dot(p["w"], x) + p["b"] - 1.0) ** 2)(params)
        norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient)))
        return jax.tree.map(lambda leaf: leaf / jnp.maximum(1.0, norm / clip_norm), gradient)

    total = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), jax.vmap(clipped)(batch))
    leaves, shape = jax.tree.flatten(total)
    keys = split(key, len(leaves))
    return shape.unflatten([leaf + normal(k, leaf.shape) for leaf, k in zip(leaves, keys, strict=True)])


def dp_sgd_rounds(key, batch):
    params = {"w": jnp.zeros(2), "b": jnp.array(0.0)}

    def one(params, key):
        step = dp_sgd_step(key, batch, params=params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, step), None

    return lax.scan(one, params, split(key, 3))[0]


def sampled_sum(key, xs):
    sample_key, noise_key = split(key)
    kept = jax.random.bernoulli(sample_key, 0.5, (len(xs), 1))
    return jnp.sum(kept * jax.vmap(clip)(xs), axis=0).astype(jnp.bfloat16) + normal(noise_key, xs.shape[1:])


def above_threshold(key, xs):
    threshold_key, query_key = split(key)
    return jnp.sum(xs, axis=0) + jax.random.laplace(query_key, xs.shape[1:]) > jax.random.laplace(threshold_key)


def subset_choice(key, xs):
    order_key, noise_key = split(key)
    batch = xs[jax.random.permutation(order_key, len(xs))[:2]].astype(jnp.bfloat16)
    return jnp.sum(batch, axis=0) + normal(noise_key, xs.shape[1:])


CORRECT = {
    "gaussian": (gaussian.mechanism(epsilon=1.0, delta=1e-5, clip_norm=1.0), X0, X1, 2.0),
    "laplace": (laplace.mechanism(epsilon=1.0, clip_norm=1.0), X0, X1, None),
    "ldp_sgd": (ldp_sgd.mechanism(epsilon=1.0, clip_norm=1.0), X0, X1, None),
    "privunit": (privunit.mechanism(epsilon=1.0), X0, X1, None),
    "randomized_response": (randomized_response.mechanism(epsilon=1.0, num_categories=3), 0, 2, None),
    "clients": (
        lambda k, xs: jax.vmap(ldp_sgd.mechanism(epsilon=1.0, clip_norm=1.0).apply)(split(k, len(xs)), xs),
        BATCH0,
        BATCH1,
        None,
    ),
    "privunit clients": (  # two of them: while one is done, the other may still draw
        lambda k, xs: jax.vmap(privunit.mechanism(epsilon=1.0).apply)(split(k, len(xs)), xs),
        BATCH0[1:3],
        BATCH1[1:3],
        None,
    ),
    "dp_sgd": (dp_sgd_step, BATCH0, BATCH1, 2.0),
    "dp_sgd rounds": (dp_sgd_rounds, BATCH0, BATCH1, None),
    "sampled sum": (sampled_sum, BATCH0, BATCH1, 2.02),  # bfloat16 rounds the sum
    "above threshold": (above_threshold, BATCH0, BATCH1, None),
    "permutation": (subset_choice, BATCH0, BATCH1, None),
    "poisson": (lambda k, x: jax.random.poisson(k, jnp.exp(6 * x)), X0, X1, None),
    "binomial": (lambda k, x: jax.random.binomial(k, jnp.array([3.0, 50.0, 1e3]), jax.nn.sigmoid(x)), X0, X1, None),
    "next key": (lambda k, x: (x + normal(split(k)[0], x.shape), split(k)[1]), X0, X1, None),
    "report noisy max": (lambda k, x: jnp.argmax(x + jax.random.gumbel(k, x.shape)), X0, X1, None),
    "exponential": (lambda k, x: jax.random.categorical(k, x), X0, X1, None),
    "two draws": (lambda k, x: x + normal(k, x.shape) + jax.random.rademacher(other(k), x.shape), X0, X1, None),
}


@pytest.mark.integration
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "privunit clients")) for name in CORRECT]
)
def test_no_false_alarm(name):
    mechanism, x0, x1, sensitivity = CORRECT[name]
    found = inspect(mechanism, x0, x1, key=jax.random.key(1), sensitivity=sensitivity)
    assert str(found) == "nothing found"
    assert found.findings == ()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"mechanism": 3}, "mechanism: expected a Mechanism or a function of (key, x), got 3"),
        (
            {"mechanism": lambda k, x: float(x[0])},
            "mechanism: expected a function of (key, x) that JAX can trace, got",
        ),
        ({"x1": jnp.zeros(2)}, "x1: expected the shapes and types of x0, ((3,), 'float32'), got ((2,), 'float32')"),
        ({"x0": jnp.full(3, jnp.nan)}, "x0: expected finite numbers, got 3 NaN or infinite of 3"),
        ({"sensitivity": 0.0}, "sensitivity: expected a finite number > 0, got 0.0"),
        ({"claim": 1.0}, "claim: expected a Claim or None, got 1.0"),
        ({"norm_order": 3}, "norm_order: expected 1, 2 or infinity, got 3"),
        ({"key": 3}, "key: expected a key, as made by jax.random.key, got 3"),
    ],
)
def test_bad_input(arguments, message):
    correct = {"mechanism": lambda k, x: x + normal(k, x.shape), "x0": X0, "x1": X1}
    with pytest.raises(InputError, match="^" + re.escape(message)):
        inspect(**(correct | arguments))
