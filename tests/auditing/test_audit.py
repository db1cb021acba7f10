"""The audit in one call: below the truth, close to it, and a violation found; any pytree in and out."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats

import dpaudit
from dpaudit import Claim, Mechanism, _validate, distinguish
from dpaudit.auditing.attacks import learned
from dpaudit.auditing.bounds import sequential
from dpaudit.auditing.conclude import from_counts
from dpaudit.mechanisms import laplace, ldp_sgd

KEY = jax.random.key(5)
ZERO, ONE = jnp.zeros(4), jnp.full(4, 0.5)


def add_noise(key, x):
    return x + jax.random.normal(key, x.shape)


def gaussian_epsilon(shift: float, delta: float) -> float:
    """The exact epsilon of two unit normals a shift apart (Balle and Wang 2018, Theorem 8)."""

    def excess(epsilon):
        one, two = scipy.stats.norm.cdf([shift / 2 - epsilon / shift, -shift / 2 - epsilon / shift])
        return one - math.exp(epsilon) * two - delta

    return scipy.optimize.root_scalar(excess, bracket=(0, 20)).root


@pytest.mark.integration
def test_gaussian_pair_is_bounded_below_and_close_to_its_closed_form():
    delta, shift = 0.05, 1.0
    truth = gaussian_epsilon(shift, delta)
    x1 = jnp.full(4, shift / 2)  # of length 1
    result = dpaudit.audit(add_noise, ZERO, x1, key=KEY, trials=200_000, delta=delta)
    assert "threshold from the first quarter" in result.method
    assert result.method.startswith(f"{result.attacks[0].name}, chosen from {len(result.attacks)} attacks")
    assert truth - 0.2 < result.epsilon_lower < truth
    assert result.epsilon_hat == pytest.approx(truth, abs=0.15)
    assert (result.negatives, result.positives, result.trials) == (75_000, 75_000, 200_000)
    assert (result.verdict, result.delta) == ("measured", delta)
    honest, false = (
        dpaudit.audit(add_noise, ZERO, x1, key=KEY, trials=200_000, claim=Claim(epsilon, delta))
        for epsilon in (truth, truth - 0.25)
    )
    assert (honest.verdict, false.verdict) == ("consistent", "violation")
    assert honest.epsilon_lower == false.epsilon_lower == result.epsilon_lower  # a claim changes nothing measured


@pytest.mark.integration
@pytest.mark.parametrize("attack", ["cosine", "projection", "likelihood_ratio", None])
def test_every_distinguisher_on_ldp_sgd_stays_below_its_exact_value(attack):
    """At 120 degrees the cosine rule shows less than the likelihood ratio, which shows the claim."""
    epsilon = 2.0
    mechanism = ldp_sgd.mechanism(epsilon=epsilon, clip_norm=1.0)
    x0 = jnp.array([2.0, 0, 0])
    x1 = jnp.array([2 * math.cos(2.1), 2 * math.sin(2.1), 0])
    given = None if attack is None else getattr(distinguish, attack)
    result = dpaudit.audit(mechanism, x0, x1, key=KEY, trials=40_000, distinguisher=given)
    assert (result.verdict, result.neighbouring) == ("consistent", "replace")
    assert result.claim == Claim(epsilon)
    fpr, fnr = dpaudit.oracle.ldp_sgd_cosine(x0, x1, epsilon=epsilon, clip_norm=1.0)
    by_cosine = math.log((1 - fpr) / fnr)
    assert by_cosine < 1.2
    if attack in ("likelihood_ratio", None):
        assert "likelihood ratio" in (result.method.split(",")[0], *(tried.name for tried in result.attacks))
        assert epsilon - 0.25 < result.epsilon_lower <= epsilon
        assert result.negatives == 15_000
    if attack == "cosine":
        assert result.method == "cosine; Clopper-Pearson"
        assert result.threshold == 0
        assert result.negatives == 20_000  # the rule was fixed: every trial counts
        for rate, exact in ((result.fpr, fpr), (result.fnr, fnr)):
            assert abs(rate - exact) <= 5 * math.sqrt(exact * (1 - exact) / 20_000)
        assert by_cosine - 0.1 < result.epsilon_lower < by_cosine < result.epsilon_upper
    if attack == "projection":
        assert by_cosine - 0.2 < result.epsilon_lower < epsilon


@pytest.mark.integration
def test_laplace_with_half_its_noise_is_a_violation_and_the_right_one_is_not():
    right = laplace.mechanism(epsilon=1.0, clip_norm=0.5)
    strong = laplace.mechanism(epsilon=2.0, clip_norm=0.5)
    right, wrong = (Mechanism(made.apply, right.claim) for made in (right, strong))  # no density: by projection
    x0, x1 = jnp.array([-0.5, 0.0]), jnp.array([0.5, 0.0])
    results = [dpaudit.audit(m, x0, x1, key=KEY, trials=20_000) for m in (right, wrong)]
    assert [result.verdict for result in results] == ["consistent", "violation"]
    assert 1.0 < results[1].epsilon_lower <= 2.0
    assert results[0].epsilon_lower <= 1.0
    weak_claim = dpaudit.audit(wrong, x0, x1, key=KEY, trials=20_000, claim=Claim(2.0))
    assert weak_claim.verdict == "consistent"


def test_too_few_trials_for_the_claim_are_called_underpowered():
    result = dpaudit.audit(ldp_sgd.mechanism(epsilon=8.0, clip_norm=1.0), ONE, -ONE, key=KEY, trials=400)
    assert result.verdict == "underpowered"
    assert result.ceiling < 8


@pytest.mark.parametrize("stops", [None, sequential.violation()])
def test_a_named_attack_that_could_not_show_twice_the_claim_is_underpowered(stops):
    settings = {"key": KEY, "claim": Claim(1.0), "distinguisher": distinguish.cosine, "until": stops}
    few, many = (dpaudit.audit(add_noise, ZERO, ONE, trials=trials, **settings) for trials in (60, 600))
    assert few.ceiling > 1
    least, less = few.detectable or 0.0, many.detectable or 0.0
    assert least > 2 > less > 1
    assert few.verdict == "underpowered"
    assert f"takes an ε of {least:.3g}" in (few.reason or "")
    assert many.verdict != "underpowered"


def test_counts_that_could_not_show_twice_the_claim_are_underpowered():
    found = from_counts(8, 8, 32, 32, claim=Claim(1.0))
    assert found.ceiling > 1
    assert (found.detectable or 0.0) > 2
    assert found.verdict == "underpowered"
    assert from_counts(0, 0, 32, 32, claim=Claim(1.0)).verdict == "violation"


def test_trees_go_in_and_out():
    def mechanism(key, x):
        key_a, key_b = jax.random.split(key)
        return {"a": add_noise(key_a, x["u"]), "b": (add_noise(key_b, x["v"]),)}

    def tree(value):
        return {"u": jnp.full((2, 3), value), "v": jnp.float32(value)}

    result = dpaudit.audit(mechanism, tree(0.0), tree(1.0), key=KEY, trials=4000)
    assert result.verdict == "measured"
    assert result.neighbouring.startswith("the two given inputs")
    assert result.epsilon_lower > 1.5
    with pytest.raises(_validate.InputError, match=r"^x1: expected an input other than x0 "):
        dpaudit.audit(mechanism, tree(0.0), tree(0.0), key=KEY, trials=4000)


def test_plain_numbers_are_inputs_too_and_the_same_key_gives_the_same_result():
    results = [
        dpaudit.audit(lambda key, x: x + jax.random.normal(key), 0, 1.5, key=KEY, trials=1001) for _ in range(2)
    ]
    assert results[0] == results[1]
    assert results[0].trials == 1000  # the odd one out is not played


def test_own_distinguisher_with_a_threshold_fixed_in_advance():
    first = distinguish.Distinguisher(lambda key, mechanism, x0, x1: lambda z: z[0], threshold=0.5, name="first entry")
    result = dpaudit.audit(add_noise, ZERO, 2 * ONE, key=KEY, trials=20_000, distinguisher=first)
    assert result.method == "first entry; Clopper-Pearson"
    exact = scipy.stats.norm.sf(0.5)
    assert abs(result.fpr - exact) <= 5 * math.sqrt(exact * (1 - exact) / 10_000)
    assert abs(result.fnr - exact) <= 5 * math.sqrt(exact * (1 - exact) / 10_000)


BAD = [
    ({"trials": 1}, "^trials: expected a whole number >= 2, got 1$"),
    ({"trials": 0}, "^trials: expected a whole number >= 2, got 0$"),
    ({"trials": 6}, "^trials: expected at least 8 where a threshold is chosen, got 6$"),
    ({"delta": 1.0}, r"^delta: expected a number in \[0, 1\), got 1.0$"),
    ({"delta": -0.1}, r"^delta: expected a number in \[0, 1\), got -0.1$"),
    ({"delta": 0.01, "claim": Claim(1.0, 0.1)}, "^delta: expected at least the claim's own 0.1, got 0.01$"),
    ({"confidence": 1.0}, r"^confidence: expected a number in \(0, 1\), got 1.0$"),
    ({"confidence": 95}, r"^confidence: expected a number in \(0, 1\), got 95$"),
    ({"mesh": 4}, "^mesh: expected a Mesh or None, got 4$"),
    ({"progress": True}, "^progress: expected a function or None, got True$"),
    ({"x0": ZERO.at[2].set(jnp.nan)}, "^x0: expected finite numbers, got 1 NaN or infinite of 4$"),
    ({"x1": {"a": np.array([1.0, math.inf])}}, "^x1: expected finite numbers, got 1 NaN or infinite of 2$"),
    (
        {"x1": jnp.zeros(5)},
        r"^mechanism: expected releases of one shape, \(\(4,\), .* as for x0, got \(\(5,\), .* for x1$",
    ),
    (
        {"x1": ZERO},
        r"^x1: expected an input other than x0 \(nothing tells a pair of equal inputs apart\), got the same$",
    ),
    (
        {"x1": np.zeros(4)},
        r"^x1: expected an input other than x0 \(nothing tells a pair of equal inputs apart\), got the same$",
    ),
    (
        {"distinguisher": distinguish.likelihood_ratio},
        r"^distinguisher: expected one that needs no density \(the mechanism has no log_prob\), got likelihood_ratio$",
    ),
]


@pytest.mark.parametrize("change, message", BAD)
def test_bad_input_is_refused(change, message):
    given = {"mechanism": add_noise, "x0": ZERO, "x1": ONE, "trials": 200} | change
    with pytest.raises(_validate.InputError, match=message):
        dpaudit.audit(given.pop("mechanism"), given.pop("x0"), given.pop("x1"), key=KEY, **given)


def signed(sign):
    sign = jnp.full(1, sign)  # as data, so that both are one compiled program
    return lambda key, x: sign * x + 0.001 * jax.random.normal(key)


@pytest.mark.parametrize("until", [None, sequential.violation()])
def test_the_side_is_chosen_and_so_the_sign_of_a_release_hides_nothing(until):
    """The first direction that comes to mind, x1 - x0, points the wrong way in a release of opposite sign."""
    results = [
        dpaudit.audit(
            signed(sign),
            *(np.zeros(1), np.ones(1)),
            key=KEY,
            trials=20_000,
            claim=Claim(1.0),
            until=until,
            batch=1,  # one program, whether the audit may stop or not
            distinguisher=distinguish.projection,
        )
        for sign in (1.0, -1.0)
    ]
    assert [result.verdict for result in results] == ["violation"] * 2
    assert [result.side for result in results] == ["above", "not above"]
    assert results[0].epsilon_lower == pytest.approx(results[1].epsilon_lower, rel=0.02)


@pytest.mark.parametrize("until", [None, sequential.violation()])
def test_a_rule_that_is_mostly_wrong_shows_as_much_as_its_opposite(until):
    """Both events of a fixed threshold are looked at, so that an accuracy of 19% is no sign of privacy."""

    def opposite(key, x):
        return jnp.where(jax.random.bernoulli(key, 0.81), 1.0 - x, x)

    results = [
        dpaudit.audit(
            mechanism,
            *(jnp.zeros(()), jnp.ones(())),
            key=KEY,
            trials=20_000,
            claim=Claim(1.0),
            until=until,
            batch=1,
            distinguisher=distinguish.Distinguisher(lambda *_: lambda z: z, 0.5, "itself"),
        )
        for mechanism in (opposite, lambda key, x: 1 - opposite(key, x))
    ]
    assert [result.verdict for result in results] == ["violation"] * 2
    assert results[0].epsilon_lower == pytest.approx(results[1].epsilon_lower)
    assert results[0].side == results[1].side == "either"
    assert results[0].accuracy == pytest.approx(1 - results[1].accuracy)
    assert results[0].accuracy < 0.25
    assert results[0].epsilon_lower < math.log(0.81 / 0.19)


def test_both_events_cost_half_of_the_error_each():
    fp, fn, n = 300, 250, 1000
    one = from_counts(fp, fn, n, n, claim=Claim(1.0), method="own", confidence=0.975)
    both = from_counts(fp, fn, n, n, claim=Claim(1.0), method="own", confidence=0.95, both_events=True)
    assert (both.epsilon_lower, both.ceiling, both.detectable) == (one.epsilon_lower, one.ceiling, one.detectable)
    turned = from_counts(n - fp, n - fn, n, n, claim=Claim(1.0), method="own", both_events=True)
    assert (turned.epsilon_lower, turned.epsilon_hat) == (both.epsilon_lower, both.epsilon_hat)
    assert turned.accuracy == pytest.approx(0.275)
    assert from_counts(n - fp, n - fn, n, n, claim=Claim(1.0), method="own").epsilon_lower == 0


BLIND = [
    (lambda key, x: 0 * x, distinguish.projection, "all scores are equal: this attack saw nothing"),
    (lambda key, x: x * jnp.nan, distinguish.projection, "all scores are equal: this attack saw nothing"),
    (add_noise, distinguish.cosine, "all scores are equal: this attack saw nothing"),  # x1 = 2 x0
    (
        add_noise,
        distinguish.Distinguisher(lambda *_: jnp.sum, 1e3, "too far"),
        "the rule gave the same answer in all trials: this attack saw nothing",
    ),
]


@pytest.mark.parametrize("mechanism, attack, reason", BLIND)
@pytest.mark.parametrize("until", [None, sequential.violation()])
def test_an_attack_that_saw_nothing_is_never_consistent(mechanism, attack, reason, until):
    settings: dict[str, Any] = {"key": KEY, "trials": 4000, "distinguisher": attack, "until": until}
    found = dpaudit.audit(mechanism, ONE, 2 * ONE, claim=Claim(1.0), **settings)
    assert (found.verdict, found.reason) == ("underpowered", reason)
    assert found.ceiling > 1
    assert dpaudit.AuditResult.from_json(found.to_json()) == found


@pytest.mark.parametrize("until", [None, sequential.violation()])
def test_a_family_that_saw_something_is_not_called_blind(until):
    seen = dpaudit.audit(add_noise, ONE, 2 * ONE, claim=Claim(2.0), key=KEY, trials=4000, until=until)
    assert (seen.verdict, seen.reason) == ("consistent", None)


@pytest.mark.parametrize("offset", [0, 1 << 30, -(1 << 31)])
@pytest.mark.parametrize("attack", [distinguish.projection, learned.distinguisher(steps=200, layers=0)])
def test_whole_numbers_reach_the_score_to_the_last_bit(offset, attack):
    """Randomised response at 2.2, next to 2^30: float32 holds every 64th whole number there."""

    place = jnp.full(1, offset, jnp.int32)  # as data, so that all offsets are one compiled program

    def response(key, x):
        lie = jax.random.bernoulli(key, 1 / (1 + math.exp(2.2)))
        return place[0] + jnp.where(lie, 1 - (x - place[0]), x - place[0])

    x0, x1 = jnp.int32(offset), jnp.int32(offset + 1)
    found = dpaudit.audit(response, x0, x1, key=KEY, trials=20_000, claim=Claim(1.0), distinguisher=attack)
    assert found.verdict == "violation"
    assert 2.0 < found.epsilon_lower <= 2.2


def infinite_beside(key, x):
    """An infinity where x0 and x1 agree."""
    return jnp.array([x[0], jnp.inf]) + jax.random.normal(key, (2,)) / 4


def sometimes_nan(key, x):
    coin_key, noise_key = jax.random.split(key)
    return jnp.where(jax.random.bernoulli(coin_key, 0.1 * x[0]), jnp.nan, jax.random.normal(noise_key, (2,)))


@pytest.mark.integration
@pytest.mark.parametrize(
    "mechanism, attack",
    [
        (infinite_beside, distinguish.projection),
        (infinite_beside, learned.distinguisher(steps=200)),
        (sometimes_nan, distinguish.projection),
        (sometimes_nan, learned.distinguisher(steps=200, layers=0)),
    ],
)
@pytest.mark.parametrize("until", [None, sequential.violation()])
def test_what_is_not_finite_is_an_observation(mechanism, attack, until):
    x0, x1 = jnp.zeros(2), jnp.array([1.0, 0.0])
    settings: dict[str, Any] = {
        "key": KEY,
        "trials": 20_000,
        "claim": Claim(1.0),
        "distinguisher": attack,
        "until": until,
        "batch": 1,
    }
    assert dpaudit.audit(mechanism, x0, x1, **settings).verdict == "violation"


def test_nan_as_a_symbol_proves_what_isnan_proves():
    settings: dict[str, Any] = {"key": KEY, "trials": 20_000, "claim": Claim(1.0)}
    by_hand = distinguish.Distinguisher(lambda *_: lambda z: jnp.isnan(z).any() * 1.0, 0.5, "isnan")
    x0, x1 = jnp.zeros(2), jnp.array([1.0, 0.0])
    proved = dpaudit.audit(sometimes_nan, x0, x1, **settings, distinguisher=by_hand)
    found = dpaudit.audit(sometimes_nan, x0, x1, **settings, distinguisher=distinguish.projection)
    assert proved.epsilon_lower > found.epsilon_lower > 4.37
