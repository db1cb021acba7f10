"""Audits the auditor: how often each estimator's lower bound exceeds a known truth, and how close it comes.

    python -m experiments.trust.coverage --peers-python PATH  # of the peers; a quarter of an hour
    python -m experiments.trust.coverage --quick --out DIR    # under a minute

A complete audit is played with the mechanism as shipped, its likelihood ratio is the score, and an estimator turns
the scores into a lower bound. Expect: no estimator whose guarantee applies exceeds its nominal error, by one-sided
binomial tests with Holm's correction over the whole table at 5%; the same tests reject each negative control (in
18 of 24 cells: not all of them are wrong on every pair and number of trials).
"""

import functools
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from scipy.stats import binom

from dpaudit import _validate
from dpaudit._engine import game
from dpaudit.auditing.bounds import band, credible, one_run
from dpaudit.auditing.bounds.estimate import clopper_pearson, epsilon_from_rates
from dpaudit.mechanisms.sampling import bernoulli
from experiments.common import Rows, options
from experiments.trust import coverage_estimators as estimators
from experiments.trust import coverage_known, coverage_peers
from experiments.trust.coverage_estimators import Bounds
from experiments.trust.coverage_known import Known

SIZES = (100, 1000, 10_000)  # trials of an audit, half of them in each world; canaries of a one-run audit
CONFIDENCES = {100: (0.95,), 1000: (0.95, 0.99, 0.999), 10_000: (0.95,)}
LEVEL = 0.05  # of Holm's test

KNOWN = (
    coverage_known.equal_inputs(),
    coverage_known.coin(1.0),
    coverage_known.coin(4.0),
    coverage_known.double_exponential(1.0),
    coverage_known.normal(1.0, 0.05),
    coverage_known.sphere(2.0, 180),
    coverage_known.sphere(2.0, 90),
)
SMALL_DELTA = coverage_known.normal(1.0, 1e-5)

PROMISED = "promised"  # the estimator's guarantee applies: the cells of Holm's table
OTHER_TRUTHS = "not promised: credible, fixed truth"
NO_GAUSSIAN = "not promised: trade-off not Gaussian"
CONTROL = "negative control"

FREQUENTIST: dict[str, estimators.Estimator] = {
    "Clopper-Pearson, threshold fixed": estimators.fixed,
    "Clopper-Pearson, threshold from a split": estimators.split,
    "equal-level band, best threshold": estimators.best_of(band.equal_level),
    "DKW band, best threshold": estimators.best_of(band.dkw),
    "betting, looked at after every pair": estimators.at_any_time,
}
CREDIBLE = {"Jeffreys": estimators.jeffreys, "joint beta": estimators.joint_beta}
FROM_THE_PRIOR = {
    "Jeffreys, rates from its prior": credible.jeffreys_epsilon,
    "joint beta, rates from its prior": credible.joint_beta,
}
GDP = "Gaussian DP, threshold fixed"
ONE_RUN = {
    "one run, 20% guessed": estimators.guesses(one_run.epsilon_lower, (0.1,)),
    "one run, best of 3 plans": estimators.guesses(one_run.epsilon_lower, (0.05, 0.1, 0.25)),
}
ONE_RUN_GAUSSIAN = {"f-DP one run, 20% guessed": estimators.guesses(one_run.epsilon_lower_gaussian, (0.1,))}
CONTROLS: dict[str, tuple[estimators.Estimator, tuple[int, ...], tuple[int, ...]]] = {  # with their pairs and sizes
    "Clopper-Pearson, best of all thresholds": (estimators.naive_maximum, (0, 4), SIZES),
    "Clopper-Pearson, best of all times": (estimators.peeking, (2, 5), SIZES[:2]),
    "Eq. (2) at the observed rates": (estimators.point_estimate, (1, 3, 4, 6), SIZES),
}


class Table:
    """Cells of the study as rows; the tests come last, for their correction is over all of them."""

    def __init__(self, rows: Rows):
        self.rows = rows

    @property
    def cells(self) -> list[dict[str, Any]]:
        """Those that tests are made of."""
        return [row for row in self.rows.rows if "p" in row]

    def add(
        self,
        part: str,
        estimator: str,
        known: Known,
        trials: int,
        confidence: float,
        bounds: Callable[[], Bounds],
        *,
        truth: np.ndarray | None = None,
        seconds: float | None = None,
    ) -> None:
        """One cell: the bounds of many audits against the truth (of the mechanism, and of the rule that was used)."""
        began = time.perf_counter()
        lower, threshold, above = bounds()
        took = time.perf_counter() - began if seconds is None else seconds
        if missing := int(np.isnan(lower).sum()):  # NaN exceeds nothing, and would pass for a bound that holds
            raise _validate.expected("bounds", "a number from every audit", f"{missing} NaN of {estimator}")
        audits, of_mechanism = len(lower), np.full(len(lower), known.epsilon) if truth is None else truth
        of_rule = of_mechanism
        if threshold is not None and truth is None:
            fpr, fnr = (np.where(above, rate, 1 - rate) for rate in known.rates(threshold))
            of_rule = np.minimum(of_mechanism, epsilon_from_rates(fpr, fnr, known.delta))
        wrong, wrong_of_mechanism = int(np.sum(lower > of_rule)), int(np.sum(lower > of_mechanism))
        setting = {"part": part, "estimator": estimator, "pair": known.name, "trials": trials}
        setting |= {"confidence": confidence}
        scale = f"{audits:,} audits"
        interval = [float(end) for end in clopper_pearson(wrong, audits, alpha=0.025)]
        cell = self.rows.add("false_violation_rate", setting, wrong / audits, interval, scale=scale)
        cell |= {"false": wrong, "p": float(binom.sf(wrong - 1, audits, 1 - confidence))}
        if confidence == 0.95:
            cell["milliseconds_per_audit"] = 1e3 * took / audits
        if wrong_of_mechanism != wrong:
            self.rows.add("mechanism_false_violation_rate", setting, wrong_of_mechanism / audits, scale=scale)
        if truth is None and known.epsilon > 0:
            shares = np.quantile(lower / known.epsilon, (0.5, 0.05, 0.95), method="higher")  # some are infinite
            middle, low, high = map(float, shares)
            self.rows.add("tightness", setting, middle, (low, high), scale=scale)

    def finish(self) -> None:
        """Holm's adjusted p-values of the promised cells; those of any other as if it were one more of them."""
        promised = [cell for cell in self.cells if cell["setting"]["part"] == PROMISED]
        for cell in self.cells:
            cell["holm_p"] = min(1.0, (len(promised) + 1) * cell["p"])
        for cell, adjusted in zip(promised, holm([cell["p"] for cell in promised]), strict=True):
            cell["holm_p"] = adjusted


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values, in the order given: the smallest times n, the next times n - 1, ..., not falling, at most 1.
    Source: Holm 1979.
    """
    order = np.argsort(p_values, kind="stable")
    stepped = np.array(p_values)[order] * np.arange(len(order), 0, -1)
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(np.maximum.accumulate(stepped), 1.0)
    return adjusted.tolist()


def two_worlds(rows: Rows, place: int, trials: int, audits: int) -> None:
    """Every estimator of two rates on one known pair, for one number of trials."""
    known = (*KNOWN, SMALL_DELTA)[place]
    key = jax.random.fold_in(jax.random.fold_in(_keys(rows)[1], place), trials)
    scores = known.play(key, audits, trials // 2)
    add = functools.partial(_cell, Table(rows), scores, known)
    if known is not SMALL_DELTA:
        for name, estimator in FREQUENTIST.items():
            for confidence in CONFIDENCES[trials]:
                add(PROMISED, name, estimator, confidence)
        for name, estimator in CREDIBLE.items():
            add(OTHER_TRUTHS, name, estimator)
        for name, (estimator, places, where) in CONTROLS.items():
            if place in places and trials in where:
                add(CONTROL, name, estimator)
    add(PROMISED if has_gaussian_curve(known) else NO_GAUSSIAN, GDP, estimators.gaussian)
    rows.finish_part(f"{known.name}, {trials:,} trials")


def _keys(rows: Rows) -> jax.Array:
    """Of the parts of the study."""
    return jax.random.split(jax.random.key(rows.seed), 5)


def _cell(
    table: Table,
    scores: np.ndarray,
    known: Known,
    part: str,
    name: str,
    estimator: estimators.Estimator,
    confidence: float = 0.95,
) -> None:
    bounds = functools.partial(estimator, scores, known, confidence)
    table.add(part, name, known, 2 * scores.shape[-1], confidence, bounds)


def has_gaussian_curve(known: Known) -> bool:
    """Gaussian noise, or nothing to tell apart (mu = 0)."""
    return known.delta > 0 or known.epsilon == 0


def from_the_prior(
    table: Table, key: jax.Array, rng: np.random.Generator, audits: int, sizes: tuple[int, ...]
) -> None:
    """What credible bounds do promise: the stated error over rates drawn from their prior."""
    for trials in sizes:
        rates = rng.beta(credible.PRIOR, credible.PRIOR, (2, audits))
        one = Partial(functools.partial(_errors, half=trials // 2), game.trial_key(key), jnp.asarray(rates))
        counts = game.sweep(one, audits * (trials // 2)).reshape(audits, -1, 2).sum(axis=1).T
        truth = epsilon_from_rates(*rates)
        drawn = KNOWN[0]._replace(name="error rates drawn from the prior")
        settings = {"negatives": trials // 2, "positives": trials // 2, "delta": 0.0, "confidence": 0.95}
        for name, credible_bounds in FROM_THE_PRIOR.items():
            began = time.perf_counter()
            lower, _ = credible_bounds(*counts, **settings)
            took = time.perf_counter() - began
            shown = lower > 0  # given such counts, the error of the joint posterior is 5% exactly
            found = functools.partial(Bounds, lower[shown])
            seconds = took * float(shown.mean())
            table.add(PROMISED, name, drawn, trials, 0.95, found, truth=truth[shown], seconds=seconds)
    table.rows.finish_part("rates from the prior")


def _errors(key: jax.Array, rates: jax.Array, trial: jax.Array, *, half: int) -> jax.Array:
    """One trial of each world of audit trial // half: whether the guess was wrong, [2]."""
    return bernoulli(jax.random.fold_in(key, trial), rates[:, trial // half], (2,))


def one_run_audits(
    table: Table, key: jax.Array, rng: np.random.Generator, audits: int, sizes: tuple[int, ...]
) -> None:
    """Many canaries in one run: each in a coordinate of its own of one release, in or out by a fair coin."""
    for place, known in enumerate((KNOWN[0], KNOWN[1], KNOWN[3], KNOWN[5], SMALL_DELTA)):
        for canaries in sizes:
            key_here = jax.random.fold_in(jax.random.fold_in(key, place), canaries)
            runs = audits if canaries < SIZES[-1] else audits // 3
            run = estimators.one_run_of(rng, known.play(key_here, runs, canaries))
            for name, estimator in (ONE_RUN | ONE_RUN_GAUSSIAN).items():
                part = NO_GAUSSIAN if name in ONE_RUN_GAUSSIAN and not has_gaussian_curve(known) else PROMISED
                for confidence in CONFIDENCES[canaries]:
                    table.add(
                        part, name, known, canaries, confidence, functools.partial(estimator, run, known, confidence)
                    )
    table.rows.finish_part("one run")


def at_scale(table: Table, key: jax.Array, audits: int) -> None:
    """10,000 audits of 10,000 trials each, thresholds chosen and all: the figure that the study is to reach."""
    known, name, trials = KNOWN[4], "Clopper-Pearson, threshold from a split", SIZES[-1]
    began = time.perf_counter()
    scores = known.play(key, audits, trials // 2)
    played = time.perf_counter() - began
    bounds = estimators.split(scores, known, 0.95)
    took = time.perf_counter() - began
    setting = {"pair": known.name, "estimator": name, "trials": trials}
    table.rows.add("study_seconds", setting, took, (played, None), scale=f"{audits:,} audits, complete")
    table.add(PROMISED, name, known._replace(name=f"{known.name} (at scale)"), trials, 0.95, lambda: bounds)
    table.rows.finish_part("at scale")


REPRODUCIBLE = {"two_worlds": two_worlds}


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--peers-python", default=None, help="an interpreter that has the tools of peers/")
    chosen = parser.parse_args()
    quick = chosen.quick
    sizes, audits = (SIZES[1:2], 200) if quick else (SIZES, 3000)
    table = Table(Rows("", "coverage", chosen.out, chosen.seed))
    keys = _keys(table.rows)
    rng = np.random.default_rng(chosen.seed)
    for place, trials in itertools.product(range(len(KNOWN) + 1), sizes):
        table.rows.run(two_worlds, place, trials, audits)
    from_the_prior(table, keys[2], rng, audits, sizes)
    one_run_audits(table, keys[3], rng, audits, sizes)
    at_scale(table, keys[0], 100 if quick else 10_000)
    coverage_peers.compare(table, keys[4], rng, chosen.peers_python, quick=quick)
    table.finish()
    table.rows.finish_part("tests")


if __name__ == "__main__":
    main()
