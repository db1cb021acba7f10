"""The page: whole HTML, the right numbers in plain words, nothing from elsewhere."""

import math
import re

import numpy as np
import pytest

from dpaudit._validate import InputError
from dpaudit.audits.oracle import Pair, cosine_rates, optimal_test
from dpaudit.report.page import write_page
from dpaudit.report.page_client import telling
from tests.report.reader import read_page
from tests.report.samples import computed, grid, row


def read(tmp_path, rows) -> tuple[str, str, set[str]]:
    """(source, text with single spaces, tags) of the page of these rows."""
    write_page(rows, tmp_path / "report.html")
    return read_page(tmp_path / "report.html")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[str, str, set[str]]:
    """What is read of the page of the whole grid, which many tests look at."""
    return read(tmp_path_factory.mktemp("page"), grid())


def test_every_setting_is_told_in_plain_words(tmp_path):
    _, text, _ = read(tmp_path, [row(), *grid()[:1], row(craft="label_flip", accuracy=0.795)])
    guesses = re.findall(r"knows it is one of the two guesses right (\d+) times out of 100", text)
    assert guesses == ["74", "80", "98"]  # benign, label flip, dummy; 79.5 is rounded up
    assert "A coin toss: 50 right guesses out of 100. The most that the promise ε = 4 allows: 98." in text


def test_table_of_guesses_holds_every_promise_and_its_worst_case(whole):
    source, _, _ = whole
    for cells in (("A coin toss", 50, 50), ("Nothing is manipulated", 61, 74), ("The update is made up", 73, 98),
                  ("The most that the promise allows", 73, 98)):  # fmt: skip
        name, *numbers = cells
        assert f'<th scope="row">{name}</th>' + "".join(f"<td>{number}</td>" for number in numbers) in source


def test_what_attains_the_promise_is_the_ratio_not_the_share_of_right_guesses(whole):
    _, text, _ = whole
    assert "guesses are right 74 times out of 100. This ratio is the most that the promise ε = 4 allows." in text


def test_nothing_comes_from_elsewhere(whole):
    source, _, tags = whole
    assert not re.search(r"https?:|@import|url\((?!#)", source)
    assert tags.isdisjoint({"link", "img", "iframe", "object"})
    assert "svg" in tags


def test_a_hostile_name_stays_text(tmp_path):
    hostile = "<script>alert('1')</script>&\"x $\\y$ {z}"
    source, text, _ = read(tmp_path, [row(dataset=hostile), row(dataset="digits")])
    assert source.count("<script") == 1  # the randomizer's picture
    assert f"Data: {hostile}" in text


def test_identifiers_are_unique(whole):
    source, _, _ = whole
    identifiers = re.findall(r'\bid="([^"]+)"', source)
    assert len(identifiers) == len(set(identifiers)) > 100


def test_promise_kept_with_the_power_of_the_test(whole):
    _, text, _ = whole
    assert (
        "Promise ε = 1: no violation was found in 4 tests. A true ε of 1.02 or more would have been found with "
        "probability 0.8." in text
    )
    assert "Here that is so for dummy." in text
    assert "simulated" not in text.split("For engineers")[0]


def test_promise_broken_or_not_testable(tmp_path):
    _, text, _ = read(tmp_path, [row(), row(craft="dummy", verdict="violation", epsilon_lower=4.4)])
    assert "Promise ε = 4: a violation was found in 1 of 2 tests." in text
    assert (
        "The true ε is at least 4.40 (dummy on digits): the larger of the two bounds of a test, each of confid" in text
    )
    assert "no violation" not in text
    _, text, _ = read(tmp_path, [row(verdict="underpowered", ceiling=3.2, detectable="inf")])
    assert "too few trials. Even a perfect observer could not have shown more than ε = 3.20." in text
    assert "probability 0.8" not in text.split("For engineers")[0]
    _, text, _ = read(tmp_path, [row(verdict="underpowered", ceiling=6.3, detectable=8.1)])
    assert "too few trials. A loss of twice the promise would have been found with probability below 0.8." in text
    assert "one answer" not in text.split("For engineers")[0]
    _, text, _ = read(tmp_path, [row(verdict="underpowered", ceiling=6.3, detectable="inf", fpr=0.0, fnr=1.0)])
    assert "Promise ε = 4: not tested. Both tests gave one answer in every trial" in text
    assert "perfect observer" not in text


@pytest.mark.parametrize(
    "changes, answer",
    [
        ({}, "The randomizer was not caught breaking its promise. None of 2 tests found a violation."),
        (
            {"verdict": "violation"},
            "The randomizer breaks its promise. 1 of 2 tests found that it hides less than it says.",
        ),
        ({"verdict": "underpowered"}, "None of 1 test found a violation; 1 could hardly have found any."),
    ],
)
def test_the_verdict_comes_first(tmp_path, changes, answer):
    _, text, _ = read(tmp_path, [row(), row(craft="dummy", **changes)])
    assert answer in text.split("In federated learning")[0]


def test_the_verdict_of_nothing_played_or_too_little(tmp_path):
    for rows, answer in (
        ([computed()], "The promise was not tested."),
        ([row(verdict="underpowered", detectable="inf", ceiling=3.2)], "Too few trials to tell."),
        ([row(verdict="underpowered", detectable=8.1, ceiling=6.3)], "Too few trials to tell."),
        (
            [row(verdict="underpowered", detectable="inf", ceiling=6.3, fpr=0.0, fnr=1.0)],
            "There was nothing to tell apart.",
        ),
    ):
        assert answer in read(tmp_path, rows)[1].split("In federated learning")[0]


def test_a_number_above_the_most_allowed_is_explained(tmp_path):
    above = row(craft="dummy", accuracy=0.9871, trials=1_000, repeats=1)
    _, text, _ = read(tmp_path, [above])
    assert (
        "The update is made up, ε = 4: 99 of 100 were right, and the promise allows 98. That breaks no promise: "
        "99 was counted in 1,000 games, where chance alone moves it by about 0.71" in text
    )
    assert "Chance does not explain that" in read(tmp_path, [above | {"verdict": "violation"}])[1]
    for unremarkable in (row(craft="dummy", accuracy=0.9824), computed(craft="dummy", accuracy=0.9871)):
        assert "and the promise allows" not in read(tmp_path, [unremarkable])[1]


def test_the_trade_off_curve_is_held(whole):
    source, text, _ = whole
    assert source.count("curve-") > 10
    assert "cifar10 (JPEG), ε = 4: how often an observer makes each of the two possible mistakes." in text


def test_cells_of_a_dense_table_carry_their_headers(tmp_path):
    source, _, _ = read(tmp_path, [row()])
    assert '<td data-label="verdict">consistent</td>' in source


def test_a_phone_names_the_data_of_each_table(whole):
    """There, the header of a dense table, which names them, is not shown."""
    source, _, _ = whole
    for name in ("digits", "cifar10 (JPEG)"):
        assert f'<h3>{name}</h3>\n<div class="wide"><table class="dense">' in source


def test_chance_is_counted(tmp_path):
    _, text, _ = read(tmp_path, [row(confidence=1 - 0.05 / 4), row(craft="dummy", confidence=1 - 0.05 / 4)])
    assert (
        "4 in all, each with a confidence of 98.75%, and either can find a violation. The probability that any" in text
    )
    assert "is therefore at most 5%." in text


def test_what_an_engine_cannot_say_is_said(tmp_path):
    _, plane, _ = read(tmp_path, [row(engine="plane")])
    assert "the program that your device runs was not run" in plane
    _, exact, _ = read(tmp_path, [computed()])
    assert "Not tested here" in exact
    assert "no violation" not in exact


def test_engineers_see_method_versions_seed_and_lossy_data(tmp_path, whole):
    _, text, _ = whole
    for said in (
        *("Algorithm 3", "Eq. (2)", "Eq. (3)", "jax 0.10.2", "any two gradients of one client", "Seed7", "1,898"),
        *("Data marked JPEG", "[3.88, 4.12]", "73.61 ± 0.50", "a lower bound of either test exceeds the claim"),
    ):
        assert said in text
    assert "Data marked JPEG" not in read(tmp_path, [row()])[1]


@pytest.mark.parametrize("norms, angle", [((3.0, 2.0), 1.6), ((0.4, 5.0), 2.5), ((0.2, 0.7), np.pi)])
@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_frequency_of_telling_messages_against_the_oracle(norms, angle, epsilon):
    pairs = Pair(np.array([norms[0], 2.0]), np.array([norms[1], 2.0]), np.array([angle, 0.7]))
    fpr, fnr = (np.mean(rate) for rate in cosine_rates(pairs, epsilon=epsilon, clip_norm=1.0))
    best = optimal_test(pairs, epsilon=epsilon, clip_norm=1.0)
    found = telling({"accuracy_exact": 1 - (fpr + fnr) / 2, "epsilon_optimal": best.epsilon})
    np.testing.assert_allclose(found, sorted((best.rate0, best.rate1), reverse=True), rtol=1e-9)


def test_no_telling_message_where_both_candidates_are_one(tmp_path):
    assert all(map(math.isnan, telling(row(epsilon_optimal=0.0, accuracy_exact=0.5))))
    _, text, _ = read(tmp_path, [row(epsilon_optimal=0.0, accuracy_exact=0.5)])
    assert "No message is telling in these settings (ε = 4)." in text


def test_an_interrupted_run_says_so_first(tmp_path):
    """ "None of 16 tests found a violation" where the strongest craft had not been played."""
    box = {}
    for planned in (len(grid()) + 4, len(grid()), None):
        write_page(grid(), tmp_path / "report.html", planned)
        box[planned] = read_page(tmp_path / "report.html")[1].split("In federated learning")[0]
    assert box[len(grid()) + 4].endswith("8 of 12 tests; the run was interrupted. ")
    assert "interrupted" not in box[len(grid())]
    assert box[None] == box[len(grid())]


def test_no_rows_are_refused(tmp_path):
    with pytest.raises(InputError, match="rows: expected at least one result row, got none"):
        write_page([], tmp_path / "report.html")
