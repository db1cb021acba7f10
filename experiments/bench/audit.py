"""Times an audit, and counts what stopping early saves.

    python -m experiments.bench.audit     # a minute

Expect, on two cores: an audit of a 10-dimensional Laplace mechanism on 10^6 trials, compilation included, in under 2
seconds; by the family of attacks a first call takes at most 1.6 times what a single projection takes, and so does a
second one; a joint-beta table in about a millisecond; a violation of twice the claim found by the sequential audit, at
99.9%, in half of the trials that a fixed number needs.
"""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np

from dpaudit import Claim, play
from dpaudit.auditing.bounds import credible, plan, sequential
from dpaudit.mechanisms import randomized_response
from experiments.common import Rows, options, seconds

AUDIT = """
import time, jax, jax.numpy as jnp, dpaudit
x0, x1 = jnp.zeros(10), jnp.zeros(10).at[0].set(1.0)
def noisy(key, x):
    return x + jax.random.laplace(key, x.shape)
mechanisms = {{"user": noisy, "shipped": dpaudit.mechanisms.laplace.mechanism(epsilon=1.0, clip_norm=1.0)}}
attack = {{"family": None, "projection": dpaudit.distinguish.projection}}["{attack}"]
settings = {{"key": jax.random.key(0), "trials": 1_000_000, "claim": dpaudit.Claim(1.0), "distinguisher": attack}}
settings["key"].block_until_ready()
for _ in range(2):
    began = time.perf_counter()
    dpaudit.audit(mechanisms["{which}"], x0, x1, **settings)
    print(time.perf_counter() - began)
"""


def main() -> None:
    arguments = options(__doc__ or "").parse_args()
    rows = Rows("", "bench_audit", arguments.out, arguments.seed)
    rounds = 2 if arguments.quick else 5
    audits(rows, rounds)
    joint_beta(rows, rounds)
    early(rows, jax.random.key(arguments.seed), 100 if arguments.quick else 2_000)


def audits(rows: Rows, rounds: int) -> None:
    """10^6 trials in a fresh process without a compilation cache, and once more in the same process; by the family of
    attacks, which is the default, and by one projection, in turns."""
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    for which in ("user", "shipped"):
        times: dict[str, list[list[float]]] = {"family": [], "projection": []}
        for attack in [*times] * rounds:
            command = [sys.executable, "-c", AUDIT.format(which=which, attack=attack)]
            output = subprocess.run(command, env=environment, check=True, capture_output=True).stdout
            times[attack].append([float(word) for word in output.split()])
        for attack, of_rounds in times.items():
            for name, of_call in zip(("first", "again"), zip(*of_rounds, strict=True), strict=True):
                setting = {"mechanism": f"Laplace, d = 10, {which}", "attack": attack, "call": name}
                rows.spread("audit_seconds", setting, of_call, scale="1,000,000 trials, compilation included")
    rows.finish_part("audits")


def joint_beta(rows: Rows, rounds: int) -> None:
    """Times one table of counts at a time."""
    rng = np.random.default_rng(0)
    times = []
    for false_positives, false_negatives in rng.integers(0, 500, (20 * rounds, 2)):
        wrong = false_positives, false_negatives, 500, 500
        times.append(1e3 * seconds(lambda wrong=wrong: credible.joint_beta(*wrong, delta=1e-5, confidence=0.95)))
    scale = f"{len(times)} tables, n = 1,000"
    rows.spread("joint_beta_milliseconds", {"tables": "one a call"}, times, scale=scale)
    rows.finish_part("joint beta")


def early(rows: Rows, key: jax.Array, audits: int) -> None:
    """Randomised response that spends 2 and claims 1, its bit guessed as it is, at 99.9%; one long game, cut up."""
    apply, most = randomized_response.mechanism(epsilon=2.0).apply, 1_000
    scores = play(key, lambda key, world: apply(key, jnp.int32(world)), lambda bit: bit, audits * most)
    guesses = scores.reshape(2, audits, most) > 0
    start = sequential.start(Claim(1.0), confidence=0.999, until=sequential.violation())
    ends = [sequential.update(start, guesses[0, i], guesses[1, i]) for i in range(audits)]
    trials = [2 * end.pairs if end.violation else np.inf for end in ends]
    low, middle, high = (float(q) for q in np.quantile(trials, (0.05, 0.5, 0.95), method="higher"))
    setting, what = {"claim": 1.0, "truth": 2.0, "confidence": 0.999}, "audits of randomised response"
    rows.add("sequential_trials", setting, middle, (low, high), scale=f"{audits} {what}, median and 90% of them")
    fixed = 2 * plan.needed(2.0, 1.0, delta=0.0, confidence=0.999)
    rows.add("fixed_trials", setting, fixed, scale="computed: power 0.8")
    rows.finish_part("early stopping")


if __name__ == "__main__":
    main()
