"""Times whole fits of a population of users on all cores, beside an earlier version of this program.

    git worktree add --detach ../before 92b8dba                # the last commit before the boundary's enforcement
    python -m experiments.paper004.scale --before ../before    # a million users by both in turn, four minutes
    python -m experiments.paper004.scale                       # 100,000, 300,000 and a million users, three minutes
    python -m experiments.paper004.scale --memory              # what a fit of each size takes, once
    python -m experiments.paper004.scale --quick --out DIR     # 2,000 users: under a minute

    git worktree add --detach ../fast ccce386                  # the last in which groups of users could wait for ever
    python -m experiments.paper004.scale --before ../fast      # four minutes; at rank 4 nothing calls LAPACK
    python -m experiments.paper004.scale --before ../fast --rank 16 --users 20000 --limit 40      # so here

A fit is everything from ratings in memory to item factors: arranging them by user, compiling, eleven rounds of
alternating minimisation with the noise of epsilon 5, and accounting. Every fit has a process of its own, so that each
compiles, and is ended after a limit: such fits are counted, not timed. The two versions take turns, once without
noise, where they must find the same factors. Rows of one comparison leave those of the others in place. Memory is what
the process holds at most while it fits, above what it holds before, when the ratings are there.

Expect a million users, with 20 million ratings, 1.7 times as fast as by 92b8dba and as fast as by ccce386, which ends
no fit of 100,000 users at rank 16; and exponents below one, because compiling takes as long for few users.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.common import HERE, Rows, options
from experiments.paper004.methods import delta_for
from experiments.paper004.population import population
from experiments.paper004.run import mu_of

USERS, RANK, EPSILON, ROUNDS = (100_000, 300_000, 1_000_000), 4, 5.0, 3
FEW = 100_000  # users of whom the two versions must find the same factors
LIMIT = 60.0  # seconds of a fit's process; a million users take a third of it
ALIKE = 1e-3  # the most that item factors of the two versions may differ by, of numbers up to about 9
OURS, BEFORE = "ours", "before"


class Fitted(NamedTuple):
    """The seconds of a fit, the GiB of memory that it took, and its item factors."""

    seconds: float
    gib: float
    factors: np.ndarray


def fitted(folder: Path, file: Path, limit: float | None = None) -> Fitted:
    """Returns what one fit by the program in ``folder`` took and found.

    Raises:
      TimeoutExpired: its process was ended after ``limit`` seconds.
    """
    script = Path(__file__).with_name("whole_fit.py")
    environment = os.environ | {"PYTHONPATH": str(folder)}
    command = [sys.executable, "-P", str(script), str(file)]
    done = subprocess.run(
        command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=limit
    )
    found = json.loads(done.stdout.splitlines()[-1])
    return Fitted(found["seconds"], found["gib"], np.load(found["factors"]))


def saved(file: Path, users: int, seed: int, epsilon: float, rank: int = RANK) -> str:
    """Writes a population for :mod:`experiments.paper004.whole_fit`; returns what it is."""
    train, _ = population(seed, users=users)
    told = {"num_users": users, "num_items": train.num_items, "low": train.low, "high": train.high}
    told |= {"epsilon": epsilon, "mu": mu_of(epsilon, delta_for(users)), "rank": rank}
    np.savez(file, users=train.users, items=train.items, values=train.values, told=json.dumps(told))
    return f"{users:,} users, {len(train.values):,} ratings"


def sizes(rows: Rows, several: tuple[int, ...], rounds: int) -> None:
    """Times fits of several sizes, and how their seconds grow with users."""
    found = {users: [] for users in several}
    with tempfile.TemporaryDirectory() as work:
        scales = {users: saved(Path(work) / f"{users}.npz", users, rows.seed, EPSILON) for users in several}
        for _ in range(rounds):
            for users, values in found.items():
                values.append(fitted(HERE.parent, Path(work) / f"{users}.npz").seconds)
    for users, values in found.items():
        rows.spread("fit seconds", {"users": users}, values, scale=scales[users])
    middle = [float(np.median(values)) for values in found.values()]
    steps = np.diff(np.log(middle)) / np.diff(np.log(several))
    whole = math.log(middle[-1] / middle[0]) / math.log(several[-1] / several[0])
    setting = {"users": list(several), "seconds": middle}
    rows.add("fit exponent", setting, whole, (min(steps), max(steps)), scale=f"{rounds} fits of each size")
    rows.finish_part(f"{several} users: {middle} s, exponent {whole:.3f}, {steps}")


def memory(rows: Rows, several: tuple[int, ...]) -> None:
    """Measures the memory of one fit of each size, and how it grows with users."""
    found = []
    for users in several:
        with tempfile.TemporaryDirectory() as work:
            file = Path(work) / "population.npz"
            scale = saved(file, users, rows.seed, EPSILON)
            found.append(fitted(HERE.parent, file).gib)
        rows.add("fit GiB", {"users": users}, found[-1], scale=scale)
    steps = np.diff(np.log(found)) / np.diff(np.log(several))
    whole = math.log(found[-1] / found[0]) / math.log(several[-1] / several[0])
    setting = {"users": list(several), "gib": found}
    rows.add("memory exponent", setting, whole, (min(steps), max(steps)), scale="one fit of each size")
    rows.finish_part(f"{several} users: {found} GiB, exponent {whole:.3f}")


def beside(rows: Rows, before: Path, users: int, few: int, rounds: int, rank: int, limit: float) -> None:
    """Times fits by this version and by the one in ``before``, in turn."""
    folders = {BEFORE: before, OURS: HERE.parent}
    found: dict[str, list[float | None]] = {side: [] for side in folders}
    with tempfile.TemporaryDirectory() as work:
        file = Path(work) / "population.npz"
        apart = difference(file, rows.seed, few, rank, folders, limit)
        assert apart is None or apart < ALIKE, f"the versions find other factors: {apart}"
        scale = saved(file, users, rows.seed, EPSILON, rank)
        for _ in range(rounds):
            for side, folder in folders.items():
                found[side].append(in_time(folder, file, limit))
            print({side: several[-1] for side, several in found.items()}, flush=True)
    setting = comparison(before, users, rank)
    for side, several in found.items():
        whole = [one for one in several if one is not None]
        told = setting | {"side": side, "fits": rounds, "ended": rounds - len(whole), "limit": limit}
        spread(rows, "fit seconds in turn", told, whole, scale)
    pairs = zip(found[BEFORE], found[OURS], strict=True)
    ratios = [one / other for one, other in pairs if one is not None and other is not None]
    spread(rows, "fit ratio", setting | {"apart": apart, "apart_of": few, "turns": len(ratios)}, ratios, scale)
    rows.finish_part(f"beside {setting['before']}")


def in_time(folder: Path, file: Path, limit: float) -> float | None:
    """Returns the seconds of one fit; None where it was ended."""
    try:
        return fitted(folder, file, limit).seconds
    except subprocess.TimeoutExpired:
        return None


def spread(rows: Rows, quantity: str, setting: dict[str, Any], values: list[float], scale: str) -> None:
    """Adds the median and the range of what was measured; a row without a number where every fit was ended."""
    if values:
        rows.spread(quantity, setting, values, scale=scale)
    else:
        rows.add(quantity, setting, None, scale=scale)


def comparison(before: Path, users: int, rank: int) -> dict[str, Any]:
    """Returns what distinguishes one comparison's rows from those of others."""
    command = ["git", "-C", str(before), "rev-parse", "--short=7", "HEAD"]
    commit = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    return {"before": commit, "users": users, "rank": rank}


def difference(file: Path, seed: int, users: int, rank: int, folders: dict[str, Path], limit: float) -> float | None:
    """Returns how far the item factors of fits without noise are apart; None where one of them was ended."""
    saved(file, users, seed, math.inf, rank)
    try:
        first, second = (fitted(folder, file, limit).factors for folder in folders.values())
    except subprocess.TimeoutExpired:
        return None
    return float(np.abs(first - second).max())


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument(
        "--before", default=None, type=Path, help="the folder of an earlier version: times both in turn"
    )
    parser.add_argument("--users", default=max(USERS), type=int, help="so many beside the earlier version")
    parser.add_argument("--rank", default=RANK, type=int, help="of the fits beside the earlier version")
    parser.add_argument("--limit", default=LIMIT, type=float, help="seconds after which such a fit is ended")
    parser.add_argument("--memory", action="store_true", help="how much a fit takes, in place of how long")
    chosen = parser.parse_args()
    if chosen.before is None:
        rows = Rows("004", "personalization_scale", chosen.out, chosen.seed, keep=True)
        several, rounds = ((1_000, 2_000), 1) if chosen.quick else (USERS, ROUNDS)
        memory(rows, several) if chosen.memory else sizes(rows, several, rounds)
        return
    users, few, rounds = (2_000, 1_000, 1) if chosen.quick else (chosen.users, min(FEW, chosen.users), ROUNDS)
    own = comparison(chosen.before, users, chosen.rank)
    keep = lambda row: {name: row["setting"].get(name) for name in own} != own  # noqa: E731
    rows = Rows("004", "personalization_scale", chosen.out, chosen.seed, keep=keep)
    beside(rows, chosen.before, users, few, rounds, chosen.rank, chosen.limit)


if __name__ == "__main__":
    main()
