"""Mechanisms on the host for worker processes, which import them by name."""

import os
import sys
import time
from pathlib import Path

import numpy as np


def noisy(rng, x):
    return x + rng.laplace()


def noisy_at_once(rng, x, n):
    return x + rng.laplace(size=n)


def some(rng, x):
    """Membership by randomised response, as a set."""
    return {k for k in "abcdefgh" if (rng.random() < 0.731) == (k in x)}


def set_up():
    return {"scale": 0.5, "process": os.getpid()}


def endless_set_up():
    os.write(2, b"process %d is set up\n" % os.getpid())
    time.sleep(1000)


def by_state(rng, x, state):
    assert os.environ["OMP_NUM_THREADS"] == "1"
    assert state["process"] == os.getpid()
    return x + state["scale"] * rng.laplace()


def prints(rng, x):
    print("a line", {"kind": "done"}, flush=True)
    os.write(1, b"bytes\n")
    return x + rng.laplace()


OWN = np.random.default_rng(0)  # in every process that imports this module


def of_one_seed(rng, x):
    return x + OWN.laplace()


def seeded_set_up():
    return {"rng": np.random.default_rng(0)}


def of_seeded_set_up(rng, x, state):
    return x + state["rng"].laplace()


def of_the_system(rng, x):
    return x + np.random.default_rng().laplace()


def dies(rng, x):
    if rng.random() < 0.01:
        os._exit(7)
    return x


def dies_once(rng, x):
    """Of x, a file says whether it has died already."""
    file, number = x
    if rng.random() < 0.01 and not Path(file).exists():
        Path(file).touch()
        os._exit(7)
    return number + rng.laplace()


def hangs(rng, x):
    if rng.random() < 0.01:
        time.sleep(1000)
    return x + rng.laplace()


def raises(rng, x):
    if rng.random() < 0.01:
        raise ValueError("no luck")
    return x


def leaves(rng, x):
    if rng.random() < 0.01:
        sys.exit()
    return x


def drops_a_row(rng, rows):
    del rows[1:]
    return len(rows) + rng.normal()


def no_setup():
    raise RuntimeError("no such table")


def wide(rng, x, n):
    return x + rng.normal(size=(n, 2000))
