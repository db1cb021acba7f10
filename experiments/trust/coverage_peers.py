"""Runs other tools' estimators on the same scores: jax-privacy in this process, the rest in another interpreter."""

import functools
import json
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax_privacy.auditing import CanaryScoreAuditor, Explicit, Split

from dpaudit.auditing.bounds import band, one_run
from experiments.trust import coverage_estimators as estimators
from experiments.trust import coverage_known
from experiments.trust.coverage_estimators import Bounds, Run
from experiments.trust.coverage_known import Known

PART, BROKEN = "peer", "negative control"
CONFIDENCE = 0.95
SCRIPT = Path(__file__).parent / "peers" / "epsilon_bounds.py"
OURS: dict[str, estimators.Estimator] = {
    "dpaudit, Clopper-Pearson, threshold fixed": estimators.fixed,
    "dpaudit, Clopper-Pearson, threshold from a split": estimators.split,
    "dpaudit, equal-level band": estimators.best_of(band.equal_level),
    "dpaudit, joint beta": estimators.joint_beta,
}
OURS_ONE_RUN = {
    "dpaudit, one run, best of 3 plans": estimators.guesses(one_run.epsilon_lower, (0.05, 0.1, 0.25)),
    "dpaudit, f-DP one run, best of 3 plans": estimators.guesses(one_run.epsilon_lower_gaussian, (0.05, 0.1, 0.25)),
}


def jax_privacy(known: Known) -> dict[str, Callable[[CanaryScoreAuditor], float]]:
    """Its bounds for two worlds, both of Eq. (2)'s ratios where it offers them."""
    alpha, delta = 1 - CONFIDENCE, known.delta

    def strategy(**named: Any) -> Callable[[CanaryScoreAuditor], float]:
        return lambda auditor: auditor.epsilon_clopper_pearson(alpha, delta, one_sided=False, **named)

    return {
        "jax-privacy, Clopper-Pearson, Explicit": strategy(threshold_strategy=Explicit(known.threshold)),
        "jax-privacy, Clopper-Pearson, Split": strategy(threshold_strategy=Split(seed=0)),
        "jax-privacy, Clopper-Pearson, Bonferroni": strategy(),
        "jax-privacy, raw counts (an estimate)": lambda auditor: float(auditor.epsilon_raw_counts(delta=delta)),
    }


def gdp(auditor: CanaryScoreAuditor) -> float:
    return auditor.epsilon_from_gdp(1 - CONFIDENCE, estimators.GAUSSIAN_DELTA)


def jax_privacy_one_run() -> dict[str, tuple[int, Callable[[CanaryScoreAuditor], float]]]:
    """Its one-run bounds with its default correction, and what share of the audits they can be asked for."""
    settings = (1 - CONFIDENCE, estimators.GAUSSIAN_DELTA)
    return {
        "jax-privacy, one run, Bonferroni": (1, lambda auditor: auditor.epsilon_one_run(*settings)),
        "jax-privacy, f-DP one run, Bonferroni": (10, lambda auditor: auditor.epsilon_one_run_fdp(*settings)),
    }


def one_by_one(bound: Callable[[CanaryScoreAuditor], float], auditors: list[tuple[np.ndarray, np.ndarray]]) -> Bounds:
    """Returns a peer's bound of each audit: scores of world 0 and of world 1."""
    return Bounds(np.array([bound(CanaryScoreAuditor(inside, outside)) for outside, inside in auditors]))


def compare(table: Any, key: jax.Array, rng: np.random.Generator, python: str | None, *, quick: bool) -> None:
    """Adds one cell for each peer, pair and size, and ours on the same scores beside it."""
    audits, sizes = (30, (1000,)) if quick else (1000, (1000, 10_000))
    null, normal = coverage_known.equal_inputs(), coverage_known.normal(1.0, 0.05)
    for place, known in enumerate((null, coverage_known.coin(4.0), normal)):
        for trials in sizes:
            key_here = jax.random.fold_in(jax.random.fold_in(key, place), trials)
            scores = known.play(key_here, audits, trials // 2)
            pairs = [(own[0], own[1]) for own in np.moveaxis(scores, 1, 0)]
            for name, estimator in OURS.items():
                table.add(
                    PART, name, known, trials, CONFIDENCE, functools.partial(estimator, scores, known, CONFIDENCE)
                )
            for name, bound in jax_privacy(known).items():
                table.add(PART, name, known, trials, CONFIDENCE, functools.partial(one_by_one, bound, pairs))
            if known is null:
                few = functools.partial(one_by_one, gdp, pairs)
                table.add(BROKEN, "jax-privacy, epsilon_from_gdp", known, trials, CONFIDENCE, few)
            if python is not None:
                elsewhere(table, python, scores, known, slow=int(trials == sizes[0] and not quick))
    for known in (null, coverage_known.normal(1.0, 1e-5)):
        run = estimators.one_run_of(rng, known.play(jax.random.fold_in(key, known.epsilon > 0), audits, sizes[0]))
        alike = known._replace(delta=estimators.GAUSSIAN_DELTA)
        for name, estimator in OURS_ONE_RUN.items():
            table.add(PART, name, known, sizes[0], CONFIDENCE, functools.partial(estimator, run, alike, CONFIDENCE))
        for name, (share, bound) in jax_privacy_one_run().items():
            few = functools.partial(one_by_one, bound, worlds(run)[: audits // share])
            table.add(PART, name, known, sizes[0], CONFIDENCE, few)
    table.rows.finish_part("peers")


def worlds(run: Run) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the canaries of each audit that were left out, and those that were included."""
    return [(own[~coins], own[coins]) for own, coins in zip(run.scores, run.included, strict=True)]


def elsewhere(table: Any, python: str, scores: np.ndarray, known: Known, *, slow: int) -> None:
    """The tools of peers/epsilon_bounds.py in their own interpreter, timed there."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "scores.npz"
        numbers = {"threshold": known.threshold, "delta": known.delta, "confidence": CONFIDENCE, "slow": slow}
        np.savez(file, scores=scores, **numbers)
        done = subprocess.run([python, str(SCRIPT), str(file)], capture_output=True, text=True, check=True)
    for name, found in json.loads(done.stdout).items():
        if found["lower"]:
            bounds = functools.partial(Bounds, np.array(found["lower"]))
            table.add(PART, name, known, 2 * scores.shape[-1], CONFIDENCE, bounds, seconds=found["seconds"])
