"""Runs the mutants: puts each fault into a copy of the tree, runs its tests there, and says which faults survive.

    python -m tests.mutants                       # all that the log has no valid result of
    python -m tests.mutants --room secure --show  # what the log says, without running
    python -m tests.mutants --control             # the same tests in the same way without any fault: all have to pass

A result is one line of the log. It is taken up again for as long as the fault, its module and its test files are what
they were, so that a run that was ended goes on. The exit status is 1 where a mutant without an argument survives.
"""

import argparse
import compileall
import json
import os
import py_compile
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from tests.mutants import forked
from tests.mutants.faults import MUTANTS, room
from tests.mutants.mutant import ROOT, Mutant

LOG = Path(__file__).with_name("log.jsonl")
LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", ".cache", "__pycache__", "*_cache")
SECONDS = 600  # a run that takes longer has failed: faults that loop are found by that


def copied(copy: Path) -> None:
    """Copies the tree and compiles its modules, to be looked at again where a module's text is another."""
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "jax"))
    shutil.copytree(ROOT, copy, symlinks=True, ignore=LEFT_OUT)
    for folder in ("dpaudit", "kernels", "tests"):
        compileall.compile_dir(copy / folder, quiet=1, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)


def outcome(mutant: Mutant, copy: Path) -> str:
    """Says "killed" where a test of the mutant fails, "timeout" where they do not end, "survived" where all pass.

    Raises:
      RuntimeError: no test was run, or pytest itself failed.
    """
    module = copy / mutant.file
    sound = module.read_text()
    module.write_text(mutant.applied(copy))
    try:
        status = forked.run(mutant.tests, copy, SECONDS)
    finally:
        module.write_text(sound)
    if status is None:
        return "timeout"
    if status > 2:  # 2: the fault ends the collection
        raise RuntimeError(f"{mutant.name}: pytest ended with status {status}")
    return "killed" if status else "survived"


def results(log: Path) -> dict[str, dict]:
    """The last result of each fingerprint."""
    lines = log.read_text().splitlines() if log.exists() else []
    return {row["fingerprint"]: row for row in map(json.loads, lines)}


def in_rounds(mutants: list[Mutant]) -> list[Mutant]:
    """One mutant of every module, then a second of each, and so on: a run that is ended has seen all modules."""
    seen: Counter[str] = Counter()
    rounds = []
    for mutant in mutants:
        rounds.append(seen[mutant.file])
        seen[mutant.file] += 1
    return [mutants[i] for i in sorted(range(len(mutants)), key=rounds.__getitem__)]


def control(chosen: list[Mutant], minutes: float) -> int:
    """Runs every list of tests in a copy without a fault, and says which fail."""
    lists, begun, failed = list(dict.fromkeys(mutant.tests for mutant in chosen)), time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder) / "tree"
        copied(copy)
        forked.load()
        for number, tests in enumerate(lists, 1):
            if time.monotonic() - begun > 60 * minutes:
                print(f"{len(lists) - number + 1} lists of tests were not run")
                break
            status = forked.run(tests, copy, SECONDS)
            failed += status != 0
            print(f"{number}/{len(lists)} {'passed' if status == 0 else 'FAILED'} {' '.join(tests)}", flush=True)
    return int(failed > 0)


def main() -> int:
    """Runs what is asked for and prints a line for each mutant, then the counts and the survivors."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--room", help="a folder of dpaudit: its mutants alone")
    parser.add_argument("--log", type=Path, default=LOG)
    parser.add_argument("--show", action="store_true", help="what the log says, without running anything")
    parser.add_argument("--control", action="store_true", help="every list of tests once, without a fault")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="no mutant is begun after so many")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # which ends the tests under way, too
    chosen = in_rounds([mutant for mutant in MUTANTS if options.room in (None, room(mutant))])
    if options.control:
        return control(chosen, options.minutes)
    found, begun, known = Counter(), time.monotonic(), results(options.log)
    survivors = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder) / "tree"
        for number, mutant in enumerate(chosen, 1):
            row = known.get(mutant.fingerprint())
            late = time.monotonic() - begun > 60 * options.minutes
            if row is None and (options.show or late):
                found["not run"] += 1
                continue
            if row is None:
                if not copy.exists():
                    copied(copy)
                    forked.load()
                start = time.monotonic()
                row = {
                    "mutant": mutant.name,
                    "fingerprint": mutant.fingerprint(copy),
                    "outcome": outcome(mutant, copy),
                    "seconds": round(time.monotonic() - start, 1),
                    "when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
                }
                with options.log.open("a") as log:
                    log.write(json.dumps(row) + "\n")
                print(f"{number}/{len(chosen)} {row['outcome']:8} {mutant.name} {row['seconds']} s", flush=True)
            lived = row["outcome"] == "survived"
            found[row["outcome"] + (", argued" if lived and mutant.argument else "")] += 1
            if lived:
                survivors.append(mutant)
    print(", ".join(f"{count} {what}" for what, count in sorted(found.items())), f"of {len(chosen)} mutants")
    for mutant in survivors:
        print(f"\nsurvived: {mutant.name}\n- {mutant.old}\n+ {mutant.new}\n{mutant.argument}")
    return int(any(not mutant.argument for mutant in survivors))


if __name__ == "__main__":
    sys.exit(main())
