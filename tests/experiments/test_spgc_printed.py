"""The test of the noise has power; the arithmetic as printed and that of Chase et al.; the bins of TAPAS."""

import numpy as np
import pytest

from dpaudit.report.rows import read_rows
from dpaudit.secure.crypto.randomness import Stream
from dpaudit.secure.noise import binomial
from dpaudit.secure.protocol.schemes import Step
from experiments.common import results
from experiments.paper001 import printed
from experiments.paper001.protocol import fit

STEP = Step(owners=3, examples=30, clip_norm=1.0, noise_multiplier=0.5)


@pytest.mark.parametrize("step_bits", [9, 18])
def test_noise_of_its_law_fits_and_shifted_or_wider_noise_does_not(step_bits):
    law = binomial.binomial(coins=127, step_bits=step_bits)
    noise = binomial.sample(law, 200_000, Stream(bytes(16)).draw)
    assert fit(law, noise) > 0.01
    assert fit(law, noise + law.step // 4) < 1e-6
    assert fit(law, np.rint(1.02 * noise).astype(int)) < 1e-3


def test_the_owner_s_sum_is_rounded_once():
    unit = 30 / (2**16 - 1)
    tenths = [np.full((10, 2), 0.26 * unit) for _ in range(3)]
    source = Stream(bytes(16)).draw
    np.testing.assert_allclose(printed.as_printed(STEP, False)(tenths, source), 9 * unit)  # of 2.6 units, three times
    ours = printed.of_scheme(printed.schemes.mpc_only(STEP._replace(ring_bits=17)))
    np.testing.assert_array_equal(ours(tenths, source), 0)


def test_chase_et_al_decode_the_largest_sum_as_its_opposite():
    full = [np.ones((10, 1)) for _ in range(3)]
    source = Stream(bytes(16)).draw
    quiet = STEP._replace(noise_multiplier=0.0)
    assert printed.of_chase(quiet)(full, source)[0] == -30
    assert printed.as_printed(quiet, False)(full, source)[0] == pytest.approx(30)
    assert printed.of_chase(quiet)([0.9 * own for own in full], source)[0] == pytest.approx(27)


def test_noise_is_added_after_the_reduction_as_printed_and_within_the_ring_by_a_circuit_of_its_width():
    wide = STEP._replace(noise_multiplier=300.0)
    owners = [np.random.default_rng(owner).uniform(-0.5, 0.5, size=(10, 2_000)) for owner in range(3)]
    printed_sum, within = (
        printed.as_printed(wide, True, within=how)(owners, Stream(bytes(16)).draw) for how in (False, True)
    )
    assert np.abs(within).max() <= 30.001 < 280 < np.std(printed_sum) < 320
    np.testing.assert_allclose((printed_sum - within + 0.01) % (60 + 60 / (2**16 - 1)), 0.01, atol=1e-6)
    quiet = [printed.as_printed(wide, False, within=how)(owners, Stream(bytes(16)).draw) for how in (False, True)]
    np.testing.assert_array_equal(quiet[0], quiet[1])


def test_where_only_the_owner_s_sum_is_rounded_its_sum_stands_for_its_gradients():
    owners = [np.random.default_rng(owner).normal(size=(10, 4)) / 10 for owner in range(3)]
    sums = [own.sum(axis=0, keepdims=True) for own in owners]
    for arm in printed.arms_of_mnist() + printed.arms_of_chase():
        release = printed.release_of(arm, STEP)
        by_gradients, by_sums = (release(each, Stream(bytes(16)).draw) for each in (owners, sums))
        same = np.allclose(by_gradients, by_sums, atol=1e-9)
        assert same == (arm.arithmetic not in printed.EACH_ROUNDED), arm


def test_a_part_made_again_leaves_the_rows_of_the_others():
    rows = read_rows(results("spgc_printed"))
    for part in printed.PARTS:
        own = [row for row in rows if printed._of_part(part, row)]
        expected = {"mnist": {"MNIST"}, "chase": {"Cancer", None}, "cancer": {"MNIST", "Cancer", "Diabetes"}}[part]
        assert {row["setting"].get("data") for row in own} == expected
    assert all(sum(printed._of_part(part, row) for part in printed.PARTS) == 1 for row in rows)


def test_bins_of_equal_width_are_those_of_the_range():
    train = np.array([[0.0], [0.1], [0.2], [3.0]])
    found = printed.equal_width(train, np.array([[0.9], [1.1], [2.9]]))
    np.testing.assert_array_equal(found, np.eye(3))
