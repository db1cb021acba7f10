import math

import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.secure.noise import accounting, gaussian
from dpaudit.secure.noise.accounting import allowed, claim, epsilon, spent
from dpaudit.secure.noise.binomial import Binomial, binomial, probabilities

ORDERS = (2.0, 4.0, 8.0, 16.0, 32.0)


def ratios(noise: Binomial, reach: float, shifts: np.ndarray) -> np.ndarray:
    """Computes R(v)/v^2 by brute force, [shifts, orders], from every whole number in |z| <= reach."""
    z = np.arange(math.ceil(-reach), math.floor(reach) + 1)
    p, alphas, rows = probabilities(noise, z), np.array(ORDERS), []
    for shift in shifts:
        loss = np.log(p / probabilities(noise, z - shift))
        rows.append(np.log(np.exp(np.multiply.outer(alphas - 1, loss)) @ p) / (alphas - 1) / shift**2)
    return np.array(rows)


def kappa(noise: Binomial, sensitivity: int, trimmed: float) -> tuple[np.ndarray, float]:
    """Returns what `spent` charges per squared unit, and the |z| to which its event reaches, given its probability."""
    one = spent(noise, sensitivity=sensitivity, dimension=1, trimmed=trimmed, orders=ORDERS)
    alphas = np.array(ORDERS)
    corners = np.arange(1, noise.coins + 2, 2) / 2 * noise.step
    z = np.arange(-noise.reach, noise.reach + 1)
    outside = [probabilities(noise, z[np.abs(z) > corner]).sum() for corner in corners]
    reach = corners[np.argmin(np.abs(np.log(np.maximum(outside, 1e-300)) - math.log(one.trimmed)))]
    extra = -alphas / (alphas - 1) * math.log1p(-one.trimmed)
    return (one.divergence - extra) / sensitivity**2, float(reach)


@pytest.mark.parametrize(("coins", "step_bits", "sensitivity"), [(127, 4, 90), (127, 4, 200), (255, 3, 64)])
def test_never_below_any_shift_and_not_far_above_the_worst(coins: int, step_bits: int, sensitivity: int) -> None:
    noise = binomial(coins=coins, step_bits=step_bits)
    charged, reach = kappa(noise, sensitivity, trimmed=1e-9)
    worst = ratios(noise, reach, np.arange(1, sensitivity + 1)).max(axis=0)
    assert (charged >= worst * (1 - 1e-9)).all()
    assert (charged <= worst * 1.003).all()


def test_cells_between_coarse_shifts() -> None:
    """A sensitivity of 1,500 units needs shifts that are not computed one by one."""
    noise, sensitivity = binomial(coins=127, step_bits=8), 1_500
    assert sensitivity > 8 * accounting.EXACT
    charged, reach = kappa(noise, sensitivity, trimmed=1e-9)
    some = np.random.default_rng(0).integers(1, sensitivity + 1, 40)
    assert (charged >= ratios(noise, reach, np.append(some, sensitivity)) * (1 - 1e-9)).all()
    fine, _ = kappa(binomial(coins=127, step_bits=6), sensitivity // 4, trimmed=1e-9)
    np.testing.assert_allclose(charged * 16, fine, rtol=6e-3)  # the law hardly depends on its step


@pytest.mark.parametrize(
    ("coins", "at_one_std", "worst"),
    [(127, (1.06, 1.23), (1.06, 1.25, 1.28, 1.36)), (255, (1.03, 1.07), (1.03, 1.08, 1.09, 1.13))],
)
def test_inflation_over_a_gaussian(coins: int, at_one_std: tuple[float, ...], worst: tuple[float, ...]) -> None:
    """Orders 4, 8, 16 and 32 at noise multiplier 1 with tails of about 1e-12 left out.

    At a shift of one standard deviation, and for the worst shift up to it: at high orders that is a smaller one.
    """
    noise = binomial(coins=coins, step_bits=5)
    sensitivity, alphas = round(noise.std), np.array(ORDERS)
    charged, reach = kappa(noise, sensitivity, trimmed=1e-12)
    gaussian = alphas / (2 * noise.std**2)
    one = ratios(noise, reach, np.array([sensitivity]))[0] / gaussian
    np.testing.assert_allclose(one[1:3], at_one_std, atol=0.02)
    np.testing.assert_allclose((charged / gaussian)[1:], worst, atol=0.01)


def test_a_thousand_coins_are_nearly_gaussian() -> None:
    noise = binomial(coins=1_023, step_bits=5)
    charged, _ = kappa(noise, round(noise.std), trimmed=1e-12)
    inflation = charged * 2 * noise.std**2 / np.array(ORDERS)
    assert (inflation > 1).all()
    assert (inflation[1:] < 1.015).all()


@pytest.mark.integration
def test_epsilon_beside_the_gaussians() -> None:
    """It lies above the exact epsilon of equally wide Gaussian noise, by the conversion's slack and the inflation."""
    multiplier, levels = gaussian.analytic(epsilon=2.0, delta=1e-3, neighbouring="replace"), 256_182
    noise = binomial(coins=127, step_bits=17)
    assert noise.std / levels == pytest.approx(multiplier, rel=1e-5)
    one = epsilon(noise, sensitivity=2 * levels, dimension=182, delta=1e-3)
    assert 2.0 < one < 2.4
    four = epsilon(noise, sensitivity=levels, dimension=182, delta=1e-3, steps=4)  # as one twice as far
    assert four == pytest.approx(one, rel=0.02)
    halved = noise._replace(step_bits=noise.step_bits - 1)
    assert epsilon(halved, sensitivity=2 * levels, dimension=182, delta=1e-3) > 1.9 * one


def test_the_ends_of_the_support_are_charged() -> None:
    noise = binomial(coins=127, step_bits=8)
    for dimension in (1, 1_000_000):
        assert spent(noise, sensitivity=1_000, dimension=dimension, trimmed=1e-6, orders=(2.0,)).trimmed <= 1e-6
    far = spent(noise, sensitivity=40 * noise.step, dimension=10, trimmed=1e-12, orders=(2.0,))
    assert 1e-12 < far.trimmed < 1  # more has to go than was allowed
    assert math.isinf(epsilon(noise, sensitivity=50 * noise.step, dimension=10, delta=1e-3))
    assert math.isinf(epsilon(noise, sensitivity=noise.reach, dimension=10, delta=1e-3))


@pytest.mark.parametrize(("multiplier", "budget"), [(4.0, 8.0), (10.0, 3.0), (2.0, 4.0), (6.0, 30.0)])
def test_so_many_releases_are_allowed_and_no_more(multiplier: float, budget: float) -> None:
    noise = binomial(coins=127, step_bits=8)
    sensitivity = 2 * int(noise.std / multiplier)
    found = allowed(noise, sensitivity=sensitivity, dimension=182, delta=1e-5, epsilon=budget)
    assert (found == 0) == (multiplier == 2.0)
    for steps in {max(found, 1), found + 1}:
        one = epsilon(noise, sensitivity=sensitivity, dimension=182, delta=1e-5, steps=steps)
        assert (one <= budget) == (steps <= found)


def test_refusals() -> None:
    noise = binomial(coins=127, step_bits=8)
    with pytest.raises(_validate.InputError, match=r"sensitivity: expected a whole number >= 1, got 0\.5"):
        spent(noise, sensitivity=0.5, dimension=1, trimmed=1e-9)  # pyright: ignore[reportArgumentType]
    with pytest.raises(_validate.InputError, match=r"orders: expected numbers > 1, got 1\.0"):
        spent(noise, sensitivity=1, dimension=1, trimmed=1e-9, orders=(1.0, 2.0))
    with pytest.raises(_validate.InputError, match=r"delta: expected a number in \(0, 1\), got 0"):
        epsilon(noise, sensitivity=1, dimension=1, delta=0)


def test_a_cell_is_charged_for_the_bend_of_its_chord() -> None:
    """Between shifts 16 a and 16 (a + 1), a divergence may be any mixture of the coarser law's at a and a + 1.

    Hoeffding's lemma bounds the logarithm of the mixture, which is above the straight line between those at its ends.
    """
    noise, sensitivity, width, order = binomial(coins=127, step_bits=8), 4_096, 16, ORDERS.index(4.0)
    charged, reach = kappa(noise, sensitivity, trimmed=1e-9)
    first = np.arange(accounting.EXACT, sensitivity // width + 1)
    with np.errstate(over="ignore"):  # of orders that are not looked at here
        coarse = ratios(binomial(coins=127, step_bits=4), reach / width, first)[:, order]
    ends = 3 * first**2 * coarse  # log S' at each a: R' = log S' / (alpha - 1)
    straight, mixture = (
        max(
            (mixed((1 - part, part), ends[:-1], ends[1:]) / (3 * (width * (first[:-1] + part)) ** 2)).max()
            for part in np.linspace(0, 1, 101)
        )
        for mixed in (
            lambda parts, one, other: parts[0] * one + parts[1] * other,
            lambda parts, one, other: np.log(parts[0] * np.exp(one) + parts[1] * np.exp(other)),
        )
    )
    assert charged[order] >= mixture
    assert charged[order] <= 1.001 * mixture
    assert straight < mixture * (1 - 1e-4)  # the bend can be seen


def test_every_step_pays_for_the_ends_of_its_noise() -> None:
    """Where the shift needs 1.085e-6 of delta a step, a delta of 1e-3 lasts for 921 steps."""
    noise = binomial(coins=127, step_bits=8)
    shift = 34 * noise.step
    assert spent(noise, sensitivity=shift, dimension=10, trimmed=1e-8).trimmed == pytest.approx(1.0850777e-6)
    assert math.isfinite(epsilon(noise, sensitivity=shift, dimension=10, delta=1e-3, steps=921))
    assert math.isinf(epsilon(noise, sensitivity=shift, dimension=10, delta=1e-3, steps=922))


def test_the_claim_lies_below_the_exact_trade_off_of_a_shift_and_near_it() -> None:
    """Compares with the best tests of one coordinate's noise against its shift, from all probabilities."""
    noise, shift = binomial(coins=127, step_bits=4), 90
    promised = claim(noise, sensitivity=shift, dimension=1, neighbouring="add_remove", trimmed=1e-9)
    z = np.arange(-noise.reach - shift, noise.reach + shift + 1)
    p, q = probabilities(noise, z), probabilities(noise, z - shift)
    with np.errstate(divide="ignore", invalid="ignore"):
        order = np.argsort(np.where(p > 0, q / p, np.inf))[::-1]  # the likeliest to be shifted first
    fpr, fnr = np.cumsum(p[order]), 1 - np.cumsum(q[order])
    lowest = promised.fnr(np.minimum(fpr, 1.0))
    assert (lowest <= fnr + 1e-9).all()
    assert (fnr - lowest).max() < 0.12  # what Renyi divergences lose
    nearer = claim(noise, sensitivity=shift // 2, dimension=1, neighbouring="add_remove")
    assert (nearer.fnr(np.minimum(fpr, 1.0)) > fnr).any()
    assert promised.epsilon_at(1e-5) <= epsilon(noise, sensitivity=shift, dimension=1, delta=1e-5) * 1.02
    assert promised.neighbouring == "add_remove"
    with pytest.raises(_validate.InputError, match="noise: expected one whose ends are wider than the shift"):
        claim(noise, sensitivity=noise.reach, dimension=10, neighbouring="replace")


def test_the_claim_of_gaussian_steps() -> None:
    promised = gaussian.claim(3.0, neighbouring="replace", steps=4)
    spent_gaussian = gaussian.epsilon(3.0, delta=1e-5, neighbouring="replace", steps=4)
    assert promised.epsilon_at(1e-5) == pytest.approx(spent_gaussian, rel=1e-9)
    assert promised.neighbouring == "replace"
