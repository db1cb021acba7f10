"""What an audit says of an alternative that the user names, and of Gaussian noise, against audits really played."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpaudit
from dpaudit import AuditResult, Claim, _validate, distinguish, estimators
from dpaudit.auditing.bounds import curve, sequential
from dpaudit.auditing.bounds.estimate import epsilon_bounds
from dpaudit.auditing.foresight import Expected, with_foresight

KEY = jax.random.key(31)
STD = 3.7304  # of noise for (1, 1e-5)
AUDITS = 40


def laplace(scale):
    scale = jnp.full(1, scale, jnp.float32)  # as data, so that all are one compiled program
    return lambda key, x: x + scale * jax.random.laplace(key)


def noisy(std):
    std = jnp.full(1, std, jnp.float32)
    return lambda key, x: x + std * jax.random.normal(key)


def coarse(std):
    """The noise rounded to quarters, which its curve allows: against a curve, each threshold that is tried takes as
    long as all of the trials."""
    exact = noisy(std)
    return lambda key, x: jnp.round(4 * exact(key, x)) / 4


CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "Laplace": (laplace(1.0), laplace(0.9), {"claim": Claim(1.0)}),
    "curve": (coarse(1.0), coarse(0.88), {"claim": Claim.gaussian(1.0)}),
    "curve, betting": (coarse(1.0), coarse(0.85), {"claim": Claim.gaussian(1.0), "until": sequential.violation()}),
}


@pytest.mark.integration
@pytest.mark.parametrize("case", CASES)
def test_power_is_the_share_of_audits_of_the_alternative_that_call_it_a_violation(case):
    mechanism, worse, more = CASES[case]
    settings = {"trials": 6_000, "distinguisher": distinguish.projection, **more}
    one = dpaudit.audit(mechanism, 0.0, 1.0, key=KEY, alternative=worse, **settings)
    assert one.verdict != "violation"
    assert AuditResult.from_json(one.to_json()) == one
    keys = jax.random.split(KEY, AUDITS)
    share = sum(dpaudit.audit(worse, 0.0, 1.0, key=key, **settings).verdict == "violation" for key in keys) / AUDITS
    assert one.power == pytest.approx(share, abs=0.25)  # 3 standard errors of the share, and those of the rates
    assert 0.1 < share < 1.0
    same = dpaudit.audit(mechanism, 0.0, 1.0, key=KEY, alternative=mechanism, **settings)
    assert same.power is not None
    assert same.power < 0.1  # the twin: of the mechanism itself nothing is expected


@pytest.mark.parametrize(
    "claim, rates",
    [
        (Claim(1.0), (0.166, 0.5)),
        pytest.param(Claim.gaussian(0.9), (0.3174, 0.3174), marks=pytest.mark.integration),
    ],
)
def test_power_of_a_fixed_threshold_gives_each_event_half_of_the_error(claim, rates):
    """Against counts that are drawn: the rates of Laplace noise of epsilon 1.1 and of Gaussian noise of mu 0.95."""
    n, drawn = 5_000, 600
    wrong, missed = (np.random.default_rng(seed).binomial(n, rate, drawn) for seed, rate in enumerate(rates))
    result = dpaudit.from_counts(int(wrong[0]), int(missed[0]), n, n, claim=claim, both_events=True)
    seen = Expected(np.array(rates[:1]), np.array(rates[1:]), apart=None)
    settings: dict[str, Any] = {"aside": 0, "pairs": n, "estimator": estimators.clopper_pearson, "expected": seen}
    both, one = (
        with_foresight(result, claim, watch=sequential.start(claim, both_events=events), **settings)
        for events in (True, False)
    )
    if claim.is_curve:
        share = np.mean(curve.p_value(claim, wrong, missed, n, n) <= 0.025)
    else:
        lower, _ = epsilon_bounds(wrong, missed, n, n, delta=0.0, confidence=0.95, both_events=True)
        share = np.mean(lower > claim.epsilon)
        assert both.detectable is not None
        assert one.detectable is not None
        assert both.detectable > one.detectable
    assert both.power is not None
    assert one.power is not None
    assert both.power == pytest.approx(share, abs=0.08)  # 4 standard errors
    assert one.power > both.power + 0.09


def test_detectable_goes_on_from_the_alternative():
    plain = dpaudit.audit(laplace(1.0), 0.0, 1.0, key=KEY, claim=Claim(1.0), trials=20_000)
    found = dpaudit.audit(laplace(1.0), 0.0, 1.0, key=KEY, claim=Claim(1.0), trials=20_000, alternative=laplace(0.5))
    assert found.power is not None
    assert found.power > 0.99
    assert found.detectable is not None
    assert 1.05 < found.detectable < 1.3
    assert (found.epsilon_lower, found.fpr, found.fnr) == (plain.epsilon_lower, plain.fpr, plain.fnr)
    assert plain.power is None


def test_half_of_the_noise_is_read_as_gaussian_beside_the_verdict():
    """True: 2.15 at delta 1e-5."""
    settings = {"key": KEY, "claim": Claim(1.0, 1e-5), "distinguisher": distinguish.projection}
    found = dpaudit.audit(noisy(STD / 2), 0.0, 1.0, trials=200_000, reading="gaussian", **settings)
    assert found.reading == "gaussian"
    assert found.reading_lower is not None
    assert found.reading_upper is not None
    assert 2.0 < found.reading_lower < 2.15 < found.reading_upper < 2.3
    assert AuditResult.from_json(found.to_json()) == found
    plain = dpaudit.audit(noisy(STD / 2), 0.0, 1.0, trials=200_000, **settings)
    assert (found.verdict, found.epsilon_lower) == (plain.verdict, plain.epsilon_lower)  # in no verdict
    assert plain.reading is None
    whole = dpaudit.audit(noisy(STD), 0.0, 1.0, trials=200_000, reading="gaussian", **settings)
    assert whole.reading_upper is not None
    assert 0.9 < whole.reading_upper < 1.2  # the twin: the noise that was claimed


def test_trials_that_cannot_show_a_fault_of_the_noise_say_so():
    found = dpaudit.audit(noisy(STD), 0.0, 1.0, key=KEY, claim=Claim(1.0, 1e-9), delta=1e-9, trials=4_000)
    assert found.verdict == "underpowered"
    assert "alone" in str(found.reason)
    assert "dpaudit.Claim.gaussian" in str(found.reason)


def raises(key, x):
    raise RuntimeError("no such file")


REFUSED = [
    (
        {"alternative": lambda key, x: jnp.stack([x, x])},
        r"alternative: expected releases like the mechanism's, .*\[2\]",
    ),
    ({"alternative": lambda key, x: x + jnp.ones(1)}, None),
    ({"alternative": 3}, r"alternative: expected a Mechanism or a function of \(key, x\), got 3"),
    ({"alternative": raises}, "alternative: expected a mechanism that takes the same inputs, got RuntimeError"),
    ({"alternative": laplace(1.0), "claim": None}, "alternative: expected None where no claim could be violated"),
    ({"reading": "laplace"}, "reading: expected one of gaussian, got laplace"),
    ({"reading": "gaussian"}, "reading: expected None where delta is 0"),
]


@pytest.mark.parametrize("change, message", REFUSED)
def test_what_does_not_fit_is_refused_in_one_line(change, message):
    given: dict[str, Any] = {"key": KEY, "claim": Claim(1.0), "trials": 200} | change
    if message is None:  # one without randomness may be played: it is an alternative, not what is audited
        assert dpaudit.audit(laplace(1.0), 0.0, 1.0, **given).power is not None
        return
    with pytest.raises(_validate.InputError, match=f"^{message}") as caught:
        dpaudit.audit(laplace(1.0), 0.0, 1.0, **given)
    assert "\n" not in str(caught.value)


def test_a_violation_needs_no_reason():
    """A reason says why an audit was underpowered; one that found a violation was not."""
    settings: dict[str, Any] = {"key": KEY, "claim": Claim(1.0, 1e-5), "trials": 20_000}
    found, missed = (dpaudit.audit(noisy(std), 0.0, 1.0, **settings) for std in (0.5, 3.0))
    assert (found.verdict, found.reason) == ("violation", None)
    assert missed.verdict == "underpowered"
    assert missed.reason is not None
