"""What a mechanism closes over is data: one program for all its values, and never those of an earlier call."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun

from dpaudit import _validate, on_host, play
from dpaudit._engine import game
from dpaudit._engine import programs as constants

KEY = jax.random.key(5)
PROGRAM: Any = game._run


def test_other_values_are_played_by_the_same_program():
    weights = np.ones(20, np.float32)

    def release(key, world):
        return jax.random.normal(key, (20,)) + world

    def score(z):
        return z @ jnp.asarray(weights)

    first = play(KEY, release, score, 1000)
    programs = PROGRAM._cache_size()
    weights *= 2
    np.testing.assert_allclose(play(KEY, release, score, 1000), 2 * first, rtol=1e-5)
    play(jax.random.key(6), release, score, 1000)
    assert PROGRAM._cache_size() == programs


def test_arrays_of_another_shape_are_another_program():
    inputs = [np.zeros(3, np.float32), np.ones(3, np.float32)]

    def release(key, world):
        return jax.random.normal(key, ()) + jnp.asarray(inputs[world]).sum()

    shift = np.diff(play(KEY, release, jnp.float32, 1000).mean(axis=1))
    inputs[1] = np.ones(5, np.float32)
    wider = np.diff(play(KEY, release, jnp.float32, 1000).mean(axis=1))
    np.testing.assert_allclose(wider - shift, 2, atol=1e-5)


@pytest.mark.parametrize("large", [False, True])
def test_a_number_that_has_changed_is_played_as_it_is_now(large):
    settings = {"shift": 1.0}
    zeros = jnp.zeros(20) if large else 0.0

    def release(key, world):
        return jnp.sum(jax.random.normal(key, ()) + zeros) / 20 + world * settings["shift"]

    first = play(KEY, release, jnp.float32, 1000)
    settings["shift"] = 3.0
    np.testing.assert_allclose(np.subtract(*play(KEY, release, jnp.float32, 1000)[::-1] - first[::-1]), 2, atol=1e-5)


def test_inputs_of_a_function_on_the_host_are_those_of_now():
    """Its text is the same: the function that is called is another."""
    inputs = [0.0, 1.0]
    function = on_host(lambda rng, x: rng.normal() + x)

    def release(key, world):
        return function(key, inputs[world])

    first = play(KEY, release, jnp.float32, 100)
    inputs[1] = 3.0
    second = play(KEY, release, jnp.float32, 100)
    np.testing.assert_array_equal(second[0], first[0])
    np.testing.assert_allclose(second[1] - first[1], 2, atol=1e-5)


def jitted(values, loops):
    """A release that adds, in a jitted function of its own, the first of two arrays; inside a loop or not."""

    def release(key, world):
        add = jax.jit(lambda z: z + jnp.asarray(values[0]).sum())
        z = jax.random.normal(key, ()) + world
        return jax.lax.fori_loop(0, 1, lambda _, z: add(z), z) if loops else add(z)

    return release


@pytest.mark.parametrize("loops", [False, True])
def test_arrays_that_a_jitted_function_closes_over_are_those_of_now(loops):
    values = [np.zeros(3, np.float32)]
    release = jitted(values, loops)
    first = play(KEY, release, jnp.float32, 1000)
    programs = PROGRAM._cache_size()
    values[0] = np.ones(3, np.float32)
    np.testing.assert_allclose(play(KEY, release, jnp.float32, 1000), first + 3, atol=1e-5)
    assert PROGRAM._cache_size() == programs + loops  # only inside a loop are they part of the program


def test_what_a_jitted_function_computes_is_the_same_without_the_call():
    """Its generator's settings included, which JAX keeps beside an operation."""
    weights, key = jnp.arange(1.0, 8.0), jax.random.key(3, impl="threefry2x32")
    draw = jax.jit(lambda key: jax.random.bits(key, (7,)) % 1000 * weights)

    def function(key):
        with jax.threefry_partitionable(False):
            bits = draw(key)
        return bits, draw(key), jax.random.bits(key, (7,))

    traced = jax.make_jaxpr(function)(key)
    flat = constants.without_calls(traced)
    assert (len(traced.consts), len(flat.consts)) == (0, 1)
    wanted = function(key)
    assert not np.array_equal(*wanted[:2])
    for found, of in zip(jaxpr_as_fun(flat)(key), wanted, strict=True):
        np.testing.assert_array_equal(found, of)


@pytest.mark.parametrize("loops", [False, True])
def test_a_checkpoint_of_other_arrays_is_refused(loops, tmp_path):
    values = [np.zeros(3, np.float32)]
    release, file = jitted(values, loops), tmp_path / "trials.npz"
    first = play(KEY, release, jnp.float32, 1000, checkpoint=file)
    np.testing.assert_array_equal(play(KEY, release, jnp.float32, 1000, checkpoint=file), first)
    values[0] = np.ones(3, np.float32)
    with pytest.raises(_validate.InputError, match="another mechanism or pair of inputs"):
        play(KEY, release, jnp.float32, 1000, checkpoint=file)


def scaled(scale, power):
    """A function that is made anew for each scale and power."""
    factor, settings = np.full(3, scale, np.float32), {"power": power}

    def function(x, y=None):
        more = 0 if y is None else y["of"].sum()
        return {"z": (jnp.asarray(factor) * x["of"]) ** settings["power"] + more, "n": jnp.int32(len(x["of"]))}

    return constants.shared(function), settings


def test_functions_that_compute_the_same_share_a_program_whatever_they_close_over():
    x = {"of": jnp.arange(3.0)}
    compiled: Any = constants._carried_out
    (first, _), (second, _) = scaled(2.0, 2), scaled(3.0, 2)
    np.testing.assert_array_equal(first(x)["z"], [0, 4, 16])
    programs = compiled._cache_size()
    np.testing.assert_array_equal(second(x)["z"], [0, 9, 36])
    assert compiled._cache_size() == programs
    cubed, settings = scaled(2.0, 3)  # another program, of the same name, shapes and constants
    np.testing.assert_array_equal(cubed(x)["z"], [0, 8, 64])
    settings["power"] = 4  # as with jax.jit, what has been traced stays
    np.testing.assert_array_equal(cubed(x)["z"], [0, 8, 64])
    np.testing.assert_array_equal(constants.shared(lambda x: x["of"] ** settings["power"])(x), [0, 1, 16])


def test_a_shared_program_takes_arguments_of_any_structure_shape_and_type():
    function, _ = scaled(1.0, 1)
    assert function({"of": jnp.arange(3)})["z"].tolist() == [0, 1, 2]
    assert function({"of": jnp.arange(3.0)}, {"of": jnp.ones(5)})["z"].tolist() == [5, 6, 7]
    assert function({"of": jnp.ones((2, 3))})["n"] == 2
    mapped = jax.vmap(lambda row: function({"of": row})["z"])(jnp.eye(3))
    np.testing.assert_array_equal(mapped, jnp.eye(3))
    with pytest.raises(TypeError, match="incompatible shapes"):
        function({"of": jnp.ones(2)})


def test_a_program_that_is_compiled_quickly_gives_the_same_integers():
    def bits(key):
        return jax.random.bits(key, (3, 5))

    np.testing.assert_array_equal(constants.quickly(bits)(KEY), jax.jit(bits)(KEY))


def test_a_key_of_trials_can_be_drawn_inside_a_compiled_function():
    inside = jax.jit(lambda key: jax.random.key_data(game.trial_key(key)))
    np.testing.assert_array_equal(inside(KEY), jax.random.key_data(game.trial_key(KEY)))


def test_only_what_is_wanted_is_computed_and_programs_that_are_the_same_without_the_rest_are_one():
    def whole(scale):
        """A run whose numbers do not depend on its values, which are random."""
        scale = jnp.float32(scale)

        @jax.jit
        def run(key, x):
            def step(value, number):
                value = scale * value + jax.random.normal(jax.random.fold_in(key, number), x.shape)
                return value, {"value": value, "number": 2 * number}

            return jax.lax.scan(step, x, jnp.arange(5))

        return run

    def numbers(made):
        value, told = made
        assert value.shape == (3,)
        return False, {name: name == "number" for name in told}

    compiled: Any = constants._carried_out
    before = compiled._cache_size()
    for scale in (1.0, 2.0):
        value, told = constants.needed(whole(scale), numbers, KEY, jnp.ones(3))
        assert (value, told["value"]) == (None, None)
        np.testing.assert_array_equal(told["number"], whole(scale)(KEY, jnp.ones(3))[1]["number"])
    assert compiled._cache_size() == before + 1
    _, told = constants.needed(whole(1.0), lambda made: (False, {"value": True, "number": False}), KEY, jnp.ones(3))
    own = whole(1.0)(KEY, jnp.ones(3))[1]["value"]
    np.testing.assert_allclose(
        told["value"], own, rtol=0, atol=32 * float(np.finfo(np.float32).eps)
    )  # of products and sums
    assert compiled._cache_size() == before + 2


def test_nothing_that_jax_calls_deprecated_is_used():
    """JAX names its own line as the place, so that no filter of ours sees it."""
    weights = jnp.arange(3.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shared = constants.shared(lambda x: x * weights)(jnp.ones(3))
        told, other = constants.needed(lambda x: (x * weights, x), lambda _: (True, False), jnp.ones(3))
    np.testing.assert_array_equal(shared, weights)
    np.testing.assert_array_equal(told, weights)
    assert other is None
