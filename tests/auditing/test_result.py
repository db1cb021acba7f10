"""What is reported: the verdict's table, the JSON, and what a claim forbids."""

import dataclasses
import json
import math

import pytest

from dpaudit import AuditResult, Claim, _validate
from dpaudit.auditing.conclude import from_counts
from dpaudit.auditing.result import UNSTATED


def result(fp, fn, n=1000, claim: Claim | None = None, **settings) -> AuditResult:
    return from_counts(fp, fn, n, n, claim=claim, method="cosine", **settings)


def test_fields_are_the_definitions():
    found = from_counts(100, 40, 500, 400, claim=Claim(3.0), method="cosine")
    assert (found.fpr, found.fnr) == (0.2, 0.1)
    assert found.accuracy == pytest.approx(0.85)
    assert found.epsilon_hat == pytest.approx(math.log(0.8 / 0.1))  # paper 000, Eq. (2)
    assert 0 < found.epsilon_lower < found.epsilon_hat < found.epsilon_upper < math.inf
    assert (found.negatives, found.positives, found.trials) == (500, 400, 900)
    assert (found.delta, found.confidence, found.threshold) == (0.0, 0.95, None)
    assert found.method == "cosine; Clopper-Pearson"
    assert found.ceiling > found.epsilon_upper
    assert found.detectable is not None
    assert found.detectable > 3.0


@pytest.mark.parametrize(
    "fp, fn, n, claimed, verdict",
    [
        (20, 20, 1000, 2.0, "violation"),  # shows 3.9
        (20, 20, 1000, 4.0, "consistent"),
        (0, 0, 1000, 5.59, "violation"),  # the ceiling is 5.60
        (0, 0, 1000, 5.61, "underpowered"),
        (500, 500, 1000, 5.61, "underpowered"),
        (500, 500, 1000, 5.59, "underpowered"),
        (400, 400, 1000, 5.59, "consistent"),
        (20, 20, 1000, None, "measured"),
        (0, 0, 1, None, "measured"),
    ],
)
def test_verdicts(fp, fn, n, claimed, verdict):
    assert result(fp, fn, n, None if claimed is None else Claim(claimed)).verdict == verdict


def test_a_bound_equal_to_the_claim_is_no_violation_and_a_ceiling_equal_to_it_none_that_could_be_shown():
    found = result(20, 20)
    assert dataclasses.replace(found, claim=Claim(found.epsilon_lower)).verdict == "consistent"
    assert dataclasses.replace(found, claim=Claim(math.nextafter(found.epsilon_lower, 0))).verdict == "violation"
    assert dataclasses.replace(found, claim=Claim(found.ceiling)).verdict == "underpowered"
    assert dataclasses.replace(found, claim=Claim(math.nextafter(found.ceiling, 0))).verdict == "consistent"


def test_an_attack_that_saw_nothing_is_underpowered_however_many_trials_there_were():
    assert result(500, 500, claim=Claim(1.0)).verdict == "underpowered"
    found = result(400, 400, claim=Claim(1.0))
    assert found.verdict == "consistent"
    assert dataclasses.replace(found, reason="all scores are equal").verdict == "underpowered"


def test_the_relation_is_always_stated():
    assert result(1, 1).neighbouring == UNSTATED
    assert result(1, 1, claim=Claim(1.0)).neighbouring == "replace"
    assert result(1, 1, claim=Claim(1.0, 0.0, "add_remove")).neighbouring == "add_remove"


@pytest.mark.parametrize("claim", [None, Claim(0.5), Claim(2.0, 1e-5, "add_remove"), Claim(50.0)])
@pytest.mark.parametrize("fp, fn", [(0, 0), (300, 0), (17, 250), (600, 900)])
def test_json_gives_the_same_result_back_infinities_included(fp, fn, claim):
    found = result(fp, fn, claim=claim, delta=0.01, confidence=0.9, trials=2500, threshold=-0.25)
    text = found.to_json()
    assert AuditResult.from_json(text) == found
    row = json.loads(text, parse_constant=pytest.fail)  # strict JSON: no NaN, no Infinity
    assert row["verdict"] == found.verdict
    assert row["claim_epsilon"] == (None if claim is None else claim.epsilon)
    assert all(value is None or isinstance(value, (int, float, str)) for value in row.values())
    if fp == fn == 0:
        assert found.epsilon_hat == found.epsilon_upper == math.inf
        assert (row["epsilon_hat"], row["epsilon_upper"]) == ("inf", "inf")


@pytest.mark.parametrize(
    "text", ["", "not json", "[]", "null", "{}", '{"epsilon_hat": 1.0}', '"inf"', "[1, 2]"], ids=repr
)
def test_other_text_is_refused(text):
    with pytest.raises(_validate.InputError, match=r"^text: expected the JSON of an AuditResult, got .*Error"):
        AuditResult.from_json(text)


def test_delta_is_the_claims_unless_given_and_never_below_it():
    claim = Claim(1.0, 1e-3)
    assert result(10, 10).delta == 0
    assert result(10, 10, claim=claim).delta == 1e-3
    assert result(10, 10, claim=claim, delta=0.1).delta == 0.1
    assert result(10, 10, claim=claim, delta=0.1).epsilon_hat == pytest.approx(math.log(0.89 / 0.01))
    with pytest.raises(_validate.InputError, match=r"^delta: expected at least the claim's own 0\.001, got 0\.0005$"):
        result(10, 10, claim=claim, delta=5e-4)
    with pytest.raises(_validate.InputError, match=r"^delta: expected at least the claim's own 0\.001, got 0$"):
        result(10, 10, claim=claim, delta=0)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: result(1, 1, delta=1.0), r"^delta: expected a number in \[0, 1\), got 1.0$"),
        (lambda: result(1, 1, delta=math.nan), "^delta: expected .* got nan$"),
        (lambda: result(1, 1, confidence=1.0), r"^confidence: expected a number in \(0, 1\), got 1.0$"),
        (lambda: result(1, 1, confidence=0), r"^confidence: expected a number in \(0, 1\), got 0$"),
        (lambda: result(0, 0, n=0), "^negatives: expected a whole number >= 1, got 0$"),
        (lambda: from_counts(0, 0, 5, 0, claim=None, method="x"), "^positives: expected a whole number >= 1, got 0$"),
    ],
)
def test_values_out_of_range_are_refused(call, message):
    with pytest.raises(_validate.InputError, match=message):
        call()


def test_a_result_cannot_be_changed():
    with pytest.raises(AttributeError, match="cannot assign to field 'epsilon_lower'"):
        result(1, 1).epsilon_lower = 9.0  # pyright: ignore[reportAttributeAccessIssue]
