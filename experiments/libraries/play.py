"""Audits the promises of one library by the plain call, inside the environment that the library is installed in.

    python -m experiments.libraries.play opendp       # prints a line of JSON for each promise

It is started by ``experiments.libraries.run``. No attack is named and no feature of a release is made by hand.
"""

import argparse
import importlib
import json
import time
import zlib
from importlib.metadata import version
from typing import Any

import jax

from dpaudit import AuditResult, InputError, audit, on_host
from dpaudit.auditing.result import json_number
from experiments.libraries import environments
from experiments.libraries.promise import Promise

CONFIDENCE = 0.999
WITHHELD = "to be reported to its authors first"


def play(promise: Promise, seed: int) -> AuditResult:
    """Audits a promise; its key depends on the seed and on the promise's name alone."""
    key = jax.random.fold_in(jax.random.key(seed), zlib.crc32(promise.name.encode()))
    assert promise.release is not None
    return audit(
        on_host(promise.release), promise.x0, promise.x1,
        key=key, trials=promise.trials, claim=promise.claim, confidence=CONFIDENCE, attacks=promise.attacks,
    )  # fmt: skip


def line(environment: str, library: str, promise: Promise, seed: int) -> dict[str, Any]:
    """What the table says of a promise."""
    began = time.perf_counter()
    about: dict[str, Any] = {
        "environment": environment,
        "library": library,
        "version": version(library),
        "promise": promise.name,
    }
    about |= {name: json_number(getattr(promise.claim, name)) for name in ("epsilon", "delta", "neighbouring")}
    about |= {"asked": [attack.name for attack in promise.attacks], "issue": promise.issue}
    about |= {"confidence": CONFIDENCE, "attack": None, "trials": 0}
    if promise.release is None:
        return about | {"verdict": WITHHELD, "seconds": 0.0}
    try:
        result = play(promise, seed)
    except InputError as refusal:
        return about | {"verdict": f"refused: {refusal}", "seconds": time.perf_counter() - began}
    chosen = result.attacks[0].name if result.attacks else None
    bounds = {"estimate": result.epsilon_hat, "lower": result.epsilon_lower, "upper": result.epsilon_upper}
    about |= {"verdict": result.verdict, "attack": chosen, "trials": promise.trials}
    about |= {"low_bits": json_number(result.low_bits)}
    return about | bounds | {"seconds": time.perf_counter() - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environment", help="a module of experiments.libraries.promises")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="promises whose name contains this")
    parser.add_argument("--trials", type=int, help="instead of each promise's own")
    given = parser.parse_args()
    environments.check(given.environment)
    module = importlib.import_module(f"experiments.libraries.promises.{given.environment}")
    for promise in module.promises():
        if given.only in promise.name:
            promise = promise if given.trials is None else promise._replace(trials=given.trials)
            print(json.dumps(line(given.environment, module.LIBRARY, promise, given.seed)), flush=True)


if __name__ == "__main__":
    main()
