"""Judges by the result rows what the auditor is expected to do."""

from experiments.pages import Claim, Row, Rows, Verdict, only, select, values
from experiments.trust.coverage import CONTROL, LEVEL, PROMISED


def by_trials(row: Row) -> bool:
    """Caught by the audit that stops early and by the one on other trials."""
    return any(row["setting"]["needed"].values()) and row["setting"]["verdict"] == "violation"


def all_caught(rows: Rows) -> Verdict:
    found = select(rows, "fault_epsilon")
    caught = sum(by_trials(row) or bool(row["setting"]["inspect"]) for row in found)
    return Verdict(caught == len(found), f"{caught} of {len(found)} caught", found[0]["scale"])


def twins_cleared(rows: Rows) -> Verdict:
    found = select(rows, "twin_epsilon")
    accused = sum(row["setting"]["verdict"] == "violation" or bool(row["setting"]["inspect"]) for row in found)
    return Verdict(accused == 0, f"{accused} of {len(found)} accused", found[0]["scale"])


def few_false_alarms(rows: Rows) -> Verdict:
    found = select(rows, "false_alarms")
    told = "; ".join(f"{row['setting']['audit']}: {row['ours']:.0f}" for row in found)
    return Verdict(all(row["ours"] <= row["setting"]["allowed"] for row in found), told, found[0]["scale"])


def plain_call(rows: Rows) -> Verdict:
    """Judges the plain call, which knows nothing of the fault: it finds more than nine in ten, and accuses no twin."""
    found = [row["setting"] for row in select(rows, "plain_call", disguise=None)]
    caught, accused = (
        [at["verdict"] == "violation" for at in found if at["of"] == kind] for kind in ("fault", "twin")
    )
    told = f"{sum(caught)} of {len(caught)} faults, {sum(accused)} of {len(accused)} twins accused"
    scale = select(rows, "plain_call")[0]["scale"]
    return Verdict(sum(caught) >= 0.9 * len(caught) and not any(accused), told, scale)


def rejected(cell: Row) -> bool:
    """Tells whether the study finds that the estimator errs more often than nominal here."""
    return cell["holm_p"] <= LEVEL


def covers(rows: Rows) -> Verdict:
    cells = select(rows, "false_violation_rate", part=PROMISED)
    wrong = sum(map(rejected, cells))
    least = min(cell["holm_p"] for cell in cells)
    return Verdict(
        wrong == 0,
        f"{wrong} of {len(cells)} cells rejected, smallest adjusted p {least:.2g}",
        "up to 10,000 audits a cell",
    )


def finds_bad_estimators(rows: Rows) -> Verdict:
    """Tells whether each of the estimators that are known to be wrong is rejected somewhere; not all are wrong on every
    pair."""
    cells = select(rows, "false_violation_rate", part=CONTROL)
    wrong = {
        name: [rejected(cell) for cell in cells if cell["setting"]["estimator"] == name]
        for name in values(cells, "estimator")
    }
    found = sum(map(any, wrong.values()))
    told = f"{found} of {len(wrong)} estimators, in {sum(map(rejected, cells))} of {len(cells)} cells"
    return Verdict(found == len(wrong), told, "the same audits")


def sniper(rows: Rows) -> list[Row]:
    """Returns the rows beside DP-Sniper's table."""
    return [row for row in select(rows, "epsilon_lower") if "published" in row["setting"]]


def as_good(rows: Rows) -> Verdict:
    """Tells whether our bound is at least what their attack's rates would give with as many trials."""
    found = sniper(rows)
    good = sum(row["ours"] >= row["setting"]["published_rates_at_our_trials"] for row in found)
    return Verdict(good == len(found), f"{good} of {len(found)} mechanisms", found[0]["scale"])


def larger(rows: Rows) -> Verdict:
    found = sniper(rows)
    good = sum(row["ours"] >= row["paper_value"] for row in found)
    return Verdict(good == len(found), f"{good} of {len(found)} mechanisms", found[0]["scale"])


def study(rows: Rows) -> Row:
    return only(rows, "study_seconds")


# fmt: off
CLAIMS = (
    Claim("Every planted fault is found by an attack made for it or by the gray-box check", "", all_caught, "trust.fault_zoo"),
    Claim("No correct twin of a fault is accused", "", twins_cleared, "trust.fault_zoo"),
    Claim("False alarms on the twins stay within what the confidence allows", "", few_false_alarms, "trust.fault_zoo"),
    Claim("A plain call, with no distinguisher named, finds nine faults in ten", "", plain_call, "trust.fault_zoo"),
    Claim("No lower bound is wrong more often than it says", "nominal 5%", covers, "trust.coverage"),
    Claim("The same study rejects estimators that are known to be wrong", "", finds_bad_estimators, "trust.coverage"),
    Claim("Bounds are at least those of DP-Sniper's attacks with as many trials", "", as_good, "trust.dp_sniper"),
    Claim("Bounds are at least DP-Sniper's published ones, which had many more trials", "20 bounds", larger, "trust.dp_sniper"),
)
# fmt: on
