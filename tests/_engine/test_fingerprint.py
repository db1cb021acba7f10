"""A program's identity: the same for the same function traced again, another for anything that computes otherwise."""

import os
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive

from dpaudit._engine import fingerprint
from dpaudit.training.per_example import clipped_sum

X = jnp.ones(3)


def program(function, *arguments):
    return fingerprint.program(jax.make_jaxpr(function)(*arguments or (X, X)))


def written(scale=2.0, weights=(1.0, 2.0, 3.0), steps=3, swapped=False, jitted=(1.0,), branch=1.0, axis=0):
    def function(x, y):
        x, y = (y, x) if swapped else (x, y)
        add = jax.jit(lambda z: z + jnp.asarray(jitted).sum())
        z = jax.lax.fori_loop(0, steps, lambda _, z: jnp.tanh(add(z)), scale * x - y)
        z = jax.lax.cond(z[0] > 0, lambda z: z, lambda z: branch * z, z)
        return jax.nn.relu(z) * jnp.asarray(np.asarray(weights, np.float32)) + jax.lax.cumsum(z[:, None], axis)[0]

    return function


def all_differ(*programs):
    return len({tuple(one) for one in programs}) == len(programs)


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

    assert all_differ(*(program(twice, x) for x in (X, X[:2], X.astype(jnp.bfloat16))))
    assert program(lambda x: x + np.float32(0.1), X) != program(lambda x: x + np.nextafter(np.float32(0.1), 1), X)


def test_a_program_that_is_called_twice_differs_from_one_that_is_called_once():
    add = jax.jit(lambda z: z + 1)
    sine = jax.jit(jnp.sin)
    calls = [(add,), (add, add), (sine, add), (add, sine), (add, sine, add), (sine, sine, add)]

    def called(calls):
        return program(lambda x: reduce(lambda y, call: call(y), calls, x), X)

    assert all_differ(*map(called, calls))


def test_operations_and_results_tell_programs_apart():
    results = [
        lambda x: (jnp.sin(x), jnp.cos(x)),
        lambda x: (jnp.cos(x), jnp.sin(x)),
        lambda x: (jnp.sin(x), jnp.tan(x)),
        lambda x: (jnp.sin(x), np.float32(0)),
        lambda x: (jnp.sin(x), np.int32(0)),
        lambda x: (jnp.sin(x), x),
    ]
    assert all_differ(*(program(function, X) for function in results))


def test_random_bits_made_otherwise_tell_programs_apart():
    def bits(x, partitionable):
        with jax.threefry_partitionable(partitionable):
            return jax.random.bits(jax.random.key(0), (7,)) + x

    assert all_differ(*(program(lambda x, one=one: bits(x, one), jnp.uint32(0)) for one in (True, False)))


def on_host(function):
    def called(x):
        return jax.pure_callback(function, jax.ShapeDtypeStruct((3,), jnp.float32), x)

    return fingerprint.spelled(jax.make_jaxpr(called)(X))


def test_functions_on_the_host_are_told_apart_by_themselves():
    """A checkpoint, which another process may read, cannot do so."""
    one, other = (lambda x, scale=scale: scale * np.asarray(x) for scale in (1, 2))
    assert on_host(one)[0] == on_host(other)[0]
    assert on_host(one)[1] == on_host(one)[1]
    assert on_host(one)[1] != on_host(other)[1]


def test_functions_on_the_host_are_told_apart_by_their_places():
    """Of programs that call the same two, and spell alike."""

    def called(scale):
        return jax.jit(lambda x: jax.pure_callback(lambda x: scale * np.asarray(x), jax.typeof(x), x))

    calls = [called(scale) for scale in (1, 2)]
    places = [(0, 1, 0), (0, 1, 1)]
    found = [
        fingerprint.spelled(jax.make_jaxpr(lambda x, p=p: reduce(lambda y, place: calls[place](y), p, x))(X))
        for p in places
    ]
    assert found[0][0] == found[1][0]
    assert found[0][1] != found[1][1]


def test_settings_that_are_numbers_or_names_tell_programs_apart():
    """All of them: an address is left out of what is printed of an object alone."""
    set_to = Primitive("set_to")
    set_to.def_abstract_eval(lambda x, of: x)
    values = ["op_0x10", "op_0x20", "1", 1, 1.5, np.nextafter(1.5, 2).item(), None, "None", (1, "1 of"), ("1 1", "of")]
    assert all_differ(*(program(lambda x, v=v: set_to.bind(x, of=v), X) for v in values))


def test_a_program_s_objects_are_those_of_the_same_function_traced_again():
    again = [fingerprint.spelled(jax.make_jaxpr(written())(X, X))[1] for _ in range(2)]
    assert again[0] == again[1]


def test_a_digest_tells_where_parts_end():
    assert len({fingerprint.digest(parts) for parts in ([b"ab", b"c"], [b"a", b"bc"], [b"abc"], [b"abc", b""])}) == 4
    assert fingerprint.digest([b"ab", b"c"]) == fingerprint.digest(iter([b"ab", b"c"]))


def test_a_run_goes_on_where_there_are_other_cores(monkeypatch):
    """A CPU's cores decide how many examples are computed at a time: part of the program, and not of the run."""
    params, batch = jnp.ones((1_024, 64)), jnp.ones((4_096, 64))
    programs, identities = set(), []
    for cores in (1, 64):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, cores=cores: set(range(cores)), raising=False)

        def step(key, state, data):
            return clipped_sum(lambda w, x: jnp.sum(jnp.tanh(w @ x)), state, data, clip_norm=1.0)[0]

        programs.add(str(jax.make_jaxpr(step)(None, params, batch)))
        identities.append(fingerprint.of_run(step, key=jax.random.key(0), start=params, data=batch))
    assert len(programs) == 2
    assert identities[0] == identities[1]
