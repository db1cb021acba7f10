"""Fits a population that lies in a file, with the program of the folder that it is run in, and tells how long it took.

    python experiments/paper004/whole_fit.py FILE.npz     # PYTHONPATH names the folder

Nothing but the names of modules differs between this version and those of 0.2.0 and before. What it prints is one line
of JSON: the seconds of the fit, with arranging, compiling and accounting, and where the item factors are.
"""

import importlib
import importlib.util
import json
import sys
import time
from typing import Any

import jax
import numpy as np

from dpaudit.data.ratings import from_arrays

CHOICE = {
    "rank": 4,
    "rounds": 10,
    "bias_share": 0.1,
    "factor_norm": 2.0,
    "factor_variance": 1.0,
    "factor_precision": 2.0,
    "first": 0.6,
    "power": 0.0,
    "popularity_share": 0.0,
    "rating_clip": 3.0,
}


def methods() -> Any:
    """Returns the methods of this version of the program."""
    for name in ("experiments.paper004.methods", "experiments.personalization_methods"):
        if importlib.util.find_spec(name.rpartition(".")[0]) and importlib.util.find_spec(name):
            return importlib.import_module(name).METHODS
    raise ModuleNotFoundError("a folder of this repository")


def main(file: str) -> None:
    with np.load(file) as saved:
        told = json.loads(str(saved["told"]))
        epsilon, mu = told.pop("epsilon"), told.pop("mu")
        train = from_arrays(saved["users"], saved["items"], saved["values"], **told)
    fit = methods()["alternating"].fit
    began = time.perf_counter()
    model, _ = fit(jax.random.key(0), train, CHOICE, epsilon, mu)
    factors = np.asarray(model.factors)
    seconds = time.perf_counter() - began
    np.save(file + ".npy", factors)
    print(json.dumps({"seconds": seconds, "factors": file + ".npy"}))


if __name__ == "__main__":
    main(sys.argv[1])
