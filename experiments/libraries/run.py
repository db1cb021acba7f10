"""Audits what libraries of differential privacy promise: newest versions, known faults, and what mended them.

    make libraries                        # all of them; ONLY="opendp opacus": these alone
    python -m experiments.libraries.run --only opendp --out DIR --quick

Each library lives in an environment of its own, made on first use from ``requirements/``, and each of its promises is
audited there by the plain call. Rows are written after every library.

Expect a violation for each promise with an issue, and no other.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments import fingerprint
from experiments.common import Rows, as_command, options
from experiments.libraries import environments, first

QUICK_TRIALS = 2_000


def audit_library(rows: Rows, name: str, trials: int | None = None, containing: str = "") -> None:
    """A row for each promise of a library whose name contains this, all printed by a process of its environment."""
    rows.rows += [
        row
        for row in rows.earlier
        if row["quantity"] == f"promise_{name}" and containing not in row["setting"]["promise"]
    ]
    try:
        python = environments.make(name)
    except RuntimeError as error:
        print(f"{name}: left out: {error}")
        return
    if name in first.blocks():
        (told,) = printed(python, "first", name)
        rows.add(f"first_{name}", {"environment": name, **told}, told["lines"], scale="the page's own")
    words = ["--seed", rows.seed, "--only", containing, *([] if trials is None else ["--trials", trials])]
    for found in printed(python, "play", name, *words):
        add(rows, found)
    rows.finish_part(name)


def printed(python: Path, program: str, *words: object) -> Iterator[dict[str, Any]]:
    """The lines of JSON that a program of this folder prints in an environment, as they come."""
    command = [str(word) for word in (python, "-m", f"experiments.libraries.{program}", *words)]
    own = os.environ | {"PYTHONPATH": str(environments.ROOT)}
    with subprocess.Popen(command, cwd=environments.ROOT, stdout=subprocess.PIPE, text=True, env=own) as process:
        assert process.stdout is not None
        for text in process.stdout:
            if text.startswith("{"):  # libraries print too
                yield json.loads(text)
    if process.returncode:
        raise SystemExit(f"{words[0]}: {program} ended with status {process.returncode}")


def add(rows: Rows, found: dict[str, Any]) -> None:
    """The row of an audited promise."""
    setting = {name: value for name, value in found.items() if name not in ("seconds", "estimate", "lower", "upper")}
    rows.add(
        f"promise_{found['environment']}", setting, found.get("estimate"), (found.get("lower"), found.get("upper")),
        scale=f"{found['trials']:,} trials", seconds=found["seconds"],
    )  # fmt: skip
    lower = found.get("lower")
    told = "" if lower is None else f"epsilon >= {lower:.3g} "
    print(f"{found['library']} {found['version']}, {found['promise']}: {found['verdict']} {told}", flush=True)


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--only", nargs="+", choices=environments.names(), default=environments.names())
    parser.add_argument("--promise", default="", help="promises whose name contains this; the others' rows stay")
    given = parser.parse_args()
    rows = Rows("libraries", "libraries", given.out, given.seed, keep=True)
    for name in given.only:
        made_of = [fingerprint.of_module(f"libraries.{module}") for module in ("play", f"promises.{name}")]
        rows.made_by["program"] = fingerprint.of(made_of)
        rows.run(audit_library, name, QUICK_TRIALS if given.quick else None, given.promise)


if __name__ == "__main__":
    as_command(main)
