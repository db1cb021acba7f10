"""The estimator of an audit: its bounds are those of the audit's trials, and one that does not fit is refused."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtr, ndtri

import dpaudit
from dpaudit import AuditResult, Claim, Mechanism, _validate, distinguish, estimators, play
from dpaudit._engine import game
from dpaudit.auditing.attacks.choose import CHOOSING_SHARE
from dpaudit.auditing.bounds import alternative, certified, sequential
from dpaudit.auditing.conclude import from_counts
from dpaudit.auditing.foresight import noise_like
from tests.interrupting import Killed, killed_at

KEY = jax.random.key(21)
TRIALS = 8_000
SOUND = {
    "default": None,
    "Clopper-Pearson": estimators.clopper_pearson,
    "betting": estimators.betting_bounds,
    "equal level": estimators.equal_level,
    "DKW": estimators.dkw,
}
BELIEF = {"Gaussian": estimators.gaussian, "Jeffreys": estimators.jeffreys, "joint beta": estimators.joint_beta}


def laplace(key, x):
    return x + jax.random.laplace(key)


def audited(estimator: estimators.Estimator | None, **more: Any) -> AuditResult:
    settings = {"key": KEY, "trials": TRIALS, "estimator": estimator, "distinguisher": distinguish.projection}
    return dpaudit.audit(laplace, 0.0, 1.0, **(settings | more))


@pytest.mark.integration
@pytest.mark.parametrize("name", SOUND)
def test_bounds_are_below_the_truth_and_close_to_it(name):
    found = audited(SOUND[name], claim=Claim(0.3))
    assert 0.75 < found.epsilon_lower < 1.0 < found.epsilon_upper
    assert found.verdict == "violation"
    assert found.ceiling > 3.5
    assert (SOUND[name] or estimators.clopper_pearson).name in found.method
    assert AuditResult.from_json(found.to_json()) == found
    assert audited(SOUND[name], claim=Claim(0.3), batch=1) == found
    # and the claim itself is not called broken
    assert audited(SOUND[name], claim=Claim(1.0)).verdict == "consistent"


@pytest.mark.parametrize("name", BELIEF)
def test_belief_is_measured_and_refused_for_a_verdict(name):
    more = {"delta": 0.01}
    found = audited(BELIEF[name], **more)
    assert found.verdict == "measured"
    most = 3.0 if name == "Gaussian" else 1.5  # these scores are Laplace, of which it says too much
    assert 0.5 < found.epsilon_lower < found.epsilon_upper < most
    assert found.epsilon_lower != audited(None, **more).epsilon_lower
    with pytest.raises(
        _validate.InputError, match=r"^estimator: expected one that a verdict on the claim may rest on, got "
    ):
        audited(BELIEF[name], claim=Claim(1.0))


def test_the_gaussian_estimator_is_refused_where_its_bound_is_infinite():
    wanted = r"^estimator: expected another one where delta is 0, at which no Gaussian noise .*, got Gaussian DP"
    draws = np.random.default_rng(0).laplace([[0.0], [1.0]], size=(2, 400))
    for counted in (
        lambda: audited(estimators.gaussian),
        lambda: dpaudit.from_scores(*draws, estimator=estimators.gaussian),
        lambda: dpaudit.from_counts(80, 80, 400, 400, estimator=estimators.gaussian),
    ):
        with pytest.raises(_validate.InputError, match=wanted):
            counted()


@pytest.mark.integration
@pytest.mark.parametrize("estimator", [estimators.equal_level, estimators.dkw], ids=["equal level", "DKW"])
def test_a_band_reads_every_score_of_a_named_attack(estimator):
    """None are set aside, and the bounds are those of the estimator on the very scores."""
    found = audited(estimator)
    _, play_key = jax.random.split(KEY)
    directed = distinguish.projection.fit(KEY, Mechanism(laplace), 0.0, 1.0)
    scores = play(play_key, lambda key, world: laplace(key, (0.0, 1.0)[world]), directed, TRIALS // 2)
    assert found.threshold is not None
    given = estimators.counted(np.asarray(scores, np.float64), found.threshold)
    lower, upper = estimator.bounds(given, delta=0.0, confidence=0.95)
    assert (found.epsilon_lower, found.epsilon_upper) == (lower, upper)
    assert (found.negatives, found.positives) == (TRIALS // 2,) * 2
    assert (found.fpr, found.fnr) == (given.false_positives / given.negatives, given.false_negatives / given.positives)
    family = audited(estimator, distinguisher=None)
    assert family.negatives == 3 * TRIALS // 8  # the attack is chosen on the others
    assert family.epsilon_lower > 0.7


def test_a_band_takes_the_side_that_was_chosen():
    backwards = distinguish.Distinguisher(lambda *_: lambda release: -release, None, "backwards")
    found = dpaudit.audit(
        laplace, 0.0, 1.0, key=KEY, trials=TRIALS, attacks=(backwards,), estimator=estimators.equal_level
    )
    assert found.epsilon_lower > 0.7
    down = dpaudit.audit(lambda key, x: -laplace(key, x), 0.0, 1.0, key=KEY, trials=TRIALS, estimator=estimators.dkw)
    assert down.epsilon_lower > 0.6


@pytest.mark.parametrize("name", ["betting", "equal level", "DKW"])
def test_an_interrupted_audit_goes_on(name, tmp_path, monkeypatch):
    monkeypatch.setattr(game, "CPU", game.CPU._replace(trials=512))  # so that an audit of few trials takes many calls
    kept = {"checkpoint": tmp_path / "kept.npz"}
    with pytest.raises(Killed):
        audited(SOUND[name], **kept, batch=1, progress=killed_at(TRIALS // 2))
    assert audited(SOUND[name], **kept) == audited(SOUND[name])


@pytest.mark.integration
@pytest.mark.parametrize("name", ["equal level", "DKW", "betting"])
def test_what_is_called_detectable_is_seen_in_four_fifths_of_the_audits(name):
    """With the rates that the audit goes on from, and not with a tenth of the excess less."""
    found = audited(SOUND[name], claim=Claim(0.9), distinguisher=None)
    assert found.detectable is not None
    estimator = SOUND[name]
    assert estimator is not None
    family = noise_like(found, TRIALS // 2 // CHOOSING_SHARE) or alternative.event(
        found.fpr, found.fnr, trials=found.negatives
    )
    draws, n, audits = np.random.default_rng(0), found.negatives, 120

    def seen(epsilon: float) -> float:
        rates = np.transpose(family.rates(epsilon))  # of each rule that might be chosen
        hits = []
        for fpr, fnr in draws.choice(rates, audits):
            scores = (draws.random((2, n)) < np.array([[fpr], [1 - fnr]])).astype(float)
            given = estimators.counted(scores, 0.5)
            hits.append(estimator.bounds(given, delta=0.0, confidence=0.95)[0] > 0.9)
        return float(np.mean(hits))

    assert seen(found.detectable) == pytest.approx(0.8, abs=3 * np.sqrt(0.8 * 0.2 / audits))
    assert seen(0.9 + 0.6 * (found.detectable - 0.9)) < 0.7


REFUSED = [
    ({"estimator": estimators.clopper_pearson, "until": sequential.width(0.3)}, "one that holds at any time"),
    ({"estimator": estimators.dkw, "until": sequential.width(0.3)}, "one that holds at any time"),
    ({"estimator": estimators.one_run}, r"one for independent trials \(dpaudit.one_run reads"),
    ({"estimator": "betting"}, "an Estimator, such as dpaudit.estimators.equal_level, or None"),
    ({"estimator": estimators.dkw, "claim": Claim.gaussian(1.0)}, "Clopper-Pearson where the claim is a curve"),
    ({"estimator": estimators.jeffreys, "claim": Claim(1.0)}, "one that a verdict on the claim may rest on"),
]


@pytest.mark.parametrize("change, wanted", REFUSED, ids=[wanted for _, wanted in REFUSED])
def test_an_estimator_that_does_not_fit_is_refused_in_one_line(change, wanted):
    with pytest.raises(_validate.InputError, match=f"^estimator: expected {wanted}") as caught:
        audited(**change)
    assert "\n" not in str(caught.value)


def test_counts_alone_are_not_enough_for_every_estimator():
    for estimator in (estimators.dkw, estimators.betting_bounds):
        with pytest.raises(_validate.InputError, match=r"^estimator: expected one that reads the counts of one rule"):
            from_counts(1, 1, 9, 9, claim=None, method="own", estimator=estimator)


# what is certified beside epsilon

MANY = 10**12  # trials, at which value and bounds are one
WRONG = 1 / (1 + np.e)


def gaussian(key, x):
    return x + jax.random.normal(key)


def answers(key, x):
    return jnp.where(jax.random.bernoulli(key, WRONG), 1 - x, x)


CLOSED = {  # advantage, TPR at FPR f, the largest posterior at prior 1/2
    "Laplace": (laplace, 1 - np.exp(-0.5), lambda f: np.e * f, np.e / (1 + np.e)),
    "Gaussian": (gaussian, 2 * ndtr(0.5) - 1, lambda f: ndtr(ndtri(f) + 1), None),
    "randomised response": (answers, np.tanh(0.5), lambda f: np.e * f, np.e / (1 + np.e)),
}


def test_what_is_certified_of_known_rates_is_a_closed_form():
    """The rules' own rates, at so many trials that the bounds are as close as float64 is."""
    at = {  # for each quantity, the rates of the best rule
        "Laplace": [(np.exp(-t) / 2, 1 - np.exp(1 - t) / 2 if t > 1 else np.exp(t - 1) / 2) for t in
                    (0.5, 0.5, -np.log(0.02), -np.log(0.002), 2.0)],
        "Gaussian": [(ndtr(-t), ndtr(t - 1)) for t in (0.5, 0.5, -ndtri(0.01), -ndtri(0.001), 3.0)],
        "randomised response": [(WRONG, WRONG)] * 5,
    }  # fmt: skip
    for name, (_, advantage, tpr, posterior) in CLOSED.items():
        tables = [(round(a * MANY), round(b * MANY), MANY, MANY) for a, b in at[name]]
        found = certified.of_counts(tables, confidence=0.95)
        wanted = [advantage, (1 + advantage) / 2, tpr(0.01), tpr(0.001)]
        for one, value in zip(found[:4], wanted, strict=True):
            assert one == pytest.approx((value,) * 3, abs=1e-3), name
        if posterior is not None:
            assert found.posterior == pytest.approx((posterior,) * 3, abs=1e-3)
            assert found.posterior_at(0.1).value == pytest.approx(0.1 * np.e / (0.9 + 0.1 * np.e), abs=1e-3)


@pytest.mark.parametrize("name", CLOSED)
def test_an_audit_certifies_them_with_rules_of_their_own(name):
    """The bounds hold the closed form, and close in on it, though the rule of epsilon shows little of it."""
    mechanism, advantage, tpr, posterior = CLOSED[name]
    found = dpaudit.audit(mechanism, 0.0, 1.0, key=KEY, trials=400_000, distinguisher=distinguish.projection)
    assert found.certified is not None
    wanted = [advantage, (1 + advantage) / 2, tpr(0.01), tpr(0.001)]
    for one, value, near in zip(found.certified[:4], wanted, (0.01, 0.005, 0.006, 0.004), strict=True):
        assert one.lower <= value * 1.0001 + 1e-9
        assert one.lower == pytest.approx(value, abs=near)
        assert one.value == pytest.approx(value, abs=near)
        assert one.lower < one.value < one.upper
    if posterior is not None:
        assert found.certified.posterior.lower <= posterior < found.certified.posterior.upper + 0.01
        assert found.certified.posterior.lower == pytest.approx(posterior, abs=0.01)
    assert AuditResult.from_json(found.to_json()) == found


def test_of_one_rule_all_is_certified_by_it():
    one = from_counts(20, 30, 1000, 900, claim=None, method="own")
    assert one.certified is not None
    assert one.certified.advantage == certified.advantage(20, 30, 1000, 900, confidence=0.95)
    assert one.certified.tpr_at_fpr_1_permille == certified.tpr_at(0.001, 20, 30, 1000, 900, confidence=0.95)
    assert one.certified.posterior_at(0.2) == pytest.approx(
        certified.posterior(0.2, 20, 30, 1000, 900, confidence=0.95)
    )
    both = from_counts(980, 870, 1000, 900, claim=None, method="own", both_events=True)
    assert both.certified is not None
    assert both.certified.advantage == certified.advantage(20, 30, 1000, 900, confidence=0.975)


def test_the_opposite_side_certifies_the_same():
    up = dpaudit.audit(laplace, 0.0, 1.0, key=KEY, trials=TRIALS)
    down = dpaudit.audit(lambda key, x: -laplace(key, x), 0.0, 1.0, key=KEY, trials=TRIALS)
    assert up.certified is not None
    assert down.certified is not None
    assert down.certified.advantage.lower == pytest.approx(up.certified.advantage.lower, abs=0.05)
    assert down.certified.accuracy.lower > 0.6


def test_a_result_without_certificates_is_read_too():
    """Rows that were written before they were kept."""
    row = from_counts(20, 30, 1000, 900, claim=None, method="own")
    text = dataclasses.replace(row, certified=None).to_json()
    assert AuditResult.from_json(text).certified is None


@pytest.mark.parametrize("prior", [0.0, 1.0, "half"])
def test_a_prior_out_of_range_is_refused(prior):
    found = from_counts(20, 30, 1000, 900, claim=None, method="own").certified
    assert found is not None
    with pytest.raises(_validate.InputError, match=r"^prior: expected a number in"):
        found.posterior_at(prior)


def test_a_measured_band_holds_the_true_curve():
    found = dpaudit.audit(gaussian, 0.0, 1.0, key=KEY, trials=40_000, distinguisher=distinguish.projection)
    assert found.band is not None
    low, high = np.array([found.band.fpr_low, found.band.fpr_high])
    least, most = np.array([found.band.fnr_low, found.band.fnr_high])
    # a threshold's true point is on the curve fnr = Phi(Phi^-1(1 - fpr) - 1): between the corners of its box
    assert (least <= ndtr(-ndtri(low) - 1)).all()
    assert (most >= ndtr(-ndtri(high) - 1)).all()
    assert len(low) >= 15
    shifted = ndtr(-ndtri(low) - 0.8)  # the twin: of less noise it is not
    assert (most < ndtr(-ndtri(high) - 0.8)).any() or (least > shifted).any()


def test_one_training_is_audited_by_its_canaries():
    draws = np.random.default_rng(4)
    included = draws.random(4_000) < 0.5
    scores = included * 3.0 + draws.laplace(size=4_000)
    found = dpaudit.one_run(scores, included, claim=Claim(1.0, 1e-5, "add_remove"))
    assert found.verdict == "violation"
    assert 1.5 < found.epsilon_lower < 3.0 < found.epsilon_upper
    assert found.epsilon_lower < found.ceiling
    assert found.accuracy > 0.8
    assert AuditResult.from_json(found.to_json()) == found
    blind = dpaudit.one_run(draws.random(4_000), included, claim=Claim(1.0, 1e-5, "add_remove"))
    assert (blind.verdict, blind.epsilon_lower) == ("underpowered", 0.0)
    few = dpaudit.one_run(scores[:8], [True, False] * 4 * np.ones(8, bool), claim=Claim(3.0, 1e-5, "add_remove"))
    assert few.verdict == "underpowered"


BAD_RUNS = [
    (([1.0, 2.0], [True, False]), {}, "included: expected booleans, one for each of at least 4 scores"),
    ((np.arange(50.0), np.ones(50, bool)), {}, "included: expected independent coins"),
    ((np.arange(8.0), np.arange(8) % 2 == 0), {"claim": Claim(1.0)}, "claim: expected an epsilon and delta of adding"),
    ((np.full(8, np.nan), np.arange(8) % 2 == 0), {}, "scores: expected numbers"),
]


@pytest.mark.parametrize("given, more, message", BAD_RUNS)
def test_a_training_that_cannot_be_audited_is_refused_in_one_line(given, more, message):
    with pytest.raises(_validate.InputError, match=f"^{message}"):
        dpaudit.one_run(*given, **more)


@pytest.mark.parametrize("until", [None, sequential.violation()])
def test_what_is_certified_beside_epsilon_is_the_same_where_an_audit_may_stop(until):
    """The Laplace mechanism's largest advantage is 1 - e^(-1/2), at the threshold halfway."""
    settings: dict[str, Any] = {"key": KEY, "trials": 20_000, "claim": Claim(1.0), "until": until}
    found = dpaudit.audit(laplace, 0.0, 1.0, distinguisher=distinguish.projection, **settings).certified
    assert found is not None
    assert found.advantage.lower < -np.expm1(-0.5) < found.advantage.upper
    assert found.advantage.upper - found.advantage.lower < 0.12
