import math
from collections.abc import Callable

import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.secure.channel import Channel
from dpaudit.secure.crypto import shares
from dpaudit.secure.crypto.randomness import Source, Stream
from dpaudit.secure.noise import binomial, lookup
from dpaudit.secure.protocol import agreement, in_process, schemes, two_server_sum
from dpaudit.secure.protocol.schemes import Scheme, Step

STEP = Step(owners=3, examples=30, clip_norm=0.5, noise_multiplier=2.0)
WITH_NOISE: dict[str, tuple[Callable[[Step], Scheme], float]] = {  # and its standard deviation over that of one
    "ldp": (schemes.ldp, math.sqrt(3)),
    "spgc": (schemes.spgc, 1.0),
    "spgc_table": (schemes.spgc_table, 1.0),
    "reduced": (schemes.reduced, 1.0),
    "own_noise": (schemes.own_noise, math.sqrt(2)),
}


def source(seed: int) -> Source:
    return Stream(bytes([seed]) * 16).draw


def clipped(seed: int, n: int, d: int) -> np.ndarray:
    """Draws rows of L2 norm C, some shorter."""
    rows = np.random.default_rng(seed).standard_normal((n, d))
    lengths = np.linspace(0.2, 1.0, n) * STEP.clip_norm
    return rows * (lengths / np.linalg.norm(rows, axis=1))[:, None]


class Recorded:
    """A source that records what it gave."""

    def __init__(self, seed: int) -> None:
        self.drawn: list[bytes] = []
        self._draw = source(seed)

    def __call__(self, count: int) -> bytes:
        self.drawn.append(self._draw(count))
        return self.drawn[-1]

    def bits(self, shape: tuple[int, int]) -> np.ndarray:
        """Returns the only draw of so many bits."""
        size = math.prod(shape)
        (packed,) = (part for part in self.drawn if len(part) == -(-size // 8))
        return np.unpackbits(np.frombuffer(packed, np.uint8), count=size).reshape(shape)


@pytest.mark.parametrize("private", [True, False], ids=["spgc", "mpc_only"])
@pytest.mark.parametrize("d", [182, 1])
def test_the_simulation_is_the_protocol_bit_for_bit(private: bool, d: int) -> None:
    scheme = (schemes.spgc if private else schemes.mpc_only)(STEP)
    assert scheme.scale is not None
    owned = [schemes.contribution(scheme, clipped(i, 10, d)) for i in range(STEP.owners)]
    first, second = (
        shares.add(each, ring_bits=25)
        for each in zip(*(shares.split(own, ring_bits=25, source=source(9)) for own in owned), strict=True)
    )
    if private:
        _, law = schemes.fixed_point.with_binomial(noise_multiplier=2.0, examples=30, clip_norm=0.5)
        opened = two_server_sum.noisy(law, ring_bits=25)
    else:
        law, opened = None, two_server_sum.plain(ring_bits=25)
    secrets = Recorded(1), Recorded(2)

    def garbler(channel: Channel) -> np.ndarray:
        party = two_server_sum.Garbler(channel, source=secrets[0])
        return party.open(opened, party.prepare(opened, d), first)

    def evaluator(channel: Channel) -> np.ndarray:
        party = two_server_sum.Evaluator(channel, source=secrets[1])
        return party.open(opened, party.prepare(opened, d, second), second)

    released, same = in_process.together(in_process.channels(), garbler, evaluator)
    drawn = np.zeros(d, np.int64)
    if law is not None:
        mixed = np.bitwise_xor(*(secret.bits((law.bits, d)) for secret in secrets))
        drawn = binomial.from_bits(law, mixed.T)
        assert drawn.std() > 0 or d == 1
    np.testing.assert_array_equal(released, same)
    np.testing.assert_array_equal(schemes.release(scheme, owned, drawn), released * scheme.scale.unit)
    assert not np.array_equal(schemes.release(scheme, owned, drawn + 1), released * scheme.scale.unit)


@pytest.mark.parametrize("name", WITH_NOISE)
def test_noise_has_the_stated_spread(name: str) -> None:
    make, ratio = WITH_NOISE[name]
    scheme, count = make(STEP), 40_000
    assert scheme.std == pytest.approx(ratio * STEP.noise_multiplier, rel=1e-4)
    unit = 1.0 if scheme.scale is None else scheme.scale.unit
    drawn = unit * scheme.noise(count, source(3)) / STEP.clip_norm
    error = 1 / math.sqrt(2 * count)  # of a normal sample's standard deviation, relative
    assert drawn.std() == pytest.approx(scheme.std, rel=4 * error)
    assert abs(drawn.mean()) < 4 * scheme.std / math.sqrt(count)
    assert drawn.std() != pytest.approx(1.03 * scheme.std, rel=4 * error)
    np.testing.assert_array_equal(scheme.noise(5, source(3)), scheme.noise(5, source(3)))


@pytest.mark.parametrize("make", [schemes.mpc_only, schemes.spgc, schemes.reduced, schemes.own_noise])
def test_a_release_is_the_sum_of_clipped_gradients_and_noise(make: Callable[[Step], Scheme]) -> None:
    scheme = make(STEP)
    owned = [clipped(i, 10, 182) for i in range(3)]
    noise_drawn = scheme.noise(182, source(4))
    released = schemes.release(scheme, [schemes.contribution(scheme, own) for own in owned], noise_drawn)
    assert scheme.scale is not None
    exact = np.concatenate(owned).sum(axis=0) + scheme.scale.unit * noise_drawn
    assert np.abs(released - exact).max() <= 30 * scheme.scale.unit  # each of 30 examples loses less than a unit
    assert released.std() > 0


def test_each_example_is_quantised_by_itself() -> None:
    """Rounding is toward zero, before the sum: neither the sum in real numbers nor the mean gives the same."""
    scheme = schemes.mpc_only(STEP)
    assert scheme.scale is not None
    rows = np.array([[0.6, -0.6, 2.6], [0.9, -0.9, 0.9], [1.6, -1.6, 0.1]]) * scheme.scale.unit
    np.testing.assert_array_equal(schemes.contribution(scheme, rows), [1, -1, 2])


def test_real_numbers_stay_real() -> None:
    scheme, owned = schemes.non_private(STEP), [clipped(i, 10, 5) for i in range(3)]
    released = schemes.release(
        scheme, [schemes.contribution(scheme, own) for own in owned], scheme.noise(5, source(0))
    )
    np.testing.assert_allclose(released, np.concatenate(owned).sum(axis=0))
    noisy = schemes.ldp(STEP)
    drawn = noisy.noise(5, source(0))
    released = schemes.release(noisy, [schemes.contribution(noisy, own) for own in owned], drawn)
    np.testing.assert_allclose(released, np.concatenate(owned).sum(axis=0) + drawn)


def test_noise_beyond_the_ring_comes_back_modulo() -> None:
    scheme = schemes.mpc_only(STEP)
    assert scheme.scale is not None
    beyond = schemes.release(scheme, [np.array([5])], np.array([1 << 24]))
    assert beyond[0] == (5 - (1 << 24)) * scheme.scale.unit


def test_refuses_what_no_scheme_can_do() -> None:
    with pytest.raises(_validate.InputError, match="owners: expected a whole number >= 1, got 0"):
        schemes.ldp(STEP._replace(owners=0))
    with pytest.raises(_validate.InputError, match="noise_multiplier: expected a finite number > 0, got 0"):
        schemes.reduced(STEP._replace(noise_multiplier=0))
    with pytest.raises(_validate.InputError, match=r"gradients: expected rows of L2 norm <= 0\.5"):
        schemes.contribution(schemes.spgc(STEP), np.ones((1, 3)))


@pytest.mark.integration
def test_the_table_simulated_is_the_servers() -> None:
    made = agreement.terms(
        owners=("a", "b", "c"), dimension=9, examples=30, clip_norm=0.5, noise_multiplier=2.0, noise="table"
    )
    scheme = schemes.spgc_table(STEP)
    assert scheme.scale == made.scale
    first, second = np.frombuffer(source(3)(36), np.uint16).reshape(2, 9)
    law = made.opening().noise
    assert isinstance(law, lookup.Table)
    np.testing.assert_array_equal(scheme.noise(9, source(3)), lookup.from_seeds(law.values, first, second))


@pytest.mark.parametrize(("make", "ratio"), [(schemes.reduced, 1.0), (schemes.own_noise, math.sqrt(2))])
def test_noise_in_whole_units_is_never_less_than_was_asked_for(make: Callable[[Step], Scheme], ratio: float) -> None:
    for multiplier in (0.3, 1.0, 2.0, 3.7):
        scheme = make(STEP._replace(noise_multiplier=multiplier))
        assert scheme.scale is not None
        assert 0 <= scheme.std - ratio * multiplier < 1 / scheme.scale.levels
