"""Times whole fits of a population of users on all cores, beside an earlier version of this program.

    git worktree add --detach ../before 92b8dba                # the last commit before the boundary's enforcement
    python -m experiments.paper004.scale --before ../before    # a million users by both in turn, five minutes
    python -m experiments.paper004.scale                       # 100,000, 300,000 and a million users, four minutes
    python -m experiments.paper004.scale --quick --out DIR     # 2,000 users: under a minute

A fit is everything from ratings in memory to item factors: arranging them by user, compiling, eleven rounds of
alternating minimisation with the noise of epsilon 5, and accounting. Every fit has a process of its own, so that each
compiles. The two versions take turns, once without noise, where they must find the same factors.

Expect a million users, with 20 million ratings, in about half the time of 92b8dba, and an exponent below one, because
compiling takes as long for few users.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from experiments.common import HERE, Rows, options
from experiments.paper004.methods import delta_for
from experiments.paper004.population import population
from experiments.paper004.run import mu_of

USERS, EPSILON, ROUNDS = (100_000, 300_000, 1_000_000), 5.0, 3
ALIKE = 1e-3  # the most that item factors of the two versions may differ by, of numbers up to about 9
OURS, BEFORE = "ours", "before"


def fitted(folder: Path, file: Path) -> tuple[float, np.ndarray]:
    """Returns the seconds of one fit by the program in ``folder``, and its item factors."""
    script = Path(__file__).with_name("whole_fit.py")
    environment = os.environ | {"PYTHONPATH": str(folder)}
    command = [sys.executable, "-P", str(script), str(file)]
    told = subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = json.loads(told.splitlines()[-1])
    return found["seconds"], np.load(found["factors"])


def saved(file: Path, users: int, seed: int, epsilon: float) -> str:
    """Writes a population for :mod:`experiments.paper004.whole_fit`; returns what it is."""
    train, _ = population(seed, users=users)
    told = {"num_users": users, "num_items": train.num_items, "low": train.low, "high": train.high}
    told |= {"epsilon": epsilon, "mu": mu_of(epsilon, delta_for(users))}
    np.savez(file, users=train.users, items=train.items, values=train.values, told=json.dumps(told))
    return f"{users:,} users, {len(train.values):,} ratings"


def sizes(rows: Rows, several: tuple[int, ...], rounds: int) -> None:
    """Times fits of several sizes, and how their seconds grow with users."""
    found = {users: [] for users in several}
    with tempfile.TemporaryDirectory() as work:
        scales = {users: saved(Path(work) / f"{users}.npz", users, rows.seed, EPSILON) for users in several}
        for _ in range(rounds):
            for users, values in found.items():
                values.append(fitted(HERE.parent, Path(work) / f"{users}.npz")[0])
    for users, values in found.items():
        rows.spread("fit seconds", {"users": users}, values, scale=scales[users])
    middle = [float(np.median(values)) for values in found.values()]
    steps = np.diff(np.log(middle)) / np.diff(np.log(several))
    whole = math.log(middle[-1] / middle[0]) / math.log(several[-1] / several[0])
    setting = {"users": list(several), "seconds": middle}
    rows.add("fit exponent", setting, whole, (min(steps), max(steps)), scale=f"{rounds} fits of each size")
    rows.finish_part(f"{several} users: {middle} s, exponent {whole:.3f}, {steps}")


def beside(rows: Rows, users: int, few: int, rounds: int, before: Path) -> None:
    """Times fits by this version and by the one in ``before``, in turn."""
    folders = {BEFORE: before, OURS: HERE.parent}
    found = {side: [] for side in folders}
    with tempfile.TemporaryDirectory() as work:
        file = Path(work) / "population.npz"
        apart = difference(file, rows.seed, few, folders)
        assert apart < ALIKE, f"the versions find other factors: {apart}"
        scale = saved(file, users, rows.seed, EPSILON)
        for _ in range(rounds):
            for side, folder in folders.items():
                found[side].append(fitted(folder, file)[0])
    setting = {"users": users, "apart": apart, "apart_of": few}
    for side, values in found.items():
        rows.spread("fit seconds in turn", {"side": side, "users": users}, values, scale=scale)
    rows.spread("fit ratio", setting, np.divide(found[BEFORE], found[OURS]).tolist(), scale=scale)
    rows.finish_part("beside the version before")


def difference(file: Path, seed: int, users: int, folders: dict[str, Path]) -> float:
    """Returns how far the item factors of fits without noise are apart."""
    saved(file, users, seed, math.inf)
    (first, second) = (fitted(folder, file)[1] for folder in folders.values())
    return float(np.abs(first - second).max())


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument(
        "--before", default=None, type=Path, help="the folder of an earlier version: times both in turn"
    )
    chosen = parser.parse_args()
    rows = Rows("004", "personalization_scale", chosen.out, chosen.seed, keep=True)
    if chosen.before is not None:
        beside(rows, *((2_000, 1_000, 1) if chosen.quick else (max(USERS), min(USERS), ROUNDS)), chosen.before)
    else:
        sizes(rows, *(((1_000, 2_000), 1) if chosen.quick else (USERS, ROUNDS)))


if __name__ == "__main__":
    main()
