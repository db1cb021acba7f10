"""Computes other tools' bounds on given scores for coverage, as JSON. Each tool that is not installed is left out.

python experiments/peers/epsilon_bounds.py SCORES.npz

The file holds ``scores`` [2, audits, n], and the numbers ``threshold``, ``delta``, ``confidence`` and ``slow``: how
many audits the slow estimators see. Needs `pip install privacy-estimates`, and for TensorFlow Privacy, whose bounds
need no TensorFlow, `pip install 'scikit-learn<1.7' immutabledict` and
`pip install --no-deps tensorflow-empirical-privacy`.
"""

import json
import sys
import time
import warnings
from collections.abc import Callable

import numpy as np


def privacy_estimates(threshold: float, delta: float, alpha: float) -> dict[str, Callable]:
    from privacy_estimates import AttackResults, compute_eps_lo

    def of_method(method: str) -> Callable:
        def bound(world0: np.ndarray, world1: np.ndarray) -> float:
            fp, tp = int(np.sum(world0 > threshold)), int(np.sum(world1 > threshold))
            table = AttackResults(FP=fp, TN=len(world0) - fp, TP=tp, FN=len(world1) - tp)
            return compute_eps_lo(table, delta, alpha, method)

        return bound

    names = {"Clopper-Pearson": "beta", "Jeffreys": "jeffreys", "joint beta (slow)": "joint-beta"}
    return {f"privacy-estimates, {name}": of_method(method) for name, method in names.items()}


def tensorflow_privacy(threshold: float, delta: float, alpha: float) -> dict[str, Callable]:
    from tensorflow_privacy.privacy.privacy_tests.epsilon_lower_bound import BoundMethod, EpsilonLowerBound

    if delta > 0:  # it knows none
        return {}

    def of_method(method: BoundMethod, thresholds: np.ndarray | None) -> Callable:
        def bound(world0: np.ndarray, world1: np.ndarray) -> float:
            found = EpsilonLowerBound(world1, world0, alpha, thresholds=thresholds)
            return max(0.0, *found.compute_epsilon_lower_bound(method, k=1))

        return bound

    fixed = np.array([threshold], np.float32)
    return {
        "TensorFlow Privacy, Clopper-Pearson, fixed threshold": of_method(BoundMethod.CLOPPER_PEARSON, fixed),
        "TensorFlow Privacy, Clopper-Pearson, best of all": of_method(BoundMethod.CLOPPER_PEARSON, None),
        "TensorFlow Privacy, Katz log, best of all": of_method(BoundMethod.KATZ_LOG, None),
    }


def main() -> None:
    given = np.load(sys.argv[1])
    settings = (float(given["threshold"]), float(given["delta"]), 1 - float(given["confidence"]))
    warnings.simplefilter("ignore")
    found = {}
    for tool in (privacy_estimates, tensorflow_privacy):
        try:
            bounds = tool(*settings)
        except ImportError:
            continue
        for name, bound in bounds.items():
            audits = int(given["slow"]) if "slow" in name else given["scores"].shape[1]
            began = time.perf_counter()
            lower = [float(bound(*given["scores"][:, audit])) for audit in range(audits)]
            found[name] = {"lower": lower, "seconds": time.perf_counter() - began}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
