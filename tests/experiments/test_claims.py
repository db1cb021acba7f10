"""Every claim's verdict depends on its rows: some made-up twins of the committed ones make it hold, some do not."""

import copy
import math
from functools import cache

import numpy as np
import pytest

from experiments import pages
from experiments.pages import apart
from experiments.paper001 import claims as spgc
from experiments.paper001 import more_claims
from experiments.paper002 import claims as clip_size
from experiments.paper003 import claims as mc_dropout
from experiments.paper004 import claims as personalization
from experiments.trust import claims as trust

FOLDERS = [folder for folder in pages.FOLDERS if folder != "bench"]
PAGES = [(folder, pages.page_of(folder)) for folder in FOLDERS]
CLAIMS = [(folder, claim) for folder, page in PAGES for claim in (*page.CLAIMS, *getattr(page, "MORE_CLAIMS", ()))]


@cache
def committed(folder):
    return MADE_UP.get(folder, list)(pages.rows_of(folder))


def two_networks(rows):
    """One more of the paper's scale, so that claims which a single network does not decide are decided."""
    (first, *_) = (row for row in rows if row["quantity"] == "full_network")
    return [*rows, first | {"setting": {"network": -1}}]


def of_all_clients(rows):
    """Margins of all clients where only a few were run, of all pairs of settings in ten trials that agree, so that
    every claim can hold."""
    rows = copy.deepcopy(rows)
    margins = [row for row in rows if row["quantity"] == "claim_margin"]
    whole = {row["setting"]["claim"] for row in margins if clip_size.scale_of(row["setting"]) == clip_size.AS_PRINTED}
    few = [row for row in margins if clip_size.scale_of(row["setting"]) == clip_size.FEW]
    twins = [copy.deepcopy(row) for row in few if row["setting"]["claim"] not in whole]
    for row in twins:
        row["setting"] |= {"simulated": row["setting"]["clients_per_round"]}
    for row in (*margins, *twins):
        row["setting"].pop("pairs", None)
        row["apart"] = [row["ours"]] * 10
    for row in rows:
        if row["quantity"] == "accuracy_percent":
            repeated(row)
    return [*rows, *twins]


MADE_UP = {"paper002": of_all_clients, "paper003": two_networks}


def scaled(factor):
    def change(row):
        for name in ("ours", "ours_low", "ours_high", "milliseconds_per_audit"):
            if isinstance(row.get(name), (int, float)):
                row[name] *= factor
        if row.get("null") is not None:
            row["null"] *= math.sqrt(factor)

    return change


def around(middle, reach):
    """Our number, its range, and all that a comparison goes by."""

    def change(row):
        row |= {"ours": middle, "ours_low": middle - reach, "ours_high": middle + reach}
        row |= {"low": middle - reach, "high": middle + reach, "apart": [middle - reach, middle, middle + reach]}

    return change


def as_paper(row):
    if row["paper_value"] is not None:
        row |= {"ours": row["paper_value"], "ours_low": row["paper_value"], "ours_high": row["paper_value"]}
        row["scale"] = f"{row['scale'].rsplit(', ', 1)[0]}, 10 trials"


def judged(verdict, **more):
    def change(row):
        if "verdict" in row["setting"]:
            row["setting"] |= {"verdict": verdict, **more}

    return change


def doubled(name, factor: float = 2):
    """One side of a comparison alone."""

    def change(row):
        if name in row["setting"].values():
            scaled(factor)(row)

    return change


def slower(row):
    """Gradient steps that learn less, from whichever data."""
    if str(row["setting"].get("method", "")).startswith("gradient steps"):
        scaled(2)(row)


def repeated(row):
    """Ten trials that all agree, in place of one."""
    row["scale"] = f"{row['scale'].rsplit(', ', 1)[0]}, 10 trials"


def steeper(row):
    """More at a smaller epsilon."""
    if "epsilon" in row["setting"] and row["setting"]["epsilon"]:
        row["ours"] = float(row["ours"]) / row["setting"]["epsilon"]


def only_samples(row):
    """Estimates of samples that no null explains."""
    if "null" in row:
        row |= {"null": row["ours"] if row["setting"].get("seen") == "deterministic" else 0.0, "deviation": 0.01}


def steadier(row):
    """Higher estimates of mean and standard deviation, which hardly differ from repeat to repeat."""
    if row["setting"].get("seen") == "mean std" and "deviation" in row:
        row |= {"ours": 4 * row["ours"], "deviation": 0.01}


CHANGES = [
    *map(scaled, (1e-3, 0.1, 0.5, 2, 10, 1e3)),
    *(around(middle, reach) for middle in (-500, -50, -0.5, 0, 0.5, 4, 50, 170) for reach in (0, 0.01, 5)),
    as_paper,
    judged("violation"),
    judged("consistent", inspect=[], needed={"": None}),
    judged("consistent", epsilon_lower=99),
    *map(doubled, ("benign", "label_flip", "gradient_flip", "collusion", "SPGC", "LDP", "binomial", "table")),
    *map(doubled, ("alternating", "alternating, public features", "gradient steps, public features", "deterministic")),
    *map(doubled, ("MPC only", "non-private", "as printed", "noisy", "plain")),
    *(doubled(name, factor) for name in ("plain", "LDP", "benign", "mnist") for factor in (0.25, 1.5, 4, 30)),
    slower,
    repeated,
    steeper,
    only_samples,
    steadier,
    lambda row: row.update(holm_p=1e-9),
    lambda row: row.update(holm_p=1.0),
    lambda row: row["setting"].update(epsilon_lower=99.0),
    lambda row: row["setting"].update(published_rates_at_our_trials=-1.0),
    lambda row: row.update(paper_value=-1.0),
]


def told(claim, rows):
    """What the judge says, or None of rows that no run could make."""
    try:
        return claim.judge(rows)
    except (ValueError, KeyError, ZeroDivisionError, IndexError):
        return None


@pytest.mark.parametrize("folder, claim", CLAIMS, ids=lambda value: getattr(value, "says", value))
def test_some_twin_makes_a_claim_hold_and_some_twin_does_not(folder, claim):
    rows = committed(folder)
    read = [
        quantity
        for quantity in dict.fromkeys(row["quantity"] for row in rows)
        if told(claim, [row for row in rows if row["quantity"] != quantity]) != claim.judge(rows)
    ]
    found = {claim.judge(rows).holds}
    needed = [row for row in rows if row["quantity"] in read]
    assert claim.judge(needed) == claim.judge(rows)
    for quantities in (*([quantity] for quantity in read), read):  # each alone, and all together
        for change in CHANGES:
            twin = [copy.deepcopy(row) if row["quantity"] in quantities else row for row in needed]
            for row in twin:
                if row["quantity"] in quantities:
                    change(row)
            verdict = told(claim, twin)
            found |= set() if verdict is None else {verdict.holds}
            if {True} < found:
                return
    raise AssertionError(f"the verdict is {found} whatever the rows say")


def test_a_claim_names_a_command_that_there_is():
    for _, claim in CLAIMS:
        name = claim.command.split()[0].replace(".", "/")
        assert (pages.HERE / f"{name}.py").exists(), claim.command


def test_an_estimate_that_depends_on_what_replaces_a_count_of_zero_contradicts_nothing():
    def rows(value, infinite):
        at = {"scale": "s", "part": 1, "seen": "mean std"}
        row = {
            "quantity": "epsilon",
            "setting": at,
            "ours": value,
            "deviation": 0.1,
            "null": 1.0,
            "infinite": infinite,
        }
        return [{"quantity": "trained", "setting": {"scale": "s"}, "models": 100, "repeats": 10}, row]

    assert [mc_dropout.largest(rows(*each)).holds for each in ((2.9, 1.0), (3.1, 1.0), (3.1, 0.1), (3.1, 0.0))] == [
        True,
        None,
        None,
        False,
    ]


def test_the_paper_s_own_scale_comes_first_whatever_was_run_last():
    ran = [
        ("fashion_mnist", 10_000, 1_000, 1_000),
        ("mnist", 1_000, 1_000, 1_000),
        clip_size.FEW,
        ("mnist", 3_000, 100, 20),
        clip_size.AS_PRINTED,
    ]
    rows = [{"quantity": "accuracy_percent", "setting": clip_size.named(scale)} for scale in [*ran, *ran]]
    found = clip_size.scales(rows)
    assert found == [clip_size.AS_PRINTED, clip_size.FEW, ran[3], ran[1], ran[0]]


@pytest.mark.parametrize("trials, spread", [(3, 1), (3, 5), (10, 1), (10, 5)])
def test_intervals_of_differences_hold_the_truth_as_often_as_they_say(trials, spread):
    draw, audits, held = np.random.default_rng(0), 4_000, {"Student": 0, "two errors": 0}
    for one, other in zip(*(draw.normal(0, s, (audits, trials)) for s in (1, spread)), strict=True):
        a, b = ({"ours": x.mean(), "ours_low": x.min(), "ours_high": x.max()} for x in (one, other))
        more, error = apart(a, b, trials)
        held["Student"] += abs(more) <= error
        held["two errors"] += abs(more) <= 2 * math.hypot(*(pages.standard_error(row, trials) for row in (a, b)))
    noise = 3 * math.sqrt(0.05 * 0.95 / audits)
    assert held["Student"] / audits > 0.95 - noise
    if trials == 3:
        assert held["two errors"] / audits < 0.95 - noise  # the twin


def test_means_are_apart_by_an_interval_of_their_ranges():
    one, other = ({"ours": x, "ours_low": x - 1.54, "ours_high": x + 1.54} for x in (2.0, 1.0))
    more, error = apart(one, other, 10)
    assert (more, error) == (1.0, pytest.approx(2.126 * math.hypot(1, 1) / math.sqrt(10), rel=1e-3))
    assert apart(one, other, 1)[1] == math.inf
    still = one | {"ours_low": 2.0, "ours_high": 2.0}
    assert apart(one, still, 3)[1] == pytest.approx(4.303 * 3.08 / 1.69 / 3**0.5, rel=1e-3)
    assert apart(still, still, 3) == (0, 0)


@pytest.mark.parametrize(
    "more, reach, holds", [(0.2, 0.5, True), (0.2, 3.0, None), (0.9, 0.5, None), (3.0, 0.5, False), (3.0, 3.0, None)]
)
def test_schemes_are_the_same_to_a_point_by_the_interval_of_their_difference(more, reach, holds):
    at = {"data": "Cancer", "epsilon": 0.5, "rule": "classical", "owners": 3}
    unit = {"ours": 0, "ours_low": -1, "ours_high": 1}
    half = reach / apart(unit, unit, 10)[1]
    rows = [
        {"quantity": "accuracy", "setting": at | {"scheme": scheme}, "scale": "300 steps, 10 trials"}
        | {"ours": 90 + by, "ours_low": 90 + by - half, "ours_high": 90 + by + half}
        for scheme, by in (("SPGC", more), ("LDP", 0.0))
    ]
    assert more_claims.alike(rows, "Cancer", 0.5).holds is holds


def of_owners(scheme, verdict, few, many):
    at = {"scheme": scheme, "neighbouring": "replace", "epsilon": 2.0, "claimed": 2.3, "verdict": verdict}
    return [
        {"quantity": "owners", "setting": at | {"owners": k}, "scale": "", "ours_low": low, "ours_high": low + 0.1}
        for k, low in ((2, few), (100, many))
    ]


def test_privacy_depends_on_owners_where_audits_show_more_with_many_of_them():
    for verdict, many, holds in (
        ("consistent", 1.05, True),
        ("consistent", 2.0, False),  # below the claim, and yet more than with few
        ("violation", 1.05, False),
        ("underpowered", 1.05, None),
    ):
        assert spgc.independent_of_owners(of_owners("SPGC", verdict, 1.0, many)).holds is holds
    for verdict, many, holds in (
        ("violation", 9.0, True),
        ("violation", 3.05, False),  # broken, but by as much with few
        ("consistent", 9.0, None),
    ):
        assert spgc.others_depend_on_owners(of_owners("reduced noise", verdict, 3.0, many)).holds is holds


def test_a_transcript_s_audit_that_sees_little_decides_nothing():
    def phase(shown, lower):
        at = {"accounted": 1.0, "claimed": 4.4, "epsilon_lower": lower}
        return [{"quantity": "mu", "setting": at, "ours": shown, "scale": ""}]

    found = [personalization.transcript(phase(*each)).holds for each in ((0.99, 4.2), (0.3, 1.0), (1.3, 5.0))]
    assert found == [True, None, False]


def test_a_study_that_misses_a_wrong_estimator_does_not_find_wrong_estimators():
    def cells(second):
        found = [("a", 1.0), ("a", 1e-9), ("b", second)]
        at = {"part": trust.CONTROL}
        return [
            {"quantity": "false_violation_rate", "setting": at | {"estimator": name}, "holm_p": p} for name, p in found
        ]

    assert trust.finds_bad_estimators(cells(1e-9)).holds
    assert not trust.finds_bad_estimators(cells(1.0)).holds
