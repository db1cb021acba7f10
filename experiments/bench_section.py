"""The part of experiments/README.md that sets every benchmark beside its peers: one table a machine."""

from collections.abc import Iterable, Sequence
from typing import Any

from experiments.markdown import digits, table

Rows = Sequence[dict[str, Any]]
NOT_MEASURED = "not measured"


def section(rows: Rows) -> Iterable[str]:
    """Markdown blocks, in reading order."""
    yield "## Every benchmark beside its peers\n"
    yield (
        'Command: `make bench TORCH_PYTHON=PATH`, and `make bench-gpu` where there is an accelerator; `make bench ONLY="training '
        'secure"` runs some of it. Medians over the rounds. Ratio: how many times as fast as the peer, or as small, or as few '
        "(median [range] of ratios formed round by round, both timed in turn; without a range, of two medians). A peer that was "
        f"not at hand is {NOT_MEASURED}. Beside each part's date: the machine's load when it began, and what NumPy then did of "
        "float32 matrix products and of copies, since a busy or shared machine makes a figure worse. Rows of the sections below "
        "may be of another day, with more rounds.\n"
    )
    for machine in dict.fromkeys(_name(row["machine"]) for row in rows):
        yield from _machine(machine, [row for row in rows if _name(row["machine"]) == machine])


def _machine(machine: str, rows: Rows) -> Iterable[str]:
    known = {}
    for row in rows:
        known.setdefault(", ".join(f"{name} {version}" for name, version in row["versions"].items()), []).append(row)
    yield f"**{machine}.**\n"
    for versions, own in known.items():
        when = {row["part"]: _when(row) for row in own}
        yield f"{versions}: " + "; ".join(f"{part}, {date}" for part, date in when.items()) + ".\n"
    lines = []
    for row in rows:
        missed = " (missed)" if row["reached"] is False else ""
        lines.append([row["figure"], _ours(row), _peer(row), _ratio(row), (row["asked"] or "–") + missed])
    yield table(["what", "ours [range]", "peer", "ratio [range]", "asked for"], lines)


def _when(row: dict[str, Any]) -> str:
    when = f"{row['date']} at load {row['load']:.1f}"
    if "gflops" not in row:  # measured before the pace was
        return when
    return f"{when}, {row['gflops']:.0f} GFLOP/s and {row['copied_gigabytes_a_second']:.1f} GB/s"


def _name(machine: dict[str, Any]) -> str:
    host = f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']:.0f} GiB"
    return host if machine["accelerator"] is None else f"{machine['accelerator']} in a host of {host}"


def _ours(row: dict[str, Any]) -> str:
    return _ranged(row, "ours")


def _peer(row: dict[str, Any]) -> str:
    if row["peer"] is None:
        return "–"
    version = row["versions"].get(row["package"])
    name = row["peer"] if version is None else f"{row['peer']} ({row['package']} {version})"
    return f"{name}: {NOT_MEASURED if row['peer_value'] is None else digits(row['peer_value'])}"


def _ratio(row: dict[str, Any]) -> str:
    if row["peer"] is None:
        return "–"
    return NOT_MEASURED if row["ratio"] is None else _ranged(row, "ratio")


def _ranged(row: dict[str, Any], name: str) -> str:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return digits(row[name]) + ("" if low is None or low == high else f" [{digits(low)}, {digits(high)}]")
