"""The part of experiments/README.md that tells what the two servers' parts cost: tables of bench_secure's rows."""

from collections.abc import Iterable, Sequence
from typing import Any

from experiments.markdown import number, ranged, select, table

Rows = Sequence[dict[str, Any]]
MODES = {
    "noisy": "noise, n = 127",
    "ahead": "the same, made ahead",
    "plain": "no noise",
    "table": "the paper's table of noise",
}


def section(rows: Rows) -> Iterable[str]:
    """Markdown blocks, in reading order."""
    yield "## Speed, bytes and memory of two servers\n"
    yield (
        "Command: `python -m experiments.bench_secure`. Medians [smallest, largest]. A step is what the servers do for one sum, "
        "owners apart, between two processes over gRPC on loopback; of what was made ahead only the rest is timed."
        "\n"
    )
    lines = []
    for row in select(rows, "step_seconds"):
        at = row["setting"]
        (each,) = select(rows, "bytes_a_coordinate", **at)
        name = f"{MODES[at['mode']]}, {at['transfers']}"
        lines.append([name, f"{at['d']:,}", ranged(row, 4), number(each["ours"], 0)])
    yield table(["", "d", "seconds a step", "bytes a coordinate"], lines)
    peaks = ", ".join(f"{row['setting']['server'].upper()} {row['ours']:.2f}" for row in select(rows, "peak_gib"))
    (scale,) = {row["scale"] for row in select(rows, "peak_gib")}
    yield f"Peak memory, GiB ({scale}): {peaks}.\n"
    lines = []
    for row in select(rows, "ands_per_second"):
        lines.append([f"AND gates {row['setting']['what']}", f"{row['setting']['d']:,}", _millions(row)])
    for row in select(rows, "cots_per_second"):
        lines.append(
            [f"correlated transfers, {row['setting']['transfers']}, {row['setting']['party']}", "–", _millions(row)]
        )
    yield table(["one core", "d", "million a second"], lines)
    (gate,) = select(rows, "bytes_an_and")
    yield f"An AND gate is {gate['ours']:.0f} bytes on the wire.\n"
    found = select(rows, "noise_seconds")
    yield (
        "**The same noise without a circuit.** Shares of the noise can be made by transfers alone (`ot_noise`), and the sum be "
        "opened in the clear: the same law and the same kind of promise, for a third of the bytes with IKNP, a seventh with "
        "SoftSpoken, and somewhat less time. The circuit is what the paper has. Processor time of both "
        f"servers together for all of a step, d = {found[0]['setting']['d']:,}, {found[0]['scale']}.\n"
    )
    lines = []
    for row in found:
        at = row["setting"]
        (each,) = select(rows, "noise_bytes", **at)
        lines.append([f"{at['noise']}, {at['transfers']}", ranged(row), number(each["ours"], 0)])
    yield table(["", "seconds", "bytes a coordinate"], lines)


def _millions(row: dict[str, Any]) -> str:
    return ranged(row | {name: row[name] / 1e6 for name in ("ours", "ours_low", "ours_high")}, 1)
