"""Judges the paper's claims by the result rows."""

import math

from experiments.pages import (
    Claim,
    Row,
    Rows,
    Verdict,
    apart,
    each_scale,
    grouped,
    interval,
    number,
    only,
    ranged,
    select,
    values,
)
from experiments.paper001.published import COSTED, NOISY_GIGABYTES
from experiments.paper001.tasks import EPSILONS, OWNERS

TRAIN, AUDIT, COST = "spgc --work DIR", "paper001.audit", "paper001.cost"
PROTOCOL = "paper001.protocol --work DIR"


def trials(row: Row) -> int:
    return int(row["scale"].rsplit(", ", 1)[1].split()[0])


def accuracy(rows: Rows, data: str, scheme: str, epsilon: float | None, owners: int = OWNERS) -> Row:
    rule = None if epsilon is None else "classical"
    return only(rows, "accuracy", data=data, scheme=scheme, epsilon=epsilon, rule=rule, owners=owners)


def leads(rows: Rows, data: str, epsilon: float, paper: float) -> Verdict:
    """Tells whether SPGC is more accurate than LDP by the points that the paper prints.

    It holds where the difference's interval has the paper's sign and reaches the paper's points, fails where it stays
    below them, and is open otherwise, as with a single trial.
    """
    ours, other = (accuracy(rows, data, scheme, epsilon) for scheme in ("SPGC", "LDP"))
    more, error = apart(ours, other, trials(ours))
    told = f"{more:+.1f}" + ("" if math.isinf(error) else f" [{more - error:+.1f}, {more + error:+.1f}]") + " points"
    sign = math.copysign(1.0, paper)
    low, high = sign * more - error, sign * more + error
    short = high < abs(paper) - 0.05  # the paper prints a tenth of a point
    return Verdict(False if short else True if low > 0 else None, told, ours["scale"])


def printed(rows: Rows, data: str, scheme: str, epsilon: float) -> Verdict:
    """Tells whether the printed accuracy lies within the range of our trials."""
    row = accuracy(rows, data, scheme, epsilon)
    inside = row["ours_low"] <= row["paper_value"] <= row["ours_high"]
    return Verdict(None if trials(row) == 1 else inside, ranged(row, 1), row["scale"])


def independent_of_owners(rows: Rows) -> Verdict:
    """Tells whether every audit of SPGC is consistent and none shows more with the most owners than with the fewest."""
    own = select(rows, "owners", scheme="SPGC")
    few, many = fewest_and_most(select(own, "owners", neighbouring="replace", epsilon=EPSILONS[1]))[0]
    told = f"ε in {interval(few)} with {few['setting']['owners']} owners, {interval(many)} with {many['setting']['owners']}"
    found = {row["setting"]["verdict"] for row in own}
    holds = False if "violation" in found or any(grown(own)) else True if found == {"consistent"} else None
    return Verdict(holds, f"{told}, of {number(few['setting']['claimed'])} accounted", few["scale"])


def others_depend_on_owners(rows: Rows) -> Verdict:
    """Tells whether every audit of reduced noise is a violation and shows more with the most owners than with the
    fewest."""
    own = select(rows, "owners", scheme="reduced noise")
    few, many = fewest_and_most(select(own, "owners", neighbouring="replace", epsilon=EPSILONS[1]))[0]
    told = f"ε at least {number(few['ours_low'])} with {few['setting']['owners']} owners, {number(many['ours_low'])} with {many['setting']['owners']}"
    broken, more = all(row["setting"]["verdict"] == "violation" for row in own), grown(own)
    holds = True if broken and all(more) else None if any(more) else False
    return Verdict(holds, f"{told}, of {number(few['setting']['claimed'])}", few["scale"])


def fewest_and_most(rows: Rows) -> list[tuple[Row, Row]]:
    """Returns the audits with the fewest owners and with the most, of every ε and relation."""
    few, many = ends(rows)
    return [(group[few], group[many]) for group in grouped(rows, "owners", "neighbouring", "epsilon")]


def grown(rows: Rows) -> list[bool]:
    """Tells of every ε and relation whether the bounds with the most owners are above those with the fewest."""
    return [float(many["ours_low"]) > float(few["ours_high"]) for few, many in fewest_and_most(rows)]


def ends(rows: Rows) -> tuple[int, int]:
    """Returns the fewest and the most owners."""
    counts = [row["setting"]["owners"] for row in rows]
    return min(counts), max(counts)


def rule(rows: Rows) -> Verdict:
    own = select(rows, "rule")
    wrong = [row for row in own if row["setting"]["verdict"] == "violation"]
    widest = max(wrong or own, key=lambda row: row["ours_low"] - row["setting"]["claimed"])
    told = f"{len(wrong)} of {len(own)} promises broken, as {interval(widest)} for {widest['setting']['claimed']:g}"
    return Verdict(not wrong, told, each_scale(own))


def decoded(rows: Rows) -> Verdict:
    """Tells whether sums decode to themselves: the largest by the printed arithmetic, and all of whole trainings."""
    largest = only(rows, "flaw", arithmetic="as printed")
    opened = select(rows, "protocol_differing")
    wrong, coordinates = sum(row["ours"] for row in opened), sum(row["coordinates"] for row in opened)
    m = largest["setting"]["examples"]
    told = (
        f"the largest sum, {m}, as {largest['ours']:.0f}; {wrong} of {coordinates:,} coordinates of trainings differ"
    )
    return Verdict(wrong == 0 and abs(largest["ours"] - m) < 0.01, told, f"{len(opened)} trainings; one sum computed")


def growth(rows: Rows, data: str, circuit: str) -> float:
    """How many times as many bytes a coordinate takes at the smallest epsilon as at the largest."""
    wide, narrow = (
        only(rows, "table_bytes", data=data, circuit=circuit, epsilon=e)["ours"] for e in (COSTED[0], COSTED[-1])
    )
    return wide / narrow


def growths(rows: Rows, circuit: str) -> list[float]:
    """The same for every data set, in order."""
    return sorted(growth(rows, data, circuit) for data in values(select(rows, "table_bytes"), "data"))


def printed_growth(data: str) -> str:
    """The same in the paper's Table 1."""
    wide, narrow = NOISY_GIGABYTES[data]
    return f"{wide:.0f} against {narrow:.0f} GB on {data}: {wide / narrow:.2f} times"


def bytes_grow(rows: Rows) -> Verdict:
    """Tells whether bytes grow as epsilon falls, on every data set and with either law of noise."""
    table, ours = growths(rows, "table"), growths(rows, "binomial")
    told = f"{table[0]:.1f} to {table[-1]:.1f} times the bytes with the paper's table, {ours[0]:.2f} to {ours[-1]:.2f} with binomial noise"
    return Verdict(min(table + ours) > 1, told, "counted, a coordinate, ε from 8 to 0.01")


def hours(rows: Rows) -> Verdict:
    row = only(rows, "hours", data="Cancer", mode="noisy", depth=1)
    paper = row["paper_value"]
    told = f"{number(row['ours'])} hours, {number(row['times_as_fast'], 1)} times as fast"
    return Verdict(
        0.5 < row["ours"] / paper < 2, told, f"{row['scale']}, step timed on one machine, our implementation"
    )


# fmt: off
CLAIMS = (
    Claim("SPGC is more accurate than LDP on Cancer, ε = 8", "+5.6 points (86.6% and 92.1% in the text)", lambda rows: leads(rows, "Cancer", 8.0, 5.5), TRAIN),
    Claim("SPGC's privacy does not depend on the number of owners", "", independent_of_owners, AUDIT),
    Claim("Schemes whose owners each add a share of the noise lose privacy as owners are added", "", others_depend_on_owners, AUDIT),
    Claim("The rule for the noise gives the ε that it is asked for", "δ = 0.001", rule, AUDIT),
    Claim("Section 4.3: the sum decodes correctly (the fault of Chase et al. is mended)", "", decoded, PROTOCOL),
    Claim("SPGC is more accurate than LDP on Diabetes, ε = 8", "+2.3 points", lambda rows: leads(rows, "Diabetes", 8.0, 2.3), TRAIN),
    Claim("SPGC is more accurate than LDP on MNIST, ε = 0.5", "+0.4 points", lambda rows: leads(rows, "MNIST", 0.5, 0.4), TRAIN),
    Claim("SPGC is as accurate on Cancer as printed, ε = 8", "92.1%", lambda rows: printed(rows, "Cancer", "SPGC", 8.0), TRAIN),
    Claim("SPGC's accuracy on Cancer falls to near guessing at ε = 0.5", "60.3%", lambda rows: printed(rows, "Cancer", "SPGC", 0.5), TRAIN),
    Claim("A training on Cancer takes about ten hours", "10.63 hours", hours, COST),
    Claim("Wider noise needs more bytes in a garbled circuit", printed_growth("Cancer"), bytes_grow, COST),
)
# fmt: on
