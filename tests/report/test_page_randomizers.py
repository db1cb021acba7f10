"""Tables and pages of clients that send Gaussian noise or PrivUnit: what is said is true of that randomizer."""

import io
import math
import re

import pytest
from rich.console import Console
from scipy.stats import norm

from dpaudit._validate import InputError
from dpaudit.report import words
from dpaudit.report.page_telling import telling
from dpaudit.report.table import audit_table
from dpaudit.report.tradeoff_figure import attained_figure
from tests.report.samples import gaussian, privunit, row
from tests.report.test_page import read


def shown(rows) -> str:
    text = io.StringIO()
    Console(file=text, width=100).print(audit_table(rows))
    return " ".join(text.getvalue().split())


def strongest(make, **changes):
    return make(craft="dummy", detectable=4.1, epsilon_optimal=4.0, **changes)


def test_the_gaussian_page_speaks_of_both_numbers_and_of_the_noise(tmp_path):
    source, text, _ = read(tmp_path, [gaussian(), strongest(gaussian)])
    for said in (
        "A second number, delta (δ), allows for rare exceptions.",
        "The most that the promise ε = 4, δ = 1e-07 allows: 98. The most that this randomizer allows, whatever the "
        "updates: 65.",
        "made for that distance: 0.519 (ε = 4).",
        "the everyday guess is right 61 times out of 100, the optimal test 61 times. What it tells is worth ε = 2.66 "
        "at δ = 1e-07, of the 4 that are promised.",
        "Promise ε = 4, δ = 1e-07: no violation was found in 2 tests. A true ε of 4.10 or more, from noise that is "
        "too narrow, would have been found with probability 0.8 by the optimal test (dummy).",
        "the dotted line is what the noise allows",
        "δ = Φ(mu/2 - ε/mu) - e^ε Φ(-mu/2 - ε/mu)",
    ):
        assert said in text
    for untrue in ("half of the circle", "telling, its candidate", "Q (π + θ)", "Eq. (2) at their ends", "<script"):
        assert untrue not in source
    assert "script-src" not in source
    assert "default-src 'none'" in source


def test_a_gaussian_client_that_breaks_its_promise_is_told_what_the_number_is(tmp_path):
    _, text, _ = read(tmp_path, [strongest(gaussian, verdict="violation", epsilon_optimal_lower=9.0)])
    assert "The true ε is at least 9.00 (dummy on digits): the larger of the two bounds of a test" in text
    assert "each of confidence 95%. Noise as wide as promised does not give so many" in text
    assert "The randomizer breaks its promise." in text


def test_more_right_guesses_than_the_randomizer_allows_are_explained(tmp_path):
    _, text, _ = read(tmp_path, [strongest(gaussian, accuracy=0.67, trials=2_000, repeats=2)])
    assert (
        "67 of 100 were right, and the randomizer allows 65. That breaks no promise: 67 was counted in 4,000" in text
    )


def test_the_privunit_page_speaks_of_caps(tmp_path):
    source, text, _ = read(tmp_path, [privunit(), strongest(privunit)])
    for said in (
        "At ε = 4 the cap holds 6 of 100 directions, and 79 of 100 messages come from it.",
        "lie in the cap around one candidate and outside the cap around the other",
        "a telling message comes 73 times out of 100 if the candidate that it points to was sent and 1.3 times",
        "The most that the promise ε = 4 allows: 98. The most that this randomizer allows, whatever the updates: 89.",
        "from a cap that is drawn from too often, would have been found",
    ):
        assert said in text
    assert "Clip norm" not in text
    assert "<script" not in source
    assert re.search("half of the circle|Norm of each", text) is None


def test_tables_name_the_randomizer_and_what_is_detectable():
    noisy, capped = shown([gaussian(), strongest(gaussian)]), shown([privunit(), strongest(privunit)])
    assert "Gaussian noise examined by its client (L = 1, δ = 1e-07, 100 steps of pre-training)" in noisy
    assert "Detectable: a true ε of 4.10 (claim 4), from noise that is too narrow," in noisy
    assert "PrivUnit examined by its client (100 steps of pre-training)" in capped
    assert "by the optimal test of the best setting" in capped
    assert "LDP-SGD examined by its client (L = 1, 100 steps" in shown([row()])


def test_rows_of_two_randomizers_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"^rows: expected those of one randomizer, got gaussian, ldp_sgd$"):
        read(tmp_path, [gaussian(), row()])


@pytest.mark.parametrize("delta", [0.0, 0.01, 0.3])
def test_the_most_right_guesses_are_those_of_the_best_test_that_the_promise_allows(delta):
    """By a search over the test's FPR: FNR is at least each of two lines."""
    for epsilon in (0.1, 1.0, 4.0):
        fpr = [i / 100_000 for i in range(100_001)]
        most = max(
            1 - (f + max(0, 1 - delta - math.exp(epsilon) * f, math.exp(-epsilon) * (1 - delta - f))) / 2 for f in fpr
        )
        assert words.worst_case(epsilon, delta) == pytest.approx(most, abs=1e-4)


def test_the_figure_holds_the_noise_s_own_curve_and_the_corner_of_the_promise():
    (axes,) = attained_figure([(gaussian(delta=0.1), telling(gaussian(delta=0.1)))]).axes
    lines = {line.get_label(): line.get_xydata() for line in axes.get_lines()}
    corner = 0.9 / (1 + math.exp(4))
    assert lines["promised"].ravel() == pytest.approx([0, 0.9, corner, corner, 0.9, 0])
    curve = lines["allowed by the noise"]
    assert curve[300, 1] == pytest.approx(norm.cdf(norm.isf(0.3) - 0.77))
