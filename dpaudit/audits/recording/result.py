"""Defines Recording: the outcome of replaying noise on two inputs, and the audit of what replaying cannot judge."""

import json
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from dpaudit.auditing.lint.inspect import Finding
from dpaudit.auditing.result import AuditResult, json_number
from dpaudit.audits.recording.pair import Noise
from dpaudit.mechanisms.claim import Claim

COLUMNS = ("where", "source", "scale", "allows", "differs", "ε alone")


class Recording(NamedTuple):
    """The outcome of recording a function on x0 and replaying its noise on x1; every epsilon in nats.

    Everything in it holds for these two inputs only.

    Attributes:
      verdict: "violation" if the returned values reveal more than the claim allows, or an audit proved it; "fault" if
        there is a fault whose privacy loss neither could measure; "consistent" if all releases keep the claim, by the
        distributions of the noise or as far as the audit shows; "underpowered" if replaying is not conclusive and
        there was no audit, or one that could not have shown a violation, and if no value differs between the inputs;
        "measured" without a claim.
      sentence: the verdict in words, and its grounds.
      findings: the faults, each with its line.
      noises: every noise that was added to data.
      allowed: for each of them, the difference that it could hide if it alone spent the whole claim; None if that is
        not known.
      epsilon: of all releases together, the largest over the runs; None if it is not known. The function may return
        less.
      epsilon_returned: of the releases that it returned, the smallest over the runs.
      delta: of every epsilon.
      left: what replaying could not judge, in words.
      runs: pairs of runs.
      claim: the promise, or None.
      audit: of the function on the two inputs, if replaying is not conclusive; else None.
    """

    verdict: str
    sentence: str
    findings: tuple[Finding, ...]
    noises: tuple[Noise, ...]
    allowed: tuple[float | None, ...]
    epsilon: float | None
    epsilon_returned: float
    delta: float
    left: tuple[str, ...]
    runs: int
    claim: Claim | None
    audit: AuditResult | None

    @property
    def kinds(self) -> frozenset[str]:
        """Returns the kinds of all findings."""
        return frozenset(finding.kind for finding in self.findings)

    def to_row(self) -> dict[str, Any]:
        """Returns a dictionary of JSON values; infinity is "inf"."""
        row = self._asdict()
        row["claim"] = None if self.claim is None else self.claim.terms | {"neighbouring": self.claim.neighbouring}
        row["audit"] = None if self.audit is None else self.audit.to_row()
        row["findings"] = [finding._asdict() for finding in self.findings]
        row["noises"] = [{name: json_number(one) for name, one in noise._asdict().items()} for noise in self.noises]
        row["allowed"] = [json_number(one) for one in self.allowed]
        row["left"] = list(self.left)
        return {name: json_number(value) for name, value in row.items()}

    def to_json(self) -> str:
        """Returns the row as JSON text."""
        return json.dumps(self.to_row())

    def table(self) -> Table:
        """Makes a table for the screen: the verdict, every noise, and the findings with their lines."""
        table = Table(box=SIMPLE_HEAD, pad_edge=False, title=Text(f"{self.verdict}: {self.sentence}"))
        table.title_justify, table.title_style = "left", ""
        for name in COLUMNS:
            table.add_column(name, justify="left" if name in COLUMNS[:2] else "right")
        for noise, allowed in zip(self.noises, self.allowed, strict=True):
            numbers = (noise.scale, allowed, noise.difference, noise.epsilon)
            shown = ("–" if one is None else f"{one:.4g}" for one in numbers)
            table.add_row(noise.where, f"{noise.source} ({noise.law}, {noise.size:,})", *shown)
        for finding in self.findings:
            table.add_row(finding.where, Text(f"{finding.kind}: {finding.sentence}", style="red"))
        return table

    def __rich__(self) -> Table:
        return self.table()

    def __str__(self) -> str:
        return "\n".join([f"{self.verdict}: {self.sentence}", *map(str, self.findings)])
