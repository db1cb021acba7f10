"""The part of experiments/README.md that tells of the planted faults."""

from collections.abc import Iterable, Sequence
from typing import Any

from experiments.markdown import select, table


def section(rows: Sequence[dict[str, Any]]) -> Iterable[str]:
    """Markdown blocks, in reading order."""
    faults, twins = select(rows, "fault_epsilon"), select(rows, "twin_epsilon")
    yield "## A zoo of planted faults\n"
    yield "Command: `python -m experiments.fault_zoo`, then `make results`.\n"
    yield from _summary(rows, faults, twins)
    yield _table(faults, twins)
    yield _attacks(faults)
    yield from plain_calls(select(rows, "plain_call"))
    yield "Where each was made, or what it gets wrong:\n"
    yield "".join(f"- {row['setting']['fault']}: {row['setting']['source']}\n" for row in faults)


def _summary(
    rows: Sequence[dict[str, Any]], faults: list[dict[str, Any]], twins: list[dict[str, Any]]
) -> Iterable[str]:
    by_trials, by_look = (sum(caught(row) for row in faults) for caught in (_by_trials, _by_look))
    either = sum(_by_trials(row) or _by_look(row) for row in faults)
    accused = sum(row["setting"]["verdict"] == "violation" for row in twins)
    found = sum(_by_look(row) for row in twins)
    plain = {row["setting"]["fault"]: row for row in select(rows, "plain_call")}  # the last of each fault
    parts = [*twins, *select(rows, "false_alarms", audit="sequential"), *plain.values()]
    seconds = sum(row["seconds"] for row in parts)
    yield (
        f"**{either} of {len(faults)} faults are caught**: {by_trials} by trials, {by_look} by the gray-box check `dpaudit.inspect`. "
        f"Of their {len(twins)} correct twins {accused} are accused by trials and {found} by the check. {seconds:.0f} seconds in all.\n"
    )
    for row in select(rows, "false_alarms"):
        kind = {
            "fixed": "of a number of trials fixed in advance",
            "sequential": "that stop when a violation is certain",
        }
        yield (
            f"False alarms among audits {kind[row['setting']['audit']]}: **{row['ours']:.0f}** (at most "
            f"{row['setting']['allowed']:.2g} wanted), {row['scale']}.\n"
        )
    yield "Both counts are of the same games, each of which is judged in both ways.\n"


def _by_trials(row: dict[str, Any]) -> bool:
    """By the audit that stops and by the one on other trials."""
    return any(row["setting"]["needed"].values()) and row["setting"]["verdict"] == "violation"


def _by_look(row: dict[str, Any]) -> bool:
    return bool(row["setting"]["inspect"])


def _table(faults: list[dict[str, Any]], twins: list[dict[str, Any]]) -> str:
    header = [
        "fault",
        "claim",
        "true ε",
        "caught by",
        "trials",
        "distinguisher",
        "ε at least",
        "twin ε at least",
        "twin",
        "s",
    ]
    lines = []
    for row, twin in zip(faults, twins, strict=True):
        setting = row["setting"]
        needed = setting["needed"][setting["distinguisher"]]
        caught: list[str] = (["trials"] if _by_trials(row) else []) + [
            kind.replace("_", " ") for kind in setting["inspect"]
        ]
        twin_setting = twin["setting"]
        words = [twin_setting["verdict"], *twin_setting["inspect"]]
        lines.append(
            [
                setting["fault"],
                _claim(setting),
                _epsilon(setting["true_epsilon"]),
                ", ".join(caught) or "not caught",
                f"{needed:,}" if needed else "–",
                setting["distinguisher"],
                _epsilon(row["ours_low"]),
                _epsilon(twin["ours_low"]),
                ", ".join(words),
                f"{twin['seconds']:.0f}",
            ]
        )
    return (
        "Claim: ε, δ, relation. True ε: of the fault at the claim's δ (of this pair where the noise is Gaussian, of the mechanism "
        "otherwise). Trials: until the violation is certain at 99.9%, whenever one looks. ε at least: from an audit of "
        f"{faults[0]['scale']} (more where so many were needed), on another key, at 99.9%.\n\n" + table(header, lines)
    )


def _attacks(faults: list[dict[str, Any]]) -> str:
    """What every distinguisher needed where several were tried."""
    lines = []
    for row in faults:
        needed = row["setting"]["needed"]
        if len(needed) > 1:
            own = [name for name in needed if name not in ("projection", "learned")]
            cells = [_trials(needed, name) for name in ("projection", "learned", *own)]
            lines.append([row["setting"]["fault"], *cells, *own])
    return (
        "Trials that each distinguisher needed; ✗: not within the audit's trials. The last knows the fault, `learned` does not.\n\n"
        + table(["fault", "projection", "learned", "made for it", "which is"], lines)
    )


def plain_calls(rows: list[dict[str, Any]]) -> Iterable[str]:
    """How many the plain call catches in every form, and which it misses as they are."""
    if not rows:
        return
    lines = []
    for form in dict.fromkeys(row["setting"]["disguise"] for row in rows):
        shown = [row["setting"] for row in rows if row["setting"]["disguise"] == form]
        of = {name: [setting["verdict"] for setting in shown if setting["of"] == name] for name in ("fault", "twin")}
        counts = [f"{verdicts.count('violation')} of {len(verdicts)}" for verdicts in of.values()]
        lines.append([form or "as it is", *counts])
    yield (
        "The plain call, which is told of no distinguisher. Shifted: by 2^20; scaled: by 2^-20; a fault of a float's last bits "
        "is not shifted.\n\n" + table(["release", "faults caught", "twins accused"], lines)
    )
    missed = [
        setting["fault"]
        for setting in (row["setting"] for row in rows)
        if setting["of"] == "fault" and setting["disguise"] is None and setting["verdict"] != "violation"
    ]
    if missed:
        yield "Missed by it: " + "; ".join(missed) + ".\n"


def _trials(needed: dict[str, int | None], name: str) -> str:
    if name not in needed:
        return ""
    trials = needed[name]
    return "✗" if trials is None else f"{trials:,}"


def _claim(setting: dict[str, Any]) -> str:
    delta = f", {setting['delta']:g}" if setting["delta"] else ""
    return f"{setting['epsilon']:.3g}{delta}, {setting['neighbouring'].replace('_', '/')}"


def _epsilon(value: Any) -> str:
    return "∞" if value == "inf" else f"{value:.2f}"
