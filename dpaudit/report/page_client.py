"""Renders the client's part of the page: the verdict, and what the promise means for the client's own update."""

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from dpaudit.report import markup, words
from dpaudit.report.figures import guess_figure
from dpaudit.report.page_telling import NEAR, described, telling, title
from dpaudit.report.randomizer_words import kind_of
from dpaudit.report.tradeoff_figure import attained_figure
from dpaudit.report.words import number, of_100

Row = dict[str, Any]
Rows = Sequence[Row]

OPENING = """<p>In federated learning your device computes an <em>update</em> from your data and sends it to a
server. Before the update leaves your device, a <em>randomizer</em> changes it at random, so that nobody who reads it
can be sure what it was. One number, called <em>epsilon</em> (ε), promises how much it hides: the smaller, the more
private.{delta}</p>
<h2>How often does an observer guess right?</h2>
<p>Think of a game. There are two candidates for your update. A coin decides which of them is randomised and sent. An
observer knows both candidates, sees only what was sent, and guesses the candidate whose direction is closer to
it.</p>"""

CURVE = (
    "{source}{promise}: how often an observer makes each of the two possible mistakes. Each line joins what "
    "an observer attains in one setting: the diamond {diamond}. The promise rules out the shaded corner."
)
UNTESTED = "Not tested here: the numbers above were computed from the randomizer's mathematics, and nothing was run."
SIMULATED = """<p>These trials were simulated from the randomizer's mathematics; the program that your device runs was
not run. They show what the method can hide. The engine called <em>full</em> tests whether the program follows the
method.</p>"""
BLIND = (
    "Both tests gave one answer in every trial, as of two gradients that are zero, so that no fault could have shown."
)
WEAK = "A loss of twice the promise would have been found with probability below 0.8."
ALARMS = """<p>Chance alone can raise a false alarm. Each line of the engineers' table holds two tests, the everyday
guess and the optimal test: {tests} in all, each with a confidence of {confidence}, and either can find a violation.
{chance} A real violation appears again when the tests are repeated with another seed; a false alarm rarely
does.</p>"""


def render(rows: Rows, planned: int | None = None) -> str:
    """Renders the first part of the page from ordered rows, of so many that were planned."""
    sources, kind, delta = words.distinct(rows, words.source), kind_of(rows), words.delta_of(rows)
    parts = [
        "<h1>How private is your update?</h1>",
        _verdict(rows, words.unfinished(rows, planned)),
        OPENING.format(delta=kind.opening),
        _reference(rows),
    ]
    for place, source in enumerate(sources):
        own = [row for row in rows if words.source(row) == source]
        parts += [f"<h2>Data: {escape(source)}</h2>"] if len(sources) > 1 else []
        parts += [*_sentences(own), _guesses(own), *map(markup.paragraph, _above(own))]
        caption = "Dots: right guesses out of 100. Dashed lines: the most that each promise allows."
        parts.append(markup.figure(guess_figure(own), f"guesses-{place}", caption))
    parts += [kind.picture(rows), kind.telling_text]
    for source in sources:
        parts += [f"<h3>Data: {escape(source)}</h3>"] if len(sources) > 1 else []
        parts.append(kind.telling([row for row in rows if words.source(row) == source]))
    for place, source in enumerate(sources):
        own = [row for row in rows if words.source(row) == source and row["epsilon"] == words.epsilons(rows)[-1]]
        at = {"promise": words.promise(words.epsilons(rows)[-1], delta), "diamond": kind.diamond}
        caption = CURVE.format(source=f"{source}, " * (len(sources) > 1), **at)
        parts.append(markup.figure(attained_figure([(row, telling(row)) for row in own]), f"curve-{place}", caption))
    return "\n".join([*parts, _kept(rows)])


def _verdict(rows: Rows, unfinished: str) -> str:
    """Renders the answer, before anything is explained, and how much of the run it rests on."""
    played = [row for row in rows if row["trials"]]
    broken = [row for row in played if row["verdict"] == "violation"]
    able = [row for row in played if row["verdict"] != "underpowered"]
    if not played:
        answer, more = "The promise was not tested.", "The numbers below are computed; nothing was run."
    elif broken:
        answer = "The randomizer breaks its promise."
        more = f"{len(broken)} of {_tests(played)} found that it hides less than it says."
    elif not able:
        answer, more = "Too few trials to tell.", WEAK
        if all(map(_blind, played)):
            answer, more = "There was nothing to tell apart.", BLIND
    else:
        answer = "The randomizer was not caught breaking its promise."
        few = len(played) - len(able)
        more = f"None of {_tests(able)} found a violation" + (f"; {few} could hardly have found any." if few else ".")
        more += " That is not a proof of privacy: the end of this part says which violations would have been found."
    stopped = f"<p>{escape(unfinished)}</p>" if unfinished else ""
    return f'<div class="box"><p><b>{escape(answer)}</b> {escape(more)}</p>{stopped}</div>'


def _blind(row: Row) -> bool:
    """Tells whether there were trials enough, but a pair that no test tells apart: all trials are ties."""
    one_answer = {row["fpr"], row["fnr"]} == {0, 1}
    return row["verdict"] == "underpowered" and one_answer and number(row["ceiling"]) > row["epsilon"]


def _tests(rows: Rows) -> str:
    return f"{len(rows):,} {'test' if len(rows) == 1 else 'tests'}"


def _above(rows: Rows) -> list[str]:
    """Explains measured numbers that exceed the most that the promise, or the randomizer itself, allows."""
    lines = []
    for row in rows:
        most = of_100(row.get("accuracy_most", words.worst_case(row["epsilon"], row["delta"])))
        shown, allows = of_100(row["accuracy"]), "the randomizer" if "accuracy_most" in row else "the promise"
        if shown <= most or not row["trials"]:
            continue
        games = row["trials"] * row["repeats"]
        chance = 200 * math.sqrt(row["accuracy"] * (1 - row["accuracy"]) / games)
        text = f"{title(row)}, {words.promise(row['epsilon'], row['delta'])}: "
        text += f"{shown} of 100 were right, and {allows} allows {most}. "
        if row["verdict"] == "violation":
            text += "Chance does not explain that: the promise is broken."
        else:
            text += f"That breaks no promise: {shown} was counted in {games:,} games, where chance alone moves it by "
            text += f"about {chance:.2g}, and both numbers are rounded. The verdict allows for chance."
        lines.append(text)
    return lines


def _reference(rows: Rows) -> str:
    epsilon, delta = words.epsilons(rows)[-1], words.delta_of(rows)
    promise = words.promise(epsilon, delta)
    weakest = ", the weakest of the promises tested here" if len(words.epsilons(rows)) > 1 else ""
    least = "".join(
        f" The most that this randomizer allows, whatever the updates: <b>{of_100(most)}</b>."
        for most in words.distinct((row for row in rows if row["epsilon"] == epsilon), "accuracy_most")[:1]
    )
    return (
        f'<div class="box"><p>The numbers that follow are for the promise {promise}{weakest}.</p>'
        f"<p>A coin toss: <b>50</b> right guesses out of 100. The most that the promise {promise} allows: "
        f"<b>{of_100(words.worst_case(epsilon, delta))}</b>.{least}</p></div>"
    )


def _sentences(rows: Rows) -> list[str]:
    """Renders one paragraph for each level of access, at the weakest promise."""
    return [
        f"<h3>{escape(title(row))} <small>({escape(words.craft_name(row['craft']))})</small></h3>"
        f"<p>{escape(described(row))} An observer who sees your randomised update and knows it "
        f"is one of the two guesses right <b>{of_100(row['accuracy'])}</b> times out of 100.</p>"
        for row in rows
        if row["epsilon"] == words.epsilons(rows)[-1]
    ]


def _guesses(rows: Rows) -> str:
    losses = words.epsilons(rows)
    found = {(row["craft"], row["epsilon"]): str(of_100(row["accuracy"])) for row in rows}
    lines = [["A coin toss", *["50"] * len(losses)]]
    for row in {row["craft"]: row for row in rows}.values():
        lines.append([title(row), *(found.get((row["craft"], epsilon), "–") for epsilon in losses)])
    most = {row["epsilon"]: str(of_100(row["accuracy_most"])) for row in rows if "accuracy_most" in row}
    if most:
        lines.append(["The most that this randomizer allows", *(most[loss] for loss in losses)])
    delta = words.delta_of(rows)
    lines.append(
        ["The most that the promise allows", *(str(of_100(words.worst_case(loss, delta))) for loss in losses)]
    )
    return markup.table(["Right guesses out of 100", *(f"ε = {epsilon:g}" for epsilon in losses)], lines)


def _kept(rows: Rows) -> str:
    played = [row for row in rows if row["trials"]]
    parts = ["<h2>Does the randomizer keep its promise?</h2>"]
    if not played:
        return parts[0] + markup.paragraph(UNTESTED)
    parts.append(markup.bullets(_judged(played, epsilon) for epsilon in words.epsilons(played)))
    parts += map(markup.paragraph, _power(played))
    parts.append(ALARMS.format(tests=2 * len(played), confidence=words.confidence(played), chance=_chance(played)))
    shipped = set(words.distinct(played, "engine")) <= {"full"}
    return "\n".join(parts + [SIMULATED] * (not shipped))


def _chance(played: Rows) -> str:
    alarms = words.false_alarms(played)
    if alarms < 1:
        return f"The probability that any of them raises a false alarm is therefore at most {100 * alarms:.3g}%."
    return f"Up to {alarms:.2g} false alarms are therefore expected on average."


def _judged(played: Rows, epsilon: float) -> str:
    """States the verdict on one promise in words."""
    own = [row for row in played if row["epsilon"] == epsilon]
    broken = [row for row in own if row["verdict"] == "violation"]
    able = [row for row in own if row["verdict"] != "underpowered"]
    start, tests, kind = f"Promise {words.promise(epsilon, words.delta_of(own))}: ", _tests(own), kind_of(played)
    if broken:
        least = ", ".join(
            f"{words.beside(max(map(number, (row['epsilon_lower'], row['epsilon_optimal_lower']))), epsilon)}"
            f" ({words.craft_name(row['craft'])} on {words.source(row)})"
            for row in broken
        )
        found = f"{start}a violation was found in {len(broken)} of {tests}."
        sure = f"the larger of the two bounds of a test, each of confidence {words.confidence(broken)}"
        return f"{found} The true ε is at least {least}: {sure}.{kind.reading}"
    if not able:
        if all(map(_blind, own)):
            return f"{start}not tested. {BLIND}"
        most = max(number(row["ceiling"]) for row in own if not _blind(row))
        shown = f"Even a perfect observer could not have shown more than ε = {words.said(most)}."
        return f"{start}too few trials. {shown if most <= epsilon else WEAK}"
    best = (min if kind.fault else max)(able, key=lambda row: number(row["detectable"]))
    text = f"{start}no violation was found in {tests}. A true ε of {words.beside(best['detectable'], epsilon)} or more"
    text += f", {kind.fault}," * bool(kind.fault) + " would have been found with probability 0.8"
    text += f" by the optimal test ({words.craft_name(best['craft'])})." if kind.fault else "."
    few = len(own) - len(able)
    return text + (f" {few} of them could hardly have found any." if few else "")


def _power(played: Rows) -> list[str]:
    """Says for which settings the probability 0.8 holds; nothing if no verdict mentioned it."""
    if kind_of(played).fault or all(row["verdict"] in ("violation", "underpowered") for row in played):
        return []
    near = [row for row in played if number(row["epsilon_exact"]) >= NEAR * row["epsilon"]]
    names = ", ".join(dict.fromkeys(words.craft_name(row["craft"]) for row in near))
    strong = f"Here that is so for {names}." if near else "No setting tested here is close to that."
    return [f"The probability 0.8 holds where the observer's guesses are as good as the promise allows. {strong}"]
