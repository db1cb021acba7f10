"""What was measured on an accelerator stands beside what was asked and what its program is bound by."""

import pytest

from experiments.bench import accelerators_page, page
from experiments.bench.measured import figures, measured, reached

ROWS = accelerators_page.read_rows(accelerators_page.TIMED)
TABLED = accelerators_page.read_rows(accelerators_page.TABLED)


def changed(quantity, factor):
    """The committed rows, with one quantity so many times as large."""
    names = ("ours", "ours_low", "ours_high")
    return [
        row | {name: row[name] * factor for name in names if row[name] is not None}
        if row["quantity"] == quantity
        else row
        for row in ROWS
    ]


def lines(rows, microseconds=1e3):
    text = measured(rows, TABLED, lambda name: microseconds, 16_384)
    return {line.split(" | ")[0].strip("| "): line for line in text.splitlines() if line.startswith("|")}, text


@pytest.mark.parametrize(
    "quantity, factor, what",
    [
        ("full_trials_per_second", 0.5, "trials of `full`, d = 26,010, a second"),
        ("run_seconds", 2, "10,000 federated rounds of 1,000 clients, seconds"),
        ("gradient_ratio", 0.4, "the clipped sum's time over the plain gradient's"),
    ],
)
def test_what_is_not_reached_is_said(quantity, factor, what):
    assert "| yes |" in lines(ROWS)[0][what]
    assert "| **no** |" in lines(changed(quantity, factor))[0][what]


def test_a_figure_without_a_goal_is_not_judged():
    assert {reached(asked, 1.0) for asked in figures(1.0) if asked.least is None and asked.most is None} == {"–"}


def test_times_are_beside_their_bounds():
    seconds = next(row["ours"] for row in ROWS if row["quantity"] == "run_seconds")
    found, text = lines(ROWS)  # of one millisecond each
    assert f"| {1e3 * seconds / 10_000 * 20:.1f} |" in found["10,000 federated rounds of 1,000 clients, seconds"]
    assert f"{1e3 * seconds / 10_000 * 20:.1f} times its bound" in text


def test_only_what_is_slower_on_a_device_names_it():
    slow = [row | {"ratio": 0.5, "package": "torch", "peer": "torch"} for row in TABLED]
    assert page.slower(slow).values["told"].count(", on NVIDIA H200: 0.5 times torch") == len(slow)
    host = [row | {"machine": row["machine"] | {"accelerator": None}} for row in slow]
    assert "H200" not in page.slower(host).values["told"]
