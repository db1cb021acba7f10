"""A program's identity: the same for the same function traced again, another for anything that computes otherwise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit import identity

X = jnp.ones(3)


def program(function, *arguments):
    return identity.program(jax.make_jaxpr(function)(*arguments or (X, X)))


def written(scale=2.0, weights=(1.0, 2.0, 3.0), steps=3, swapped=False, jitted=(1.0,), branch=1.0, axis=0):
    def function(x, y):
        x, y = (y, x) if swapped else (x, y)
        add = jax.jit(lambda z: z + jnp.asarray(jitted).sum())
        z = jax.lax.fori_loop(0, steps, lambda _, z: jnp.tanh(add(z)), scale * x - y)
        z = jax.lax.cond(z[0] > 0, lambda z: z, lambda z: branch * z, z)
        return jax.nn.relu(z) * jnp.asarray(np.asarray(weights, np.float32)) + jax.lax.cumsum(z[:, None], axis)[0]

    return function


def test_the_same_function_is_the_same():
    assert program(written()) == program(written())


@pytest.mark.parametrize(
    "change",
    [
        {"scale": 2.0000002},
        {"weights": (1.0, 2.0, 4.0)},
        {"steps": 4},
        {"swapped": True},
        {"jitted": np.array([2.0], np.float32)},
        {"branch": 1.5},
        {"axis": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_is_another(change):
    assert program(written(**change)) != program(written())


def test_values_and_types_tell_programs_apart():
    def twice(x):
        return x + x

    assert program(twice, X) != program(twice, X[:2]) != program(twice, X.astype(jnp.bfloat16))
    assert program(lambda x: x + np.float32(0.1), X) != program(lambda x: x + np.nextafter(np.float32(0.1), 1), X)


def test_a_program_that_is_called_twice_differs_from_one_that_is_called_once():
    add = jax.jit(lambda z: z + 1)
    sine = jax.jit(jnp.sin)
    assert program(lambda x: add(add(x)), X) != program(lambda x: add(sine(x)), X) != program(add, X)
    assert program(lambda x: add(sine(add(x))), X) != program(lambda x: add(sine(sine(x))), X)
