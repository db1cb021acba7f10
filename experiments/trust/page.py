"""Makes the tables, figures and facts of the page that shows the auditor right."""

import math
from pathlib import Path
from typing import Any

from experiments import pages
from experiments.pages import Fact, Row, Rows, fact, number, only, select, table, values
from experiments.trust import figures
from experiments.trust.claims import CLAIMS as CLAIMS
from experiments.trust.claims import by_trials, finds_bad_estimators, rejected, sniper, study
from experiments.trust.coverage import CONTROL, NO_GAUSSIAN, OTHER_TRUTHS, PROMISED
from experiments.trust.coverage_peers import PART

FILES = ("*.json",)
NAMES = {
    "laplace": "Laplace", "truncated_geometric": "TruncatedGeometric", "laplace_parallel": "LaplaceParallel",
    "rappor": "RAPPOR", "one_time_rappor": "OneTimeRAPPOR", "svt34_parallel": "SVT34Parallel",
    "prefix_sum": "PrefixSum", "numerical_svt": "NumericalSVT",
}  # fmt: skip
NAMES |= {f"noisy_hist{i}": f"NoisyHist{i}" for i in (1, 2)}
NAMES |= {f"report_noisy_max{i}": f"ReportNoisyMax{i}" for i in range(1, 5)}
NAMES |= {f"svt{i}": f"SVT{i}" for i in range(1, 7)}


def draw(rows: Rows, folder: Path) -> None:
    own = [row for row in rows if row["quantity"] in ("false_violation_rate", "tightness")]
    pages.save(figures.coverage(own), folder / "coverage.png")


def summary(rows: Rows) -> Fact:
    faults, twins = select(rows, "fault_epsilon"), select(rows, "twin_epsilon")
    seconds = sum(row["seconds"] for row in (*faults, *twins))
    looked = sum(bool(row["setting"]["inspect"]) for row in faults)
    return fact(True, trials=sum(map(by_trials, faults)), looked=looked, faults=len(faults), seconds=seconds)


def faults(rows: Rows) -> str:
    lines = []
    for row in select(rows, "fault_epsilon"):
        at = row["setting"]
        twin = only(rows, "twin_epsilon", fault=at["fault"])
        needed = at["needed"][at["distinguisher"]]
        caught = ["trials"] * by_trials(row) + [kind.replace("_", " ") for kind in at["inspect"]]
        delta = f", {at['delta']:.3g}" if at["delta"] else ""
        cells = [f"{at['epsilon']:.3g}{delta}, {at['neighbouring'].replace('_', '/')}", number(at["true_epsilon"])]
        cells += [", ".join(caught) or "not caught", f"{needed:,}" if needed else "–", at["distinguisher"]]
        cells += [
            number(row["ours_low"]),
            f"{number(twin['ours_low'])}, {twin['setting']['verdict']}",
            pages.named(at["source"]),
        ]
        lines.append([at["fault"], *cells])
    header = "fault | claim | true ε | caught by | trials | attack | ε at least | twin ε at least | where it was made"
    return table(header, lines)


def plain_calls(rows: Rows) -> str:
    """How many the plain call catches in every form."""
    lines, found = [], select(rows, "plain_call")
    for form in values(found, "disguise"):
        of = {
            kind: [row["setting"]["verdict"] for row in select(found, "plain_call", disguise=form, of=kind)]
            for kind in ("fault", "twin")
        }
        counts = (f"{verdicts.count('violation')} of {len(verdicts)}" for verdicts in of.values())
        lines.append([form or "as it is", *counts])
    return table(["release", "faults caught", "twins accused"], lines)


def missed(rows: Rows) -> Fact:
    found = [row["setting"] for row in select(rows, "plain_call", of="fault", disguise=None)]
    names = [at["fault"] for at in found if at["verdict"] != "violation"]
    return fact(names, names="; ".join(names))


def cells(rows: Rows) -> Fact:
    promised, found = select(rows, "false_violation_rate", part=PROMISED), study(rows)
    at = found["setting"]
    return fact(
        not any(map(rejected, promised)) and finds_bad_estimators(rows).holds,
        cells=len(promised), scale=found["scale"],
        trials=at["trials"], pair=at["pair"], seconds=found["ours"], playing=found["ours_low"],
    )  # fmt: skip


def sizes(rows: Rows) -> list[int]:
    """Trials of an audit."""
    return sorted(values(select(rows, "false_violation_rate", part=PROMISED), "trials"))


def worst(found: Rows, digits: int = 2) -> str:
    """Returns the largest of these rates in percent, if there are any."""
    return f"{100 * max(row['ours'] for row in found):.{digits}f}" if found else ""


def estimators(rows: Rows) -> str:
    """For each number of trials the largest false-violation rate over all pairs, and how near the bound comes."""
    lines = []
    for name in values(select(rows, "false_violation_rate", part=PROMISED), "estimator"):
        own: dict[str, Any] = {"part": PROMISED, "estimator": name}
        line = [name]
        for n in sizes(rows):
            rates = select(rows, "false_violation_rate", trials=n, confidence=0.95, **own)
            shares = [row["ours"] for row in select(rows, "tightness", trials=n, confidence=0.95, **own)]
            line += [worst(rates), f"{min(shares):.2f} to {max(shares):.2f}" if shares else ""]
        for confidence in (0.99, 0.999):
            line.append(worst(select(rows, "false_violation_rate", confidence=confidence, **own), 3))
        lines.append(line)
    header = [cell for n in sizes(rows) for cell in (f"{n:,}: false %", "bound / ε")]
    return table(["estimator", *header, "nominal 1%", "nominal 0.1%"], lines)


def unpromised(rows: Rows) -> str:
    """Where no guarantee applies, and estimators known to be wrong."""
    lines = []
    for part in (OTHER_TRUTHS, NO_GAUSSIAN, CONTROL):
        found = select(rows, "false_violation_rate", part=part, confidence=0.95)
        for name in values(found, "estimator"):
            own = select(found, "false_violation_rate", estimator=name)
            line = [part, name]
            for n in sizes(rows):
                rates = select(own, "false_violation_rate", trials=n)
                line.append(worst(rates, 1) + "*" * any(map(rejected, rates)))
            lines.append(line)
    return table(["", "estimator", *(f"{n:,}" for n in sizes(rows))], lines)


def peers(rows: Rows) -> str:
    """Other tools on the same scores, at the most trials."""
    found, lines = select(rows, "false_violation_rate", part=PART), []
    most = max(values(found, "trials"))
    for row in sorted(select(found, "false_violation_rate", trials=most), key=lambda row: row["setting"]["pair"]):
        at = row["setting"]
        share = select(rows, "tightness", **at)
        cells = [
            f"{100 * row['ours']:.1f}",
            number(share[0]["ours"]) if share else "",
            f"{row['milliseconds_per_audit']:.3g}",
        ]
        lines.append([f"{at['pair']}, {at['trials']:,}", at["estimator"], *cells, row["scale"]])
    return table(["pair, trials", "estimator", "false %", "bound / ε", "ms", "scale"], lines)


def sniper_run(rows: Rows) -> Fact:
    row = sniper(rows)[0]
    return fact(True, confidence=row["setting"]["confidence"], scale=row["scale"], theirs=0.9, samples=200_000_000)


def sniper_table(rows: Rows) -> str:
    header = (
        "mechanism | ours | exact, this pair | DP-Sniper linear / network | the same, our trials | "
        "StatDP-Fixed | verdict on 0.1 | attack | seconds | their seconds"
    )
    return table(header, map(sniper_line, sniper(rows)))


def sniper_line(row: Row) -> list[str]:
    at, published = row["setting"], row["setting"]["published"]
    cells = [
        f"{row['ours']:.4f}",
        finite(at["exact_of_pair"]),
        f"{published['linear']:.4f} / {published['network']:.4f}",
    ]
    cells += [f"{at['published_rates_at_our_trials']:.4f}", finite(published["statdp"]), at["verdict"], at["attack"]]
    return [
        NAMES[at["mechanism"]],
        *cells,
        f"{row['seconds']:.0f}",
        " / ".join(f"{s:.0f}" for s in published["seconds"]),
    ]


def finite(value: Any) -> str:
    return "–" if value is None else "∞" if math.isinf(float(value)) else f"{value:.4f}"


def shortfall(rows: Rows) -> Fact:
    """Returns the largest distance by which ours is below a published bound."""
    behind = [
        (row["paper_value"] - row["ours"], NAMES[row["setting"]["mechanism"]])
        for row in sniper(rows)
        if row["ours"] < row["paper_value"]
    ]
    most, name = max(behind)
    return fact(most > 0, behind=len(behind), all=len(sniper(rows)), most=most, name=name)


def above_exact(rows: Rows) -> Fact:
    """Published bounds above what any pair of their family can show."""
    found = []
    for row in sniper(rows):
        most = row["setting"]["exact_of_family"]
        if most is not None and row["paper_value"] > float(most):
            found.append(f"{NAMES[row['setting']['mechanism']]} ({row['paper_value']:.4f} of {finite(most)})")
    return fact(found, told=", ".join(found))


MARGIN = 0.02  # by which a bound may be lower than before


def _keys(rows: Rows) -> list[tuple[Row, Row]]:
    """Returns the cells of the worst-key table, (now, before)."""
    own = [row for row in rows if row["quantity"] == "epsilon_lower" and "code" in row["setting"]]
    return [(code["now"], code["before"]) for code in pages.grouped(own, "code", "mechanism", "trials")]


def above(rows: Rows) -> Fact:
    shares = [now["above"] / int(now["scale"].split()[-2]) for now, _ in _keys(rows)]
    rare = all(now["p"] > MARGIN / len(shares) for now, _ in _keys(rows))
    return fact(rare, cells=len(shares), most=max(shares), nominal=1 - _keys(rows)[0][0]["setting"]["confidence"])


def fallen(rows: Rows) -> Fact:
    names = [
        f"{now['setting']['mechanism']} at {now['setting']['trials']:,} trials"
        for now, before in _keys(rows)
        if any(now[name] < (1 - MARGIN) * before[name] for name in ("ours", "quantile5"))
    ]
    return fact(bool(names), margin=MARGIN, names=", ".join(names))


def worst_keys(rows: Rows) -> str:
    lines = []
    for now, before in _keys(rows):
        at = now["setting"]
        cells = [f"{row[name]:.3f}" for row in (now, before) for name in ("ours", "quantile5")]
        lines.append([at["mechanism"], f"{at['trials']:,}", f"{now['truth']:.3f}", now["delta"], *cells, now["above"]])
    header = "mechanism | trials | true ε | δ | mean | quantile | mean before | quantile before | above truth"
    return table(header, lines)
