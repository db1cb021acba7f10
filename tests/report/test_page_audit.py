"""The page of one audit: each verdict in plain words with its numbers, and nothing from elsewhere."""

import dataclasses
import re

import numpy as np
import pytest

from dpaudit import Claim
from dpaudit.auditing.conclude import from_counts
from dpaudit.auditing.given import one_run
from dpaudit.auditing.result import Tried
from dpaudit.report import page_audit
from dpaudit.report.page import write_audit_page
from tests.report.reader import read_page

DRAWS, ADDED = np.random.default_rng(0), Claim(1.0, 1e-5, "add_remove")


def page(tmp_path, errors, trials, claim, target="my_mechanism.py:noisy_sum"):
    return drawn(tmp_path, from_counts(errors, errors, trials, trials, claim=claim, method="cosine"), target)


def drawn(tmp_path, result, target="my_mechanism.py:noisy_sum"):
    row = {"target": target} | result.to_row() | {"seed": 3, "seconds": 1.25, "versions": "jax 0.10.2"}
    write_audit_page(row, tmp_path / "report.html")
    return read_page(tmp_path / "report.html")


@pytest.mark.parametrize(
    ("errors", "trials", "claim", "title", "sentence"),
    [
        (10, 1_000, Claim(1.0), "The promise is broken", "in at most 5 % of such audits"),
        (400, 1_000, Claim(1.0), "No violation was found", "a true ε of 1.17 or more would have been called"),
        (
            1,
            20,
            Claim(6.0),
            "This audit could not have shown a violation",
            "40 counted trials certify an ε of 1.60 at most",
        ),
        (400, 1_000, None, "Measured, without a promise", "No promise was given"),
    ],
)
def test_each_verdict_is_said_with_its_numbers(tmp_path, errors, trials, claim, title, sentence):
    _, text, tags = page(tmp_path, errors, trials, claim)
    assert f" {title} " in text
    assert sentence in text
    assert "seed3" in text
    assert "1.2 seconds" in text
    assert "jax 0.10.2" in text
    assert {"svg", "h1", "dl"} <= tags
    assert not tags & {"script", "link", "img"}


def test_the_reason_and_the_attacks_are_on_the_page(tmp_path):
    blind = from_counts(500, 500, 1000, 1000, claim=Claim(1.0), method="own")
    reason = "all scores are equal: this attack saw nothing"
    blind = dataclasses.replace(blind, reason=reason, attacks=(Tried("norm", 1.5, 0.7), Tried("mean", 0.0, 0.5)))
    row = {"target": "mine"} | blind.to_row() | {"seed": 3, "seconds": 1.25, "versions": "jax 0.10.2"}
    write_audit_page(row, tmp_path / "report.html")
    _, text, _ = read_page(tmp_path / "report.html")
    assert f"Reason: {reason}. Another attack" in text
    assert "norm 1.50, mean 0.00 (on the trials set aside)" in text


def test_a_name_longer_than_the_page_is_broken(tmp_path):
    """A heading without a place to break would be cut off on a phone."""
    source, text, _ = drawn(tmp_path, from_counts(400, 400, 1_000, 1_000), "mine.py:" + "long_" * 50)
    (body,) = re.findall(r"^body \{(.*?)\}", source, re.DOTALL | re.MULTILINE)
    assert "overflow-wrap: break-word" in body
    assert "long_" * 50 in text


def test_counts_of_a_rule_say_no_threshold_for_it(tmp_path):
    """The rule is the caller's: nobody else knows what it compares with what."""
    _, text, _ = page(tmp_path, 400, 1_000, Claim(1.0))
    assert "world 1 where" not in text
    _, text, _ = drawn(tmp_path, from_counts(400, 400, 1_000, 1_000, claim=Claim(1.0), threshold=0.0))
    assert "world 1 where the score is above 0" in text


def test_an_infinite_bound_is_drawn_and_said(tmp_path):
    _, text, _ = page(tmp_path, 0, 1_000, Claim(1.0))
    assert "ε at most∞" in text


def test_bounds_are_said_on_their_own_side_of_the_promise(tmp_path):
    """An early stop leaves a bound just above the promise, which two decimals would show as the promise itself."""
    stopped = dataclasses.replace(from_counts(100, 100, 1000, 1000, claim=Claim(1.0)), epsilon_lower=1.0008593)
    small = dataclasses.replace(
        from_counts(400, 400, 1000, 1000, claim=Claim(0.012)), epsilon_lower=0.0131, detectable=0.0144
    )
    kept = dataclasses.replace(small, epsilon_lower=0.0069, claim=Claim(0.007))
    said = []
    for result in (stopped, small, kept):
        row = {"target": "mine"} | result.to_row() | {"seed": 3, "seconds": 1.25, "versions": "jax 0.10.2"}
        write_audit_page(row, tmp_path / "report.html")
        said.append(read_page(tmp_path / "report.html")[1])
    assert "ε at least1.001 (" in said[0]
    assert "ε at least0.013 (" in said[1]
    assert "detectable0.014 or more" in said[1]
    assert "ε at least0.007 (" in said[2]


def test_a_caption_names_only_what_is_drawn(tmp_path):
    assert "Dashed: promised." in page(tmp_path, 400, 1_000, Claim(1.0))[1]
    for claim in (None, Claim.gaussian(1.0)):
        text = page(tmp_path, 400, 1_000, claim)[1]
        assert "Dashed" not in text
        assert "Dotted: the ceiling" in text
    text = page(tmp_path, 0, 1_000, Claim(1.0))[1]
    assert "Shaded: violations" in text
    assert "Dot at the right edge: ε measured, which is infinite" in text
    of_one_training = one_run(np.arange(40.0), np.arange(40) > 20, claim=Claim(1.0, neighbouring="add_remove"))
    text = drawn(tmp_path, of_one_training)[1]
    assert "Dashed: promised." in text
    assert "Shaded" not in text


def test_what_nothing_could_have_shown_is_not_said_to_be_detectable(tmp_path):
    text = page(tmp_path, 1, 20, Claim(6.0))[1]
    assert "detectableno ε, however large, would have been called a violation" in text
    assert "∞ or more" not in text


def test_a_hostile_name_stays_text(tmp_path):
    source, text, _ = page(tmp_path, 1, 100, None, target="<script>alert(1)</script>")
    assert "<script" not in source
    assert "<script>alert(1)</script>" in text


@pytest.mark.parametrize(
    "result, helps",
    [
        (from_counts(0, 50, 50, 50, claim=Claim(1.0)), page_audit.ANOTHER_ATTACK),  # the rule had one answer
        (from_counts(9, 9, 10, 10, claim=Claim(4.0)), page_audit.MORE_TRIALS),
        (from_counts(50, 50, 100, 100, claim=Claim(0.1)), page_audit.MORE_TRIALS),
        (from_counts(1, 1, 3, 3, claim=Claim.gaussian(2.0)), page_audit.MORE),
        (one_run([1.0, 2, 3, 4], [False, False, True, True], claim=Claim(1.0, 0.0, "add_remove")), page_audit.MORE),
        (one_run(DRAWS.random(4_000), DRAWS.random(4_000) < 0.5, claim=ADDED), page_audit.ANOTHER_ATTACK),
    ],
)
def test_what_would_help_an_underpowered_audit_is_said(tmp_path, result, helps):
    """Of a rule with one answer the page advised more trials, and of too few canaries another attack."""
    assert result.verdict == "underpowered"
    _, text, _ = drawn(tmp_path, result, "mine.py:f")
    assert text.count(helps) == 1
    assert text.count(" ".join(str(result.reason).split())) == 1
    assert sum(other in text for other in (page_audit.ANOTHER_ATTACK, page_audit.MORE_TRIALS, page_audit.MORE)) == 1
