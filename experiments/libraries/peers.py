"""Plays other auditors on the mechanisms of the table, known faults and their twins, with dpaudit on as many trials.

    python -m experiments.libraries.peers --path DIR:DIR     # folders that hold them, put last on each library's path
    python -m experiments.libraries.peers --play NAME        # inside an environment: prints a line of JSON for each

Each is called as its documentation does. dpaudit takes the function. dp-recorder takes it as one untrusted primitive,
which it samples. The others want numbers of releases: a dictionary's size, the projection of any other release on the
difference of both worlds' means, found on the first quarter of the trials. jax-privacy, privacy-estimates (threshold
with most right guesses on that quarter) and opake-auditing (one run, coins in place of worlds) judge these scores,
and dp_auditorium's Hockey-Stick tester, its example's, their hyperbolic tangent. A fault counts as found where the
bound is above the claim at 99.9%, or the tester rejects it. Half an hour.
"""

import contextlib
import importlib
import io
import json
import sys
import time
from importlib.metadata import version
from typing import Any

import numpy as np

from dpaudit import Claim
from experiments.common import Rows, as_command, options
from experiments.libraries import environments
from experiments.libraries.play import CONFIDENCE, play
from experiments.libraries.promise import Promise
from experiments.libraries.run import printed

ALPHA = 1 - CONFIDENCE
DELTA = 1e-5  # at which dp-recorder's own tests ask it: at 0 it always says 25
MECHANISMS = {  # by environment: names of promises, and trials
    "diffprivlib": (("LinearRegression", "Laplace", "Geometric", "count_nonzero"), 10_000),
    "opendp": (("laplace threshold", "laplace, int"), 30_000),
    "pure_ldp_1_1_2": (("unary encoding, OUE",), 40_000),
    "pure_ldp": (("unary encoding, OUE",), 40_000),
    "opacus": (("a step on all of 2 or 3 records",), 4_000),
}
Found = tuple[bool, float | None]  # whether the claim is refuted, and a bound on epsilon where one is given


def numbers(release: Any) -> np.ndarray:
    """The numbers of a release that a user would look at."""
    return np.atleast_1d(np.asarray(len(release) if isinstance(release, dict) else release, float)).ravel()


def drawn(promise: Promise) -> np.ndarray:
    """Scores of releases, [2, n]."""
    rng, n = np.random.default_rng(0), promise.trials // 2
    assert promise.release is not None
    worlds = np.stack([[numbers(promise.release(rng, x)) for _ in range(n)] for x in (promise.x0, promise.x1)])
    first = worlds[:, : n // 4].mean(1)
    return worlds @ (first[1] - first[0])


def by_dpaudit(promise: Promise, scores: np.ndarray) -> Found:
    found = play(promise._replace(attacks=()), 0)
    return found.verdict == "violation", found.epsilon_lower


def by_jax_privacy(promise: Promise, scores: np.ndarray) -> Found:
    from jax_privacy.auditing import CanaryScoreAuditor

    return above(
        CanaryScoreAuditor(scores[1], scores[0]).epsilon_clopper_pearson(ALPHA, promise.claim.delta), promise.claim
    )


def by_privacy_estimates(promise: Promise, scores: np.ndarray) -> Found:
    from privacy_estimates import AttackResults, compute_eps_lo  # pyright: ignore[reportMissingImports]

    quarter, rest = np.split(scores, [scores.shape[1] // 4], axis=1)
    at = max(np.unique(quarter), key=lambda t: np.sum(quarter[1] > t) + np.sum(quarter[0] <= t))
    fp, tp = (int(np.sum(world > at)) for world in rest)
    counts = AttackResults(FP=fp, TN=rest.shape[1] - fp, TP=tp, FN=rest.shape[1] - tp)
    return above(compute_eps_lo(counts, promise.claim.delta, ALPHA, "joint-beta"), promise.claim)


def by_opake(promise: Promise, scores: np.ndarray) -> Found:
    from opake import auditing  # pyright: ignore[reportMissingImports]
    from opake.random import key  # pyright: ignore[reportMissingImports]

    coins = auditing.coin_flip(range(scores.shape[1]), num_canaries=scores.shape[1], key=key(0))
    world = np.isin(coins.canary_indices, coins.in_indices).astype(int)
    told = auditing.canary_scores(scores[world, coins.canary_indices], canary_indices=coins.canary_indices)
    estimate = auditing.one_run(told, coin_flip=coins).eps_delta()
    return above(estimate.epsilon_at(delta=promise.claim.delta, significance=ALPHA), promise.claim)


def by_dp_auditorium(promise: Promise, scores: np.ndarray) -> Found:
    import tensorflow as tf  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
    from dp_auditorium.configs import privacy_property, property_tester_config  # pyright: ignore[reportMissingImports]
    from dp_auditorium.testers import hockey_stick_tester  # pyright: ignore[reportMissingImports]

    tf.random.set_seed(0)
    one, other = np.tanh(scores)[..., None]
    kept = privacy_property.ApproximateDp(epsilon=promise.claim.epsilon, delta=promise.claim.delta)
    training = hockey_stick_tester.make_default_hs_training_config()
    config = property_tester_config.HockeyStickPropertyTesterConfig(training_config=training, approximate_dp=kept)
    base = hockey_stick_tester.make_default_hs_base_model()
    tester = hockey_stick_tester.HockeyStickPropertyTester(config=config, base_model=base)
    bounds = [tester.estimate_lower_bound(*pair, ALPHA) for pair in ((one, other), (other, one))]
    return bool(tester.reject_property(max(bounds))), None


def by_dp_recorder(promise: Promise, scores: np.ndarray) -> Found:
    from dp_recorder.auditing import audit_primitives as theirs  # pyright: ignore[reportMissingImports]

    rng = np.random.default_rng(0)
    spec = theirs.audit_spec("release", input_arg="x", sensitivity_arg="sensitivity", metric_fn=lambda *_: 0.0)
    release = spec(lambda x, sensitivity: numbers(promise.release(rng, x)))  # pyright: ignore[reportOptionalCall]
    auditor = theirs.Auditor()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        with auditor:
            release(x=promise.x0, sensitivity=1.0)
        auditor.set_replay()
        with auditor:
            release(x=promise.x1, sensitivity=1.0)
        auditor.validate_records()
        auditor.run_distributional_audit(n_samples=promise.trials, alpha=ALPHA)
        auditor.compute_overall_pld()
        delta = max(promise.claim.delta, DELTA)  # a claim without delta is one with it
        return above(float(auditor.get_overall_current_guarantee(delta)), promise.claim)


def above(bound: float, claim: Claim) -> Found:
    return bool(bound > claim.epsilon), float(bound)


TOOLS = {  # and whether they judge scores
    "dpaudit": (by_dpaudit, False),
    "dp-recorder": (by_dp_recorder, False),
    "jax-privacy": (by_jax_privacy, True),
    "privacy-estimates": (by_privacy_estimates, True),
    "opake-auditing": (by_opake, True),
    "dp_auditorium": (by_dp_auditorium, True),
}


def lines(environment: str) -> None:
    """Prints what each tool says of each mechanism of an environment."""
    environments.check(environment)
    module = importlib.import_module(f"experiments.libraries.promises.{environment}")
    names, trials = MECHANISMS[environment]
    for promise in module.promises():
        if promise.name not in names:
            continue
        promise, began = promise._replace(trials=trials), time.perf_counter()
        scores = drawn(promise)
        drawing = time.perf_counter() - began
        for tool, (judge, of_scores) in TOOLS.items():
            found, bound, error, began = None, None, None, time.perf_counter()
            try:
                found, bound = judge(promise, scores)
            except Exception as raised:
                error = " ".join(f"{type(raised).__name__}: {raised}".split())[:120]
            seconds = time.perf_counter() - began + drawing * of_scores
            of = {"library": module.LIBRARY, "version": version(module.LIBRARY), "promise": promise.name}
            of |= {
                "epsilon": promise.claim.epsilon,
                "delta": promise.claim.delta,
                "issue": promise.issue,
                "tool": tool,
            }
            of |= {"found": found, "error": error, "trials": trials // (1 + (tool == "opake-auditing"))}
            print(json.dumps(of | {"bound": bound, "seconds": seconds}), flush=True)


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--path", default="", help="folders that hold the other auditors, put last on the path")
    parser.add_argument("--play", choices=MECHANISMS, help="inside an environment: print the lines of it")
    parser.add_argument("--only", nargs="+", choices=MECHANISMS, default=list(MECHANISMS))
    given = parser.parse_args()
    if given.play:
        sys.path += given.path.split(":")
        return lines(given.play)
    rows = Rows("libraries", "peers", given.out, given.seed, keep=True)
    rows.rows, kept = list(rows.earlier), ("library", "version", "promise", "tool")
    for name in given.only:
        for found in printed(environments.make(name), "peers", "--play", name, "--path", given.path):
            bound, seconds = found.pop("bound"), found.pop("seconds")
            rows.rows = [row for row in rows.rows if any(row["setting"][one] != found[one] for one in kept)]
            rows.add("peer", found, bound, scale=f"{found['trials']:,} trials", seconds=seconds)
            print(f"{found['promise']}, {found['tool']}: {found['found']} {bound} {found['error'] or ''}", flush=True)
        rows.finish_part(name)


if __name__ == "__main__":
    as_command(main)
