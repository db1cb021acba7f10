"""Runs the public DPALS code of google-research in its own environment, for ``experiments.paper004.dpals``.

    python experiments/bench/peers/tf_dpals.py FOLDER    # of google-research, with dp_alternating_minimization in it

A line of JSON names the ratings (a file of NumPy arrays) and the settings; the answer is a line of JSON. ``mended``
subtracts a public number from the ratings instead of a mean that the code releases with too little noise, clips what
is left to ``rating_clip`` in the item step, and adds noise for that size to its right sides; unmended, the code adds
noise for size one.
"""

import contextlib
import io
import json
import math
import os
import sys
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, sys.argv[1])

import dp_accounting
import numpy as np
import pandas as pd
import tensorflow as tf
from dp_alternating_minimization import dpam  # pyright: ignore[reportMissingImports]

CENTRE = 3.5


def frame(found: Any, part: str, number: np.ndarray, less: float) -> pd.DataFrame:
    columns = {"uid": found[f"{part}_users"], "sid": number[found[f"{part}_items"]]}
    return pd.DataFrame({**columns, "rating": found[f"{part}_values"].astype(np.float64) - less})


def fitted(asked: dict[str, Any]) -> dict[str, Any]:
    """Fits once and returns the RMSE of what is held out, with the epsilon that the code accounts and the true one."""
    np.random.seed(asked["seed"])  # noqa: NPY002, the code draws from it
    tf.random.set_seed(asked["seed"])
    found, choice, mended = np.load(asked["ratings"]), asked["choice"], asked["mended"]
    users, items = int(found["shape"][0]), int(found["shape"][1])
    counts = np.bincount(found["train_items"], minlength=items)
    number = np.argsort(np.argsort(counts, kind="stable"))  # a rated item comes last, as its batches need
    less = CENTRE if mended else 0.0
    train, test = (frame(found, part, number, less) for part in ("train", "held_out"))
    steps, budget, stddev = choice["steps"], choice["budget"], choice["count_stddev"]
    sanitizer = dpam.Sanitizer(
        budget=budget, method="adaptive_weights", weight_exponent=choice["weight_exponent"], center=not mended,
        count_stddev=stddev, count_sample=budget,
    )  # fmt: skip
    optimizer = dpam.DPALSOptimizer(budget=budget, max_norm=choice["max_norm"])
    accountant = dpam.DPALSAccountant(sanitizer, optimizer, steps=steps)
    accountant.set_sigmas(asked["epsilon"], asked["delta"], sigma_ratio0=np.inf)
    told = float(accountant.compute_epsilon(asked["delta"]))
    empty = dpam.SparseMatrix(test, train)
    model = dpam.DPALSModel(
        dpam.Dataset(users, items, None, dpam.SparseMatrix(train), empty, dpam.SparseMatrix(test, train)),
        embedding_dim=choice["dim"], unobserved_weight=0.0, init_stddev=0.1, regularization_weight=choice["reg"],
        row_reg_exponent=choice["reg_exponent"], col_reg_exponent=choice["reg_exponent"], sanitizer=sanitizer,
        optimizer=optimizer,
    )  # fmt: skip
    moments = model.dataset.train.sp_data_sampled_transposed
    _, local, right = optimizer.sigmas
    if mended:
        moments.values = np.clip(moments.values, -choice["rating_clip"], choice["rating_clip"])
        optimizer.sigmas = [optimizer.sigmas[0], local, right * choice["rating_clip"]]
        model._col_data = moments.batch_ls(None)
        largest, centred = 1.0, 0.0  # in units of what the noise is for
    else:
        mean = float(train["rating"].mean() - model.dataset.train.data["rating"].mean())
        largest, centred = max(5 - mean, mean - 1), (budget + budget**2) / stddev**2
    mu = math.sqrt(steps * budget * (1 / local**2 + (largest / right) ** 2) + budget / stddev**2 + centred)
    model.train(steps, compute_metrics=False)
    shift = float(found["held_out_values"].mean()) - float(model.eval_test.matrix.sp_labels.values.mean())
    wanted = model.eval_test.matrix.sp_labels.values + shift
    guessed = np.clip(model.eval_test.sparse_predictions().numpy() + shift, 1, 5)
    true = dp_accounting.get_epsilon_gaussian(1 / mu, asked["delta"])
    rmse = float(np.sqrt(np.mean((guessed - wanted) ** 2)))
    return {"rmse": rmse, "accounted": told, "true": float(true)}


def main() -> None:
    for line in sys.stdin:
        with contextlib.redirect_stdout(io.StringIO()):
            answer = fitted(json.loads(line))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
