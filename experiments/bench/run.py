"""Runs every benchmark beside its peers, one at a time, and writes the table of results with the machine.

    python -m experiments.bench.run --torch-python PATH     # an interpreter that has torch and opacus; 75 minutes
    python -m experiments.bench.run --only training secure  # these parts; the lines of the others stay, with dates
    python -m experiments.bench.run --only gpu              # on a machine with an accelerator; 3 minutes
    python -m experiments.bench.run --quick --out DIR       # small sizes; minutes

Each part is a program of its own, whose rows are written where it writes them by itself. The figures of the table are
taken from those rows (``table``) into results/bench_MACHINE.json, with how fast the machine was when the part
began: a shared one can be three times as slow as on another day. Half of the time is that of the part ``wide``, which
comes last.
"""

import datetime
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpaudit._engine import sharding
from dpaudit.report.rows import prepare_out, read_rows, write_rows
from experiments.bench.table import FIGURES, taken
from experiments.common import options, program, results

OURS = ("dpaudit", "jax", "jaxlib", "flax", "numpy", "jax-privacy")
PEERS = ("torch", "opacus")
ASK = """
import json, importlib.metadata
print(json.dumps({found.name: found.version for found in importlib.metadata.distributions() if found.name in %r}))
"""


class Part(NamedTuple):
    """One program and what it can be told."""

    program: str
    torch: bool = False
    rounds: bool = False
    extra: tuple[str, ...] = ()


GPU, WIDE = "gpu", "wide"
PARTS = {
    "ldp": Part("bench_ldp", torch=True),
    "training": Part("bench_training", torch=True, rounds=True),
    "federated": Part("bench_federated", torch=True, rounds=True),
    "secure": Part("bench_secure"),
    "mc_dropout": Part("bench_mc_dropout", torch=True, rounds=True),
    "personalization": Part("bench_personalization", rounds=True),
    "audit": Part("bench_audit"),
    "scaling": Part("bench_scaling", rounds=True),
    WIDE: Part("bench_ldp", extra=("--wide",)),
    GPU: Part("bench_gpu", torch=True, rounds=True),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=None, help="default: all but gpu; quick: and wide")
    parser.add_argument("--torch-python", default=None, help="an interpreter that has torch and opacus")
    parser.add_argument("--rounds", type=int, default=None, help="how often a side is timed, where a program asks")
    parser.add_argument("--any-device", action="store_true", help="with --quick: the part gpu on a CPU")
    chosen = parser.parse_args(arguments)
    if chosen.quick and chosen.out is None:
        parser.error("--quick: expected --out DIR beside it, so that the committed rows stay, got none")
    out = None if chosen.out is None else prepare_out(chosen.out, force=True)
    known = versions(chosen.torch_python)
    for name in chosen.only or [name for name in PARTS if name not in (GPU, *[WIDE] * chosen.quick)]:
        began = {"date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC", "load": os.getloadavg()[0]}
        began |= pace()
        rows = run(name, chosen, out)
        machine = describe(rows[0]["device"])
        file = (out or results("bench").parent) / f"bench_{slug(machine)}.json"
        earlier = [row for row in read_rows(file) if row["part"] != name] if file.exists() else []
        lines = [
            row | {"part": name, "machine": machine, "versions": known} | began for row in taken(FIGURES[name], rows)
        ]
        order = list(PARTS)
        write_rows(sorted(earlier + lines, key=lambda row: order.index(row["part"])), file)
        print(f"{name}: {len(lines)} figures in {file.name}", flush=True)


def run(name: str, chosen: Any, out: Path | None) -> list[dict[str, Any]]:
    """Returns the rows of one part's program, run in a process of its own; where it fails, this process ends as it
    did."""
    part = PARTS[name]
    command = [sys.executable, "-m", f"experiments.{program(part.program)}", "--seed", str(chosen.seed), *part.extra]
    flags: dict[str, Any] = {"--torch-python": part.torch and chosen.torch_python}
    flags |= {"--rounds": part.rounds and chosen.rounds, "--out": out and out / part.program}
    command += [word for flag, value in flags.items() if value for word in (flag, str(value))]
    command += ["--quick"] * chosen.quick + ["--any-device"] * (name == GPU and chosen.any_device)
    environment = os.environ if name == GPU else os.environ | {"JAX_PLATFORMS": "cpu"}
    status = subprocess.run(command, env=environment, check=False).returncode
    if status:
        raise SystemExit(status)
    return read_rows((out / part.program / "results.json") if out else results(part.program))


def pace() -> dict[str, float]:
    """Measures NumPy's speed here at this moment: float32 matrix products, and copies of memory; medians of nine."""
    square, long = np.ones((1024, 1024), np.float32), np.ones(1 << 25, np.float32)
    return {
        "gflops": 2 * 1024**3 / 1e9 / _seconds(lambda: square @ square),
        "copied_gigabytes_a_second": long.nbytes / 1e9 / _seconds(long.copy),
    }


def _seconds(work: Callable[[], Any]) -> float:
    times = []
    for _ in range(10):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return float(np.median(times[1:]))


def describe(device: str) -> dict[str, Any]:
    """Returns the machine: its processor, the cores that this process may use, its memory, and an accelerator if one
    ran."""
    info = Path("/proc/cpuinfo")
    models = re.findall(r"^model name\s*: (.*)$", info.read_text(), re.MULTILINE) if info.exists() else []
    machine = {"processor": models[0] if models else platform.processor() or platform.machine()}
    machine |= {"cores": sharding.cores(), "accelerator": None if device == "cpu" else device}
    return machine | {"memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)}


def slug(machine: dict[str, Any]) -> str:
    """Part of a file's name: the processor, or the accelerator beside it, and the cores."""
    words = f"{machine['accelerator'] or machine['processor']} {machine['cores']} cores"
    return "-".join(re.findall(r"[a-z0-9]+", re.sub(r"\((r|tm)\)", "", words.lower())))


def versions(torch_python: str | None) -> dict[str, str]:
    """Returns the versions of Python, of the packages that ran here, and of those that ran in the other
    interpreter."""
    known = {"python": platform.python_version()} | {name: metadata.version(name) for name in OURS}
    if torch_python is not None:
        told = subprocess.run([torch_python, "-c", ASK % (PEERS,)], capture_output=True, text=True, check=True)
        known |= json.loads(told.stdout)
    return known


if __name__ == "__main__":
    main()
