"""Times a step of two servers beside that of an earlier commit, in turns, each with the protocol that is its default.

    git worktree add --detach BEFORE d93b4e2
    python -m experiments.bench.secure_before --before BEFORE    # the commit before transfers were offered; minutes

Four processes stand by, two of each commit, and one pair at a time takes steps (:mod:`experiments.bench.secure`).
The earlier commit has circuits alone. Asked of today's default: 1.25 times as fast at d = 182 and 642, 1.4 at 30,000.
"""

import statistics
import subprocess
from pathlib import Path

from experiments.bench.secure import DIMENSIONS, TRANSFERS, WARM, both, slower
from experiments.common import Rows, options

STEPS = 8
NOW = {"default": TRANSFERS, "circuit": "noisy"}  # what is compared with the earlier circuit: modes of today


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--before", type=Path, required=True, help="a tree of files of the earlier commit")
    parser.add_argument("--rounds", type=int, default=6, help="how often each side takes its turn; quick: 2")
    chosen = parser.parse_args()
    rounds = 2 if chosen.quick else chosen.rounds
    commit = ["git", "-C", str(chosen.before), "rev-parse", "--short", "HEAD"]
    against = subprocess.run(commit, capture_output=True, text=True, check=True).stdout.strip()
    rows = Rows("001", "bench_secure_before", chosen.out, chosen.seed)
    with both() as now, both(chosen.before.resolve()) as before:
        for dimension in DIMENSIONS[:2] if chosen.quick else DIMENSIONS:
            took: dict[str, list[float]] = {"before": [], **{name: [] for name in NOW}}
            for _ in range(rounds):
                line = f"{dimension} 1 {STEPS + WARM}"
                took["before"].append(statistics.median(slower(before(f"noisy {line}"))))
                for name, mode in NOW.items():
                    took[name].append(statistics.median(slower(now(f"{mode} {line}"))))
            scale = f"{rounds} turns of {STEPS} steps after {WARM}, the median of each, both servers on one machine"
            for name in NOW:
                setting = {"d": dimension, "step": name, "before": against}
                ratios = [old / new for old, new in zip(took["before"], took[name], strict=True)]
                rows.spread("step_ratio", setting, ratios, scale=scale)
                rows.spread("step_seconds", setting, took[name], scale=scale)
            rows.spread(
                "step_seconds", {"d": dimension, "step": "before", "before": against}, took["before"], scale=scale
            )
    rows.finish_part("steps in turns")


if __name__ == "__main__":
    main()
