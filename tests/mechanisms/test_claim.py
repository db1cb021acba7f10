"""Claims as curves: against closed forms and dp-accounting, and refused where they are no trade-off curve."""

import copy
import dataclasses
import json
import math
import pickle
from decimal import Decimal, localcontext

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import RdpAccountant, rdp_privacy_accountant
from scipy.optimize import brentq
from scipy.stats import norm

import dpaudit
from dpaudit import Claim
from dpaudit._validate import InputError

RATES = np.concatenate([np.logspace(-9, -2, 30), np.linspace(0.02, 0.98, 60), 1 - np.logspace(-2, -9, 30)])
MU = 1.3


def gaussian_fnr(fpr, mu):
    return norm.cdf(norm.isf(fpr) - mu)


def test_a_claim_of_epsilon_and_delta_is_what_it_was():
    claim = Claim(1.0, 1e-5, "add_remove")
    epsilon, delta, neighbouring = claim
    assert (epsilon, delta, neighbouring) == (1.0, 1e-5, "add_remove")
    assert claim._asdict() == {"epsilon": 1.0, "delta": 1e-5, "neighbouring": "add_remove"}
    assert repr(claim) == "Claim(epsilon=1.0, delta=1e-05, neighbouring='add_remove')"
    assert not claim.is_curve
    assert claim.at(1e-5) == claim
    assert claim.epsilon_at(0.0) == math.inf
    assert claim.delta_at(1.0) == pytest.approx(1e-5, rel=1e-9)


@pytest.mark.parametrize("epsilon, delta", [(1.0, 0.0), (0.3, 0.1), (5.0, 1e-6)])
def test_the_curve_of_epsilon_and_delta_is_the_textbook_s(epsilon, delta):
    claim = Claim(epsilon, delta)
    textbook = np.maximum(
        0, np.maximum(1 - delta - math.exp(epsilon) * RATES, (1 - delta - RATES) / math.exp(epsilon))
    )
    assert claim.fnr(RATES) == pytest.approx(textbook, abs=1e-12)


@pytest.mark.parametrize("epsilon", [1e-9, 1e-6, 0.001, 1.0, 50.0, 600.0, 1e4])
@pytest.mark.parametrize("delta", [0.0, 1e-30, 1e-12, 1e-6, 1e-5, 3e-7, 0.01, 0.9])
def test_a_claim_keeps_its_own_epsilon_and_delta_without_rounding(epsilon, delta):
    claim = Claim(epsilon, delta)
    assert (claim.epsilon_at(delta), claim.delta_at(epsilon), claim.at(delta)) == (epsilon, delta, claim)
    assert claim.delta_at(2 * epsilon) == delta
    assert claim.epsilon_at(np.nextafter(delta, -1)) == math.inf if delta else claim.epsilon_at(0.0) == epsilon
    for less in (0.3 * epsilon, 0.9 * epsilon):
        with localcontext(prec=50):
            corner = (1 - Decimal(delta)) / (1 + Decimal(epsilon).exp())
            exact = 1 - corner * (1 + Decimal(less).exp())
        assert claim.delta_at(less) == pytest.approx(float(exact), rel=1e-9)
        if (more := claim.delta_at(less)) < 1 - 1e-9:
            assert claim.epsilon_at(more) == pytest.approx(less, rel=1e-6, abs=1e-15)


def test_gaussian_is_the_closed_form_and_dp_accounting_s():
    claim = Claim.gaussian(MU)
    assert claim.fnr(RATES) == pytest.approx(gaussian_fnr(RATES, MU), rel=1e-9)
    assert claim.epsilon == math.inf  # nothing without a delta
    for delta in (1e-2, 1e-5, 1e-9):
        epsilon = claim.epsilon_at(delta)
        assert epsilon == pytest.approx(dp_accounting.get_epsilon_gaussian(1 / MU, delta), rel=1e-9)
        assert claim.delta_at(epsilon) == pytest.approx(delta, rel=1e-5)
        assert claim.at(delta) == Claim(epsilon, delta)
    assert not np.allclose(Claim.gaussian(1.01 * MU).fnr(RATES), claim.fnr(RATES), rtol=1e-3)


def test_a_pld_of_laplace_noise_is_the_closed_form():
    """Of Lap(1) against Lap(1) + s: the least error of a threshold between them."""
    claim = Claim.pld(pld.from_laplace_mechanism(1.0, 1.0, value_discretization_interval=1e-4))
    exact = np.where(math.exp(-1) / 2 > RATES, 1 - math.e * RATES, math.exp(-1) / 4 / RATES)
    exact = np.where(RATES >= 0.5, (1 - RATES) / math.e, exact)
    assert claim.fnr(RATES) == pytest.approx(exact, abs=2e-4)
    assert (claim.fnr(RATES) <= exact + 1e-12).all()  # rounded toward less privacy
    assert claim.epsilon == pytest.approx(1.0, abs=1e-3)
    assert claim.neighbouring == "add_remove"


@pytest.mark.parametrize("noise", [0.03, 0.02])  # of losses near 560 and 1,250 nats
def test_a_pld_of_losses_beyond_the_range_of_float64_promises_no_less_than_there_is(noise):
    claim = Claim.pld(pld.from_gaussian_mechanism(noise, value_discretization_interval=0.1))
    for delta in (1e-9, 1e-5, 0.1):
        assert claim.epsilon_at(delta) >= dp_accounting.get_epsilon_gaussian(noise, delta) * (1 - 1e-6)
    assert math.isfinite(claim.epsilon_at(0.1)) == (noise > 0.02)


@pytest.mark.parametrize("multiplier, steps", [(1.0, 1), (0.8, 30)])
def test_a_pld_of_sampled_gaussian_noise_has_two_directions_and_dp_accounting_s_delta(multiplier, steps):
    rate = 0.1
    one = pld.from_gaussian_mechanism(multiplier, sampling_prob=rate, value_discretization_interval=1e-3)
    law = one.self_compose(steps)
    claim = Claim.pld(law)
    for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0):
        wanted = law.get_delta_for_epsilon(epsilon)
        assert claim.delta_at(epsilon) == pytest.approx(wanted, rel=1e-3, abs=1e-12)
    for delta in (1e-2, 1e-5):
        assert claim.epsilon_at(delta) == pytest.approx(law.get_epsilon_for_delta(delta), rel=2e-3)
    absent_first, present_first = claim.directions
    assert claim.fnr(RATES) == pytest.approx(np.minimum(absent_first.fnr(RATES), present_first.fnr(RATES)))
    if steps == 1:  # world 0 without the record is N(0, s), world 1 has the mixture
        cuts = np.linspace(-2, 4, 50)
        fpr = norm.sf(cuts / multiplier)
        fnr = (1 - rate) * norm.cdf(cuts / multiplier) + rate * norm.cdf((cuts - 1) / multiplier)
        assert absent_first.fnr(fpr) == pytest.approx(fnr, abs=1e-4)
        assert (absent_first.fnr(fpr) <= fnr + 1e-9).all()
        assert present_first.fnr(fnr) == pytest.approx(fpr, abs=1e-4)  # the same rule, the worlds exchanged
        assert not np.allclose(absent_first.fnr(RATES), present_first.fnr(RATES), atol=1e-3)


def test_renyi_bounds_are_the_best_that_they_allow_a_test():
    """Brute force: the lowest b that keeps every inequality, by root finding of one at a time."""
    orders = [1.5, 2.0, 4.0, 16.0, 40.0]
    bounds = [alpha * MU**2 / 2 for alpha in orders]
    claim = Claim.renyi(orders, bounds)

    def excess(b, a, alpha, bound):
        ways = (((1 - b, a), (b, 1 - a)), ((a, 1 - b), (1 - a, b)))
        with np.errstate(over="ignore"):
            sums = [sum(np.float64(p) ** alpha * np.float64(q) ** (1 - alpha) for p, q in way) for way in ways]
        return math.log(min(max(sums), 1e300)) / (alpha - 1) - bound

    for a in (1e-6, 1e-3, 0.05, 0.3, 0.5, 0.9):
        roots = []
        for pair in zip(orders, bounds, strict=True):
            low, high = 1e-300, 1 - a
            roots.append(brentq(excess, low, high, (a, *pair), xtol=1e-14) if excess(low, a, *pair) > 0 else 0.0)
        assert float(claim.fnr(a)) == pytest.approx(max(roots), rel=1e-3, abs=1e-10)
        assert float(claim.fnr(a)) <= max(roots) + 1e-12


def test_renyi_promises_no_more_than_the_gaussian_that_it_is_of_and_no_less_than_the_conversion():
    orders = [1.1, 1.25, 1.5, 1.75, *range(2, 65)]
    claim = Claim.renyi(orders, [alpha * MU**2 / 2 for alpha in orders])
    assert (claim.fnr(RATES) <= gaussian_fnr(RATES, MU) + 1e-12).all()
    accountant = RdpAccountant(orders).compose(dp_accounting.GaussianDpEvent(1 / MU))
    for delta in (1e-2, 1e-5):
        exact = dp_accounting.get_epsilon_gaussian(1 / MU, delta)
        assert exact < claim.epsilon_at(delta) <= accountant.get_epsilon(delta) + 1e-3  # tangents
    assert (Claim.renyi([2.0], [0.0]).fnr(RATES) == 1 - RATES).all()
    assert Claim.renyi([2.0, 4.0], [0.5, math.inf]) == Claim.renyi([2.0], [0.5])
    assert (Claim.renyi([2.0, 4.0], [500.0, 900.0]).fnr(RATES) == 0).all()  # too much for a test to contradict


@pytest.mark.parametrize("delta", [1e-5, 1e-8, 1e-11, 1e-13])
def test_renyi_promises_large_losses_at_small_deltas(delta):
    """They occur at rates far below delta, where no line touched the curve: epsilon was infinite."""
    orders = [1.5, 2, 3, 4, 5, 6]
    rdp = [2.0 * alpha for alpha in orders]  # of a multiplier of 1/2
    converted, _ = rdp_privacy_accountant.compute_epsilon(orders, rdp, delta)
    exact = dp_accounting.get_epsilon_gaussian(0.5, delta)
    assert exact < Claim.renyi(orders, rdp).epsilon_at(delta) <= 1.001 * converted


def test_a_curve_by_points_is_straight_between_them_and_the_oracle_s_is_one():
    claim = Claim.trade_off([0.0, 0.2, 1.0], [0.9, 0.3, 0.0])
    assert claim.fnr([0.0, 0.1, 0.2, 0.6, 1.0]) == pytest.approx([0.9, 0.6, 0.3, 0.15, 0.0])
    assert claim.epsilon_at(0.1) == pytest.approx(math.log((1 - 0.3 - 0.1) / 0.2))
    assert claim.delta_at(1.0) == pytest.approx(max(0.1, 1 - 0.3 - math.e * 0.2))
    fpr, fnr = dpaudit.oracle.ldp_sgd_tradeoff(np.array([1.0, 0.0]), np.array([0.3, 0.8]), epsilon=2.0, clip_norm=1.0)
    of_oracle = Claim.trade_off(fpr, fnr)
    assert of_oracle.epsilon <= 2.0 + 1e-6
    assert of_oracle.fnr(fpr) == pytest.approx(fnr, abs=1e-12)


@pytest.mark.parametrize(
    "fpr, fnr, message",
    [
        ([0, 0.5, 1], [1, 0.5, 0.0, 0.0], "two lists of equal length"),
        ([0.1, 1], [0.5, 0], "rates that rise from 0 to 1"),
        ([0, 0.6, 0.5, 1], [1, 0.4, 0.4, 0], "rates that rise from 0 to 1"),
        ([0, 0.5, 1], [0.6, 0.7, 0], "never rise with fpr"),
        ([0, 0.5, 1], [0.4, 0.45, 0], "never rise with fpr"),
        ([0, 0.5, 1], [1, 0.6, 0], "at most 1 - fpr at fpr 0.5"),
        ([0, 0.5, 1], [0.5, 0.4, 0], "a convex curve, got a bend downward at fpr 0.5"),
        ([0, 0.5, 1], [1, math.nan, 0], "finite numbers"),
        ([0, 0.5, 1], [1, "x", 0], "expected numbers"),
    ],
)
def test_what_is_no_trade_off_curve_is_refused_in_one_line(fpr, fnr, message):
    with pytest.raises(InputError, match=message) as refused:
        Claim.trade_off(fpr, fnr)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Claim.gaussian(0.0), "mu: expected a finite number > 0"),
        (lambda: Claim.gaussian(1.0, neighbouring="swap"), "neighbouring: expected one of replace, add_remove"),
        (lambda: Claim.renyi([1.0, 2.0], [0.1, 0.2]), "orders: expected finite numbers > 1"),
        (lambda: Claim.renyi([2.0], [0.1, 0.2]), "two lists of equal length"),
        (lambda: Claim.renyi([2.0], [-0.1]), "epsilons: expected numbers >= 0"),
        (lambda: Claim.renyi([2.0], [math.inf]), "at least one of them finite"),
        (lambda: Claim.renyi([2.0], ["x"]), "expected numbers"),
        (lambda: Claim.pld(3), "pld: expected a PrivacyLossDistribution"),
        (lambda: Claim.pld(pld.from_laplace_mechanism(1.0, pessimistic_estimate=False)), "losses are rounded up"),
        (lambda: Claim.gaussian(1.0).at(0.0), "delta: expected one at which"),
        (lambda: Claim.gaussian(1.0)._replace(epsilon=1.0), "claim: expected a claim of epsilon and delta"),
    ],
)
def test_what_is_no_promise_is_refused_in_one_line(make, message):
    with pytest.raises(InputError, match=message) as refused:
        make()
    assert "\n" not in str(refused.value)


CLAIMS = [
    Claim(1.0, 1e-5),
    Claim.gaussian(1.0, neighbouring="add_remove"),
    Claim.renyi([2.0, 8.0], [0.5, 2.0]),
    Claim.pld(pld.from_gaussian_mechanism(1.0, sampling_prob=0.1, value_discretization_interval=1e-2)),
    Claim.trade_off([0.0, 1.0], [0.8, 0.0]),
]


@pytest.mark.parametrize("claim", CLAIMS, ids=repr)
def test_a_claim_is_a_value(claim):
    for other in (
        copy.deepcopy(claim),
        pickle.loads(pickle.dumps(claim)),
        Claim.from_terms(json.loads(json.dumps(claim.terms)), claim.neighbouring),
    ):
        assert other == claim
        assert hash(other) == hash(claim)
        assert np.array_equal(other.fnr(RATES), claim.fnr(RATES))
    assert isinstance(claim, Claim)
    assert sum(claim == other for other in CLAIMS) == 1
    curve = claim.fnr(np.linspace(0, 1, 1001))
    assert (curve <= 1 - np.linspace(0, 1, 1001) + 1e-12).all()


def test_the_fields_of_a_curve_alone_are_no_claim():
    """dataclasses.asdict, as of an audit's result, rebuilds named tuples from their fields."""

    @dataclasses.dataclass
    class Holder:
        claim: Claim

    fields = dataclasses.asdict(Holder(Claim.gaussian(1.0)))["claim"]
    assert tuple(fields) == (math.inf, 0.0, "replace")
    assert not isinstance(fields, Claim)


@pytest.mark.integration
def test_an_accountant_hands_over_what_it_has_composed():
    event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(2.0), 3)
    tight = Claim.accounted(PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE).compose(event))
    loose = Claim.accounted(RdpAccountant(neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE).compose(event))
    exact = gaussian_fnr(RATES, math.sqrt(3) / 2)
    assert tight.fnr(RATES) == pytest.approx(exact, abs=1e-3)
    assert (loose.fnr(RATES) <= tight.fnr(RATES) + 1e-3).all()
    assert tight.neighbouring == loose.neighbouring == "add_remove"
    assert Claim.accounted(PLDAccountant(NeighboringRelation.REPLACE_ONE).compose(event)).neighbouring == "replace"


@pytest.mark.parametrize(
    "accountant, message",
    [
        (3, "accountant: expected one of adding, removing or replacing"),
        (PLDAccountant(NeighboringRelation.REPLACE_SPECIAL), "accountant: expected one of adding, removing"),
        (PLDAccountant(), "accountant: expected one that has composed a release"),
        (RdpAccountant(), "accountant: expected one that has composed a release"),
        (PLDAccountant().compose(dp_accounting.NonPrivateDpEvent()), "accountant: expected one whose releases have"),
        (RdpAccountant().compose(dp_accounting.NonPrivateDpEvent()), "accountant: expected one whose releases have"),
    ],
    ids=["a number", "special", "nothing", "nothing of Renyi", "no privacy", "no privacy of Renyi"],
)
def test_an_accountant_of_no_claim_is_refused(accountant, message):
    with pytest.raises(InputError, match=message):
        Claim.accounted(accountant)
