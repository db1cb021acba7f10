"""The part of experiments/README.md that tells what private training costs: tables from bench_training's rows."""

from collections.abc import Iterable, Sequence
from typing import Any

from experiments.bench_training_sides import NETWORKS
from experiments.markdown import number, ranged, select, table, times_of

CLIPPED = "ours, clipped"
Rows = Sequence[dict[str, Any]]


def section(rows: Rows) -> Iterable[str]:
    """Markdown blocks, in reading order."""
    yield "## Speed and memory of private training\n"
    yield "Command: `python -m experiments.bench_training`. Medians [range] over the rounds; ratios were formed round by round.\n"
    yield from _gradients(rows)
    yield (
        "Where XLA's convolution is used instead of ours, one of CNN32's 256 examples has a gradient that differs by 2% (the "
        "others agree to 4e-7): nearly equal values, of which a pool takes one or the other. Where the time went, as "
        "seen one after the other on the way: whole batch at once 0.48 s; in microbatches that the caches hold, 0.23 s; pooling "
        "by slices instead of XLA's windows, whose gradient took 60 ms a layer, 0.15 s; pools and the gradients of patches axis "
        "by axis, 0.12 s, and CNN28 in half the time of before. jax-privacy is fastest with settings of "
        "its own (microbatches of 1, or our layers); the table has them.\n"
    )
    yield from _memory(rows)
    yield from _many(rows)
    yield (
        "A step of the small network alone is hundreds of operations of a few microseconds, which a second core cannot share: a "
        "vmap makes them longer, not fewer, and gains nothing. `train_many` runs one program a core, and in each as many "
        "networks as its caches hold. What was tried beside, without dropout: 4, 8, 16, 32 networks a program (8 and 16 are best, 32 a "
        "quarter slower), microbatches of 8 to 64 (a group waits for its largest Poisson batch: about a tenth), batches drawn without "
        "a sort (a tenth), Philox for threefry, whose loops were most of a step's operations, and a gradient of its own for "
        "patches (a fifth). Each made a network alone faster as well: from 0.47 to 0.38 ms a step, and together from 0.36 to "
        "0.16. With patches and pools taken axis by axis, three runs of this benchmark gave 2.56, 2.67 and 2.52.\n"
    )


def _gradients(rows: Rows) -> Iterable[str]:
    for network in dict.fromkeys(row["setting"]["network"] for row in select(rows, "gradient_seconds")):
        found = select(rows, "gradient_seconds", network=network)
        yield (
            f"**One gradient of {_of(found[0])}**, {found[0]['scale']}, on {found[0]['device']}. Plain: of the mean loss. "
            "All others: the sum of the examples' gradients, each clipped. All sides of a library return the same sum; "
            "the last column is their difference, relative to vmap's.\n"
        )
        lines = []
        for row in found:
            side = row["setting"]["side"]
            apart = select(rows, "clipped_sum_difference", network=network, side=side)
            difference = f"{apart[0]['ours']:.1e}" if apart else "–"
            times = times_of(rows, "gradient_ratio", network=network, of=side, to=CLIPPED)
            lines.append([side, ranged(row, 3), times, difference])
        yield table(["side", "seconds", "times ours, clipped", "difference"], lines)
        against = select(rows, "gradient_ratio", network=network, of=CLIPPED)
        against = [row for row in against if "plain" in row["setting"]["to"]]
        ratios = "; ".join(f"{row['setting']['to']}: {ranged(row)}" for row in against)
        yield f"Clipped, as a multiple of a plain gradient: {ratios}.\n"


def _memory(rows: Rows) -> Iterable[str]:
    found = select(rows, "peak_gib")
    yield (
        f"**Peak memory of the same**, each side in a process of its own ({found[0]['scale']}), above what the process held "
        "when the program was compiled; and what XLA plans for temporaries.\n"
    )
    lines = []
    for row in found:
        side = row["setting"]["side"]
        (planned,) = select(rows, "planned_gib", side=side)
        lines.append([side, ranged(row), number(planned["ours"]), times_of(rows, "peak_ratio", of=side)])
    yield table(["side", "GiB", "planned GiB", "times plain"], lines)


def _many(rows: Rows) -> Iterable[str]:
    for network in dict.fromkeys(row["setting"]["network"] for row in select(rows, "networks_per_hour")):
        found = select(rows, "networks_per_hour", network=network)
        (apart,) = select(rows, "trained_difference", network=network)
        yield (
            f"**Many networks**: {_of(found[0])}, {found[0]['setting']['steps']} steps of DP-SGD with Poisson batches and "
            f"dropout of {found[0]['setting'].get('dropout', 0)}; "
            f"{found[0]['scale']}. Trained together, the parameters differ from those of one after another by "
            f"{apart['ours']:.1e}, relative.\n"
        )
        lines = []
        for row in found:
            side = row["setting"]["side"]
            times = times_of(rows, "networks_ratio", network=network, to=side)
            compiled = select(rows, "compilation_seconds", network=network, side=side)
            seconds = number(compiled[0]["ours"], 1) if compiled else "–"
            lines.append([side, ranged(row, 0), times, seconds])
        yield table(["side", "networks per hour", "together, times this", "compilation, seconds"], lines)


def _of(row: dict[str, Any]) -> str:
    name = row["setting"]["network"]
    return f"{name} ({NETWORKS[name].parameters:,} parameters), batch {row['setting']['batch']}"
