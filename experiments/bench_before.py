"""Every benchmark of an earlier checkout and of this one, in turn: how many times as good each figure is now.

    git worktree add ../earlier COMMIT && make -C ../earlier .venv/.dev
    python -m experiments.bench_before --checkout ../earlier     # hours; --only audit ldp: these parts

Both sides run the same number of times on the same machine, in the order before, now, now, before; a visit's ratio is
that of a neighbouring pair. Figures are those of ``bench_table``. Above 1 is better now. The part ``programs`` times
nothing: it tells which programs are the same in both (``bench_programs``), so that only the machine sets them apart.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from dpaudit.report.rows import read_rows
from experiments.bench import GPU, PARTS, WIDE, pace
from experiments.bench_table import FIGURES, taken
from experiments.common import Rows, options

HERE = Path(__file__).parents[1]
PROGRAMS = "programs"


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--checkout", required=True, type=Path, help="an earlier one, with its .venv")
    known = [PROGRAMS, *(name for name in PARTS if name not in (GPU, WIDE))]
    parser.add_argument("--only", nargs="+", choices=known, default=known, help="these parts; rows of the others stay")
    parser.add_argument("--pairs", type=int, default=2, help="how often both sides run")
    chosen = parser.parse_args()
    before = chosen.checkout.resolve() / ".venv/bin/python"
    if not before.exists():
        parser.error(f"--checkout: expected a folder in which `make .venv/.dev` was run, got {chosen.checkout}")
    sides = {"before": before, "now": Path(sys.executable)}
    folders = {"before": chosen.checkout, "now": HERE}
    rows = Rows("", "bench_before", chosen.out, chosen.seed)
    done = read_rows(rows.file) if rows.file.exists() else []
    rows.rows = list(done)
    for part in chosen.only:
        others = [row for row in rows.rows if row["setting"]["part"] != part]
        if part == PROGRAMS:
            rows.rows = list(others)
            same_programs(rows, *(digests(sides[side], folders[side]) for side in sides))
            rows.finish_part(part)
            continue
        found: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
        for pair in range(chosen.pairs):
            for side in list(sides)[:: -1 if pair % 2 else 1]:
                found[side].append(run(part, sides[side], folders[side], quick=chosen.quick))
            rows.rows = list(others)  # and this part's, of all pairs so far
            compare(rows, part, found)
            rows.finish_part(part)


def run(part: str, python: Path, folder: Path, *, quick: bool) -> dict[str, dict[str, Any]]:
    """The figures of one part, by what they are called."""
    program = PARTS[part]
    with tempfile.TemporaryDirectory() as out:
        command = [str(python), "-m", f"experiments.{program.program}", "--out", out, *program.extra]
        command += ["--rounds", "2"] * program.rounds + ["--quick"] * quick
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        lines = taken(FIGURES[part], read_rows(Path(out) / "results.json"))
    return {line["figure"]: line for line in lines}


def compare(rows: Rows, part: str, found: dict[str, list[dict[str, Any]]]) -> None:
    """A row for each figure that both have: this side's median, and the ratios of the pairs."""
    more = {figure.what: figure.more for figure in FIGURES[part]}
    speed = pace()
    for what in (what for what in found["before"][0] if what in found["now"][0]):
        before, now = (np.array([lines[what]["ours"] for lines in found[side]], float) for side in ("before", "now"))
        ratios = now / before if more[what] else before / now
        pairs = "1 pair" if len(ratios) == 1 else f"{len(ratios)} pairs"
        scale = f"{pairs}; {speed['gflops']:.0f} GFLOP/s, {speed['copied_gigabytes_a_second']:.1f} GB/s"
        for side, values in (("before", before), ("now", now)):
            rows.spread("figure", {"part": part, "what": what, "side": side}, values.tolist(), scale=scale)
        rows.spread("times_as_good", {"part": part, "what": what}, ratios.tolist(), scale=scale)


def digests(python: Path, folder: Path) -> dict[str, str]:
    """What :mod:`experiments.bench_programs` says of a checkout, which may be older than that program."""
    program = (HERE / "experiments" / "bench_programs.py").read_text()
    return json.loads(subprocess.check_output([str(python), "-c", program], cwd=folder, text=True))


def same_programs(rows: Rows, before: dict[str, str], now: dict[str, str]) -> None:
    """A row for each program: whether it is the same."""
    for what, digest in now.items():
        rows.add("same_program", {"part": PROGRAMS, "what": what}, float(digest == before[what]), scale=digest[:16])


if __name__ == "__main__":
    main()
