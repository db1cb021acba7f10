"""Measures how close the bound of the plain call comes to a known truth, on the unluckiest of many keys.

    python -m experiments.trust.worst_key --before TREE     # TREE: a checkout of the commit to compare with; an hour
    python -m experiments.trust.worst_key --quick --out DIR # under a minute

Six mechanisms whose privacy loss is known exactly are audited by the plain call, :func:`dpaudit.audit` with a claim
and nothing else, once for each of 200 keys. A row holds the mean and the 5% quantile of ``epsilon_lower`` over these
keys, for the present code and for the other checkout, which runs this very file. Expect the bound above the truth in
at most 5% of the audits, and no mean or quantile more than 2% below that of the other checkout.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import binom

import dpaudit
from dpaudit import Claim

if TYPE_CHECKING:
    from experiments.common import Rows

SIZES = (2_000, 10_000, 50_000, 200_000)
KEYS, QUICK_KEYS, QUICK_SIZES = 200, 10, (2_000,)
CONFIDENCE = 0.95


class Known(NamedTuple):
    """A mechanism, the pair on which it loses most, and the claim that states its loss exactly."""

    mechanism: Callable[..., jax.Array]
    x0: Any
    x1: Any
    claim: Claim


def laplace(key: jax.Array, x: jax.Array) -> jax.Array:
    """Releases x in [0, 1] with Laplace noise of scale 1."""
    return x + jax.random.laplace(key, jnp.shape(x))


def gaussian(key: jax.Array, x: jax.Array) -> jax.Array:
    """Releases x in [0, 1] with standard normal noise."""
    return x + jax.random.normal(key, jnp.shape(x))


def randomized_response(key: jax.Array, x: jax.Array) -> jax.Array:
    """Tells a bit, flipped with probability 1 / (1 + e)."""
    return jnp.where(jax.random.bernoulli(key, 1 / (1 + math.e)), 1 - x, x)


def discrete_laplace(key: jax.Array, x: jax.Array) -> jax.Array:
    """Releases an integer with the difference of two geometric variables, P(Z = z) proportional to exp(-|z|)."""
    first, second = jnp.floor(jax.random.exponential(key, (2,)))
    return x + (first - second).astype(jnp.int32)


def name_and_shame(key: jax.Array, x: jax.Array) -> jax.Array:
    """Releases x with Laplace noise, and with probability 0.01 without any."""
    noise, coin = jax.random.split(key)
    return jnp.where(jax.random.bernoulli(coin, 0.01), x, laplace(noise, x))


def normal_epsilon(mu: float, delta: float) -> float:
    """Returns the epsilon at delta of normal noise whose standard deviation is 1/mu of the sensitivity."""
    return dp_accounting.get_epsilon_gaussian(1 / mu, delta)


def known() -> dict[str, Known]:
    """Every mechanism of the table by its name."""
    opposite = jnp.zeros(10).at[0].set(1.0)
    ldp = dpaudit.mechanisms.ldp_sgd.mechanism(epsilon=1.0, clip_norm=1.0)
    return {
        "Laplace": Known(laplace, 0.0, 1.0, Claim(1.0)),
        "Gaussian": Known(gaussian, 0.0, 1.0, Claim(normal_epsilon(1.0, 0.05), 0.05)),
        "randomised response": Known(randomized_response, 0, 1, Claim(1.0)),
        "discrete Laplace": Known(discrete_laplace, 0, 1, Claim(1.0)),
        "LDP-SGD": Known(ldp.apply, opposite, -opposite, Claim(1.0)),
        "name and shame": Known(name_and_shame, 0.0, 1.0, Claim(1.0, 0.01)),
    }


def measured(name: str, trials: int, keys: int, seed: int) -> dict[str, Any]:
    """Audits one mechanism under ``keys`` keys; returns the lower bounds, nats, in the order of the keys."""
    mechanism, x0, x1, claim = known()[name]
    began = time.perf_counter()
    found = [
        dpaudit.audit(mechanism, x0, x1, key=key, claim=claim, trials=trials, confidence=CONFIDENCE).epsilon_lower
        for key in jax.random.split(jax.random.fold_in(jax.random.key(seed), trials), keys)
    ]
    return {"lower": found, "truth": claim.epsilon, "delta": claim.delta, "seconds": time.perf_counter() - began}


def elsewhere(tree: Path, arguments: list[str]) -> dict[str, Any]:
    """What :func:`measured` finds with the package of another checkout."""
    environment = os.environ | {"PYTHONPATH": str(tree)}
    command = [sys.executable, __file__, "--measure", *arguments]
    done = subprocess.run(command, env=environment, cwd=tree, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def judged(found: dict[str, Any]) -> dict[str, Any]:
    """The 5% quantile of the bounds, how many lie above the truth, and how likely so many are at the nominal error."""
    lower = np.asarray(found["lower"])
    if missing := int(np.isnan(lower).sum()):  # NaN is above nothing, and would pass for a bound that holds
        raise dpaudit._validate.expected("lower", "a number from every audit", f"{missing} NaN")
    above = int(np.sum(lower > found["truth"]))
    return {
        "quantile5": float(np.quantile(lower, 0.05)),
        "above": above,
        "p": float(binom.sf(above - 1, lower.size, 1 - CONFIDENCE)),
        "truth": found["truth"],
        "delta": found["delta"],
    }


def told(rows: "Rows", name: str, trials: int, code: str, found: dict[str, Any]) -> None:
    """Adds the row of one cell: the mean bound with its own 95% range, and what :func:`judged` says."""
    lower, keys = found["lower"], len(found["lower"])
    mean, spread = float(np.mean(lower)), 1.96 * float(np.std(lower, ddof=1)) / math.sqrt(keys)
    setting = {"mechanism": name, "trials": trials, "code": code, "confidence": CONFIDENCE}
    scale = f"one audit for each of {keys} keys"
    row = rows.add(
        "epsilon_lower", setting, mean, (mean - spread, mean + spread), scale=scale, seconds=found["seconds"]
    )
    row |= judged(found)
    print(f"{name}, {trials} trials, {code}: mean {mean:.3f}, 5% quantile {row['quantile5']:.3f}", flush=True)


def cell(rows: "Rows", name: str, trials: int, keys: int) -> None:
    """Makes the row of a mechanism at a number of trials with the present code."""
    told(rows, name, trials, "now", measured(name, trials, keys, rows.seed))


def main() -> None:
    """Runs the table, or with ``--measure`` one cell of it, which is printed as JSON."""
    if "--measure" in sys.argv:
        name, trials, keys, seed = sys.argv[sys.argv.index("--measure") + 1 :][:4]
        print(json.dumps(measured(name, int(trials), int(keys), int(seed))))
        return
    from experiments.common import Rows, options

    parser: argparse.ArgumentParser = options(__doc__ or "")
    parser.add_argument("--before", type=Path, default=None, metavar="TREE", help="a checkout to compare with")
    given = parser.parse_args()
    rows = Rows("", "worst_key", given.out, given.seed)
    keys, sizes = (QUICK_KEYS, QUICK_SIZES) if given.quick else (KEYS, SIZES)
    for trials in sizes:
        for name in known():
            rows.run(cell, name, trials, keys)
            if given.before is not None:
                arguments = [name, str(trials), str(keys), str(given.seed)]
                told(rows, name, trials, "before", elsewhere(given.before, arguments))
        rows.finish_part(str(trials))


REPRODUCIBLE = {"cell": cell}


if __name__ == "__main__":
    main()
