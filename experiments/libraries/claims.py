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


def all_found(rows: Rows) -> Verdict:
    own = known(rows)
    asked = [row for row in own if row["setting"].get("asked")]
    plain = [row for row in own if row not in asked]
    beside = sum((row["setting"].get("low_bits") or 0) > row["setting"]["epsilon"] for row in asked)
    told = f"{violated(plain)} of {len(plain)} by the plain call; {beside} of {len(asked)} told beside its verdict"
    told += f", and {violated(asked)} by the verdict where last digits are asked for"
    return Verdict(violated(own) == len(own), told, scale(own))


def no_false_alarm(rows: Rows) -> Verdict:
    own = sound(rows)
    return Verdict(violated(own) == 0 and len(own) >= 30, f"{violated(own)} of {len(own)} accused", scale(own))


CLAIMS = (
    Claim(
        "Faults that public issues name are found; by last digits of floats, where they are asked for",
        "",
        all_found,
        COMMAND,
    ),
    Claim("No fixed version and no sound mechanism, of 30 and more, is accused", "", no_false_alarm, COMMAND),
)
