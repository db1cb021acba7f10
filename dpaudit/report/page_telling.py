"""Renders what an observer learns from messages one by one, beyond the share of right guesses: the optimal test."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from dpaudit.report import markup, words
from dpaudit.report.words import number, of_100

Row = dict[str, Any]
Rows = Sequence[Row]

ACCESS = {
    "benign": ("Nothing is manipulated", "The candidates are the updates that two of your own images give."),
    "label_flip": (
        "The labels of your images can be changed",
        "The candidates come from one image of yours, once with its own label and once with a wrong one.",
    ),
    "likeliest_flip": (
        "The labels of your images can be changed, to the wrong label that the model finds likeliest",
        "The candidates come from one image of yours, once with its own label and once with the likeliest wrong one.",
    ),
    "gradient_flip": ("Your update can be changed", "The candidates are your update and its exact opposite."),
    "collusion": (
        "Your update can be changed, and the server helps",
        "The server sends a spoiled model that makes updates strong. The candidates are your update and its opposite.",
    ),
    "dummy": (
        "The update is made up",
        "No data of yours is used. The candidates are opposites, made as easy to tell apart as possible.",
    ),
    "zero_against_large": (
        "An empty update against a strong one",
        "No data of yours is used. One candidate is all zeros, the other is far larger than usual.",
    ),
    "watermark": (
        "An empty update against a marked one",
        "No data of yours is used. One candidate is all zeros, the other differs from it in a single number.",
    ),
}
NEAR = 0.99  # the share of the promise from which an attack counts as attaining it

SIDES = """<h2>Some messages tell more than others</h2>
<p>How often a guess is right is an average over all messages, and an average can hide something. What your device
sends may point towards one candidate and away from the other: such a message is <em>telling</em>, because it is much
more likely to come from the one candidate than from the other. The other messages reveal less, and guessing from them
pulls the average down. An observer who waits for a telling message, and only then decides, uses the <em>optimal
test</em>.</p>"""
CAPS = SIDES.replace(
    "sends may point towards one candidate and away from the other: such",
    "sends may lie in the cap around one candidate and outside the cap around the other: such",
)
LIKELIHOODS = """<h2>Some messages tell more than others</h2>
<p>The everyday guess looks at directions alone. An observer can do better by comparing how likely the message is under
either candidate. No other way to read one message tells more: this is the <em>optimal test</em>. How much it tells
depends on nothing but the distance between the candidates, measured against the noise. A message halfway between
them tells nothing; one far out on the side of a candidate tells much, and how much has no limit. Such messages are
rare: δ bounds how often they may tell more than ε.</p>"""


def title(row: Row) -> str:
    """Names a setting by what an attacker controls."""
    return ACCESS.get(row["craft"], (words.craft_name(row["craft"]).capitalize(), ""))[0]


def described(row: Row) -> str:
    """Describes the candidates of a setting."""
    return ACCESS.get(row["craft"], ("", ""))[1]


class Telling(NamedTuple):
    """The probability of a telling message when its own candidate was sent, and when the other one was."""

    own: float
    other: float


def telling(row: Row) -> Telling:
    """Computes how often the optimal test's region is entered, from the row's exact numbers.

    The region's two probabilities differ by 2A - 1, with A the exact accuracy of the cosine rule (both this difference
    and 2A - 1 are theta/pi (Q0 + Q1 - 1), averaged over pairs), and their ratio is e^epsilon_optimal. Rows of other
    randomizers state both. NaN where no message is telling.
    """
    if "optimal_tpr" in row:
        return _as_stated(row)
    loss = number(row["epsilon_optimal"])
    if not 0 < loss < math.inf:
        return Telling(math.nan, math.nan)
    own = (2 * row["accuracy_exact"] - 1) / -math.expm1(-loss)
    return Telling(own, own * math.exp(-loss))


def _as_stated(row: Row) -> Telling:
    rates = row["optimal_tpr"], row["optimal_fpr"]
    return Telling(max(rates), min(rates)) if min(rates) > 0 else Telling(math.nan, math.nan)


def by_region(rows: Rows) -> str:
    """Renders how often a message is telling, and how much it tells, at the weakest promise."""
    epsilon = words.epsilons(rows)[-1]
    own = [row for row in rows if row["epsilon"] == epsilon and number(row["epsilon_optimal"]) > 0]
    if not own:
        return markup.paragraph(f"No message is telling in these settings (ε = {epsilon:g}).")
    lines = []
    for row in own:
        loss, rates = number(row["epsilon_optimal"]), telling(row)
        ratio = words.likelier(math.exp(min(loss, 700.0)), ".3g")  # beyond, floats overflow
        numbers = (words.often(rates.own), words.often(rates.other), f"{ratio} to 1")
        lines.append([title(row), *numbers, str(of_100(words.worst_case(loss)))])
    first, (name, often, rare, ratio, after) = own[0], lines[0]
    text = (
        f"For example, at ε = {epsilon:g} ({name.lower()}): a telling message comes {often} times out of 100 if the "
        f"candidate that it points to was sent and {rare} times out of 100 if the other one was, a ratio of {ratio}. "
        f"After one, the observer is right {after} times out of 100; over all messages, guesses are right "
        f"{of_100(first['accuracy'])} times out of 100."
    )
    if number(first["epsilon_optimal"]) > NEAR * epsilon:
        text += f" This ratio is the most that the promise ε = {epsilon:g} allows. The promise is not broken by it."
    note = f"Computed, at ε = {epsilon:g}. All columns but the ratio are times out of 100."
    headers = ("", "telling, its candidate was sent", "telling, the other was sent", "ratio", "right after it")
    return markup.paragraph(text) + markup.table(headers, lines, caption=note)


def by_likelihood(rows: Rows) -> str:
    """Renders what the likelihood ratio tells beyond the everyday guess, at the weakest promise."""
    epsilon, delta = words.epsilons(rows)[-1], words.delta_of(rows)
    own = [row for row in rows if row["epsilon"] == epsilon]
    shares = [(1 + row["optimal_tpr"] - row["optimal_fpr"]) / 2 for row in own]
    lines = [
        [title(row), str(of_100(row["accuracy_exact"])), str(of_100(share)), words.said(row["epsilon_optimal"])]
        for row, share in zip(own, shares, strict=True)
    ]
    name, everyday, best, loss = lines[0]
    text = (
        f"For example, at {words.promise(epsilon, delta)} ({name.lower()}): the everyday guess is right {everyday} "
        f"times out of 100, the optimal test {best} times. What it tells is worth ε = {loss} at δ = {delta:g}"
    )
    near = number(own[0]["epsilon_optimal"]) > NEAR * epsilon
    text += ", which is all that is promised." if near else f", of the {epsilon:g} that are promised."
    note = f"Computed, at {words.promise(epsilon, delta)}. Right guesses are out of 100."
    return markup.paragraph(text) + markup.table(
        ("", "everyday guess", "optimal test", f"its ε at δ = {delta:g}"), lines, caption=note
    )
