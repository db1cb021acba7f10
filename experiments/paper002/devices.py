"""Compares trials that ran on another device with the committed ones of the same keys, look by look.

    python -m experiments.paper002.devices --work DIR            # DIR: records that were made there; seconds, anywhere
    python -m experiments.paper002.devices --quick --out DIR     # under a minute

A GPU's program has other forms than a CPU's, and its products in float32 are rounded to TF32. A row says how far the
two accuracies of a trial are ever apart, and keeps the curve of the other device. The small version runs the GPU's
program on this device. Expect curves that are the same but for a few of 10,000 test images.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from dpaudit import _platform
from experiments import pages
from experiments.common import Rows, as_command, options, refuse_homeless, results
from experiments.pages import Fact, fact
from experiments.paper002.run import committed, of_run, scale_of
from experiments.paper002.runs import Bench, Run, Scale, all_records, play_all

NAME = "clip_size_devices"
FORMS = "the program of a GPU"
SAME = 0.1  # points: ten of 10,000 test images
QUICK = Scale(100, 200, 200), (Run("clip0.05", 2, 0), Run("poly(0.05)1.0", 2, 0))


def compare(rows: Rows, here: dict[tuple[Any, ...], dict[str, Any]], there: Iterable[dict[str, Any]]) -> None:
    """Adds how far apart accuracies in points, losses relative to each other, and times a round are."""
    for record in there:
        own = here.get(of_run(record))
        if own is None or own["device"] == record["device"]:
            continue
        setting = {name: record[name] for name in ("dataset", *Scale._fields, "name", "sensitivity", "trial")}
        setting["device"] = record["device"]
        scale = f"{scale_of(setting, 1)}, {len(record['round'])} looks"
        apart = 100 * np.max(np.abs(np.subtract(own["accuracy"], record["accuracy"])))
        row = rows.add("accuracy_apart", setting, float(f"{apart:.3g}"), scale=scale)
        row |= {"device": record["device"], "beside": own["device"], "accuracy": record["accuracy"]}
        row |= {"loss_apart": float(f"{np.max(np.abs(np.divide(record['loss'], own['loss']) - 1)):.3g}")}
        row |= {"ended": [100 * one["accuracy"][-1] for one in (own, record)]}
        row |= {"identity": record["identity"], "seconds_per_round": record["seconds_per_round"]}
    rows.finish_part("devices")


def both(seed: int, data_dir: str | None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Runs the small trials as this device does, and as a GPU would."""
    scale, wanted = QUICK
    ours = play_all(Bench("digits", scale, seed, data_dir), wanted, None)
    with _platform.named("gpu"):
        theirs = play_all(Bench("digits", scale, seed, data_dir), wanted, None)
    return ours, [record | {"device": FORMS} for record in theirs]


def same_elsewhere(rows: pages.Rows) -> Fact:
    """A trial has the same curve on another device, with all clients at all of the rounds."""
    found = pages.select(rows, "accuracy_apart")
    names = " and ".join(row["setting"]["name"].replace("clip", "C = ") for row in found)
    most = max(row["ours"] for row in found)
    (device,) = {row["device"] for row in found}
    ran = [row["setting"] for row in pages.select(rows, "accuracy_percent") if row["device"] == device]
    alone = ", ".join(f"{at['name']} with noise of {'2' * (at['sensitivity'] == 2)}C" for at in ran)
    told = {"names": names, "device": device, "looks": len(found[0]["accuracy"]), "alone": alone}
    return fact(most < SAME and len(found) > 1 and alone, apart=most, **told)


def main() -> None:
    chosen = options(__doc__ or "", work="the other device's records").parse_args()
    refuse_homeless(chosen)
    rows = Rows("002", NAME, chosen.out, chosen.seed, keep=True)
    if chosen.quick:
        here, there = both(chosen.seed, chosen.data_dir)
        compare(rows, {of_run(record): record for record in here}, there)
    else:
        compare(rows, committed(results("clip_size")), all_records(chosen.work))


if __name__ == "__main__":
    as_command(main)
