"""Makes the page of what libraries promise: a line for each promise."""

from typing import NamedTuple

from experiments.libraries.claims import CLAIMS, known, played, sound
from experiments.libraries.play import WITHHELD
from experiments.pages import Fact, Row, Rows, Untrue, fact, number, only, select, table, verdicts

FILES = ("*.json", "../../bench/results/bench_host.json")
SAID = {True: "found", False: "nothing", None: "–"}


def claims(rows: Rows) -> str:
    return verdicts(CLAIMS, rows)


def scale(rows: Rows) -> Fact:
    found = played(rows)
    libraries = {row["setting"]["library"] for row in found}
    return fact(
        True, promises=len(found), libraries=len(libraries), seconds=sum(row["seconds"] for row in found),
        confidence=found[0]["setting"]["confidence"],
    )  # fmt: skip


def faults(rows: Rows) -> str:
    return promises(known(rows))


def others(rows: Rows) -> str:
    return promises(sound(rows))


def recorded(rows: Rows) -> str:
    """What recording and replaying found of each kind of fault, beside dp-recorder."""
    lines = []
    for row in select(rows, "replayed_fault", mended=False):
        at, mended = row["setting"], only(rows, "replayed_fault", kind=row["setting"]["kind"], mended=True)
        theirs, twin = at["dp_recorder"], mended["setting"]["dp_recorder"]
        cells = [
            ", ".join(at["findings"]),
            f"{at['verdict']} / {mended['setting']['verdict']}",
            f"{row['seconds']:.2g}",
        ]
        cells += [f"{SAID[theirs['found']]} / {SAID[twin['found']]}", f"{theirs['seconds']:.2g}"]
        lines.append([at["kind"], *cells])
    header = ["fault", "finding", "dpaudit: faulty / mended", "seconds", "dp-recorder: faulty / mended", "seconds"]
    return table(header, lines, left=True)


def replayed(rows: Rows) -> str:
    """What recording and replaying says of a library's versions with and without a published fault."""
    lines = []
    for row in select(rows, "replayed_library"):
        at, theirs = row["setting"], row["setting"]["dp_recorder"]
        of = f"{at['library']} {at['commit']}, {'mended' if at['mended'] else 'faulty'}"
        ours = f"{at['verdict']} {', '.join(at['findings'])}".strip()
        lines.append([of, at["mechanism"], link(at["issue"]), ours, SAID[theirs["found"]]])
    return table(["library, commit", "mechanism", "issue", "dpaudit", "dp-recorder"], lines, left=True)


def promises(rows: Rows) -> str:
    """A line for each promise, without the columns that have nothing in them."""
    lines = [line(row) for row in rows]
    kept = [name for name in lines[0] if any(cells[name] != "–" for cells in lines)]
    return table(kept, [[cells[name] for name in kept] for cells in lines], left=True)


def line(row: Row) -> dict[str, str]:
    """The cells of a promise by column, first those that a narrow screen should show."""
    at = row["setting"]
    delta = f", {at['delta']:.3g}" if at["delta"] else ""
    return {
        "library": f"{at['library']} {at['version']}",
        "promise": at["promise"],
        "verdict": at["verdict"],
        "ε at least": number(row["ours_low"]),
        "promised ε, δ": f"{told(at['epsilon'])}{delta}, {at['neighbouring'].replace('_', ' or ')}",
        "issue": link(at["issue"]),
        "last digits": digits(row),
        "attack": at["attack"] or "–",
        "trials": f"{at['trials']:,}",
        "seconds": f"{row['seconds']:.0f}",
    }


def digits(row: Row) -> str:
    """What the last digits of floats show beside the verdict, where that is more than the claim and than the bound."""
    shown, claimed = row["setting"].get("low_bits"), row["setting"]["epsilon"]
    return number(shown) if shown and claimed != "inf" and shown > max(claimed, row["ours_low"]) else "–"


def told(epsilon: object) -> str:
    """A promised epsilon; infinite where the promise is a curve."""
    return "curve" if epsilon == "inf" else f"{epsilon:.3g}"


def link(address: str | None) -> str:
    if address is None:
        return "–"
    return f"[{address.split('/')[-1] if 'issues' in address else 'public'}]({address})"


def unnamed(rows: Rows) -> str:
    """What no public issue names: library, version and claim alone."""
    own = [row["setting"] for row in rows if row["quantity"].startswith("promise_")]
    own = [at for at in own if at["verdict"] == WITHHELD]
    lines = [[at["library"], at["version"], f"{at['promise']}: {at['epsilon']:g}, {at['delta']:g}"] for at in own]
    return table(["library", "version", "claim"], lines, left=True)


def peers(rows: Rows) -> str:
    """What each auditor says of each mechanism: a line for a mechanism, a column for a tool."""
    own = select(rows, "peer")
    tools = dict.fromkeys(row["setting"]["tool"] for row in own)
    lines = []
    for name in dict.fromkeys((row["setting"]["library"], row["setting"]["version"]) for row in own):
        of = [row for row in own if (row["setting"]["library"], row["setting"]["version"]) == name]
        for promise in dict.fromkeys(row["setting"]["promise"] for row in of):
            said = {row["setting"]["tool"]: row for row in of if row["setting"]["promise"] == promise}
            at = said["dpaudit"]["setting"]
            cells = [" ".join(name), promise, told(at["epsilon"]), link(at["issue"]), f"{at['trials']:,}"]
            lines.append([*cells, *(peer(said[tool]) for tool in tools)])
    return table(["library", "mechanism", "ε", "fault", "trials", *tools], lines, left=True)


def peer(row: Row) -> str:
    """Whether a tool refutes the claim, the bound that it gives, and the seconds that it took."""
    if row["setting"]["error"] is not None:
        return "failed"
    bound = "" if row["ours"] is None else f" {number(row['ours'])},"
    return f"{'**found**' if row['setting']['found'] else 'no'},{bound} {row['seconds']:.0f} s"


class Caught(NamedTuple):
    """How many faults a tool found, and how many sound mechanisms it accused."""

    found: int
    faulty: int
    accused: int
    sound: int


def counts(rows: Rows) -> dict[str, Caught]:
    """What each tool caught."""
    own, told = select(rows, "peer"), {}
    for tool in dict.fromkeys(row["setting"]["tool"] for row in own):
        of = [row["setting"] for row in own if row["setting"]["tool"] == tool]
        faulty, mended = ([at for at in of if (at["issue"] is None) == sound] for sound in (False, True))
        found, accused = (sum(bool(at["found"]) for at in some) for some in (faulty, mended))
        told[tool] = Caught(found, len(faulty), accused, len(mended))
    return told


def caught(rows: Rows) -> Fact:
    """How many faults each tool found, and how many sound mechanisms it accused."""
    told = [
        f"{tool} {one.found} of {one.faulty} and {one.accused} of {one.sound}" for tool, one in counts(rows).items()
    ]
    return fact(told, told="; ".join(told))


def in_readme(rows: Rows) -> str:
    """The sentence of README.md on the same counts; tools that found as many are named together."""
    told, groups = counts(rows), dict[int, list[str]]()
    for tool, one in told.items():
        groups.setdefault(one.found, []).append(tool)
    faulty, sound = told["dpaudit"].faulty, told["dpaudit"].sound
    if any((one.faulty, one.accused, one.sound) != (faulty, 0, sound) for one in told.values()):
        raise Untrue("README.md: expected the same mechanisms for all tools, and no sound one accused")
    found = [f"{among(tools)} {many}" for many, tools in sorted(groups.items(), reverse=True)]
    first = found[0].replace(" ", " found ", 1)
    said = f"Of {faulty} known faults in libraries, {'; '.join([first, *found[1:]])}."
    return f"{said} None accused any of {sound} sound mechanisms"


def among(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def speed(rows: Rows) -> str:
    """How fast audits are beside plain loops over the same functions, by the clock and by CPU time."""
    lines = []
    for row in rows:
        name, _, quantity = row["quantity"].partition("_audit_over_loop")
        if quantity == "_by_cpu":
            clock = only(rows, f"{name}_audit_over_loop")
            cells = [
                f"{number(one['ours'])} [{number(one['ours_low'])}, {number(one['ours_high'])}]"
                for one in (row, clock)
            ]
            cells += [number(whole(rows, name)), str(row["setting"]["cores"]), f"{row['setting']['load']:.1f}"]
            lines.append([row["setting"]["library"], *cells])
    header = ["library", "by CPU time [range]", "by the clock [range]", "the whole audit", "cores", "load"]
    return table(header, lines, left=True)


def whole(rows: Rows, name: str) -> float:
    """Returns the trials of an audit over all of its seconds, in calls a second of the loop."""
    seconds, calls = (only(rows, f"{name}_{of}") for of in ("audit_seconds", "loop_calls_per_second"))
    trials = int(seconds["scale"].partition(" audit of ")[2].split()[0].replace(",", ""))
    return trials / seconds["ours"] / calls["ours"]
