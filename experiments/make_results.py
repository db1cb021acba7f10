"""Writes experiments/README.md, and its figures, from the committed result rows: no number in it is typed by hand.

make results
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from dpaudit.report.rows import read_rows, replace_text
from experiments import (
    bench_before_section,
    bench_federated_section,
    bench_kernels_section,
    bench_mc_dropout_section,
    bench_scaling_section,
    bench_section,
    bench_secure_section,
    bench_training_section,
    clip_size_section,
    coverage_section,
    dp_sniper_section,
    fault_zoo_section,
    federated_audit_section,
    ldp_client_section,
    mc_dropout_section,
    personalization_audit_section,
    personalization_section,
    spgc_audit_section,
    spgc_cost_section,
    spgc_section,
    training_audit_section,
)
from experiments.common import RESULTS
from experiments.markdown import benchmark

HEAD = """# Results

Written by `make results` from the rows in `results/`, each computed by the command above its table unless that says
otherwise. What a range is stands above its table. "Paper" is the published value. A row carries the fingerprint of the
program, the part of it and the arguments that made it, from which `make reproduce` makes a sample again and compares;
rows from before that carry the commit that added them instead.
"""

SECTIONS: dict[str, Callable[[Sequence[dict[str, Any]]], Iterable[str]]] = {
    "ldp_client_audit": ldp_client_section.section,
    "bench_*-cores": bench_section.section,  # one file a machine
    "bench_before": bench_before_section.section,
    "bench_scaling": bench_scaling_section.section,
    "bench_ldp": benchmark(
        "Speed of LDP-SGD trials",
        "Command: `make bench`. Medians [range] over the runs; both sides of a ratio were timed in turn in one run. "
        "The memory peaks are upper bounds: these rows date from when the process that starts a part was counted too.",
    ),
    "bench_audit": benchmark(
        "Speed of an audit",
        'Command: `python -m experiments.bench_audit`. Medians [range] over the runs; "first" is the first audit of a '
        "fresh process, without a compilation cache. The machine's load was not noted then: the same "
        "figures in the table of all benchmarks are of another day, at the load that it tells, and differ.",
    ),
    "bench_training": bench_training_section.section,
    "bench_mc_dropout": bench_mc_dropout_section.section,
    "bench_kernels": bench_kernels_section.section,
    "bench_federated": bench_federated_section.section,
    "bench_secure": bench_secure_section.section,
    "bench_personalization": benchmark(
        "Speed of solves on devices and of user-level sums",
        "Command: `python -m experiments.bench_personalization`. Medians [range] over the rounds; all sides were "
        "timed in turn. jax-privacy's `clipped_grad` is timed for all users at once, which is its default, and in "
        "microbatches: on the small convolutional network it is within a factor of three either way, and its fastest "
        "setting within two to five everywhere.",
    ),
    "clip_size": clip_size_section.section,
    "mc_dropout_risk": mc_dropout_section.section,
    "spgc": spgc_section.section,
    "spgc_audit": spgc_audit_section.section,
    "spgc_cost": spgc_cost_section.section,
    "personalization": personalization_section.section,
    "personalization_audit": personalization_audit_section.section,
    "training_audit": training_audit_section.section,
    "federated_audit": federated_audit_section.section,
    "coverage": coverage_section.section,
    "fault_zoo": fault_zoo_section.section,
    "dp_sniper": dp_sniper_section.section,
}


def main() -> None:
    parts = [HEAD]
    for name, section in SECTIONS.items():
        rows = [row for file in sorted(RESULTS.glob(f"{name}.*json")) for row in read_rows(file)]  # of parts run apart
        if rows:
            parts += section(rows)
    target = Path(__file__).parent / "README.md"
    replace_text(target, "\n".join(parts).rstrip() + "\n")
    print(f"experiments/{target.name}: {len(parts) - 1} parts")


if __name__ == "__main__":
    main()
