"""Judges by the result rows what the plain call is expected to find in libraries."""

from experiments.libraries.play import WITHHELD
from experiments.pages import Claim, Row, Rows, Verdict

COMMAND = "libraries.run"


def played(rows: Rows) -> list[Row]:
    """The promises that were audited."""
    found = [row for row in rows if row["quantity"].startswith("promise_")]
    return [row for row in found if row["setting"]["verdict"] != WITHHELD]


def known(rows: Rows) -> list[Row]:
    """Promises whose fault a public issue names."""
    return [row for row in played(rows) if row["setting"]["issue"] is not None]


def sound(rows: Rows) -> list[Row]:
    return [row for row in played(rows) if row["setting"]["issue"] is None]


def violated(rows: Rows) -> int:
    return sum(row["setting"]["verdict"] == "violation" for row in rows)


def scale(rows: Rows) -> str:
    trials = [row["setting"]["trials"] for row in rows]
    return f"{min(trials):,} to {max(trials):,} trials a promise"


def found_by_the_plain_call(rows: Rows) -> Verdict:
    own = [row for row in known(rows) if not row["setting"].get("asked")]
    return Verdict(violated(own) == len(own), f"{violated(own)} of {len(own)} promises broken", scale(own))


def found_in_last_bits(rows: Rows) -> Verdict:
    own = [row for row in known(rows) if row["setting"].get("asked")]
    return Verdict(violated(own) == len(own), f"{violated(own)} of {len(own)} promises broken", scale(own))


def no_false_alarm(rows: Rows) -> Verdict:
    own = sound(rows)
    return Verdict(violated(own) == 0 and len(own) >= 30, f"{violated(own)} of {len(own)} accused", scale(own))


CLAIMS = (
    Claim("The plain call finds every fault that a public issue names", "", found_by_the_plain_call, COMMAND),
    Claim(
        "What floating point leaks by last bits is found by the attack that reads them",
        "",
        found_in_last_bits,
        COMMAND,
    ),
    Claim("It accuses no mended version and no sound mechanism, of 30 and more", "", no_false_alarm, COMMAND),
)
