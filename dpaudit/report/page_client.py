"""The client's page: what the promise means for one's own update, in plain words."""

import math
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

from dpaudit.report import markup, words
from dpaudit.report.figures import guess_figure
from dpaudit.report.words import number

Rows = Sequence[dict[str, Any]]

ACCESS = {
    "benign": ("Nothing is manipulated", "The candidates are the updates that two of your own images give."),
    "label_flip": (
        "The labels of your images can be changed",
        "The candidates come from one image of yours, once with its own label and once with a wrong one.",
    ),
    "gradient_flip": ("Your update can be changed", "The candidates are your update and its exact opposite."),
    "collusion": (
        "Your update can be changed, and the server helps",
        "The server sends a spoiled model that makes updates strong. The candidates are your update and its opposite.",
    ),
    "dummy": (
        "The update is made up",
        "No data of yours is used. The candidates are opposites, made to be as easy to tell apart as can be.",
    ),
    "zero_against_large": (
        "An empty update against a strong one",
        "No data of yours is used. One candidate is zero throughout, the other is far larger than usual.",
    ),
    "watermark": (
        "An empty update against a marked one",
        "No data of yours is used. One candidate is zero throughout, the other differs from it in a single number.",
    ),
}
NEAR = 0.99  # an attack that attains this share of the promise puts it to the test

OPENING = """<h1>How private is your update?</h1>
<p>In federated learning your device computes an <em>update</em> from your data and sends it to a server. Before the update
leaves your device, a <em>randomizer</em> changes it by chance, so that nobody who reads it can be sure what it was. How
much it hides is promised by one number, called <em>epsilon</em> (ε): the smaller, the more private. This page shows what
the promise means for your update, and whether the randomizer was caught breaking it.</p>
<h2>How often does an observer guess right?</h2>
<p>Think of a game. There are two candidates for your update. A coin decides which of them is randomised and sent. An
observer knows both candidates, sees only what was sent, and guesses the candidate that points more nearly the same
way.</p>"""

TELLING = """<h2>Some messages tell more than others</h2>
<p>How often a guess is right is an average over all messages, and an average can hide something. What your device sends may
point towards one candidate and away from the other: such a message is <em>telling</em>, for it is much more likely to
come from the one candidate than from the other. The other messages say less, and guessing from them pulls the average
down. An observer who waits for a telling message, and only then makes up their mind, uses what is called the
<em>optimal test</em>.</p>"""


def render(rows: Rows) -> str:
    """The first part of the page, for rows in order."""
    sources = words.distinct(rows, words.source)
    parts = [OPENING, _reference(rows)]
    for place, source in enumerate(sources):
        own = [row for row in rows if words.source(row) == source]
        parts += [f"<h2>Data: {escape(source)}</h2>"] if len(sources) > 1 else []
        parts += [*_sentences(own), _guesses(own)]
        caption = "Dots: right guesses out of 100. Dashed lines: the most that each promise allows."
        parts.append(markup.figure(guess_figure(own), f"guesses-{place}", caption))
    parts.append(TELLING)
    for source in sources:
        own = [row for row in rows if words.source(row) == source]
        parts += [f"<h3>Data: {escape(source)}</h3>"] if len(sources) > 1 else []
        parts.append(_telling(own))
    return "\n".join([*parts, _kept(rows)])


def _title(row: dict[str, Any]) -> str:
    return ACCESS.get(row["craft"], (words.craft_name(row["craft"]).capitalize(), ""))[0]


def _reference(rows: Rows) -> str:
    epsilon = words.epsilons(rows)[-1]
    weakest = ", the weakest of the promises tested here" if len(words.epsilons(rows)) > 1 else ""
    return (
        f'<div class="box"><p>The numbers that follow are for the promise ε = {epsilon:g}{weakest}.</p>'
        f"<p>A coin toss: <b>50</b> right guesses out of 100. The most that the promise ε = {epsilon:g} allows: "
        f"<b>{words.of_100(words.worst_case(epsilon))}</b>.</p></div>"
    )


def _sentences(rows: Rows) -> list[str]:
    epsilon = words.epsilons(rows)[-1]
    parts = []
    for row in (row for row in rows if row["epsilon"] == epsilon):
        title, candidates = ACCESS.get(row["craft"], (_title(row), ""))
        parts.append(
            f"<h3>{escape(title)} <small>({escape(words.craft_name(row['craft']))})</small></h3><p>{escape(candidates)} An observer who sees your randomised update and knows it is "
            f"one of the two guesses right <b>{words.of_100(row['accuracy'])}</b> times out of 100.</p>"
        )
    return parts


def _guesses(rows: Rows) -> str:
    losses = words.epsilons(rows)
    found = {(row["craft"], row["epsilon"]): str(words.of_100(row["accuracy"])) for row in rows}
    lines = [["A coin toss", *["50"] * len(losses)]]
    for row in {row["craft"]: row for row in rows}.values():
        lines.append([_title(row), *(found.get((row["craft"], epsilon), "–") for epsilon in losses)])
    lines.append(["The most that the promise allows", *(str(words.of_100(words.worst_case(e))) for e in losses)])
    return markup.table(["Right guesses out of 100", *(f"ε = {epsilon:g}" for epsilon in losses)], lines, "ends")


class Telling(NamedTuple):
    """How often a telling message occurs: when its own candidate was sent, and when the other one was."""

    own: float
    other: float


def telling(row: dict[str, Any]) -> Telling:
    """The probabilities of the optimal test's region, from the row's exact numbers.

    The region's two probabilities differ by 2A - 1, with A the exact accuracy of the cosine rule (both are linear in
    Q theta/pi), and their ratio is e^epsilon_optimal. NaN where no message is telling.
    """
    loss = number(row["epsilon_optimal"])
    if not 0 < loss < math.inf:
        return Telling(math.nan, math.nan)
    own = (2 * row["accuracy_exact"] - 1) / -math.expm1(-loss)
    return Telling(own, own * math.exp(-loss))


def _telling(rows: Rows) -> str:
    epsilon = words.epsilons(rows)[-1]
    lines, own = [], [row for row in rows if row["epsilon"] == epsilon and number(row["epsilon_optimal"]) > 0]
    if not own:
        return markup.paragraph(f"No message is telling in these settings (ε = {epsilon:g}).")
    for row in own:
        loss, rates = number(row["epsilon_optimal"]), telling(row)
        ratio = f"{math.exp(loss):.3g} to 1"
        lines.append([_title(row), f"{100 * rates.own:.2g}", f"{100 * rates.other:.2g}", ratio, str(_after(loss))])
    first, (_, often, rare, ratio, after) = own[0], lines[0]
    text = (
        f"For example, at ε = {epsilon:g} ({_title(first).lower()}): a telling message comes {often} times out of 100 if its "
        f"own candidate was sent and {rare} times out of 100 if the other one was, {ratio}. After one, the observer is right "
        f"{after} times out of 100, where all guesses together are right {words.of_100(first['accuracy'])} times."
    )
    if number(first["epsilon_optimal"]) > NEAR * epsilon:
        text += f" That is as sure as the promise ε = {epsilon:g} lets anybody be. It does not break the promise; it is the promise."
    headers = [f"At ε = {epsilon:g}, computed", "telling, of 100, own candidate", "telling, of 100, other candidate",
               "ratio", "right after a telling one, of 100"]  # fmt: skip
    return markup.paragraph(text) + markup.table(headers, lines)


def _after(loss: float) -> int:
    return words.of_100(words.worst_case(loss))


def _kept(rows: Rows) -> str:
    played = [row for row in rows if row["trials"]]
    parts = ["<h2>Does the randomizer keep its promise?</h2>"]
    if not played:
        text = "Not tested here. The numbers above were computed from the randomizer's mathematics, and nothing was run."
        return parts[0] + markup.paragraph(text)
    parts.append(markup.bullets(_judged(played, epsilon) for epsilon in words.epsilons(played)))
    parts.append(markup.paragraph(_power(played)))
    parts += [markup.paragraph(sentence) for sentence in words.above_promise(played)]
    alarms = 2 * sum(1 - row["confidence"] for row in played)
    parts.append(
        markup.paragraph(
            f"Chance alone can raise a false alarm. Each line of the engineers' table holds two tests, the everyday guess, "
            f"which the verdicts above speak of, and the optimal test: {2 * len(played)} in all, each with a confidence of "
            f"{words.confidence(played)}. Up to {alarms:.2g} false alarms are therefore to be expected. A real violation shows "
            "again when the tests are repeated with another seed; chance does not."
        )
    )
    if "plane" in words.distinct(played, "engine"):
        parts.append(
            markup.paragraph(
                "These trials were simulated from the randomizer's mathematics; the program that your device runs was not "
                "run. They show what the method can hide. Whether the program follows the method is tested by the engine "
                "called full."
            )
        )
    return "\n".join(parts)


def _judged(played: Rows, epsilon: float) -> str:
    """The verdict on one promise, in words."""
    own = [row for row in played if row["epsilon"] == epsilon]
    broken = [row for row in own if row["verdict"] == "violation"]
    small = [row for row in own if row["verdict"] == "underpowered"]
    start, of = f"Promise ε = {epsilon:g}: ", f"{len(own)} {'test' if len(own) == 1 else 'tests'}"
    if broken:
        found = ", ".join(
            f"{words.craft_name(row['craft'])} on {words.source(row)} (at least {words.said(row['epsilon_lower'])})"
            for row in broken
        )
        return f"{start}a violation was found in {len(broken)} of {of}. The true ε is larger than promised: {found}."
    if len(small) == len(own):
        most = max(number(row["ceiling"]) for row in own)
        return f"{start}too few trials. Even a perfect observer could not have shown more than ε = {words.said(most)}."
    least = max(number(row["detectable"]) for row in own if row not in small)
    text = f"{start}no violation was found in {of}. A true ε of {words.said(least)} or more would have been found with "
    text += "probability 0.8."
    return text + (f" In {len(small)} of them there were too few trials to find any." if small else "")


def _power(played: Rows) -> str:
    """For whom the probability 0.8 holds."""
    near = [row for row in played if number(row["epsilon_exact"]) >= NEAR * row["epsilon"]]
    names = ", ".join(dict.fromkeys(words.craft_name(row["craft"]) for row in near))
    strong = f"Here that is so for {names}." if near else "No setting tested here comes near that."
    return f"The probability 0.8 holds where the observer's guesses are as good as the promise allows. {strong}"
