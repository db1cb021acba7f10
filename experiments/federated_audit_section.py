"""The part of experiments/README.md that tells of audits of federated learning."""

from collections.abc import Iterable, Sequence
from typing import Any

from experiments.markdown import number, ranged, select, table

Rows = Sequence[dict[str, Any]]
FAULTS = ("noise halved", "clipping skipped")


def section(rows: Rows) -> Iterable[str]:
    """Markdown blocks, in reading order."""
    confidence = rows[0]["setting"]["confidence"]
    yield "## Audits of federated learning\n"
    yield "Command: `python -m experiments.federated_audit`, then `make results`.\n"
    yield (
        f"Bounds below hold with confidence {confidence:.0%} each; a lower bound in bold is a violation of what was claimed or "
        "accounted.\n"
    )
    yield from _messages(select(rows, "epsilon_lower", seat="message"))
    yield from _runs(rows)


def _messages(rows: Rows) -> Iterable[str]:
    claimed = rows[0]["setting"]["claimed"]
    yield (
        f"**One message against its claim of ε = {claimed:g}.** Two updates that point opposite ways and are longer than C, told apart "
        "by the projection on their difference. *Sensitivity C*: the noise that keeps ε between a client's presence and its "
        "absence, where local privacy is about any two updates, 2C apart (for LDP-SGD: coins that keep ε against a release "
        "that does not depend on the client).\n"
    )
    lines = []
    for sound, faulty in zip(rows[::2], rows[1::2], strict=True):
        setting = sound["setting"]
        how = {"any": "nothing", "Gaussian": "Gaussian curve"}[setting["curve"]]
        cells = [how, f"{setting['delta']:g}", f"{setting['dimension']:,}", sound["scale"]]
        cells += [_bounds(sound, claimed), _bounds(faulty, claimed), number(faulty["setting"]["true"])]
        lines.append([setting["client"], *cells])
    header = ["message", "assumed", "δ", "d", "what was run", "sound: ε", "sensitivity C: ε", "its true ε"]
    yield table(header, lines)


def _runs(rows: Rows) -> Iterable[str]:
    yield (
        "**Whole runs, by canaries.** Every canary sends a random direction, clipped and hidden as any update. μ, and the ε that "
        "it means for a Gaussian curve, is that of a client that took part as often as a canary did on average, added or "
        "removed. *Messages* is what its messages spend one by one (any two updates); *accounted* is what the sums "
        "spend, to those who see every round's and know in which the client took part. The final model alone must tell "
        "less, the less the rarer a client takes part, so a fault may hide there.\n"
    )
    lines = []
    seen = select(rows, "epsilon_lower", fault="sound")
    for sound in (row for row in seen if row["setting"]["seat"] != "message"):
        setting = sound["setting"]
        same = {name: setting[name] for name in ("seat", "data", "clients", "clients_per_round", "rounds")}
        (mu,) = select(rows, "mu", fault="sound", **same)
        spent = setting["accounted"]
        faulty = [select(rows, "epsilon_lower", fault=fault, **same)[0] for fault in FAULTS]
        federation = f"{setting['data']}, {setting['clients_per_round']} of {setting['clients']:,} clients, {setting['rounds']} rounds"
        cells = [f"{setting['participations']}", number(setting["messages"]), number(spent)]
        cells += [ranged(mu), _bounds(sound, spent), *(_bounds(row, spent) for row in faulty), sound["scale"]]
        lines.append([f"{setting['seat']}: {federation}", *cells])
    header = [
        "seen",
        "rounds of a client",
        "messages: ε",
        "accounted: ε",
        "sound: μ",
        "sound: ε",
        *FAULTS,
        "sound run",
    ]
    yield table(header, lines)


def _bounds(row: dict[str, Any], allowed: float) -> str:
    """[lower, upper] of an epsilon."""
    text = f"[{number(row['ours_low'])}, {number(row['ours_high'])}]"
    return f"**{text}**" if row["ours_low"] > allowed else text
