"""The part of experiments/README.md that tells what dropout samples and thresholds cost: tables of bench_mc_dropout."""

from collections.abc import Iterable, Sequence
from typing import Any

from experiments.bench_mc_dropout import LAYERS, PRODUCTS, STATISTICS
from experiments.bench_training_sides import DROPOUT_RATE, NETWORKS
from experiments.markdown import number, ranged, select, table, times_of

Rows = Sequence[dict[str, Any]]

WHAT_REMAINS = """**Where the rest goes.** A convolution is a product with patches, which XLA's CPU compiler writes out: 160,000
numbers for each sample of CNN32, read again by the product. Processor time of one such sample, built up part by part
on one occasion beside other work (lower quartiles of 20 runs): the second convolution's product 137 us, with its
patches 150, with the first mask and pooling 161, with the second 178, with the masks' random words 185, with the dense
layers 197. Tried on the way: the product with patches by windows (144 us), along one axis first (162), by 25 slices
(171), by updates in place (174), by a gather (205); groups of 4, 8 and 64 samples (234, 236 and 310 us for all of it:
what fits into the caches decides); masks by Threefry and by Philox (237 and 223 us). For CNN8 the products alone are 0.1 us of a sample, and patches of 144 numbers are four
times that.
"""


def section(rows: Rows) -> Iterable[str]:
    """Markdown blocks, in reading order."""
    yield "## Speed of dropout samples and of the threshold search\n"
    yield (
        "Command: `python -m experiments.bench_mc_dropout`. Medians [range] over the rounds; ratios were formed round by "
        "round.\n"
    )
    for gflop in select(rows, "products_gflop"):
        yield from _samples(rows, gflop)
    yield WHAT_REMAINS
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
