"""Makes the tables, figures and facts of this paper's page."""

from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtr

from experiments.pages import Fact, Row, Rows, broken, fact, number, only, ranged, select, table, values, verdicts
from experiments.paper001 import figures
from experiments.paper001.claims import CLAIMS as CLAIMS
from experiments.paper001.claims import COST, ends, growths, trials
from experiments.paper001.cost import LINKS, RING_BITS, WARM, general_bytes, plain_bytes
from experiments.paper001.more_claims import MORE_CLAIMS as MORE_CLAIMS
from experiments.paper001.more_claims import TABLE
from experiments.paper001.page_real import NONE
from experiments.paper001.page_real import as_guessing as as_guessing
from experiments.paper001.page_real import as_printed as as_printed
from experiments.paper001.page_real import equal_sums as equal_sums
from experiments.paper001.page_real import flaw as flaw
from experiments.paper001.page_real import headline_lost as headline_lost
from experiments.paper001.page_real import loaded as loaded
from experiments.paper001.page_real import paper_bytes as paper_bytes
from experiments.paper001.page_real import prior as prior
from experiments.paper001.page_real import protocol as protocol
from experiments.paper001.page_real import rounding as rounding
from experiments.paper001.page_real import table_one as table_one
from experiments.paper001.page_real import told_thrice as told_thrice
from experiments.paper001.page_real import truncation as truncation
from experiments.paper001.page_real import whole_ratios as whole_ratios
from experiments.paper001.page_service import many_owners as many_owners
from experiments.paper001.page_service import norm_costs as norm_costs
from experiments.paper001.page_service import norm_of_noise as norm_of_noise
from experiments.paper001.page_service import other_sampler as other_sampler
from experiments.paper001.published import COSTED, GIGABYTES_BY_EPSILON, NOISY_GIGABYTES
from experiments.paper001.tasks import DELTA, EPSILONS, OWNERS

FILES = ("spgc*.json",)
RULES = {"classical": "the paper's", "add_remove": "exact, added or removed", "replace": "exact, replaced"}
EXACT = ("add_remove", "replace")
RELATIONS = {"replace": "replaced", "add_remove": "added or removed"}
VIEWS = ("the release alone", "all that H2 holds", "the same, labels end in the bit that they hide")
SIDES = {("noisy", 1): "SPGC, IKNP", ("noisy", 4): "SPGC, SoftSpoken", ("plain", 1): "MPC only, IKNP"}


def draw(rows: Rows, folder: Path) -> None:
    for name, figure in (("accuracy", figures.paper_figure), ("owners", figures.owners_figure)):
        figure(rows).savefig(folder / f"spgc_{name}.png", dpi=110)


def delta(rows: Rows) -> str:
    return f"{DELTA:g}"


def what_was_run(rows: Rows) -> str:
    """Returns what was trained for the accuracies below: by data and number of trials, the schemes."""
    schemes: dict[tuple[str, ...], dict[str, None]] = {}
    for row in select(rows, "accuracy", owners=OWNERS):
        at = row["setting"]
        scale = row["scale"].replace(" 1 trials", " 1 trial")
        what = (at["data"], f"{at['parameters']:,}", str(at["epochs"]), scale, str(OWNERS))
        schemes.setdefault(what, {})[at["scheme"]] = None
    lines = [[*what, "; ".join(found)] for what, found in schemes.items()]
    return table(["data", "parameters", "epochs", "run", "owners", "schemes"], lines, left=True)


def paper_bits(rows: Rows) -> str:
    return str(RING_BITS)


def more_verdicts(rows: Rows) -> str:
    return verdicts((claim for claim in MORE_CLAIMS if claim.command not in (COST, TABLE)), rows)


def cost_verdicts(rows: Rows) -> str:
    """Returns the verdicts on what the text says of hours, for the page of what a training costs."""
    return verdicts((claim for claim in MORE_CLAIMS if claim.command in (COST, TABLE)), rows)


def accuracies(rows: Rows) -> str:
    """Returns the paper's schemes under its own rule, and SPGC under rules that keep their promise: by epsilon."""
    without = NONE | {"SPGC, noise from a table": NONE["SPGC"]}
    found = [row for row in select(rows, "accuracy", owners=OWNERS) if row["setting"]["scheme"] in without]
    lines = []
    for first in select(found, "accuracy", epsilon=EPSILONS[0]):
        at = first["setting"]
        if at["rule"] in EXACT and at["scheme"] != "SPGC":
            continue
        same = {key: at[key] for key in ("data", "scheme", "rule", "owners")}
        none = {"data": at["data"], "scheme": without[at["scheme"]], "owners": OWNERS}
        cells = ["–" if at["rule"] in EXACT else _worth(rows, none)]
        cells += [_worth(rows, same | {"epsilon": epsilon}) for epsilon in EPSILONS]
        name = f"{at['data']}, {at['scheme']}" + (f", {RULES[at['rule']]}" if at["rule"] in EXACT else "")
        lines.append([name, prior(rows, at["data"]), *cells])
    header = ["data, scheme", "largest class", "no noise", *(f"ε = {epsilon:g}" for epsilon in EPSILONS)]
    return table(header, lines)


def _worth(rows: Rows, setting: dict[str, Any]) -> str:
    """Returns the accuracy, the paper's in parentheses, the balanced accuracy and the AUC."""
    row = only(rows, "accuracy", **setting)
    others = (number(only(rows, measure, **setting)["ours"], 1) for measure in ("balanced_accuracy", "auc"))
    paper = "" if row["paper_value"] is None else f" ({number(row['paper_value'], 1)})"
    own = ranged(row, 1) if trials(row) > 1 else number(row["ours"], 1)
    return "; ".join([own + paper, *others])


def by_owners(rows: Rows) -> str:
    lines = []
    for row in select(rows, "accuracy", scheme="SPGC", rule="classical", owners=100):
        at = row["setting"]
        for scheme in ("SPGC", "LDP"):
            same = {"data": at["data"], "epsilon": at["epsilon"], "scheme": scheme, "rule": "classical"}
            found = [only(rows, "accuracy", owners=k, **same) for k in (OWNERS, 10, 100)]
            lines.append([f"{at['data']}, {scheme}", f"{at['epsilon']:g}", *(ranged(of, 1) for of in found)])
    return table(["data, scheme", "ε", f"k = {OWNERS}", "k = 10", "k = 100"], lines)


def another_training(rows: Rows) -> Fact:
    """A batch of one record of each of the most owners is larger, so that a training has fewer steps; Cancer's records
    do not divide among them, and the rest is nobody's.

    Noise in a batch's mean is that in its sum over its records; in the sum it is the same for SPGC and grows as the
    root of the owners for LDP.
    """
    at = {"scheme": "SPGC", "epsilon": EPSILONS[0], "rule": "classical"}
    few, some, many = (
        {data: _steps(only(rows, "accuracy", data=data, owners=k, **at)["setting"]) for data in ("Cancer", "Diabetes")}
        for k in (OWNERS, 10, 100)
    )
    told = []
    for data, (steps, batch, used) in many.items():
        before, of, all_used = few[data]
        less = f"{before:,} of {of}, {all_used} in all"
        told.append(f"{data} takes {steps:,} steps of {batch} records, {used} in all, in place of {less}")
    holds = few == some and all(many[data][0] < few[data][0] for data in few)
    holds = holds and many["Cancer"][2] < few["Cancer"][2] and many["Diabetes"][2] == few["Diabetes"][2]
    narrower, same = (few[data][1] / many[data][1] for data in few)
    wider = (100 / OWNERS) ** 0.5
    found = {"spgc": narrower, "ldp": narrower * wider, "root": wider}
    return fact(holds and narrower == same, most=100, fewest=OWNERS, told="; ".join(told), **found)


def _steps(at: dict[str, Any]) -> tuple[int, int, int]:
    """Returns a training's steps, the records of one, and those of an epoch, which has each record once."""
    return at["steps"], at["examples"], at["steps"] * at["examples"] // at["epochs"]


def falls(rows: Rows) -> Fact:
    """With the most owners LDP's accuracy has left the range that it had with the fewest, and SPGC's has not."""
    at = {"data": "Cancer", "epsilon": EPSILONS[0], "rule": "classical"}
    few, many = ({s: only(rows, "accuracy", scheme=s, owners=k, **at) for s in ("SPGC", "LDP")} for k in (OWNERS, 100))
    fallen = {scheme: many[scheme]["ours"] < few[scheme]["ours_low"] for scheme in few}
    told = {scheme.lower(): ranged(many[scheme], 1) for scheme in many}
    return fact(fallen["LDP"] and not fallen["SPGC"], epsilon=EPSILONS[0], before=ranged(few["LDP"], 1), **told)


def wrong_sign(row: Row) -> float:
    """Returns how often noise that is reduced to the ring of m clip norms either side has another sign than before."""
    m, deviation = row["setting"]["examples"], row["setting"]["noise_multiplier"]
    turns = int(10 * deviation / m) + 1  # ten deviations
    beyond = ndtr(-m / deviation * np.arange(1, 2 * turns + 1))
    return float(2 * np.sum(beyond[::2] - beyond[1::2]))  # between an odd multiple of m and the next even one


def outside(rows: Rows) -> str:
    """Returns the share of coordinates whose noise leaves the ring, and of those that change their sign."""
    found = select(rows, "outside")
    epsilons = sorted(values(found, "epsilon"))
    lines = []
    for m in values(found, "examples"):
        each = (only(found, "outside", examples=m, epsilon=epsilon) for epsilon in epsilons)
        lines.append([f"m = {m:,}", *(f"{row['ours']:.1e} ({wrong_sign(row):.1e})" for row in each)])
    return table(["batch", *(f"ε = {epsilon:g}" for epsilon in epsilons)], lines)


def spent(rows: Rows) -> str:
    found = select(rows, "epsilon", scheme="SPGC", rule="classical")
    lines = []
    for name in values(found, "data"):
        for epsilon in EPSILONS:
            own = {"data": name, "epsilon": epsilon}
            counts = sorted(values(select(found, "epsilon", **own), "releases"))
            each = (only(found, "epsilon", neighbouring=of, releases=n, **own) for of in RELATIONS for n in counts)
            lines.append([name, f"{epsilon:g}", *(number(row["ours"]) for row in each)])
    header = [f"{relation}, {count}" for relation in RELATIONS.values() for count in ("a step", "all epochs")]
    return table(["data", "ε of a step", *header], lines)


def audited(rows: Rows) -> Fact:
    at = select(rows, "owners")[0]["setting"]
    return fact(True, delta=at["delta"], confidence=at["confidence"])


def audit_by_owners(rows: Rows) -> str:
    found = select(rows, "owners")
    counts = sorted(values(found, "owners"))
    lines = []
    for first in select(found, "owners", owners=counts[0]):
        at = first["setting"]
        same = {name: at[name] for name in ("scheme", "neighbouring", "epsilon")}
        own = [only(found, "owners", owners=k, **same) for k in counts]
        true = [number(row["setting"]["true"]) for row in (own[0], own[-1])]
        cells = [RELATIONS[at["neighbouring"]], f"{at['epsilon']:g}", number(at["claimed"]), *map(bounds, own)]
        lines.append([at["scheme"], *cells, true[0] if true[0] == true[1] else " … ".join(true)])
    return table(["scheme", "a record is", "ε", "claimed ε", *(f"k = {k}" for k in counts), "true ε"], lines)


def shares_lost(rows: Rows) -> Fact:
    """Reduced noise breaks its promise from two owners on, all others keep theirs."""
    own = select(rows, "owners")
    wrong = {row["setting"]["scheme"] for row in own if row["setting"]["verdict"] == "violation"}
    reduced = select(own, "owners", scheme="reduced noise")
    holds = wrong == {"reduced noise"} and all(row["setting"]["verdict"] == "violation" for row in reduced)
    return fact(holds, fewest=ends(own)[0], audits=len(own))


def audit_of_rule(rows: Rows) -> str:
    lines = []
    for row in select(rows, "rule"):
        at = row["setting"]
        cells = [RELATIONS[at["neighbouring"]], number(at["noise_multiplier"], 3), bounds(row), number(at["true"], 3)]
        lines.append([f"{at['epsilon']:g}", *cells, at["verdict"], row["scale"]])
    return table(["claimed ε", "a record is", "σ/C", "audited ε", "true ε", "verdict", "run"], lines)


def rule_breaks(rows: Rows) -> Fact:
    """Replacing a record breaks the rule at every epsilon, adding one only at the largest, which took more trials."""
    wrong = {row["setting"]["neighbouring"]: [] for row in select(rows, "rule")}
    for row in select(rows, "rule"):
        if row["setting"]["verdict"] == "violation":
            wrong[row["setting"]["neighbouring"]].append(row["setting"]["epsilon"])
    counted = [(_counted(row), row["setting"]) for row in select(rows, "rule")]
    (many, hardest), *others = sorted(counted, key=lambda one: -one[0])
    few = {count for count, _ in others}
    holds = sorted(wrong["replace"]) == list(EPSILONS) and wrong["add_remove"] == [EPSILONS[-1]]
    holds = holds and (hardest["neighbouring"], hardest["epsilon"]) == ("add_remove", EPSILONS[-1])
    return fact(holds and len(few) == 1, largest=EPSILONS[-1], trials=many, times=many / max(few))


def _counted(row: Row) -> int:
    return int(row["scale"].split()[0].replace(",", ""))


def faults(rows: Rows) -> str:
    lines = []
    for row in select(rows, "fault"):
        at = row["setting"]
        cells = ["broken" if at["broken"] else "sound", at["seen_by"], at["attack"], f"{at['claimed']:g}", bounds(row)]
        lines.append([at["fault"], *cells, at["verdict"], row["scale"]])
    return table(["fault", "protocol", "seen by", "attack", "claimed ε", "audited ε", "verdict", "run"], lines)


def faults_found(rows: Rows) -> Fact:
    """Every broken protocol is found out by who can see the fault, and no sound one is accused.

    A sound one is "underpowered" where an event that is rarer than delta can show no loss, or the adversary does not
    tell its inputs apart.
    """
    found = select(rows, "fault")
    unseen = [row for row in found if row["setting"]["broken"] and row["setting"]["seen_by"] == "anyone else"]
    caught = [row for row in found if row["setting"]["broken"] and row not in unseen]
    sound = [row for row in found if not row["setting"]["broken"]]
    open_ = [row for row in sound if row["setting"]["verdict"] == "underpowered"]
    rare = [row for row in open_ if row["ours_high"] == 0]
    alike = [row for row in open_ if row["ours_low"] == 0 < 2 * row["ours_high"] < row["setting"]["claimed"]]
    holds = all(row["setting"]["verdict"] == "violation" for row in caught)
    holds = holds and all(row["setting"]["verdict"] == "consistent" for row in (*sound, *unseen) if row not in open_)
    holds = holds and bool(rare) and bool(alike) and len(rare) + len(alike) == len(open_)
    return fact(holds, caught=len(caught), sound=len(sound), rare=len(rare), alike=len(alike))


def views(rows: Rows) -> str:
    lines = []
    for row in select(rows, "view"):
        at = row["setting"]
        lines.append([at["seen"], number(at["claimed"]), bounds(row), at["verdict"], row["scale"]])
    return table(["seen", "true ε of the release", "audited ε", "verdict", "run"], lines)


def view_tells_no_more(rows: Rows) -> Fact:
    release, view, telling = (only(rows, "view", seen=seen) for seen in VIEWS)
    holds = view["setting"]["verdict"] == "consistent" and telling["setting"]["verdict"] == "violation"
    return fact(holds, claimed=release["setting"]["claimed"], delta=release["setting"]["delta"])


def bounds(row: Row) -> str:
    return broken(row, row["setting"]["claimed"])


def steps_of_paper(rows: Rows) -> Fact:
    """Computes how many times fewer steps the paper's bytes would mean with general transfers."""
    fewer = general_bytes() / plain_bytes()
    return fact(fewer > 1, bits=RING_BITS, plain=plain_bytes(), general=general_bytes(), fewer=fewer)


def trainings(rows: Rows) -> str:
    lines = []
    for steps in select(rows, "steps"):
        at = steps["setting"]
        for (mode, depth), side in SIDES.items():
            how = {"data": at["data"], "reading": at["reading"], "mode": mode, "depth": depth}
            hours, gigabytes = only(rows, "hours", **how), only(rows, "gigabytes", **how)
            step = only(rows, "step_seconds", link="loopback", **how)
            name = f"{at['data']}{', ' + at['reading'] if at['reading'] else ''}: {side}"
            cells = [f"{at['d']:,}", f"{steps['ours']:,.0f} ({steps['epochs']:,})", ranged(step, 3)]
            cells += [number(hours["ours"]), number(hours["paper_value"]), number(hours["times_as_fast"], 1)]
            lines.append([name, *cells, number(gigabytes["ours"], 1), number(gigabytes["paper_value"], 1)])
    return table(
        ["training", "d", "steps (epochs)", "s a step", "hours", "paper", "times as fast", "GB", "paper"], lines
    )


def links(rows: Rows) -> str:
    lines = []
    for steps in select(rows, "steps"):
        at = steps["setting"]
        for (mode, depth), side in SIDES.items():
            how = {"data": at["data"], "reading": at["reading"], "mode": mode, "depth": depth}
            found = (select(rows, "step_seconds", link=link, **how) for link in LINKS)
            cells = (ranged(of[0], 3) if of else "–" for of in found)
            lines.append([f"{at['data']}, d = {at['d']:,}: {side}", *cells])
    return table(["training", *LINKS], lines)


def timed(rows: Rows) -> Fact:
    counts = sorted({int(row["scale"].split()[0]) for row in select(rows, "step_seconds")})
    return fact(len(counts) == 2, few=counts[0], many=counts[-1], warm=WARM, link=LINKS["1 Gbit/s"])


def table_bytes(rows: Rows) -> str:
    found = select(rows, "table_bytes")
    epsilons = values(found, "epsilon")
    lines = []
    for name in values(found, "data"):
        for circuit in ("table", "binomial"):
            own = [select(found, "table_bytes", data=name, circuit=circuit, epsilon=epsilon) for epsilon in epsilons]
            lines.append([f"{name}, {circuit}", *(f"{of[0]['ours']:,.0f}" if of else "–" for of in own)])
        printed = dict(zip(COSTED, GIGABYTES_BY_EPSILON[name], strict=True))
        lines.append([f"{name}, the paper's GB", *(f"{printed[epsilon]:,.1f}" for epsilon in epsilons)])
    return table(["data, noise", *(f"ε = {epsilon:g}" for epsilon in epsilons)], lines)


def table_grows(rows: Rows) -> Fact:
    """With either law bytes grow, and several times as much with the paper's table as they do in the paper."""
    table, binomial = growths(rows, "table"), growths(rows, "binomial")
    paper = sorted(wide / narrow for wide, narrow in NOISY_GIGABYTES.values())
    told = {"least": paper[0], "most": paper[-1], "table": table[0], "tables": table[-1]}
    holds = binomial[0] > 1 and binomial[-1] < 1.1 < 2 < table[0] and paper[-1] < 1.1
    return fact(holds, **told, binomial=binomial[0], binomials=binomial[-1])
