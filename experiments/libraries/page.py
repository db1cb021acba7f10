"""Makes the page of what libraries promise: a line for each promise."""

from experiments.libraries.claims import CLAIMS, known, played, sound
from experiments.libraries.play import WITHHELD
from experiments.pages import Fact, Row, Rows, fact, number, only, select, table, verdicts

FILES = ("*.json",)
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


def promises(rows: Rows) -> str:
    header = ["library", "version", "promise", "ε, δ", "verdict", "ε at least", "attack", "trials", "seconds", "issue"]
    return table(header, map(line, rows), left=True)


def line(row: Row) -> list[str]:
    at = row["setting"]
    delta = f", {at['delta']:.3g}" if at["delta"] else ""
    cells = [at["library"], at["version"], at["promise"], f"{told(at['epsilon'])}{delta}, {at['neighbouring']}"]
    cells += [at["verdict"], number(row["ours_low"]), at["attack"] or "–", f"{at['trials']:,}"]
    return [*cells, f"{row['seconds']:.0f}", link(at["issue"])]


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
