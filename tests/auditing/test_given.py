"""Audits of scores, releases and counts that are given: the same results as an audit that plays them, and closed
forms."""

import dataclasses
import math
from decimal import Decimal
from typing import Any

import jax
import numpy as np
import pytest

import dpaudit
from dpaudit import Claim, _validate, distinguish, estimators, play
from dpaudit.auditing.bounds import gdp

KEY = jax.random.key(3)
TRIALS = 8_000


def laplace(key, x):
    return x + jax.random.laplace(key)


def vector(key, x):
    """A release of another size than the inputs, so that the audit has no direction that samples could not show."""
    return x.sum() * np.eye(5)[2] + jax.random.laplace(key, (5,))


def played(mechanism, x0, x1) -> np.ndarray:
    _, key = jax.random.split(KEY)  # as the audit does
    return np.asarray(play(key, lambda key, world: mechanism(key, (x0, x1)[world]), lambda z: z, TRIALS // 2))


def draws(*laws, n: int = 20_000, seed: int = 0) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [law(generator, n) for law in laws]


CURVE = Claim.gaussian(1.0)


@pytest.mark.integration
@pytest.mark.parametrize(
    "threshold, more",
    [
        (None, {"claim": Claim(0.5)}),
        (0.5, {"claim": Claim(0.5)}),
        (None, {"claim": CURVE, "delta": 1e-3}),
        (0.5, {"claim": CURVE, "delta": 1e-3}),
        (None, {"claim": Claim(0.5), "estimator": estimators.betting_bounds}),
        (None, {"claim": Claim(0.5), "estimator": estimators.equal_level}),
        (None, {"estimator": estimators.jeffreys, "delta": 0.01, "reading": "gaussian"}),
    ],
)
def test_scores_give_what_the_audit_gives_that_plays_them(threshold, more):
    attack = distinguish.Distinguisher(lambda *_: lambda release: release, threshold, "given scores")
    audited = dpaudit.audit(laplace, 0.0, 1.0, key=KEY, trials=TRIALS, distinguisher=attack, **more)
    scores = played(laplace, 0.0, 1.0)
    assert dpaudit.from_scores(*scores, threshold=threshold, **more) == audited
    assert dpaudit.from_scores(*-scores, threshold=threshold, **more) != audited


@pytest.mark.parametrize("more", [{"claim": Claim(0.5)}, {"estimator": estimators.dkw}])
def test_samples_give_what_the_audit_gives_that_plays_them(more):
    x0, x1 = np.zeros(3, np.float32), np.eye(3, dtype=np.float32)[0]
    audited = dpaudit.audit(vector, x0, x1, key=KEY, trials=TRIALS, **more)
    samples = played(vector, x0, x1)
    assert dpaudit.from_samples(*samples, **more) == audited
    assert len(audited.attacks) > 20


def test_counts_give_what_the_audit_gives_that_counts_them():
    more: dict[str, Any] = {"claim": Claim(0.5)}
    audited = dpaudit.from_scores(*played(laplace, 0.0, 1.0), threshold=0.5, **more)
    false = round(audited.fpr * audited.negatives), round(audited.fnr * audited.positives)
    method = audited.method.removesuffix("; Clopper-Pearson")
    counted = dpaudit.from_counts(
        *false, audited.negatives, audited.positives, threshold=0.5, both_events=True, method=method, **more
    )
    assert counted == audited
    one_event = dpaudit.from_counts(*false, audited.negatives, audited.positives, **more)
    assert one_event.epsilon_lower > audited.epsilon_lower  # no half of the error on the opposite


def test_laplace_scores_show_their_epsilon():
    """Any threshold beyond both centres has FPR/TPR = e^-1 exactly; 0.5 has FPR = FNR = e^(-1/2)/2."""
    scores = draws(lambda g, n: g.laplace(size=n), lambda g, n: 1 + g.laplace(size=n), n=100_000)
    chosen = dpaudit.from_scores(*scores)
    assert 0.9 < chosen.epsilon_lower < 1 < chosen.epsilon_upper
    assert chosen.negatives == 75_000
    fixed = dpaudit.from_scores(*scores, threshold=0.5)
    rate = math.exp(-0.5) / 2
    assert fixed.fpr == pytest.approx(rate, abs=5 * math.sqrt(rate / 100_000))
    assert fixed.negatives == fixed.positives == 100_000
    assert dpaudit.from_scores(*(3 * row - 2 for row in scores)).epsilon_lower == chosen.epsilon_lower
    backwards = dpaudit.from_scores(*(-row for row in scores))
    assert backwards.epsilon_lower == pytest.approx(chosen.epsilon_lower, abs=0.05)
    assert {chosen.side, backwards.side} == {"above", "not above"}


def test_randomised_response_shows_its_epsilon_in_any_form():
    """Three truths in four: epsilon is ln 3, at every confidence from below."""
    bits = draws(lambda g, n: g.random(n) < 0.25, lambda g, n: g.random(n) < 0.75)
    for samples in (bits, [row.tolist() for row in bits], [{"said": row, "n": row * 0} for row in bits]):
        found = dpaudit.from_samples(*samples)
        assert 0.95 * math.log(3) < found.epsilon_lower < math.log(3) < found.epsilon_upper
    counted = dpaudit.from_counts(int(bits[0].sum()), int((~bits[1]).sum()), 20_000, 20_000, claim=Claim(1.0))
    assert counted.verdict == "violation"
    assert counted.epsilon_lower < math.log(3) < counted.epsilon_upper


def test_sound_scores_are_rarely_accused_and_a_leak_often():
    """Of 150 audits at 90%, at most 15 accuse a sound mechanism on average; the bound for two rates is cautious."""
    generator, accused = np.random.default_rng(5), {}
    for name, scale in (("sound", 1.0), ("leaky", 0.5)):
        pairs = generator.laplace(scale=scale, size=(150, 2, 400)) + np.array([[0.0], [1.0]])
        found = [dpaudit.from_scores(*pair, confidence=0.9).epsilon_lower > 1 for pair in pairs]
        accused[name] = sum(found)
    assert accused["sound"] <= 15
    assert accused["leaky"] > 75


@pytest.mark.integration
def test_sound_samples_are_rarely_accused_and_a_leak_often():
    generator, accused = np.random.default_rng(6), {}
    for name, truth in (("sound", math.e / (1 + math.e)), ("leaky", 0.85)):
        told = generator.random((40, 2, 600, 3)) < np.array([1 - truth, truth])[:, None, None]
        told[..., 1:] = generator.random((40, 2, 600, 2)) < 0.5  # two bits that tell nothing
        found = [dpaudit.from_samples(*pair, confidence=0.9).epsilon_lower > 1 for pair in told]
        accused[name] = sum(found)
    assert accused["sound"] <= 4
    assert accused["leaky"] > 20


@pytest.mark.integration
@pytest.mark.parametrize("estimator", [None, estimators.equal_level])
def test_worlds_may_differ_in_number(estimator):
    most, few, aside = 4_500, 2_000, 500
    scores = draws(lambda g, n: g.laplace(size=n), lambda g, n: 1 + g.laplace(size=n), n=most)
    left = 0 if estimator is None else aside  # a band sets none aside, and is computed once for each number of scores
    (first, second), short = (row[: most - left] for row in scores), few - left
    whole = dpaudit.from_scores(first, second, estimator=estimator)
    part = dpaudit.from_scores(first, second[:short], estimator=estimator)
    assert 0.5 < part.epsilon_lower < whole.epsilon_lower < 1
    assert part.trials == len(first) + short
    assert (part.negatives, part.positives) == (most - aside, few - aside)
    turned = dpaudit.from_scores(first[:short], second, estimator=estimator)
    assert 0.5 < turned.epsilon_lower < 1
    assert (turned.negatives, turned.positives) == (part.positives, part.negatives)
    fewer = dpaudit.from_samples(scores[0], scores[1][:few], estimator=estimator)
    assert 0.5 < fewer.epsilon_lower < 1
    assert (fewer.negatives, fewer.positives) == (most - aside, few - aside)


@pytest.mark.parametrize("sizes", [(50, 30), (30, 50)])
def test_extra_trials_count_where_they_are(sizes):
    """By hand: errors of the rule on every counted score, of worlds of 50 and 30."""
    scores = draws(lambda g, n: g.normal(size=n)[: sizes[0]], lambda g, n: 1 + g.normal(size=n)[: sizes[1]])
    found = dpaudit.from_scores(*scores)
    aside = 30 // 4
    above = found.side == "above"
    rest = [(row[aside:] > found.threshold) == above for row in scores]
    assert (found.fpr, found.fnr) == (rest[0].mean(), (~rest[1]).mean())


def sets(generator, kept: float, n: int) -> list[list[str]]:
    """The keys of a table: the last one is there with the probability ``kept``, the others nearly always."""
    there = generator.random((n, 4)) < np.array([0.9, 0.9, 0.9, kept])
    return [sorted(np.array(["anna", "bert", "carl", "dora"])[row].tolist()) for row in there]


def test_releases_of_any_kind_are_read():
    """A key is released with probability 0.25 or 0.75: epsilon is ln 3. With 0.5 in both worlds, nothing."""
    generator = np.random.default_rng(7)
    found = dpaudit.from_samples(sets(generator, 0.25, 4_000), sets(generator, 0.75, 4_000), claim=Claim(0.5))
    assert found.verdict == "violation"
    assert 0.8 < found.epsilon_lower < math.log(3)
    assert any("dora" in attack.name for attack in found.attacks)
    blind = dpaudit.from_samples(sets(generator, 0.5, 4_000), sets(generator, 0.5, 4_000), claim=Claim(0.5))
    assert blind.verdict != "violation"
    rows = [[{"n": len(keys), "first": keys[:1]} for keys in sets(generator, p, 2_000)] for p in (0.1, 0.9)]
    assert dpaudit.from_samples(*rows).epsilon_lower > 0.3
    assert dpaudit.from_samples(["a"] * 500, ROW[:500].tolist()).epsilon_lower > 3


def test_low_order_bits_of_float64_are_seen():
    """Where float32 would round both worlds to one number, and a 64-bit integer beyond it too."""
    base = draws(lambda g, n: 1 + g.integers(0, 2, n) * 2.0**-50, lambda g, n: 1 + g.integers(2, 4, n) * 2.0**-50)
    assert dpaudit.from_scores(*base).epsilon_lower > 5
    assert dpaudit.from_samples(*base).epsilon_lower > 5
    whole = [np.int64(2) ** 60 + (row * 2.0**50 - 2.0**50).astype(np.int64) for row in base]
    assert dpaudit.from_samples(*whole).epsilon_lower > 5
    blind = dpaudit.from_samples(*(row.astype(np.float32) for row in base))
    assert blind.reason is None or "saw nothing" in blind.reason
    assert blind.epsilon_lower == 0


def test_scores_that_are_blind_say_so():
    found = dpaudit.from_scores(np.ones(1000), np.ones(1000), claim=Claim(1.0))
    assert (found.verdict, found.reason) == ("underpowered", "all scores are equal: this attack saw nothing")
    assert dpaudit.AuditResult.from_json(found.to_json()) == found


ROW = np.random.default_rng(0).normal(size=2000)
NAN = np.where(np.arange(2000) % 700 == 300, np.nan, ROW)
BAD_SCORES = [
    ((ROW, []), {}, "scores1: expected at least one score, got none"),
    ((ROW, NAN), {}, "scores1: expected numbers, got 3 NaN, the first at index 300"),
    ((ROW, "high"), {}, "scores1: expected numbers or arrays of one shape, got str 'high'"),
    (([None] * 9, ROW), {}, "scores0: expected numbers or arrays of one shape, got NoneType None"),
    (([[1.0], [2.0, 3.0]], ROW), {}, "scores0: expected numbers or arrays of one shape, got different shapes"),
    (([Decimal(1)] * 9, ROW), {}, "scores0: expected numbers or arrays of one shape, got Decimal Decimal"),
    ((ROW[:, None], ROW), {}, r"scores0: expected scores of shape \[n\], got shape \[2000, 1\]"),
    ((np.full(9, np.inf), np.full(9, -np.inf)), {}, "scores0: expected a finite number in either world, got 9 infin"),
    ((ROW[:3], ROW), {}, "scores0: expected at least 4 where a threshold is chosen, got 3"),
    ((ROW, np.sort(ROW)), {}, "scores1: expected values in the order in which they were drawn, got sorted ones"),
    ((ROW, ROW), {"threshold": np.nan}, "threshold: expected a finite number, got nan"),
    ((ROW, ROW), {"threshold": 0.0, "estimator": estimators.dkw}, "threshold: expected None with a band"),
    ((ROW, ROW[:99]), {"estimator": estimators.betting_bounds}, "estimator: expected one that needs no pairs where"),
    ((ROW, ROW), {"estimator": estimators.one_run}, "estimator: expected one for independent trials"),
    ((ROW, ROW), {"claim": 1.0}, "claim: expected a Claim or None, got 1.0"),
    ((ROW, ROW), {"confidence": 95}, r"confidence: expected a number in \(0, 1\), got 95"),
    ((ROW, ROW), {"reading": "gaussian"}, "reading: expected None where delta is 0"),
]


@pytest.mark.parametrize("given, more, message", BAD_SCORES)
def test_scores_that_cannot_be_audited_are_refused_in_one_line(given, more, message):
    with pytest.raises(_validate.InputError, match=f"^{message}"):
        dpaudit.from_scores(*given, **more)


def test_order_does_not_matter_where_nothing_is_chosen():
    scores = draws(lambda g, n: g.laplace(size=n), lambda g, n: 1 + g.laplace(size=n), n=TRIALS // 2)
    for how in ({"threshold": 0.5}, {"estimator": estimators.equal_level}):
        assert dpaudit.from_scores(*map(np.sort, scores), **how) == dpaudit.from_scores(*scores, **how)
    few = dpaudit.from_scores([0, 0, 1, 1, 1], [0, 1, 1, 1, 1])  # in order by chance
    assert few.negatives == 4


BAD_SAMPLES = [
    ((ROW, ROW[:100]), "samples1: expected at least 128 releases of each world, of which a quarter choose, got 100"),
    ((["a"] * 500, "a"), "samples1: expected a list or an array of releases, got a"),
    ((["a"] * 500, ROW[:9].tolist()), "samples1: expected at least 128 releases of each world"),
    (([iter("a")] * 500, ["a"] * 500), "samples0: expected releases that can be read, got "),
    (
        (ROW, ROW[:, None]),
        r"samples1: expected releases like those of samples0, of shape \[\], got shape \[1\]",
    ),
    ((ROW, {"a": ROW}), "samples1: expected releases like those of samples0"),
    (({"b": ROW}, {"a": ROW}), r"samples1: .* of samples0, of shape {'b': '\[\]'}, got shape {'a': '\[\]'}"),
    (
        (np.arange(512) + 2**60, np.arange(512, dtype=np.uint64)),
        "samples1: expected whole numbers of the type of samples0, int64, got uint64",
    ),
    (({"a": ROW, "b": ROW[:9]}, {"a": ROW, "b": ROW}), r"samples0: expected releases \[n, ...\], as many in every"),
    ((ROW, []), r"samples1: expected releases \[n, ...\]"),
    ((np.zeros((500, 0)),) * 2, "samples0: expected releases of at least one number, got none"),
    ((np.sort(ROW), ROW), "samples0: expected values in the order in which they were drawn, got sorted ones"),
]


@pytest.mark.parametrize("given, message", BAD_SAMPLES)
def test_samples_that_cannot_be_audited_are_refused_in_one_line(given, message):
    with pytest.raises(_validate.InputError, match=f"^{message}"):
        dpaudit.from_samples(*given)


BAD_COUNTS = [
    ((11, 0, 10, 10), r"false_positives: expected a count in 0\.\.10, got 11"),
    ((0, 1.5, 10, 10), r"false_negatives: expected a count in 0\.\.10, got 1.5"),
    ((0, "3", 10, 10), r"false_negatives: expected a count in 0\.\.10, got '3'"),
    ((0, 0, 0, 10), "negatives: expected a whole number >= 1, got 0"),
]


@pytest.mark.parametrize("given, message", BAD_COUNTS)
def test_counts_that_cannot_be_are_refused_in_one_line(given, message):
    with pytest.raises(_validate.InputError, match=f"^{message}"):
        dpaudit.from_counts(*given)


def test_a_result_is_whole():
    """Every field of an audit's result is filled as the audit fills it."""
    found = dpaudit.from_samples(*played(vector, np.zeros(3), np.eye(3)[0]), claim=Claim(0.5, 1e-6))
    assert found.detectable is not None
    assert found.band is not None
    assert found.certified is not None
    assert dpaudit.AuditResult.from_json(found.to_json()) == found
    assert dataclasses.replace(found, claim=None).verdict == "measured"


@pytest.mark.integration
@pytest.mark.parametrize("band", [estimators.dkw, estimators.equal_level])
def test_scores_that_are_larger_in_world_0_are_not_called_consistent_by_a_band(band):
    draws = np.random.default_rng(0)
    larger, smaller = draws.laplace(1, size=1_500), draws.laplace(0, size=1_500)
    found = dpaudit.from_scores(larger, smaller, claim=Claim(0.1), estimator=band)
    assert found.verdict == "underpowered"
    assert "opposite guesses" in str(found.reason)
    assert dpaudit.from_scores(smaller, larger, claim=Claim(0.1), estimator=band).verdict == "violation"
    other = draws.laplace(1, size=1_500)
    assert "opposite" not in str(dpaudit.from_scores(larger, other, claim=Claim(0.1), estimator=band).reason)


@pytest.mark.parametrize("claim", [Claim(1.0), Claim.gaussian(1.0)])
def test_counts_of_guesses_that_are_always_wrong_are_not_called_consistent(claim):
    found = dpaudit.from_counts(1_000, 1_000, 1_000, 1_000, claim=claim)
    assert found.verdict == "underpowered"
    assert "opposite guesses" in str(found.reason)
    assert dpaudit.from_counts(410, 405, 1_000, 1_000, claim=claim).verdict == "consistent"


@pytest.mark.parametrize("claim", [Claim(1.0), Claim.gaussian(1.0)])
@pytest.mark.parametrize("counts", [(0, 1_000, 1_000, 1_000), (1_000, 0, 1_000, 1_000)])
def test_counts_of_a_rule_with_one_answer_are_not_called_consistent(claim, counts):
    """They were, where an audit by such a rule was underpowered."""
    found = dpaudit.from_counts(*counts, claim=claim)
    assert found.verdict == "underpowered"
    assert "saw nothing" in str(found.reason)
    assert "saw nothing" not in str(dpaudit.from_counts(1, 999, 1_000, 1_000, claim=claim).reason)


def test_one_training_says_when_its_scores_are_blind_or_turned():
    included, claim = np.random.default_rng(0).random(400) < 0.5, Claim(1.0, 1e-5, "add_remove")
    blind, turned = (dpaudit.one_run(scores, included, claim=claim) for scores in (np.zeros(400), -1.0 * included))
    assert blind.verdict == turned.verdict == "underpowered"
    assert "equal" in str(blind.reason)
    assert "sign" in str(turned.reason)
    assert dpaudit.one_run(1.0 * included, included, claim=claim).verdict == "violation"


def test_few_canaries_that_would_have_missed_twice_the_promise_are_underpowered():
    included, claim = np.random.default_rng(0).random(400) < 0.5, Claim(1.0, 1e-5, "add_remove")
    scores = np.random.default_rng(1).normal(size=400) + 0.5 * included
    assert dpaudit.one_run(scores, included, claim=claim).verdict == "consistent"
    few = dpaudit.one_run(scores[:80], included[:80], claim=claim)
    assert few.verdict == "underpowered"
    assert few.ceiling > 1
    assert "with this many canaries" in str(few.reason)


def test_whole_scores_that_float64_does_not_hold_are_refused():
    with pytest.raises(_validate.InputError, match="2\\^53"):
        dpaudit.from_scores(np.full(100, 2**60), np.full(100, 2**60 + 1), claim=Claim(1.0))


def test_what_is_no_claim_is_refused_in_one_line():
    for audited in (
        lambda claim: dpaudit.from_counts(1, 2, 10, 10, claim=claim),
        lambda claim: dpaudit.from_scores(ROW, ROW, claim=claim),
        lambda claim: dpaudit.one_run(np.arange(8.0), np.arange(8) > 3, claim=claim),
    ):
        with pytest.raises(_validate.InputError, match=r"^claim: expected a Claim or None, got 1.0$"):
            audited(1.0)


def test_a_stopping_rule_that_is_none_is_refused_in_one_line():
    stop: Any = "violation"
    with pytest.raises(_validate.InputError, match="until"):
        dpaudit.audit(laplace, 0.0, 1.0, key=KEY, trials=1_000, claim=Claim(1.0), until=stop)


def test_releases_whose_length_alone_differs_between_the_worlds_are_told_apart():
    found = dpaudit.from_samples([[0.0] * 3] * 400, [[0.0] * 2] * 400, claim=Claim(1.0))
    assert found.verdict == "violation"


@pytest.mark.parametrize("negatives, positives", [(20_000, 4_000), (4_000, 20_000)])
@pytest.mark.parametrize("threshold", [None, 0.5])
def test_the_gaussian_reading_counts_the_trials_of_each_world(negatives, positives, threshold):
    """Two unit normals 1 apart lose 4.377 at 1e-5; an interval as of the larger world alone would be too short."""
    generator = np.random.default_rng(0)
    scores = generator.normal(size=negatives), 1 + generator.normal(size=positives)
    found = dpaudit.from_scores(*scores, delta=1e-5, reading="gaussian", threshold=threshold)
    assert found.reading_lower is not None
    assert found.reading_upper is not None
    assert found.reading_lower < gdp.epsilon_from_mu(1.0, 1e-5) < found.reading_upper
    if threshold is not None:
        counts = round(found.fpr * negatives), round(found.fnr * positives), negatives, positives
        bounds = [float(end) for end in gdp.epsilon_bounds(*counts, delta=1e-5, confidence=0.95)]
        assert [found.reading_lower, found.reading_upper] == pytest.approx(bounds, abs=1e-9)
