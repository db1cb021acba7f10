"""Bounds what the kernel of the randomised trial takes on a TPU, from the instructions that it was compiled to.

    .venv-accelerators/bin/python -m experiments.bench.accelerator_schedule                # half a minute

A TPU issues one bundle of instructions a cycle at most, and libtpu writes down the bundles of every loop. Their number
times the trips of the loop is a lower bound on the cycles of a run, and never a time: waits for memory are not in it.
"""

import math
import os
import re
import tempfile
from functools import partial
from pathlib import Path

from dpaudit._engine import topologies
from dpaudit.kernels import randomized_trial
from experiments.bench import accelerators
from experiments.bench.accelerator_programs import TRIALS, Subject, kernel
from experiments.common import Rows, options

CLOCK = {"v5e": 1.5e9}  # bundles a second: 197 TFLOP/s are 4 units of 128 x 128 products at this rate
DIMENSION = 26_010


def bundles(text: str) -> dict[int, int]:
    """Counts the bundles of a schedule by the depth of the loops that they are in, from libtpu's text."""
    found: dict[int, int] = {}
    for marks in re.findall(r"^\s*0x[0-9a-f]+\s+(?:\w\w)?\s*:\s+(>*)", text, re.MULTILINE):
        found[len(marks)] = found.get(len(marks), 0) + 1
    return found


def scheduled(machine: topologies.Machine, folder: Path) -> dict[int, int]:
    """Compiles the kernel, and counts its bundles by the depth of their loop."""
    subject = Subject(partial(kernel, products=randomized_trial.products_tpu, d=DIMENSION), (), math.inf)
    accelerators.compiled(machine, subject)
    (file,) = (file for file in folder.glob("*_on_tpu*final_bundles.txt") if "analysis" not in file.name)
    return bundles(file.read_text(encoding="utf-8"))


def main() -> None:
    parser = options(__doc__ or "")
    chosen = parser.parse_args()
    rows = Rows("", "bench_accelerator_schedule", chosen.out, chosen.seed)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LIBTPU_INIT_ARGS"] = f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true"
        found = scheduled(topologies.machine("v5e"), Path(folder))
    blocks = math.ceil(math.ceil(DIMENSION / 2) / randomized_trial.WORDS)
    chunks = math.ceil(blocks / randomized_trial.CHUNK)
    tile = randomized_trial.TPU_ROWS * randomized_trial.LANES
    cycles = math.ceil(TRIALS / tile) * chunks * (found[1] + randomized_trial.CHUNK * found[2])
    how = {"program": "kernel of a TPU", "machine": "v5e"}
    rows.add("bundles_of_a_block", how, found[2], scale=accelerators.SCALE)
    rows.add("bundles_of_a_chunk", how, found[1], scale=accelerators.SCALE)
    rows.add("trials_per_second_at_most", how, TRIALS * CLOCK["v5e"] / cycles, scale=accelerators.SCALE)
    rows.finish_part("v5e")


if __name__ == "__main__":
    main()
