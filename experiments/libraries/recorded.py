"""Runs six kinds of faulty mechanism, and each mended, by recording and replaying: by dpaudit and by dp-recorder.

    python -m experiments.libraries.recorded

The kinds are those of dp-recorder's own tests (github.com/ObliviousAI/dp-recorder): a private number of rows used as
public, categories read off the data, a budget spent twice, NaN that passes a clip, a scale that falls to 0, and a clip
that is dropped. It is called as its README says: each function that adds noise is annotated by hand with its
sensitivity, values that must not depend on data are declared, and where both runs agree the noise is sampled. dpaudit
runs the plain function. Without dp-recorder on the path its columns are empty. About ten seconds.
"""

import contextlib
import importlib.util
import io
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dpaudit import Claim, record
from experiments.common import Rows, as_command, options

EPSILON, DELTA = 1.0, 1e-5
SAMPLES = 10_000


class Tools(NamedTuple):
    """What a mechanism draws with.

    Attributes:
      laplace: ``laplace(values, l1_sensitivity, epsilon)`` adds noise to an array.
      same: ``same(name=value)`` declares a value that must not depend on the data.
    """

    laplace: Callable[..., Any]
    same: Callable[..., Any]


def plain_laplace(values: np.ndarray, l1_sensitivity: float, epsilon: float) -> np.ndarray:
    return values + np.random.laplace(0.0, l1_sensitivity / epsilon, size=values.shape)  # noqa: NPY002 - as recorded


PLAIN = Tools(plain_laplace, lambda **_: None)


def mean_by_rows(tools: Tools, rows: np.ndarray, public: bool) -> Any:
    count = 3 if public else len(rows)
    total = tools.laplace(np.array([np.clip(rows, -1, 1).sum()]), 1.0, EPSILON)
    tools.same(count=count)
    return total[0] / count


def count_by_category(tools: Tools, rows: np.ndarray, public: bool) -> Any:
    categories = np.arange(3) if public else np.unique(rows)
    tools.same(categories=len(categories))
    return {int(one): tools.laplace(np.array([np.sum(rows == one)], float), 1.0, EPSILON)[0] for one in categories}


def two_queries(tools: Tools, rows: np.ndarray, shared: bool) -> Any:
    epsilon = EPSILON / 2 if shared else EPSILON
    total = tools.laplace(np.array([np.clip(rows, 0, 1).sum()]), 1.0, epsilon)
    return total[0], tools.laplace(np.array([float(len(rows))]), 1.0, epsilon)[0]


def sum_with_nan(tools: Tools, rows: np.ndarray, cleaned: bool) -> Any:
    rows = np.nan_to_num(rows) if cleaned else rows
    return tools.laplace(np.array([np.clip(rows, -5, 5).sum()]), 5.0, EPSILON)[0]


def scale_of_parents(tools: Tools, rows: np.ndarray, counted: bool) -> Any:
    features, parents = 5, 5
    sensitivity = 1.0 if counted else float(features - parents)
    return tools.laplace(np.array([rows.sum()]), sensitivity, EPSILON)[0]


def sum_unclipped(tools: Tools, rows: np.ndarray, clipped: bool) -> Any:
    kept = np.clip(rows, -2.5, 2.5)
    return tools.laplace(np.array([(kept if clipped else rows).sum()]), 5.0, EPSILON)[0]


CASES: dict[str, tuple[Any, Any, Any]] = {
    "private number of rows": (mean_by_rows, np.full(3, 0.5), np.full(2, 0.5)),
    "categories read off the data": (count_by_category, np.array([0, 1, 2, 0]), np.array([0, 1, 0])),
    "budget spent twice": (two_queries, np.zeros(100), np.append(np.zeros(100), 1.0)),
    "NaN passes the clip": (sum_with_nan, np.array([1.0, 2.0]), np.array([1.0, np.nan])),
    "scale of 0": (scale_of_parents, np.ones(2), np.ones(1)),
    "clip dropped": (sum_unclipped, np.array([1.0, -2.0, 1.5]), np.array([1.0, -2.0, 100.0])),
}


def by_dpaudit(mechanism: Callable[..., Any], x0: Any, x1: Any, mended: bool) -> dict[str, Any]:
    """Plays one case by :func:`dpaudit.record`, without trials."""
    start = time.perf_counter()
    claim = Claim(EPSILON, DELTA, neighbouring="add_remove")
    found = record(lambda rows: mechanism(PLAIN, rows, mended), x0, x1, claim=claim, trials=0)
    return {
        "verdict": found.verdict,
        "findings": sorted(found.kinds),
        "where": [finding.where.rpartition("/")[2] for finding in found.findings],
        "seconds": round(time.perf_counter() - start, 3),
    }


def by_dp_recorder(mechanism: Callable[..., Any], x0: Any, x1: Any, mended: bool) -> dict[str, Any]:
    """Plays one case by dp-recorder: record, replay, validate, and where nothing was found sample the noise."""
    from dp_recorder.auditing import audit_primitives as theirs  # pyright: ignore[reportMissingImports]

    def distance(one: Any, other: Any) -> float:
        return float(np.nan_to_num(np.abs(one - other).sum(), nan=np.inf))

    spec = theirs.audit_spec("Laplace", input_arg="values", sensitivity_arg="l1_sensitivity", metric_fn=distance)
    tools = Tools(spec(plain_laplace), theirs.ensure_equality)
    np.random.seed(0)  # noqa: NPY002 - dp-recorder draws from it
    start, auditor = time.perf_counter(), theirs.Auditor()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            with auditor:
                mechanism(tools, x0, mended)
            auditor.set_replay()
            with auditor:
                mechanism(tools, x1, mended)
            auditor.validate_records()
            stage = "samples"
            auditor.run_distributional_audit(n_samples=SAMPLES)
            auditor.compute_overall_pld()
            epsilon = float(auditor.get_overall_current_guarantee(DELTA))
            found = epsilon > EPSILON
        except (AssertionError, RuntimeError):
            stage, found, epsilon = "replay", True, None
    seconds = round(time.perf_counter() - start, 3)
    return {"found": found, "stage": stage, "epsilon": epsilon, "seconds": seconds}


RIVAL = ("found", "stage", "epsilon", "seconds")


def replayed(rows: Rows) -> None:
    """Plays all cases, faulty and mended."""
    there = importlib.util.find_spec("dp_recorder") is not None
    record(lambda one: one + np.random.laplace(), 0.0, 1.0, trials=0)  # noqa: NPY002 - loads what a first call loads
    for kind, case in CASES.items():
        for mended in (False, True):
            ours = by_dpaudit(*case, mended=mended)
            theirs = by_dp_recorder(*case, mended=mended) if there else dict.fromkeys(RIVAL)
            setting = {"kind": kind, "mended": mended, "epsilon": EPSILON, "delta": DELTA}
            setting |= {name: ours[name] for name in ("verdict", "findings", "where")} | {"dp_recorder": theirs}
            found, seconds = float(ours["verdict"] == "violation"), ours["seconds"]
            rows.add("replayed_fault", setting, found, scale="one replay", seconds=seconds)
            print(f"{kind}{', mended' * mended}: {ours['verdict']} in {seconds} s; dp-recorder: {theirs['found']}")
    rows.finish_part("recorded and replayed")


def main() -> None:
    chosen = options(__doc__ or "").parse_args()
    rows = Rows("libraries", "recorded", chosen.out, chosen.seed)
    rows.run(replayed)


if __name__ == "__main__":
    as_command(main)
