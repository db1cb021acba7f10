"""The tables hold the right numbers in the right places, unbroken in 100 columns."""

import io

import pytest
from rich.console import Console
from rich.table import Table

from dpaudit._validate import InputError
from dpaudit.auditing.bounds.plan import plan
from dpaudit.auditing.conclude import from_counts
from dpaudit.mechanisms.claim import Claim
from dpaudit.report import words
from dpaudit.report.page_audit import render_training
from dpaudit.report.table import audit_table, plan_table, result_table, training_lines
from tests.report.samples import computed, grid, row


def rendered(table: Table) -> list[str]:
    console = Console(file=io.StringIO(), width=100, color_system=None)
    console.print(table)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= 100
    return [" ".join(line.split()) for line in lines]


def test_a_row_is_one_line_with_its_numbers():
    lines = rendered(audit_table([row()]))
    assert "benign 4 73.6 (73.7) 1.04 ± 0.03 [1.01, 1.05] 1.03 4.00 3.93 consistent" in lines
    assert lines[0] == "LDP-SGD examined by its client (L = 1, 100 steps of pre-training)"


def test_the_widest_row_is_not_broken():
    wide = {"epsilon_hat": 10.24, "epsilon_hat_std": 0.31, "epsilon_upper": 11.05, "epsilon_lower": 10.01}
    lines = rendered(audit_table([row(craft="gradient_flip", verdict="underpowered", epsilon=12.5, **wide)]))
    assert any(line.startswith("gradient flip 12.5 73.6") and line.endswith("underpowered") for line in lines)


def test_grouped_by_data_set_and_setting_then_by_promise():
    lines = rendered(audit_table(grid()))
    starts = [
        line.split()[0] for line in lines if line.split() and line.split()[-1] in ("consistent", "digits", "(JPEG)")
    ]
    assert starts == ["digits", "benign", "4", "dummy", "4", "cifar10", "benign", "4", "dummy", "4"]


def test_the_promises_of_one_setting_stand_together():
    lines = rendered(audit_table(grid()))
    for craft in ("benign", "dummy"):
        first = [place for place, line in enumerate(lines) if line.startswith(f"{craft} 1 ")]
        assert len(first) == 2
        assert all(lines[place + 1].startswith("4 ") for place in first)
        assert craft == "dummy" or not any(lines[place + 2] for place in first)


def test_infinite_and_missing_numbers():
    lines = rendered(audit_table([row(epsilon_hat="inf", epsilon_hat_std=None, epsilon_upper="inf")]))
    (line,) = [line for line in lines if line.startswith("benign")]
    assert "∞ [1.01, ∞] 1.03" in line


def test_what_a_training_spent_is_never_shown_below_it():
    """Rounding to the nearest promised 3.44 of 3.441."""
    told = {"canaries": 10, "batch_size": 5, "examples": 90, "confidence": 0.95, "epsilon_accounted": 3.441}
    told |= {"delta": 1e-5, "network": "cnn", "dataset": "digits", "steps": 20, "accuracy": 0.5, "tested": 10}
    told |= {"epsilon_target": 4.0, "epsilon_lower": 0.5, "correct": 6, "guesses": 10, "included": 5, "ceiling": 1.0}
    told |= {"noise_multiplier": 1.0, "clip_norm": 1.0, "neighbouring": "replace", "verdict": "consistent"}
    told |= {"optimizer": "sgd", "learning_rate": 0.1, "seed": 0, "seconds": 1.0, "device": "cpu", "versions": "none"}
    told |= {"reason": None}
    assert dict(training_lines(told))["ε accounted"].startswith("3.45 at δ = 1e-05")
    assert "The training spent an ε of 3.45 according" in render_training(told)
    assert dict(training_lines(told | {"reason": "few"}))["reason"] == "few"
    assert "reason" not in dict(training_lines(told))
    assert [words.at_most(one) for one in (4.0, 0.1, 0.003, 9.991, 12.31, "inf", None)] == [
        *("4.00", "0.10", "0.01", "10.0", "12.4", "∞", "–")
    ]


def test_caption_says_how_much_was_tested():
    text = " ".join(rendered(audit_table(grid())))
    for said in (
        "10 repeats of 10,000 trials, a fresh pair of gradients in every trial.",
        "Confidence: 95% for each bound, 20% for all 16 lower bounds together.",
        "could certify ε = 9.51 at most",
        "a true ε of 1.02 (claim 1), 4.07 (claim 4) would have been called a violation with probability 0.8",
        "any two gradients of one client",
        "Engine full: the randomizer as shipped",
    ):
        assert said in text


def test_computed_rows_claim_no_test():
    text = " ".join(rendered(audit_table([computed()])))
    assert "no trial is run" in text
    assert "Ceiling" not in text
    assert "computed" in text


def test_an_interrupted_run_says_so_under_its_table():
    assert "8 of 12 tests; the run was interrupted." in " ".join(rendered(audit_table(grid(), 12)))
    assert "interrupted" not in " ".join(rendered(audit_table(grid(), 8)))
    assert "interrupted" not in " ".join(rendered(audit_table(grid())))


def test_no_rows_are_refused():
    with pytest.raises(InputError, match="rows: expected at least one result row, got none"):
        audit_table([])


def test_result_table_of_a_single_audit():
    result = from_counts(500, 400, 5000, 5000, claim=Claim(4.0), method="cosine [bold]")
    text = "\n".join(rendered(result_table(result)))
    for said in (
        "promised ε = 4, δ = 0",
        f"ε at least {result.epsilon_lower:.2f} (with confidence 95%",
        "right guesses 91.0 % (FPR 0.1000, FNR 0.0800)",
        "10,000, of which 10,000 counted",
        "method cosine [bold]; Clopper-Pearson",
        "verdict consistent",
    ):
        assert said in text
    unclaimed = "\n".join(rendered(result_table(from_counts(1, 1, 9, 9, claim=None, method="own"))))
    assert "promised nothing" in unclaimed
    assert "detectable –" in unclaimed


def test_confidence_of_all_bounds_together_or_the_failures_to_expect():
    shared = [row(confidence=1 - 0.05 / 20)] * 10  # Bonferroni: ten rows with two lower bounds each
    assert "99.75% for each bound, 95% for all 20 lower bounds together" in " ".join(rendered(audit_table(shared)))
    many = " ".join(rendered(audit_table([row()] * 28)))
    assert "95% for each bound; on average up to 2.8 of 56 lower bounds may lie too high by chance." in many


def test_where_no_epsilon_is_detectable_none_is_named():
    """The caption said that "∞ (claim 4) would have been called a violation"."""
    few = row(verdict="underpowered", detectable="inf", ceiling=3.2)
    caption = " ".join(rendered(audit_table([few, row(epsilon=1.0, detectable=1.002)])))
    assert "Detectable: a true ε of 1.002 (claim 1), none (claim 4) would have been called a violation" in caption


def test_a_plan_for_a_small_claim_shows_its_loss_above_it():
    """The smallest loss that is called a violation was 0.00 where 0.001 is claimed."""
    found = plan(1.0)._replace(epsilon=0.001, detectable=0.00173)
    text = " ".join(rendered(plan_table(found, "the rate given")))
    assert "the smallest loss called a violation with probability 0.8 is 0.002." in text
