"""One-run bounds: published numbers, another implementation, the inequality itself, and whole audits."""

import functools

import numpy as np
import pytest
from jax_privacy.auditing import CanaryScoreAuditor, Explicit
from scipy.special import expit
from scipy.stats import binom, norm

from dpaudit import _validate
from dpaudit.auditing.bounds import gdp, one_run
from dpaudit.auditing.bounds.one_run import Plan

DELTA = 1e-6
NORMALS = norm.ppf((np.arange(10_000) + 0.5) / 10_000)
BOUNDS = (one_run.epsilon_lower, one_run.epsilon_lower_gaussian)


def hull(shift: float) -> np.ndarray:
    """(right, guesses) at the corners of the concave hull of the curve that every threshold traces, [h, 2]."""
    labels = np.repeat([0, 1], len(NORMALS))[np.argsort(-np.concatenate([NORMALS, NORMALS + shift]), kind="stable")]
    corners: list[tuple[int, int]] = []
    for x, y in zip(np.append(0, np.cumsum(1 - labels)), np.append(0, np.cumsum(labels)), strict=True):
        while len(corners) > 1 and (
            (corners[-1][0] - corners[-2][0]) * (y - corners[-2][1])
            >= (corners[-1][1] - corners[-2][1]) * (x - corners[-2][0])
        ):
            corners.pop()
        corners.append((int(x), int(y)))
    return np.array([(y, x + y) for x, y in corners])


@pytest.mark.parametrize(
    "shift, most_wrong, published",
    [(1, 600, (1.13346, 2.164749)), (2, 200, (2.311945, 4.7218075)), (4, 30, (4.395568, 9.133752))],
)
def test_known_answers_over_all_thresholds(shift, most_wrong, published):
    corners = hull(shift)
    confidence = 1 - 0.05 / len(corners)  # these numbers were corrected for the number of corners
    wrong = corners[:, 1] - corners[:, 0]
    right, guesses = corners[(corners[:, 1] > 0) & (wrong < most_wrong)][::-1].T  # corners with more cannot win
    for bound, expected in zip(BOUNDS, published, strict=True):
        found = bound(right, guesses, 20_000, delta=DELTA, confidence=confidence)
        assert found.max() == pytest.approx(expected, abs=2e-6)


def test_agrees_with_jax_privacy_at_fixed_thresholds():
    rng = np.random.default_rng(1)
    outside, inside = rng.normal(size=(2, 500)) + np.array([[0.0], [1.5]])
    other = CanaryScoreAuditor(inside, outside)
    for threshold in (0.5, 1.5, 2.4):
        right = np.sum(inside >= threshold)
        table = (right, right + np.sum(outside >= threshold), 1000)
        strategy = Explicit(threshold)
        found = [bound(*table, delta=1e-5, confidence=0.9) for bound in BOUNDS]
        assert found[0] == pytest.approx(other.epsilon_one_run(0.1, 1e-5, threshold_strategy=strategy), abs=1e-5)
        assert found[1] == pytest.approx(other.epsilon_one_run_fdp(0.1, 1e-5, threshold_strategy=strategy), abs=1e-4)


def test_p_value_is_the_theorem_word_by_word():
    for v, r, m, epsilon, delta in [
        (0, 5, 9, 1.0, 0.01),
        (40, 50, 80, 0.7, 1e-3),
        (7, 7, 7, 0.0, 0.0),
        (90, 100, 200, 2, 1e-4),
    ]:
        chance = binom.pmf(np.arange(r + 1), r, expit(epsilon))
        steepest = max((sum(chance[v - j] for j in range(1, i + 1)) / i for i in range(1, v + 1)), default=0.0)
        expected = min(1.0, sum(chance[j] for j in range(v, r + 1)) + 2 * m * delta * steepest)
        assert one_run.p_value(v, r, m, epsilon, delta=delta) == pytest.approx(expected, rel=1e-9)


def test_one_table_or_many_give_the_same_and_more_is_more():
    right = np.array([[30, 45], [48, 50]])
    for bound in BOUNDS:
        many = bound(right, 50, 100, delta=1e-5, confidence=0.9)
        one = [float(bound(v, 50, 100, delta=1e-5, confidence=0.9)) for v in right.flat]
        np.testing.assert_allclose(many.ravel(), one, atol=1e-6)
        assert (np.diff(one) > 0).all()
        assert bound(30, 50, 100, delta=1e-5, confidence=0.999) == 0


def test_below_and_close_to_the_truth():
    # randomised response on every canary is the worst (epsilon, 0) mechanism; here its expected counts
    epsilon = 1.5
    right = np.round(expit(epsilon) * np.array([100, 10_000, 1_000_000]))
    lower = one_run.epsilon_lower(right, [100, 10_000, 1_000_000], 1_000_000, delta=0.0, confidence=0.95)
    assert (lower < epsilon).all()
    assert (np.diff(lower) > 0).all()
    assert lower[-1] > 0.99 * epsilon
    # a Gaussian: the 1% surest guesses, right as often as the two normals say
    canaries = np.array([1000, 10_000, 100_000])
    guesses = canaries / 100
    mu = one_run.mu_lower(np.round(0.9584 * guesses), guesses, canaries, confidence=0.95)
    assert (mu < 1).all()
    assert (np.diff(mu) > 0).all()
    assert mu[-1] > 0.75


def gaussian_run(rng: np.random.Generator, m: int, mu: float) -> tuple[np.ndarray, np.ndarray]:
    included = rng.random(m) < 0.5
    return rng.normal(size=m) + mu * included, included


def test_covers_randomised_response_at_the_stated_rate():
    # right guesses are Binomial, so the audits are drawn as counts; the wrong promise must be refuted too often
    right = np.random.default_rng(2).binomial(300, expit(1.0), size=4000)
    lower = one_run.epsilon_lower(right, 300, 400, delta=0.0, confidence=0.9)
    error = 3 * np.sqrt(0.1 * 0.9 / 4000)
    assert 0.06 < np.mean(lower > 1.0) < 0.1 + error
    assert np.mean(lower > 0.9) > 0.1 + error


def test_covers_gaussian_canaries_with_delta():
    rng = np.random.default_rng(3)
    plan, m, mu, delta, repeats = Plan(60, 60), 300, 1.0, 1e-3, 400
    right = [
        one_run.audit(*gaussian_run(rng, m, mu), [plan], delta=delta, confidence=0.9).correct for _ in range(repeats)
    ]
    truth = gdp.epsilon_from_mu(mu, delta)
    error = 3 * np.sqrt(0.1 * 0.9 / repeats)
    for bound in BOUNDS:
        lower = bound(right, sum(plan), m, delta=delta, confidence=0.9)
        assert np.mean(lower > truth) < 0.1 + error
    assert np.mean(one_run.mu_lower(right, sum(plan), m, confidence=0.9) > mu / 2) > 0.1 + error


def test_the_best_of_several_plans_needs_its_correction():
    rng = np.random.default_rng(4)
    plans = [Plan(k) for k in range(1, 101, 3)]
    audit = functools.partial(one_run.audit, delta=0.0, confidence=0.8)
    runs = [gaussian_run(rng, 200, 0.0) for _ in range(60)]
    error = 3 * np.sqrt(0.2 * 0.8 / len(runs))
    corrected = [audit(*run, plans).epsilon_lower for run in runs]
    assert np.mean(np.array(corrected) > 0) < 0.2 + error
    picked = [max(audit(*run, [plan]).epsilon_lower for plan in plans) for run in runs]
    assert np.mean(np.array(picked) > 0) > 0.2 + error


def test_the_order_of_tied_canaries_tells_nothing():
    included = np.arange(100) < 50
    for flags in (included, ~included):
        run = one_run.audit(np.zeros(100), flags, [Plan(50, 0), Plan(25, 25)], delta=0.0, confidence=0.9)
        assert run.epsilon_lower == 0
        assert run.correct == 0
    apart = one_run.audit(1.0 * included, included, [Plan(50, 50)], delta=0.0, confidence=0.9)
    assert (apart.correct, apart.canaries) == (100, 100)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"scores": np.zeros((2, 3))}, r"scores: expected numbers of shape \[m\], got shape \[2, 3\]"),
        ({"scores": np.array([np.nan, 1.0, 2.0, 3.0])}, "scores: expected numbers"),
        ({"included": np.array([1, 0, 1, 0])}, "included: expected booleans"),
        ({"included": np.arange(3) > 1}, r"included: expected booleans .*, got bool \[3\]"),
        ({"scores": np.zeros(100), "included": np.ones(100, bool)}, "included: expected independent coins"),
        ({"plans": []}, "plans: expected at least one Plan"),
        ({"plans": [Plan(3, 2)]}, "plans: expected 1 to 4 guesses in all"),
        ({"plans": [Plan(0, 0)]}, "plans: expected 1 to 4 guesses in all"),
        ({"plans": [Plan(-1, 2)]}, "guesses_in: expected a whole number >= 0"),
        ({"confidence": 1.0}, "confidence: expected a number in"),
        ({"delta": 1.0}, "delta: expected a number in"),
    ],
)
def test_bad_input(change, message):
    good = {
        "scores": np.arange(4.0),
        "included": np.arange(4) > 1,
        "plans": [Plan(1)],
        "delta": 0.0,
        "confidence": 0.9,
    }
    with pytest.raises(_validate.InputError, match=message):
        one_run.audit(**(good | change))


def test_bad_counts():
    with pytest.raises(_validate.InputError, match=r"correct: expected whole numbers in 0 .. 5, got 6"):
        one_run.epsilon_lower(6, 5, 10, delta=0.0, confidence=0.9)
    with pytest.raises(_validate.InputError, match=r"guesses: expected whole numbers in 0 .. 10, got 11"):
        one_run.mu_lower(6, 11, 10, confidence=0.9)
    with pytest.raises(_validate.InputError, match="guesses: expected at least one"):
        one_run.epsilon_lower(0, 0, 10, delta=0.0, confidence=0.9)


def test_the_ceiling_is_what_an_audit_gives_where_every_guess_is_right():
    included = np.arange(400) % 2 == 0
    plans = [Plan(count, count) for count in (10, 40, 200)]
    highest = one_run.ceiling(400, plans, delta=1e-3, confidence=0.95)
    assert one_run.audit(included - 0.5, included, plans, delta=1e-3, confidence=0.95).epsilon_lower == pytest.approx(
        highest, abs=1e-9
    )
    one_wrong = np.where(np.arange(400) < 2, 1.0, included)  # the second canary looks included, as the first is
    assert 0 < one_run.audit(one_wrong, included, plans, delta=1e-3, confidence=0.95).epsilon_lower < highest


@pytest.mark.parametrize(("canaries", "able"), [(60, False), (400, True)])
def test_twice_the_loss_is_found_as_often_as_said(canaries: int, able: bool) -> None:
    """By randomised response with twice the loss, whose every guess is right as often as that allows."""
    epsilon, settings, runs = 1.0, {"delta": 0.0, "confidence": 0.95}, 400
    plans = [one_run.Plan(canaries // 4, canaries // 4)]
    rng = np.random.default_rng(canaries)
    included = rng.random((runs, canaries)) < 0.5
    told = included ^ (rng.random((runs, canaries)) < expit(-2 * epsilon))
    right = one_run.count_correct(told + rng.random((runs, canaries)) / 2, included, plans[0])
    found = np.mean(one_run.epsilon_lower(right, sum(plans[0]), canaries, **settings) > epsilon)
    error = 3 * np.sqrt(0.8 * 0.2 / runs)
    assert (found > 0.8 - error) if able else (found < 0.8 + error)
    assert one_run.finds_twice(epsilon, canaries, plans, **settings) == able
