"""Long releases, types and the sign of zero: every place is read, and what is not read is told."""

from decimal import Decimal

import jax
import numpy as np
import pytest

import dpaudit
from dpaudit import Claim, _validate
from dpaudit.auditing.host import encoder as encoders
from dpaudit.auditing.host.encoder import Encoder

KEY = jax.random.key(3)
FEW = {"key": KEY, "trials": 1000, "claim": Claim(1.0)}


def unary(rng, hot):
    """100 bits, of which the one of x is turned and all but number 75 are flipped often."""
    flips = rng.random(100) < 0.438
    flips[75] = False
    return flips ^ (np.arange(100) == hot)


def bits(flags):
    return "".join("01"[int(flag)] for flag in flags)


WRITTEN = {
    "whole numbers": lambda flags: flags.astype(int).tolist(),
    "bool": lambda flags: flags.tolist(),
    "a dictionary": lambda flags: {"bits": flags.astype(int).tolist()},
    "a dictionary with more": lambda flags: {"bits": flags.astype(int).tolist(), "name": "x"},
    "text": bits,
    "texts": lambda flags: [bits(flags), "x"],
    "rows": lambda flags: [flags.tolist(), None],
    "hexadecimal": lambda flags: np.packbits(flags).tobytes().hex(),
    "HEXADECIMAL": lambda flags: np.packbits(flags).tobytes().hex().upper(),
    "bytes": lambda flags: np.packbits(flags).tobytes(),
    "a byte for each": lambda flags: flags.tobytes(),
    "strings": lambda flags: list(bits(flags)),
    "comma-separated": lambda flags: ",".join(f"{flag:.2f}" for flag in flags.astype(float)),
    "a whole number": lambda flags: int(bits(flags), 2),
    "a large number in a list": lambda flags: [int(bits(flags), 2), 0],
    "Decimal": lambda flags: Decimal(bits(flags)),
}


@pytest.mark.parametrize("how", WRITTEN)
def test_every_place_of_a_long_release_is_read(how):
    """What one bit of a hundred tells is found however the bits are written."""
    found = dpaudit.audit(dpaudit.on_host(lambda rng, x: WRITTEN[how](unary(rng, x))), 70, 75, **FEW)
    assert found.verdict == "violation", how


def test_items_of_long_lists_of_one_length_are_read_too():
    def sample(rng, x):
        found = (1 + rng.permutation(500)[:60]).tolist()
        if x and rng.random() < 0.5:
            found[rng.integers(60)] = 0
        return found

    found = dpaudit.audit(dpaudit.on_host(lambda rng, x: sample(rng, x)), 0, 1, **FEW)
    assert found.verdict == "violation"
    assert any("holds 0" in one.name for one in found.attacks)


UNREAD = {
    "character 4096 and what follows it": lambda rng, x: bits(rng.random(5000) < 0.5),
    "the content of the type ValueError": lambda rng, x: [ValueError("x"), int(rng.integers(2))],
    "what is nested more than 6 deep": lambda rng, x: [[[[[[[[int(rng.integers(2))]]]]]], None]],
}


@pytest.mark.parametrize("what", UNREAD)
def test_what_is_not_read_is_told(what):
    with pytest.warns(_validate.InputWarning, match=f"^mechanism: {what} is not read in releases of <lambda>, so a"):
        found = dpaudit.audit(dpaudit.on_host(UNREAD[what]), 0, 1, key=KEY, trials=64, claim=Claim(1.0))
    assert found.verdict != "violation"
    releases = [UNREAD[what](np.random.default_rng(i), 0) for i in range(256)]
    with pytest.warns(_validate.InputWarning, match=f"^samples0: {what} is not read, so a leak there is not seen$"):
        dpaudit.from_samples(releases[:128], releases[128:])


TYPES = {
    "float": (np.float32, np.float64),
    "a number": (int, float),
    "a truth value": (lambda n: bool(n % 2), lambda n: int(n % 2)),
    "an array": (lambda n: np.full(3, n, np.int32), lambda n: np.full(3, n, np.int64)),
    "a sequence": (lambda n: (int(n),), lambda n: [int(n)]),
    "a place": (lambda n: (int(n), 0.0), lambda n: (float(n), 0)),
    "one number of a list": (lambda n: [int(n), float(n)], lambda n: [float(n), float(n)]),
    "the last number of a list": (lambda n: {"v": [float(n), 3]}, lambda n: {"v": [float(n), 3.0]}),
    "in a dictionary": (lambda n: {"a": int(n), "b": None}, lambda n: {"a": float(n), "b": None}),
    "a clipped value": (lambda n: max(0, n - 2.0), lambda n: max(0.0, n - 2.0)),
    "the sign of zero": (lambda n: -0.0 if n < 2 else 1.0, lambda n: 0.0 if n < 2 else 1.0),
    "the sign of a zero in an array": (lambda n: np.full(3, -0.0 * (n < 2)), lambda n: np.zeros(3)),
}


@pytest.mark.parametrize("what", TYPES)
def test_types_and_the_sign_of_zero_are_read(what):
    function = dpaudit.on_host(lambda rng, x: TYPES[what][x](rng.integers(5)))
    assert dpaudit.audit(function, 0, 1, **FEW).verdict == "violation"


def test_types_of_given_releases_are_read():
    draws = np.random.default_rng(0).integers(0, 5, (2, 1000)).tolist()
    assert dpaudit.from_samples(*draws, claim=Claim(1.0)).verdict == "underpowered"
    assert dpaudit.from_samples(draws[0], list(map(float, draws[1])), claim=Claim(1.0)).verdict == "violation"


def test_types_that_vary_whatever_the_input_accuse_nobody():
    function = dpaudit.on_host(lambda rng, x: [(int, float)[rng.integers(2)](3), x / 2 + rng.laplace()])
    assert dpaudit.audit(function, 0, 1, **FEW).verdict == "consistent"


def test_types_that_never_vary_leave_the_arrays_alone():
    learned = encoders.learn(([(1, 0.5), (2, 1.5)], [(3, 2.5), (4, 0.0)]), None)
    assert learned == Encoder(learned.layout)


def test_an_encoder_of_an_older_file_is_restored():
    told = Encoder(None, (), ("size",), 0)._asdict()
    assert encoders.restored({name: told[name] for name in ("layout", "items", "numbers", "own")}) == Encoder(**told)
