"""The part of experiments/README.md that tells of the audit of paper 001."""

from collections.abc import Iterable, Sequence
from typing import Any

from experiments.markdown import number, select, table

Rows = Sequence[dict[str, Any]]
RELATIONS = {"add_remove": "a record is added or removed", "replace": "a record is replaced"}


def section(rows: Rows) -> Iterable[str]:
    """Markdown blocks, in reading order."""
    one = rows[0]["setting"]
    yield "## Paper 001: what a server and all owners but one learn\n"
    yield "Command: `python -m experiments.spgc_audit`, then `make results`.\n"
    yield (
        "One step, seen by one server together with k − 1 of the k owners. What these know is taken off what they see: the "
        "contributions of the owners among them, and the noise that they drew. The record is one clip norm long and lies along one "
        f"coordinate. Every interval holds ε's lower and upper bound for this attack at δ = {one['delta']:g}, each with confidence "
        f"{one['confidence']:.0%}, by Clopper-Pearson; a lower bound in bold is above what was claimed.\n"
    )
    owners = select(rows, "owners")
    if owners:
        yield from _owners(owners)
    rules = select(rows, "rule")
    if rules:
        yield from _rules(rules)
    faults = select(rows, "fault")
    if faults:
        yield from _faults(faults)
    views = select(rows, "view")
    if views:
        yield from _views(views)


def _owners(rows: Rows) -> Iterable[str]:
    yield (
        "**Against the number of owners.** The noise has the variance of a Gaussian that is just enough for ε, and the claim is "
        "that ε; SPGC's binomial spends up to some percent more than a Gaussian of its variance, and claims what is accounted for "
        "it. *True* is the pair's own ε, for the fewest and the most owners: exact for SPGC's binomial, of a Gaussian for the "
        "others. SPGC's and LDP's do not move; noise that every owner draws a share of loses the claim from the first colluder "
        "on, whatever secure computation adds it up.\n"
    )
    ks = sorted({row["setting"]["owners"] for row in rows})
    lines = []
    for first in (row for row in rows if row["setting"]["owners"] == ks[0]):
        setting = first["setting"]
        same = {name: setting[name] for name in ("scheme", "neighbouring", "epsilon")}
        found = [select(rows, "owners", owners=k, **same)[0] for k in ks]
        true = [number(row["setting"]["true"]) for row in (found[0], found[-1])]
        cells = [
            RELATIONS[setting["neighbouring"]],
            f"{setting['epsilon']:g}",
            number(setting["claimed"]),
            *map(bounds, found),
        ]
        cells += [true[0] if true[0] == true[1] else " … ".join(true)]
        lines.append([setting["scheme"], *cells])
    header = ["scheme", "neighbours", "ε", "claimed ε", *(f"k = {k}" for k in ks), "true ε"]
    yield table(header, lines)


def _rules(rows: Rows) -> Iterable[str]:
    yield (
        "**The paper's rule for the noise**, σ = √(2 ln(1.25/δ))/ε, is a theorem for ε < 1 and sensitivity 1 only. The paper does "
        "not say what neighbours are. Where a record is replaced, the sum moves by 2C, and the rule breaks its promise at every "
        "ε; where one is added or removed, only at ε = 8, by so little that proving it without an assumption on the noise takes "
        "hundreds of millions of trials.\n"
    )
    lines = []
    for row in rows:
        setting = row["setting"]
        cells = [RELATIONS[setting["neighbouring"]], number(setting["noise_multiplier"], 3), bounds(row)]
        cells += [number(setting["true"], 3), number(setting["gaussian"], 3), setting["verdict"], row["scale"]]
        lines.append([f"{setting['epsilon']:g}", *cells])
    yield table(["claimed ε", "neighbours", "σ/C", "audited ε", "true ε", "of a Gaussian", "verdict", "run"], lines)


def _faults(rows: Rows) -> Iterable[str]:
    yield (
        "**Broken variants**, each beside the protocol without the fault, under the same attack; one record is added or removed. "
        "*H1's bits are all zero*: the noise is then H2's bits alone, which still are fair coins. So nothing can be found out in "
        "the release, nor by H1, and rightly, since it is as private as before to all but H2; H2 takes the noise off. The "
        "*owner's sum rounded* is line 6 of the paper's Algorithm 1: a tenth of a unit more in every coordinate of the sum moves "
        "each of them by a whole unit, so that the sensitivity is √d units, however short the record.\n"
    )
    lines = []
    for row in rows:
        setting = row["setting"]
        said = "broken" if setting["broken"] else "sound"
        cells = [said, setting["seen_by"], setting["attack"], f"{setting['claimed']:g}", bounds(row)]
        lines.append([setting["fault"], *cells, setting["verdict"], row["scale"]])
    yield table(["fault", "protocol", "seen by", "attack", "claimed ε", "audited ε", "verdict", "run"], lines)


def _views(rows: Rows) -> Iterable[str]:
    at = rows[0]["setting"]
    yield (
        "**All that H2 holds.** Real openings between two parties, whose noise is so small that what the release tells is much, "
        f"and known exactly: ε = {number(at['claimed'])} at δ = {at['delta']:g}. A network is trained on H2's whole view of other "
        "openings: its share and its bits, the lowest bits of every label that it received or computed and of the tables, the decoding, the release. It "
        "learns no more from them than what the release tells; where the labels of H1's share end in the bit that they hide, it "
        "has that share, and with it the record.\n"
    )
    lines = []
    for row in rows:
        at = row["setting"]
        lines.append([at["seen"], number(at["claimed"]), bounds(row), at["verdict"], row["scale"]])
    yield table(["seen", "true ε of the release", "audited ε", "verdict", "run"], lines)


def bounds(row: dict[str, Any]) -> str:
    """[lower, upper], bold where the lower one is above the claim."""
    text = f"[{number(row['ours_low'])}, {number(row['ours_high'])}]"
    return f"**{text}**" if row["setting"]["verdict"] == "violation" else text
