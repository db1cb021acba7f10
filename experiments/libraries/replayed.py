"""Records and replays a published fault of dpmm, and the version without it, by dpaudit and by dp-recorder.

    python -m experiments.libraries.replayed --at DIR

DIR has checkouts of github.com/sassoftware/dpmm at the commits below, each in a folder of that name, and in
``dp-recorder`` one of github.com/ObliviousAI/dp-recorder. Its audit harness names dpmm, mbi and synthcity, but its
annotated copies of them were not to be had, so that the annotation is made here: dp-recorder is given dpmm's noise
with its sensitivity, its random choices, and the number of cells of a marginal as a value that must not depend on
data. dpaudit runs the function as it is, but that dpmm's noise, which is OpenDP's, is drawn by NumPy. A minute.
"""

import contextlib
import io
import json
import re
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from dpaudit import Claim, record
from experiments.common import Rows, as_command, options
from experiments.libraries.run import printed

ISSUE = "https://github.com/sassoftware/dpmm/issues/18"
COMMITS = {"c7589e3": False, "b784592": True}  # and whether the fault is mended
EPSILON, DELTA = 1.0, 1e-5
DOMAIN = {"a": 4, "b": 3, "c": 2}
DRAWS = np.random.default_rng(0)
X0 = np.vstack([DRAWS.integers(0, [3, 3, 2], (40, 3)), [[2, 2, 1]]])
X1 = np.vstack([X0, [[3, 0, 0]]])  # a category that nobody else has


def noisy_marginals(rows: np.ndarray, mended: bool, prng: Any = np.random) -> dict[str, np.ndarray]:
    """What PrivBayes measures; the version before the fix reads its domain off the data, unless it is given."""
    import pandas as pd  # pyright: ignore[reportMissingImports]
    from dpmm.models.priv_bayes import PrivBayes  # pyright: ignore[reportMissingImports]

    domain = DOMAIN if mended else None
    model = PrivBayes(epsilon=EPSILON, delta=DELTA, prng=prng, n_jobs=1, compress=False, domain=domain)
    model.fit(pd.DataFrame(rows, columns=list(DOMAIN)), marginals_only=True)
    return {str(names): np.asarray(values) for _, values, _, names in model.measures}


def by_dpaudit(mended: bool) -> dict[str, Any]:
    from dpmm.models.base.mechanisms import mechanism  # pyright: ignore[reportMissingImports]

    mechanism.gaussian_noise = lambda sigma, size: np.random.normal(0.0, sigma, size)  # noqa: NPY002 - as recorded
    noisy_marginals(X0, mended)  # loads what a first call loads
    start = time.perf_counter()
    claim = Claim(EPSILON, DELTA, "add_remove")
    found = record(lambda rows: noisy_marginals(rows, mended), X0, X1, claim=claim, trials=0)
    seconds = round(time.perf_counter() - start, 3)
    left = [re.sub(r"\S*/src/", "", one) for one in found.left]
    return {"verdict": found.verdict, "findings": sorted(found.kinds), "left": left, "seconds": seconds}


def by_dp_recorder(mended: bool) -> dict[str, Any]:
    from dp_recorder.auditing import audit_primitives as theirs  # pyright: ignore[reportMissingImports]
    from dpmm.models.base.mechanisms import mechanism  # pyright: ignore[reportMissingImports]
    from scipy import sparse

    def gaussian(values: np.ndarray, l2_sensitivity: float, scale: float) -> np.ndarray:
        return values + np.random.normal(0.0, scale, values.shape)  # noqa: NPY002 - as recorded

    def choose(p: np.ndarray, sensitivity: float, a: Any, size: Any, replace: bool) -> Any:
        return np.random.choice(a, size, replace, p)  # noqa: NPY002 - as recorded

    spec = theirs.audit_spec("Gaussian", "values", "l2_sensitivity", lambda one, other: np.linalg.norm(one - other))
    coins = theirs.audit_spec("choice", "p", "sensitivity", lambda one, other: 0.0)  # not judged
    noisy, chosen = spec(gaussian), coins(choose)

    def measure(self: Any, data: Any, proj: Any, wgt: float, flatten: Any = None, public: bool = False) -> Any:
        x = data.project(list(proj)).datavector(flatten=self.compress if flatten is None else flatten)
        theirs.ensure_equality(cells=x.shape)
        scale = self.sigma / wgt
        return sparse.eye(x.size), noisy(values=x, l2_sensitivity=1.0, scale=scale), self.sigma, proj

    class Choices:
        def choice(self, a: Any, size: Any = None, replace: bool = True, p: Any = None) -> Any:
            p = np.full(np.size(a), 1 / np.size(a)) if p is None else p
            return chosen(p=p, sensitivity=1.0, a=a, size=size, replace=replace)

    mechanism.Mechanism._measure = measure
    np.random.seed(0)  # noqa: NPY002 - dp-recorder draws from it
    start, auditor, said = time.perf_counter(), theirs.Auditor(), None
    try:
        with auditor:
            noisy_marginals(X0, mended, Choices())
        auditor.set_replay()
        with auditor:
            noisy_marginals(X1, mended, Choices())
        auditor.validate_records()
    except (AssertionError, RuntimeError) as error:
        said = " ".join(str(error).split())[:120]
    return {"found": said is not None, "said": said, "seconds": round(time.perf_counter() - start, 3)}


def play(folder: Path, commit: str) -> None:
    """Prints what both say of one version, inside a process of its own."""
    warnings.simplefilter("ignore")
    sys.path += [str(folder / commit / "src"), str(folder / "dp-recorder" / "src")]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        ours = by_dpaudit(COMMITS[commit])
        theirs = by_dp_recorder(COMMITS[commit])
    print(json.dumps(ours | {"dp_recorder": theirs}))


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--at", type=Path, required=True, help="the folder of the checkouts")
    parser.add_argument("--play", choices=COMMITS, help="print what both say of one version")
    given = parser.parse_args()
    if given.play:
        return play(given.at, given.play)
    rows = Rows("libraries", "replayed", given.out, given.seed)
    for commit, mended in COMMITS.items():
        (told,) = printed(Path(sys.executable), "replayed", "--at", given.at, "--play", commit)
        setting = {"library": "dpmm", "commit": commit, "mechanism": "PrivBayes", "mended": mended, "issue": ISSUE}
        setting |= {"epsilon": EPSILON, "delta": DELTA} | told
        rows.add("replayed_library", setting, None, scale="one replay", seconds=told["seconds"])
        print(f"{commit}: {told}", flush=True)
    rows.finish_part("a library recorded and replayed")


if __name__ == "__main__":
    as_command(main)
