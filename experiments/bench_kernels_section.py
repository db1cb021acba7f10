"""The part of experiments/README.md that tells which kernels are worth writing: tables from bench_kernels' rows."""

from collections.abc import Iterable, Sequence
from typing import Any

from experiments.markdown import number, ranged, select, table

Rows = Sequence[dict[str, Any]]


def section(rows: Rows) -> Iterable[str]:
    """Markdown blocks, in reading order."""
    yield "## Kernels: what one could gain\n"
    yield (
        "Command: `python -m experiments.bench_kernels`. A kernel is kept where it is at least 1.3 times as fast as XLA's best "
        "on a device that was measured, or where memory needs it.\n"
    )
    yield from _trial(rows)
    yield from _speed(rows)
    yield from _others(rows)


def _trial(rows: Rows) -> Iterable[str]:
    held = select(rows, "trial_bytes_held")
    d = held[0]["setting"]["dimension"]
    yield (
        f"**The randomised trial** of LDP-SGD at d = {d:,}: bytes that XLA's program for {held[0]['device']} moves and holds for "
        "one trial more; what the moving and the arithmetic take at least on an H100 (3.35 TB/s, 60 TFLOP/s, no two steps fused "
        "that are not fused here); and trials that 80 GB hold at a time.\n"
    )
    lines = []
    for row in held:
        side = row["setting"]["side"]
        moved, roofline = (select(rows, f"trial_{what}", side=side) for what in ("bytes_moved", "h100_microseconds"))
        (fitting,) = select(rows, "trials_in_80_gb", side=side)
        lines.append([side, _whole(moved), _whole([row]), _digits(roofline, 3), _whole([fitting])])
    yield table(["trial", "bytes moved", "bytes held", "microseconds, H100", "trials in 80 GB"], lines)
    blocks = [
        f"{row['setting']['trials_at_once']:,} on {row['setting']['device']}, {number(row['ours'] / 2**20, 0)} MiB"
        for row in select(rows, "engine_bytes_held")
    ]
    yield f"The engine plays any number of trials in blocks: {'; '.join(blocks)}. So memory needs no kernel.\n"


def _speed(rows: Rows) -> Iterable[str]:
    found = select(rows, "trials_per_second")
    if not found:
        shipped = select(rows, "trial_h100_microseconds")[0]
        yield (
            "No accelerator was at hand: the kernel has not been timed, and no engine uses it. It stays until one is, since "
            "by the bytes that it moves the shipped mechanism could not play more than "
            f"{1e6 / shipped['ours']:,.0f} trials a second on an H100.\n"
        )
        return
    (ratio,) = select(rows, "kernel_ratio")
    yield f"On {found[0]['device']}, {found[0]['scale']}: the kernel is {ranged(ratio)} times as fast as XLA's best.\n"
    lines = [[row["setting"]["side"], ranged(row, 0)] for row in found]
    yield table(["trial", "trials a second"], lines)


def _others(rows: Rows) -> Iterable[str]:
    yield (
        "**Kernels that were thought of.** Bytes moved and operations of one unit as XLA counts them here, for the program as it "
        "is and with the kernel's part at its least; the last column is what the whole could gain at most on the roofline of an H100, "
        "were it fused there as here. Nothing of this was measured on a GPU.\n"
    )
    lines = []
    for row in select(rows, "most_gain"):
        own = row["setting"]
        how = {"kernel": own["kernel"], "network": own["network"]}
        now, least = (select(rows, "bytes_moved", **how, side=side)[0]["ours"] for side in ("XLA", own["least"]))
        operations = select(rows, "operations", **how, side="XLA")[0]["ours"]
        label = f"{own['kernel']}, {own['network']}, {own['unit']}"
        lines.append([label, f"{now:,.0f}", own["least"], f"{least:,.0f}", f"{operations:,.0f}", number(row["ours"])])
    yield table(["kernel, network, unit", "bytes", "least", "bytes", "operations", "times as fast at most"], lines)


def _whole(found: Rows) -> str:
    return f"{found[0]['ours']:,.0f}" if found else "–"


def _digits(found: Rows, digits: int) -> str:
    return number(found[0]["ours"], digits) if found else "–"
