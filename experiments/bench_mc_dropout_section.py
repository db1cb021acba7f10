"""The part of experiments/README.md that tells what dropout samples and thresholds cost: tables of bench_mc_dropout."""

from collections.abc import Iterable, Sequence
from typing import Any

from experiments.bench_mc_dropout import LAYERS, PRODUCTS, STATISTICS
from experiments.bench_training_sides import DROPOUT_RATE, NETWORKS
from experiments.markdown import number, ranged, select, table, times_of

Rows = Sequence[dict[str, Any]]


def section(rows: Rows) -> Iterable[str]:
    """Markdown blocks, in reading order."""
    yield "## Speed of dropout samples and of the threshold search\n"
    yield (
        "Command: `python -m experiments.bench_mc_dropout`. Medians [range] over the rounds; ratios were formed round by "
        "round.\n"
    )
    for gflop in select(rows, "products_gflop"):
        yield from _samples(rows, gflop)
    yield from _search(rows)


def _samples(rows: Rows, gflop: dict[str, Any]) -> Iterable[str]:
    name, setting = gflop["setting"]["network"], gflop["setting"]
    found = select(rows, "sample_microseconds", network=name)
    (speed,) = select(rows, "products_gflop_per_second", network=name)
    apart = max(row["ours"] for row in select(rows, "output_difference", network=name))
    by_torch = [
        f", and torch's means from ours by {row['ours']:.2f} standard errors (root mean square; about 1 for the "
        "same law)"
        for row in select(rows, "torch_difference", network=name)
    ]
    yield (
        f"**{setting['samples']:,} samples of {setting['images']} images** by {name} ({NETWORKS[name].parameters:,} "
        f"parameters, dropout {DROPOUT_RATE}); {found[0]['scale']}, on {found[0]['device']}. Matrix products alone: those "
        f"before the first dropout once an image, those behind it once a sample, {number(gflop['ours'], 1)} GFLOP in all, "
        f"at {ranged(speed, 0)} GFLOP a second. All sides of ours return the same samples or their statistics (they "
        f"differ by {apart:.1e}, relative){''.join(by_torch)}.\n"
    )
    lines = []
    for row in found:
        side, chunk = row["setting"]["side"], row["setting"].get("chunk")
        label = side if chunk is None else f"{side}, {chunk} samples a batch"
        times = [times_of(rows, "sample_ratio", network=name, of=side, to=to) for to in (PRODUCTS, LAYERS, STATISTICS)]
        lines.append([label, ranged(row), *times])
    yield table(
        ["side", "microseconds a sample", "times the products", "times products and patches", "times statistics"],
        lines,
    )


def _search(rows: Rows) -> Iterable[str]:
    found = select(rows, "attack_seconds")
    of, scale = found[0]["setting"], found[0]["scale"]
    yield (
        f"**Thresholds of Algorithm 2**: from {of['samples']:,} predictions of {of['models']:,} models each to "
        f"{of['statistics']} statistics and the exact best thresholds of all subsets by both rules; {scale}. A member's "
        "logits are shifted by so many of their standard deviations over the models.\n"
    )
    yield table(["shift", "seconds"], ([str(row["setting"]["shift"]), ranged(row)] for row in found))
    small = {row["setting"]["side"]: row for row in select(rows, "small_attack_seconds")}
    (ratio,) = select(rows, "small_attack_ratio")
    of = ratio["setting"]
    yield (
        f"Of {of['models']} models and {of['statistics']} statistics, for which all combinations of thresholds can be "
        f"tried: {ranged(small['search'], 3)} seconds, and all combinations {ranged(small['all combinations'], 3)}, "
        f"{ranged(ratio, 1)} times as long, with the very same values.\n"
    )
