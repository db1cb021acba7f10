"""A plan on the screen."""

import math

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from dpaudit.auditing.plan import Plan


def plan_table(plan: Plan, rate_of: str) -> Table:
    """How many trials each question takes and how long they last, with the bounds to expect below.

    Args:
      plan: from :func:`dpaudit.auditing.plan.plan`.
      rate_of: in words, what plays the plan's number of trials a second.
    """
    claim = f"({plan.epsilon:g}, {plan.delta:g})" if plan.delta else f"{plan.epsilon:g}"
    title = f"Trials to check a claim of ε = {claim} at confidence {plan.confidence:g}"
    table = Table(title=Text(title), caption=Text(_caption(plan, rate_of)), box=SIMPLE_HEAD, show_edge=False)
    table.title_justify = table.caption_justify = "left"
    table.title_style = table.caption_style = ""
    table.add_column("question")
    table.add_column("trials", justify="right", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    questions = (
        ("could any violation be shown at all?", plan.least),
        (f"would ε = {plan.true_epsilon:g} be called a violation with probability 0.8?", plan.fixed),
        ("stopping as soon as it is certain: half of such audits have stopped by", plan.sequential_median),
        ("80 percent of them have stopped by", plan.sequential_most),
    )
    for question, trials in questions:
        table.add_row(question, f"{trials:,.0f}", duration(plan.seconds(trials)))
    return table


def _caption(plan: Plan, rate_of: str) -> str:
    lines = [
        f"With {plan.trials:,} trials, a mechanism that spends exactly its claim can expect a lower bound of "
        f"{plan.honest_lower:.2f}; the largest bound possible is {plan.ceiling:.2f}, and the smallest loss called a "
        f"violation with probability 0.8 is {plan.detectable:.2f}.",
        "The attack is taken to be perfect and its threshold to be known: choosing one takes a third more of a fixed "
        "number of trials. Stopping times are simulated.",
    ]
    if plan.rate is not None:
        lines.append(f"Times are for {plan.rate:,.0f} trials a second: {rate_of}.")
    return "\n".join(lines)


def duration(seconds: float | None) -> str:
    """Seconds in words: "<1 s", "42 s", "3.5 min", "2.0 h", "5 days"; empty where unknown."""
    if seconds is None:
        return ""
    if math.isinf(seconds):
        return "never"
    if seconds < 1:
        return "<1 s"
    for size, unit, limit, digits in ((1, "s", 60, 0), (60, "min", 3600, 1), (3600, "h", 172_800, 1)):
        if seconds < limit:
            return f"{seconds / size:.{digits}f} {unit}"
    return f"{seconds / 86_400:,.0f} days"
