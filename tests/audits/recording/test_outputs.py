"""Outputs of many types: what no noise hides is found in each, and noise that hides it is followed into it."""

import array
import collections
import dataclasses
import datetime
import decimal
import fractions
import functools
import types
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit import Claim, _validate, record


@dataclasses.dataclass(slots=True)
class Slotted:
    value: Any


class Kept:
    """An object that keeps its generator, and a class and a module among its attributes."""

    def __init__(self, rng, x):
        self.rng, self.other = rng, np.random.default_rng()
        self.kind, self.module, self.number = decimal.Decimal, np, iter([1, 2])
        self.scaled, self.drawn = abs, self.rng.laplace
        self.value = x + rng.laplace(0, 1) + self.other.laplace(0, 1)


class Series:
    """A column with an index, as pandas has it."""

    dtype = np.dtype(float)

    def __init__(self, values, index):
        self._values, self.index = values, index

    def to_dict(self):
        return dict(zip(self.index, self._values, strict=True))

    def __array__(self, *_: Any, **__: Any):
        return np.asarray(self._values)


BARE = {
    "decimal": decimal.Decimal,
    "fraction": fractions.Fraction,
    "date": lambda x: datetime.date(2020, 1, 1 + int(x)),
    "deque": lambda x: collections.deque([x]),
    "bytearray": lambda x: bytearray(str(x).encode()),
    "memoryview": lambda x: memoryview(str(x).encode()),
    "range": lambda x: range(int(x)),
    "values": lambda x: {"a": x}.values(),
    "keys": lambda x: {x: 1}.keys(),
    "proxy": lambda x: types.MappingProxyType({"a": x}),
    "array": lambda x: array.array("d", [x]),
    "jax": jnp.asarray,
    "object": lambda x: np.array(x, object),
    "slots": Slotted,
    "exception": ValueError,
    "column": lambda x: Series([x], ["a"]),
    "mask": lambda x: np.ma.array([1.0], mask=[bool(x)]),
    "index": lambda x: Series([0.0], [x]),
}


@pytest.mark.parametrize("name", BARE)
def test_a_bare_value_is_found_in_an_output_of_any_type(name):
    bare = record(lambda rng, x: (rng.laplace(), BARE[name](x)), 0.0, 1.0, claim=Claim(1.0), trials=0)
    assert (bare.verdict, bare.kinds) == ("violation", {"data_dependent_output"}), str(bare)


@pytest.mark.parametrize(
    "made", [Slotted, lambda y: collections.deque([y]), lambda y: {"a": y}.values(), lambda y: np.ma.array([y])]
)
def test_noise_is_followed_into_it(made):
    found = record(lambda rng, x: made(x + rng.laplace()), 0.0, 1.0, claim=Claim(1.0), trials=0)
    assert (found.verdict, found.epsilon_returned) == ("consistent", 1.0), str(found)


def test_an_object_may_keep_the_generator_that_it_draws_from():
    found = record(lambda rng, x: Kept(rng, x), 0.0, 1.0, trials=0)
    assert (found.findings, len(found.noises)) == ((), 1)
    assert record(lambda rng, x: Kept(rng, 0 * x), 0.0, 1.0, trials=0).findings == ()


@pytest.mark.parametrize("made", [lambda y: (one for one in [y]), lambda y: {"a": map(float, [y])}])
def test_an_output_that_can_be_read_only_once_is_refused(made):
    with pytest.raises(_validate.InputError, match=r"^fn: expected an output that can be read more than once, got a "):
        record(lambda rng, x: made(x + rng.laplace()), 0.0, 1.0, trials=0)


async def never_awaited(x):
    return x


@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize("made", [never_awaited, lambda x: lambda: x, lambda x: [functools.partial(abs, x)]])
def test_an_output_that_has_no_values_yet_is_refused(made):
    with pytest.raises(_validate.InputError, match=r"^fn: expected an output that can be read, got a (cor|func|part)"):
        record(lambda rng, x: made(x), 0.0, 1.0, claim=Claim(1.0), trials=0)


def test_a_time_that_is_none_equals_itself():
    found = record(lambda rng, x: (x + rng.laplace(), np.datetime64("NaT")), 0.0, 1.0, claim=Claim(1.0), trials=0)
    assert found.verdict == "consistent"
