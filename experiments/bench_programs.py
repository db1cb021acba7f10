"""Digests of what is timed: lowered programs, and sources that are not traced. One digest in two checkouts, one speed.

cd ../earlier && .venv/bin/python -c "$(cat ../dpaudit/experiments/bench_programs.py)"
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import jax

from dpaudit.federated import population
from experiments import bench_federated_sides as federated
from experiments import bench_training_sides as training

CLIENTS, ROWS, BATCH, NOISE_MULTIPLIER = 1_000, 60_000, 256, 1.4042


def texts() -> Iterator[tuple[str, str]]:
    """(what, all that decides how long it takes on a given machine), of the checkout that is the working folder."""
    key = jax.random.key(0)
    for name in ("CNN28", "CNN32"):
        network = training.NETWORKS[name]
        lowered = jax.jit(training.clipped_sums(network)["ours, clipped"]).lower(*training.batch(key, network, BATCH))
        yield f"clipped gradient sum of {name}, batch {BATCH}", lowered.as_text()
    network = training.NETWORKS["CNN28"]
    given, everyone = federated.given(0, network, ROWS), population.iid(key, ROWS)
    for each, noise in ((True, "each client's own noise"), (False, "one draw of noise")):
        lowered = jax.jit(federated.ours(network, CLIENTS, everyone, each=each)).lower(key, given, NOISE_MULTIPLIER)
        yield f"a round of {CLIENTS:,} clients, CNN28, {noise}", lowered.as_text()
    sources = [*sorted(Path("dpaudit/secure").rglob("*.py")), Path("dpaudit/check.py")]  # and nothing else of ours
    yield "two servers: sources of dpaudit.secure", "".join(f"{file}\n{file.read_text()}" for file in sources)


if __name__ == "__main__":
    print(json.dumps({what: hashlib.sha256(text.encode()).hexdigest() for what, text in texts()}))
