"""The test of the noise has power; the arithmetic as printed and that of Chase et al.; the bins of TAPAS."""

import numpy as np
import pytest

from dpaudit.report.rows import read_rows
from dpaudit.secure.crypto.randomness import Stream
from dpaudit.secure.noise import binomial
from dpaudit.secure.protocol.schemes import Step
from experiments.common import results
from experiments.pages import apart
from experiments.paper001 import more_claims, printed
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


@pytest.mark.parametrize(
    "name, above, below", [("as printed", 3, -3), *zip(printed.TRUNCATING, (2, 2), (-2, -3), strict=True)]
)
def test_the_owner_s_sum_is_rounded_to_the_nearest_toward_zero_or_down(name, above, below):
    unit = 30 / (2**16 - 1)
    arm = printed.Arm("MNIST", "", 21_258, name, "MPC only", None)
    sums = [np.array([[2.6 * unit, -2.6 * unit]]) for _ in range(3)]
    released = printed.release_of(arm, STEP)(sums, Stream(bytes(16)).draw)
    np.testing.assert_allclose(released / unit, [3 * above, 3 * below])


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
    for arm in printed.arms_of_mnist() + printed.arms_of_truncation() + printed.arms_of_chase():
        release = printed.release_of(arm, STEP)
        by_gradients, by_sums = (release(each, Stream(bytes(16)).draw) for each in (owners, sums))
        same = np.allclose(by_gradients, by_sums, atol=1e-9)
        assert same == (arm.arithmetic not in printed.EACH_ROUNDED), arm


def test_a_part_made_again_leaves_the_rows_of_the_others():
    rows = read_rows(results("spgc_printed"))
    for part in printed.PARTS:
        own = [row for row in rows if printed._of_part(part, row)]
        expected = {"mnist": {"MNIST"}, "chase": {"Cancer", None}, "cancer": {"MNIST", "Cancer", "Diabetes"}}
        assert {row["setting"].get("data") for row in own} == expected.get(part, {"MNIST"})
        truncating = {row["setting"].get("arithmetic") for row in own} & {*printed.TRUNCATING}
        assert truncating == ({*printed.TRUNCATING} if part == "truncation" else set())
    assert all(sum(printed._of_part(part, row) for part in printed.PARTS) == 1 for row in rows)


@pytest.mark.parametrize(
    "zero, dropped, spread, holds",
    [
        (0.0, -24.0, 1.0, True),  # one reading is enough
        (-0.5, 0.0, 0.1, True),
        (0.0, 0.0, 0.1, False),
        (0.0, -0.2, 0.25, None),  # neither a loss nor one that is smaller than printed
        (0.0, 0.0, 1.0, None),
        (-0.5, -24.0, 0.0, True),
    ],
)
def test_truncation_costs_accuracy_where_a_reading_of_it_does(zero, dropped, spread, holds):
    unit = {"ours": 0, "ours_low": -1, "ours_high": 1}
    half = spread / apart(unit, unit, 3)[1]
    by = dict(zip((printed.REAL, "as printed", *printed.TRUNCATING), (0.0, -24.0, zero, dropped), strict=True))

    def rows(trials, steps=600):
        return [
            {"quantity": "printed_accuracy", "scale": f"{steps} steps of 3,000 records, {trials} trials"}
            | {"setting": {"data": "MNIST", "arithmetic": name, "steps": steps}}
            | {"ours": 98 + more, "ours_low": 98 + more - half, "ours_high": 98 + more + half}
            for name, more in by.items()
        ]

    found = more_claims.truncated(rows(3) + rows(1, 20))
    assert found.holds is holds
    assert all(reading in found.ours for reading in ("toward zero", "bits dropped"))
    assert more_claims.truncated(rows(1)).holds is None or not spread


def test_bins_of_equal_width_are_those_of_the_range():
    train = np.array([[0.0], [0.1], [0.2], [3.0]])
    found = printed.equal_width(train, np.array([[0.9], [1.1], [2.9]]))
    np.testing.assert_array_equal(found, np.eye(3))
