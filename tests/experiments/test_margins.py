"""Margins of claims over trials: who shares a deviation, what an interval says, and what would change a verdict."""

import math
import re
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from experiments.paper002 import claims as clip_size
from experiments.paper002.claims import Margin, judge, what_would_change
from experiments.paper002.published import ACCURACY, BUDGETS, COMPARISONS


def row_of(*closest, **at):
    return {"setting": {"closest": closest, **at}}


def margin(*values, claim=2, closest=None):
    """Of all pairs of a claim's settings, as many trials each; no settings in common with another claim's."""
    middle = sum(values) / len(values)
    deviation = math.sqrt(sum((v - middle) ** 2 for v in values) / (len(values) - 1)) if len(values) > 1 else math.nan
    every = len(COMPARISONS[claim].larger) * len(COMPARISONS[claim].smaller)
    row = row_of(*(closest or (f"{claim}a", f"{claim}b")))
    return Margin(claim, middle, deviation, len(values), every, row)


def test_a_single_trial_decides_nothing():
    others = [margin(1.0, 1.1, 0.9, claim=3), margin(2.0, 2.1, 1.9, claim=7)]
    alone, *_ = judge([margin(50.0), *others])
    assert alone.holds is None
    assert judge([margin(50.0, 50.1), *others])[0].holds is True
    assert judge([margin(-50.0, -50.1), *others])[0].holds is False


def test_one_degree_of_freedom_decides_nothing():
    (found,) = judge([margin(50.0, 50.1)])
    assert found.holds is None


def test_an_interval_is_student_s_at_95_percent():
    (found,) = judge([margin(1.0, 2.0, 3.0)])
    assert found.error == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)  # of a table, two degrees of freedom
    assert found.holds is None
    assert judge([margin(11.0, 12.0, 13.0)])[0].holds is True


def test_more_trials_of_the_same_never_make_a_verdict_weaker():
    """The more trials agree with those before, the narrower the interval is."""
    others, errors = [margin(1.0, 1.3, 0.7, claim=3)], []
    for trials in range(2, 9):
        values = [2.0 + (0.4 if i % 2 else -0.4) for i in range(trials)]
        first, *_ = judge([margin(*values), *others])
        errors.append(first.error)
    assert all(later < before for before, later in pairwise(errors))


OTHERS = [margin(1.0, 1.3, 0.7, claim=3), margin(2.0, 2.4, 1.8, claim=7)]


@pytest.mark.parametrize("sign", [1, -1])
def test_one_more_trial_changes_a_verdict_where_it_is_said_to(sign):
    trials = [sign * value for value in (3.0, 2.6, 3.3)]
    told = what_would_change(judge([margin(*trials), *OTHERS])[0])
    told = re.fullmatch(r"one more trial of (\S+) or (less|more): open again", told)
    assert told
    assert told[2] == {1: "less", -1: "more"}[sign]

    def judged(last):
        return judge([margin(*trials, last), *OTHERS])[0].holds

    assert judged(float(told[1]) + sign * 0.02) is (sign > 0)
    assert judged(float(told[1]) - sign * 0.02) is None


def test_an_open_verdict_is_decided_by_the_trials_it_is_said_to_take():
    """Further trials with the same mean and spread: two of them with opposite deviations leave both as they are."""
    (first, *_) = judge([margin(0.35, 0.15), *OTHERS])
    told = re.fullmatch(r"(\d+) trials in all, if the mean and this spread stay", what_would_change(first))
    assert first.holds is None
    assert told
    needed = int(told[1])
    holds = {}
    for n in range(2, needed + 2):
        shared = clip_size._deviation(first.pool)
        holds[n] = judge([first.margin._replace(deviation=shared, trials=n), *OTHERS])[0].holds
    assert next(n for n, held in holds.items() if held) == needed


def test_what_would_change_names_no_number_where_no_spread_is_known():
    assert what_would_change(judge([margin(0.25)])[0]) == "3 trials in all, or more"
    assert "more than 1,000" in what_would_change(judge([margin(0.0001), *OTHERS])[0])


def test_a_claim_that_was_not_run_says_what_it_takes():
    assert clip_size.by_runs(0, []) == (None, "not run", "all clients")


def test_a_claim_tells_which_of_its_pairs_of_settings_were_not_run():
    at = {"rounds": 10, "clients_per_round": 5, "simulated": 5}
    claim = next(i for i, each in enumerate(COMPARISONS) if len(each.smaller) == 4)
    some, every = (Margin(claim, 1.0, math.nan, 1, 0, row_of("a", "b", pairs=pairs, **at)) for pairs in (3, 4))
    assert clip_size.ran(some) == "10 rounds, all 5 clients, 1 trial, 3 of 4 pairs of settings"
    assert clip_size.ran(every) == "10 rounds, all 5 clients, 1 trial"
    twice = every._replace(trials=2)
    assert (
        clip_size.ran(twice._replace(repeated=1))
        == "10 rounds, all 5 clients, 2 trials, but 1 for 3 of 4 pairs of settings"
    )
    assert clip_size.ran(twice._replace(repeated=4)) == "10 rounds, all 5 clients, 2 trials"


@pytest.mark.parametrize("sign, holds", [(1, None), (-1, False)])
def test_a_claim_holds_for_all_of_its_pairs_and_fails_for_one(sign, holds):
    claim = next(i for i, each in enumerate(COMPARISONS) if len(each.smaller) == 4)
    of = margin(*(sign * value for value in (3.0, 2.9, 3.1)), claim=claim)
    assert judge([of])[0].holds is (sign > 0)
    some = judge([of._replace(row=row_of("a", "b", pairs=3), repeated=3)])[0]
    assert some.holds is holds
    assert ("missing" in what_would_change(some)) is (holds is None)
    once = judge([of._replace(repeated=3)])[0]  # the fourth pair in a single trial, which decides nothing
    assert once.holds is holds
    assert ("second trials" in what_would_change(once)) is (holds is None)


def three_settings(rng, trials, games):
    """Margins of the three pairs of three settings that differ by chance alone, in many games at once."""
    values = rng.normal(size=(games, trials, 3)) + rng.normal(size=(games, trials, 1))  # settings, and a trial's own
    for claim, (a, b) in zip((2, 3, 10), ((0, 1), (0, 2), (2, 1)), strict=True):
        apart = values[:, :, a] - values[:, :, b]
        yield claim, [f"{a}", f"{b}"], apart.mean(1), apart.std(1, ddof=1)


@pytest.mark.parametrize("trials", [2, 3, 5])
def test_margins_with_settings_in_common_count_as_what_their_settings_allow(trials):
    """Three settings leave two degrees of freedom a trial, not three; intervals then miss as often as they may."""
    rng, games = np.random.default_rng(5), 4_000
    found = list(three_settings(rng, trials, games))
    missed = apart = 0
    for game in range(games):
        own = [Margin(c, m[game], d[game], trials, 5, row_of(*pair)) for c, pair, m, d in found]
        first = judge(own)[0]
        if not clip_size.alike(own):
            missed += first.holds is not None
            continue
        assert clip_size._freedom(first.pool) == 2 * (trials - 1)
        missed += first.holds is not None
        error = stats.t.ppf(0.975, 3 * (trials - 1)) * clip_size._deviation(first.pool) / math.sqrt(trials)
        apart += abs(first.margin.middle) > error
    standard = math.sqrt(0.05 * 0.95 / games)
    assert missed / games < 0.05 + 4 * standard
    if trials == 2:  # a twin that takes the three for independent misses more often
        assert apart / games > 0.05 + 4 * standard


def test_the_lowest_of_several_pairs_fails_no_more_often_than_one_does():
    """Of five ways that are as good as what they are compared with, in trials of their own."""
    rng, games, trials = np.random.default_rng(11), 2_000, 6
    ways = len(COMPARISONS[2].larger)
    failed = alone = 0
    for values in rng.normal(size=(games, ways, trials)):
        lowest = min(values, key=np.mean)
        (found,) = judge([margin(*lowest)])
        failed += found.holds is False
        alone += lowest.mean() < -clip_size._half_width([found.margin], trials)
    assert ways == 5
    assert failed / games < 0.05 + 4 * math.sqrt(0.05 * 0.95 / games)
    assert alone / games > 0.05 + 4 * math.sqrt(0.05 * 0.95 / games)  # a twin that does not allow for the choice
    assert judge([margin(1.0, 2.0, 3.0)])[0].error < judge([margin(-1.0, -2.0, -3.0)])[0].error


def test_the_same_margin_twice_counts_once():
    early, late = (margin(50.0, 50.1, claim=claim, closest=("a", "b")) for claim in (0, 10))
    assert {COMPARISONS[claim].quantity for claim in (0, 10)} == {"accuracy"}
    assert [each.holds for each in judge([early, late])] == [None, None]
    elsewhere = margin(50.0, 50.1, claim=10, closest=("c", "d"))
    assert [each.holds for each in judge([early, elsewhere])] == [True, True]


def test_trials_are_shared_by_the_margins_of_one_quantity():
    """Two trials that agree by luck are not taken for certain where other margins of the quantity spread widely."""
    lucky, wide = margin(0.5, 0.6), margin(1.0, -0.4, 0.3, claim=3)
    assert COMPARISONS[2].quantity == COMPARISONS[3].quantity
    assert clip_size.alike([lucky, wide])
    assert judge([lucky, wide])[0].holds is None
    assert judge([lucky, margin(0.1, -0.1, 0.0, claim=3)])[0].holds is True
    loss = margin(4.0, -4.0, 1.0, claim=1)
    assert judge([lucky, loss])[0].holds is None  # of another quantity: nothing to go by


def test_margins_whose_spreads_differ_have_each_their_own():
    """The widest would be taken for certain by what narrower ones have in common."""
    wide, narrow = margin(1.0, 9.0, 5.0), [margin(5.0, 5.1, 4.9, claim=claim) for claim in (3, 7, 8)]
    assert not clip_size.alike([wide, *narrow])
    first, *others = judge([wide, *narrow])
    assert first.pool == [wide]
    assert first.error == pytest.approx(4.302653 * 4 / math.sqrt(3), rel=1e-6)
    assert (first.holds, [each.holds for each in others]) == (None, [True] * 3)
    assert clip_size._half_width([wide, *narrow], 3) < wide.middle  # a twin that shares one deviation calls it certain
    lucky = judge([margin(5.0, 5.00001), wide, *narrow])[0]
    assert (lucky.holds, lucky.pool, lucky.error) == (None, [], math.inf)  # two trials of one's own decide nothing


def spread_of(deviation):
    return Margin(0, 0.0, deviation, 3, 1, row_of("a", "b"))


def test_spreads_differ_as_often_by_chance_as_the_test_may_say():
    rng, games = np.random.default_rng(7), 2_000
    deviations = rng.normal(size=(games, 6, 3)).std(axis=2, ddof=1)
    said = np.mean(
        [not clip_size.alike([Margin(0, 0.0, d, 3, 1, row_of("a", "b")) for d in own]) for own in deviations]
    )
    assert abs(said - clip_size.UNLIKE) < 0.02 + 4 * math.sqrt(0.05 * 0.95 / games)  # chi-squared is an approximation
    values = rng.normal(size=(6, 3))
    ours = clip_size.alike([spread_of(v.std(ddof=1)) for v in values])
    assert ours is bool(stats.bartlett(*values).pvalue > clip_size.UNLIKE)
    wide = values * np.array([30.0, 1, 1, 1, 1, 1])[:, None]
    assert stats.bartlett(*wide).pvalue < clip_size.UNLIKE
    assert not clip_size.alike([spread_of(v.std(ddof=1)) for v in wide])


def test_rules_that_are_not_the_paper_s_lend_its_claims_no_trials():
    number = next(i for i, claim in enumerate(COMPARISONS) if set(claim.larger) & set(BUDGETS))
    first, added = margin(1.0, 1.6, 0.4), margin(2.0, 2.5, 1.5, claim=number)
    assert clip_size.alike([first, added])  # their trials would do
    own, other = judge([first, added])
    assert own.pool == [first]
    assert other.pool == [added]


def test_the_deviation_is_that_of_the_trials_or_of_student_s_interval():
    row = {"quantity": "claim_margin", "setting": {"claim": 2, "closest": ["a", "b"]}, "ours": 2.0, "ours_low": None}
    at = dict.fromkeys(clip_size.SCALE, 1) | {"sensitivity": 2}
    row["setting"] |= at
    assert clip_size._margin(row | {"apart": [1.0, 2.0, 3.0]}, []).deviation == pytest.approx(1.0)
    ran = [
        {"quantity": "accuracy_percent", "setting": at | {"name": name}, "scale": f"x, {n} trials"}
        for name, n in (("a", 3), ("b", 4))
    ]
    found = clip_size._margin(row | {"ours_low": 2.0 - 4.302652729911275 / math.sqrt(3)}, ran)
    assert (found.trials, found.deviation) == (3, pytest.approx(1.0))


def test_a_pair_is_repeated_if_both_of_its_settings_are():
    at = dict.fromkeys(clip_size.SCALE, 1) | {"sensitivity": 2}

    def repeated(claim, **trials):
        ran = [
            {"quantity": "accuracy_percent", "setting": at | {"name": name}, "scale": f"x, {n} trials"}
            for name, n in trials.items()
        ]
        setting = at | {"claim": claim, "closest": ["a", "b"]}
        return clip_size._margin({"setting": setting, "ours": 2.0, "apart": [2.0]}, ran).repeated

    names = dict.fromkeys((*COMPARISONS[2].larger, *COMPARISONS[2].smaller), 2)
    assert repeated(2, **names) == 5
    assert repeated(2, **names | {"poly(0.05)1.0": 1}) == 4
    assert repeated(2, **names | {"clip0.05": 1}) == 0
    rules = dict.fromkeys(COMPARISONS[9].larger, 2)
    assert repeated(9, **rules) == 2  # C of clip1.0 is 1, run or not
    assert repeated(9, **rules | {"quantile(0.01)10%": 1}) == 1


@pytest.mark.parametrize(
    "off, deviation, trials, holds",
    [(0.3, 0.1, 3, True), (0.3, 1.0, 3, None), (0.9, 0.3, 3, None), (5.0, 1.0, 3, False), (0.0, None, 1, None)],
)
def test_accuracies_are_within_a_point_by_their_intervals(off, deviation, trials, holds):
    at = clip_size.named(clip_size.AS_PRINTED) | {"sensitivity": clip_size.KEEPS}
    rows = [
        {"quantity": "accuracy_percent", "setting": at | {"name": name}, "paper_value": paper, "ours": paper + off}
        | {"ours_low": None if deviation is None else paper + off - deviation, "scale": f"rounds, {trials} trials"}
        for name, (paper, _) in ACCURACY.items()
    ]
    assert clip_size.tables(rows).holds is holds
