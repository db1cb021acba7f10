"""Digests of what is timed: lowered programs, and sources that are not traced.

    cd ../earlier && .venv/bin/python -c "$(cat ../dpaudit/experiments/bench_programs.py)"

Where two checkouts with the same JAX have the same digest, nothing but the machine sets their speed apart.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import jax

from dpaudit.federated import population
from experiments import bench_federated_sides as federated
from experiments import bench_training_sides as training
from experiments.bench_federated import DATA
from experiments.bench_training import BATCH, CLIPPED

CLIENTS = 1_000  # of a round


def texts() -> Iterator[tuple[str, str]]:
    """(what, all that decides how long it takes on a given machine), of the checkout that is the working folder."""
    key = jax.random.key(0)
    for name in ("CNN28", "CNN32"):
        network = training.NETWORKS[name]
        lowered = jax.jit(training.clipped_sums(network)[CLIPPED]).lower(*training.batch(key, network, BATCH))
        yield f"clipped gradient sum of {name}, batch {BATCH}", lowered.as_text()
    network = training.NETWORKS["CNN28"]
    given, everyone = federated.given(0, network, DATA), population.iid(key, DATA)
    for each, noise in ((True, "each client's own noise"), (False, "one draw of noise")):
        run = jax.jit(federated.ours(network, CLIENTS, everyone, each=each))
        lowered = run.lower(key, given, federated.NOISE_MULTIPLIER)
        yield f"a round of {CLIENTS:,} clients, CNN28, {noise}", lowered.as_text()
    sources = [*sorted(Path("dpaudit/secure").rglob("*.py")), Path("dpaudit/_validate.py")]  # and nothing else of ours
    yield "two servers: sources of dpaudit.secure", "".join(f"{file}\n{file.read_text()}" for file in sources)


if __name__ == "__main__":
    print(json.dumps({what: hashlib.sha256(text.encode()).hexdigest() for what, text in texts()}))
