import numpy as np
import pytest
from scipy import stats

from dpaudit import _validate
from dpaudit.secure.crypto import shares
from dpaudit.secure.crypto.randomness import Stream

RING = 25
HALF = 1 << (RING - 1)


@pytest.mark.parametrize("owners", [1, 3, 100])
def test_sum_of_owners_comes_back(owners: int) -> None:
    rng = np.random.default_rng(owners)
    values = rng.integers(-(HALF // owners), HALF // owners, (owners, 182))
    values[:, 0], values[:, 1] = -(HALF // owners), HALF // owners - 1
    first, second = zip(*(shares.split(row, ring_bits=RING) for row in values), strict=True)
    total = shares.join(shares.add(first, ring_bits=RING), shares.add(second, ring_bits=RING), ring_bits=RING)
    np.testing.assert_array_equal(total, values.sum(axis=0))
    without_one = shares.add(second[1:] or [0 * second[0]], ring_bits=RING)
    assert (shares.join(shares.add(first, ring_bits=RING), without_one, ring_bits=RING) != total).mean() > 0.99


def test_each_share_is_uniform_whatever_the_value() -> None:
    ring_bits, count = 4, 160_000
    for value in (-8, 0, 7):
        pair = shares.split(np.full(count, value), ring_bits=ring_bits, source=Stream(bytes(16)).draw)
        for share in pair:
            assert stats.chisquare(np.bincount(share + 8, minlength=16)).pvalue > 1e-4
        lame = np.minimum(pair[1], 6)  # the twin: one value is missing
        assert stats.chisquare(np.bincount(lame + 8, minlength=16)).pvalue < 1e-9


def test_sums_of_both_signs_are_one_value_in_the_uncorrected_protocol() -> None:
    """Chase et al. share g smod m C itself: m gradients of +C and m of -C give the same number."""
    examples, clip_norm = 30, 100  # in whole units of a ring of 2 m C values, as they have it
    extremes = np.array([examples * clip_norm, -examples * clip_norm])
    uncorrected = shares.smod(extremes, examples * clip_norm)
    assert uncorrected[0] == uncorrected[1] == -examples * clip_norm

    corrected = np.trunc(extremes * ((HALF - 1) / (examples * clip_norm))).astype(np.int64)  # Algorithm 1, line 6
    back = shares.join(*shares.split(corrected, ring_bits=RING), ring_bits=RING)
    np.testing.assert_array_equal(back, [HALF - 1, -(HALF - 1)])


def test_a_sum_that_leaves_the_ring_comes_back_modulo_it() -> None:
    halves = [shares.split(np.array([HALF - 1]), ring_bits=RING) for _ in range(2)]
    first, second = (shares.add(column, ring_bits=RING) for column in zip(*halves, strict=True))
    assert shares.join(first, second, ring_bits=RING) == 2 * (HALF - 1) - 2 * HALF


def test_refusals() -> None:
    with pytest.raises(
        _validate.InputError, match=r"values: expected integers in \[-16777216, 16777216\), got 16777216"
    ):
        shares.split(np.array([0, HALF]), ring_bits=RING)
    with pytest.raises(_validate.InputError, match=r"values: expected integers in \[.*\), got -16777217"):
        shares.split(np.array([-HALF - 1]), ring_bits=RING)
    with pytest.raises(_validate.InputError, match=r"values: expected integers, got float64"):
        shares.split(np.array([0.5]), ring_bits=RING)
    with pytest.raises(_validate.InputError, match="ring_bits: expected a whole number from 2 to 32, got 33"):
        shares.split(np.array([0]), ring_bits=33)
    with pytest.raises(_validate.InputError, match="shares: expected those of at least one owner, got none"):
        shares.add([], ring_bits=RING)
    with pytest.raises(_validate.InputError, match=r"shares: expected arrays of shape \[3\], got shape \[2\]"):
        shares.add([np.zeros(3, np.int64), np.zeros(2, np.int64)], ring_bits=RING)
