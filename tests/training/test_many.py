"""Many trainings at once are what each is alone, together or one by one."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpaudit import _platform, _validate
from dpaudit.training import many
from dpaudit.training.dp_sgd import dp_sgd, train
from dpaudit.training.many import train_many
from dpaudit.training.sampling import poisson

KEY = jax.random.key(31)
N, D, COUNT = 40, 3, 7
ARGUMENTS = jax.random.split(KEY, COUNT), {"clip_norm": jnp.linspace(0.1, 2.0, COUNT)}


def loss(params, example):
    return 0.5 * (example[0] @ params["w"] - example[1]) ** 2


def data():
    return jax.random.normal(jax.random.key(1), (N, D)), jnp.arange(N) / N


def run(key, settings):
    return run_on(key, settings, data())


def run_on(key, settings, data):
    """A training, and the number of its key: whose result it is."""
    how: dict[str, Any] = {"noise_multiplier": 1.0, "batch_size": 8, "optimizer": optax.sgd(0.1)}
    trainer = dp_sgd(loss, clip_norm=settings["clip_norm"], **how)
    state, _ = train(key, trainer, trainer.init({"w": jnp.zeros(D)}), data, poisson(N, 8), 5)
    return state.params["w"], jax.random.key_data(key)


@pytest.fixture(scope="module")
def alone() -> np.ndarray:
    one = jax.jit(run)
    each = [one(*jax.tree.map(lambda leaf, i=i: leaf[i], ARGUMENTS))[0] for i in range(COUNT)]
    assert np.linalg.norm(np.diff(np.stack(each), axis=0), axis=1).min() > 1e-3
    return np.stack(each)


@pytest.mark.integration
@pytest.mark.parametrize("settings", [{}, {"at_once": 1}, {"at_once": 2}, {"at_once": 100}, {"memory_gib": 1e-9}])
def test_together_as_alone(settings, alone):
    done: list[int] = []
    together, keys = train_many(run, ARGUMENTS, progress=done.append, **settings)
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(keys, jax.random.key_data(ARGUMENTS[0]))
    assert done == sorted(done)
    assert done[-1] == COUNT


@pytest.mark.integration
def test_convolutions_side_by_side_are_products_on_a_gpu():
    """Whatever was traced before: groups of one are convolutions, groups of three products with patches."""
    images, labels = jax.random.normal(KEY, (N, 6, 6, 1)), jnp.arange(N) / N
    start = jax.random.normal(jax.random.key(2), (3, 3, 1, 2))

    def convolved(kernel, example):
        how = {"window_strides": (1, 1), "padding": "SAME", "dimension_numbers": ("NHWC", "HWIO", "NHWC")}
        return example[1] * jnp.sum(jnp.sin(jax.lax.conv_general_dilated(example[0][None], kernel, **how)))

    trainer = dp_sgd(convolved, clip_norm=1.0, noise_multiplier=1.0, batch_size=8, optimizer=optax.sgd(0.1))

    def one(key):
        return train(key, trainer, trainer.init(start), (images, labels), poisson(N, 8), 2)[0].params

    def convolves(at_once):
        return "conv_general_dilated" in str(
            many._trained.trace(many._Group(one, at_once, None), (keys[:at_once],), ()).jaxpr
        )

    keys = jax.random.split(KEY, 3)
    here = train_many(one, (keys,), at_once=3)
    with _platform.named("tpu"):
        assert convolves(3)
    with _platform.named("gpu"):
        assert [convolves(at_once) for at_once in (1, 3, 1)] == [True, False, True]
        there = train_many(one, (keys,), at_once=3)
    np.testing.assert_allclose(there, here, rtol=1e-5, atol=1e-6)


@pytest.mark.integration
def test_what_is_shared_is_no_part_of_the_program(alone):
    traced = []

    def counted(key, settings, data):
        traced.append(None)
        return run_on(key, settings, data)

    images, labels = data()
    together, _ = train_many(counted, ARGUMENTS, shared=((images, labels),))
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-6)
    before = len(traced)
    others, _ = train_many(counted, ARGUMENTS, shared=((images, -labels),))
    assert len(traced) == before > 0
    assert np.linalg.norm(others - together, axis=1).min() > 1e-3


@pytest.mark.integration
def test_as_many_at_once_as_memory_holds(monkeypatch):
    """A training of 4 MiB of temporary values, by the programs that are compiled for it."""
    monkeypatch.setattr(many.sharding, "cores", lambda: 1)

    def large(x):
        values = jax.lax.optimization_barrier(jnp.sin(x + jnp.arange(1 << 20)))  # not fused with what reads them
        return jnp.linalg.norm(values.reshape(1024, 1024) @ jnp.ones((1024, 4)))

    def chosen(**settings) -> int:
        done: list[int] = []
        train_many(large, (jnp.arange(12.0),), progress=done.append, **settings)
        return done[0]

    assert chosen() == 1
    monkeypatch.setattr(many, "CACHED", 1 << 40)
    assert chosen() == 12
    held = [chosen(memory_gib=gib) for gib in (0.001, 0.02, 0.04, 0.2)]
    assert held == sorted(held)
    assert held[0] == 1 < held[1] < held[2] < held[3] == 12
    assert held[1] == 4
    assert chosen(at_once=12, memory_gib=0.02) == 3  # 12, 6, 3


def test_bad_input_is_refused():
    with pytest.raises(_validate.InputError, match="arguments: expected leaves with one leading axis of N >= 1"):
        train_many(run, (ARGUMENTS[0], {"clip_norm": jnp.ones(3)}))
    with pytest.raises(_validate.InputError, match=r"arguments: expected leaves with one leading axis"):
        train_many(run, ())
    with pytest.raises(_validate.InputError, match="at_once: expected a whole number >= 1, got 0"):
        train_many(run, ARGUMENTS, at_once=0)
    with pytest.raises(_validate.InputError, match="memory_gib: expected a finite number > 0, got 0"):
        train_many(run, ARGUMENTS, memory_gib=0)
