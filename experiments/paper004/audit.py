"""Audits what a whole transcript of private alternating least squares reveals about one user.

    python -m experiments.paper004.audit                     # some minutes, no data needed
    python -m experiments.paper004.audit --quick --out DIR   # under a minute

Two parts. *Sound*: the phases as they ship, each with a user who moves every release as far as one can, scored by the
likelihood ratio of all releases together. *Faults*: rounds with one thing wrong that claim the epsilon of sound ones.

Expect the audited mu of every sound run to meet the accounted one within its standard error, and every fault above its
claim of 1; ratings that are not clipped have a true epsilon of 2.44.
"""

import math

import dp_accounting
import jax
import numpy as np

from dpaudit import Mechanism, audit, distinguish, play
from dpaudit._engine import hosts
from dpaudit.auditing.bounds import gdp
from dpaudit.auditing.result import json_number
from dpaudit.audits.transcript_audit import ABSENT, PRESENT, whole
from dpaudit.audits.user_canary import shift
from experiments.common import Rows, options
from experiments.paper004.faults import CLIP, FAULTS, REACH, SOUND, START, recipe, sound_rounds

DELTA, CONFIDENCE, NORMAL = 1e-5, 0.95, 1.96
ATTACKED = {"none": (sound_rounds(), START), **FAULTS}


def key_of(rows: Rows) -> jax.Array:
    return jax.random.fold_in(jax.random.key(rows.seed), len(rows.rows))


def likelihood_ratios(key: jax.Array, mechanism: Mechanism, trials: int) -> np.ndarray:
    """[2, trials], in nats."""
    score = distinguish.likelihood_ratio.fit(key, mechanism, ABSENT, PRESENT)

    def release(key: jax.Array, world: int) -> jax.Array:
        return mechanism.apply(key, (ABSENT, PRESENT)[world])

    return play(key, release, score, trials, mesh=hosts.mesh("trials"))


def sound(rows: Rows, name: str, epsilon: float, trials: int) -> None:
    """Audited mu beside the accounted one, 1/sigma of the Gaussian mechanism of the same epsilon."""
    accounted = 1 / dp_accounting.get_sigma_gaussian(epsilon, DELTA)
    make, rank, rounds = SOUND[name]
    mechanism = whole(recipe(make, math.sqrt(rounds) / accounted, rounds=rounds, rank=rank), delta=DELTA)
    assert mechanism.claim is not None
    scores = likelihood_ratios(key_of(rows), mechanism, trials)
    mu, error = shift(scores)
    guessed = int((scores[0] > 0).sum()), int((scores[1] <= 0).sum())
    lower, upper = gdp.epsilon_bounds(*guessed, trials, trials, delta=DELTA, confidence=CONFIDENCE)
    setting = {"phase": name, "rounds": rounds, "claimed": mechanism.claim.epsilon, "accounted": accounted}
    setting |= {"delta": DELTA, "confidence": CONFIDENCE, "error": error}
    setting |= {"epsilon_lower": json_number(float(lower)), "epsilon_upper": json_number(float(upper))}
    bounds = mu - NORMAL * error, mu + NORMAL * error
    rows.add("mu", setting, mu, bounds, scale=f"{trials:,} runs with the user, {trials:,} without")
    rows.finish_part(f"{name}, epsilon {epsilon:g}: mu {mu:.4f} +- {error:.4f}, accounted {accounted:.4f}")


def faults(rows: Rows, epsilon: float, trials: int) -> None:
    """Rounds with one thing wrong, and with none, under the same attack; nothing is assumed of the noise."""
    accounted = 1 / dp_accounting.get_sigma_gaussian(epsilon, DELTA)
    true = {"none": accounted, "ratings not clipped": math.sqrt(0.5 + 0.5 * (REACH / CLIP) ** 2) * accounted}
    true |= {"a count on the side": math.sqrt(2) * accounted}
    for name, (make, memory) in ATTACKED.items():
        mechanism = whole(recipe(make, 1 / accounted, rounds=1, memory=memory), delta=DELTA)
        how = {"trials": trials, "confidence": CONFIDENCE, "mesh": hosts.mesh("trials")}
        result = audit(mechanism, ABSENT, PRESENT, key=key_of(rows), **how)
        assert result.claim is not None
        setting = {"fault": name, "claimed": result.claim.epsilon, "delta": DELTA, "confidence": CONFIDENCE}
        setting |= {"true": float(gdp.epsilon_from_mu(true[name], DELTA)) if name in true else None}
        setting |= {"verdict": result.verdict}
        bounds = result.epsilon_lower, result.epsilon_upper
        rows.add("fault", setting, result.epsilon_hat, bounds, scale=f"{trials:,} runs")
        print(f"{name}: epsilon [{bounds[0]:.3f}, {bounds[1]:.3f}], {result.verdict}", flush=True)
    rows.finish_part("faults")


REPRODUCIBLE = {"sound": sound, "faults": faults}


def main() -> None:
    chosen = options(__doc__ or "").parse_args()
    rows = Rows("004", "personalization_audit", chosen.out, chosen.seed)
    if chosen.quick:
        rows.run(sound, "rounds, adaptive weights", 1.0, 20_000)
        rows.run(faults, 1.0, 1_000_000)
        return
    for name in SOUND:
        rows.run(sound, name, 1.0, 500_000)
    rows.run(sound, "rounds, adaptive weights", 5.0, 100_000)
    rows.run(faults, 1.0, 4_000_000)


if __name__ == "__main__":
    main()
