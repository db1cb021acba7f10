"""Fits a population that lies in a file, with the program of the folder that it is run in, and tells how long it took.

    python experiments/paper004/whole_fit.py FILE.npz     # PYTHONPATH names the folder

Nothing but the names of modules differs between this version and those of 0.2.0 and before. What it prints is one line
of JSON: the seconds of the fit, with arranging, compiling and accounting, how many GiB the process held at most
meanwhile above what it held before, and where the item factors are.
"""

import importlib
import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dpaudit.data.ratings import from_arrays

CHOICE = {
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


def gib(field: str) -> float:
    """Returns what this process holds now, VmRSS, or held at most, VmHWM."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 2**20


def main(file: str) -> None:
    with np.load(file) as saved:
        told = json.loads(str(saved["told"]))
        epsilon, mu, rank = (told.pop(name) for name in ("epsilon", "mu", "rank"))
        train = from_arrays(saved["users"], saved["items"], saved["values"], **told)
    fit = methods()["alternating"].fit
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far, of reading the file
    before, began = gib("VmRSS"), time.perf_counter()
    model, _ = fit(jax.random.key(0), train, CHOICE | {"rank": rank}, epsilon, mu)
    factors = np.asarray(model.factors)
    seconds = time.perf_counter() - began
    told = {"seconds": seconds, "gib": gib("VmHWM") - before, "factors": file + ".npy"}
    np.save(file + ".npy", factors)
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
