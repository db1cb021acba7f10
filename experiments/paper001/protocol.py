"""Trains the paper's networks through the real protocol: two server processes, three owner processes, mutual TLS.

    python -m experiments.paper001.protocol --work DIR                 # Cancer and Diabetes whole, MNIST in part
    python -m experiments.paper001.protocol --quick --out DIR          # twenty steps of Cancer
    python -m experiments.paper001.protocol --work DIR --mnist 600     # so many steps of MNIST

Each owner is ``dpaudit secure train`` with its own records. Afterwards every sum that the servers opened is compared
with what the plaintext simulation (:mod:`dpaudit.secure.protocol.schemes`) releases of the owners' sums: without
noise they are the same to the bit; with noise their difference is the noise that nobody knew, which is tested against
its exact law. Time, bytes and processor time are those of these very trainings, under the load that the row states. A
step's seconds are of those steps before which no owner measured its model's accuracy, when the servers prepare noise;
processor time has all of them, the measuring, and those of starting and compiling.

Expect next to no coordinate to differ (gradients are computed once more, and a last bit may round to the other
integer), and trainings several times as fast as the paper's on a machine with nothing else to do.
"""

import json
import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy import stats

from dpaudit.cli.command import Common
from dpaudit.cli.secure_local import started
from dpaudit.cli.secure_train import Train
from dpaudit.report.rows import read_rows
from dpaudit.secure.noise import binomial, gaussian
from dpaudit.secure.noise.binomial import Binomial
from dpaudit.secure.protocol import schemes
from dpaudit.secure.protocol.agreement import Terms
from dpaudit.secure.protocol.fixed_point import dequantize
from dpaudit.secure.service.records import Records
from dpaudit.training.two_servers import Model, batches
from experiments.common import Rows, options
from experiments.paper001 import cost, learned
from experiments.paper001.published import COSTED, HOURS
from experiments.paper001.runs import learner, worth
from experiments.paper001.tasks import CLIP_NORM, DELTA, OWNERS, TASKS, load

STEPS = {"Cancer": 1_300, "Diabetes": 2_000, "MNIST": 100}
EPSILON = 8.0  # of a step by the paper's rule: that of its headline
HOW = (("noisy", "circuit"), ("noisy", "transfers"), ("plain", "circuit"))


class Protocol(NamedTuple):
    """One training."""

    data: str  # of TASKS
    mode: str
    protocol: str
    steps: int


class Compared(NamedTuple):
    """What was opened beside the plaintext simulation.

    Attributes:
      differing: coordinates of all steps that are not what the simulation releases; with noise, whose difference is
        beyond what the noise can reach.
      coordinates: how many there are.
      p_value: of a chi-squared test of the differences against the noise's exact law; None without noise.
      accuracy: of the simulation's model at the end, percent.
    """

    differing: int
    coordinates: int
    p_value: float | None
    accuracy: float


class Trained(NamedTuple):
    """One training that was run."""

    terms: Terms
    servers: dict[str, float]  # bytes, processor time and memory of each
    owners: list[dict[str, Any]]  # their rows
    loads: str  # of the machine


def trained(run: Protocol, folder: Path) -> Trained:
    """Runs the servers and the owners, unless the folder holds such a training."""
    asked = Train(
        target=f"{Path(learned.__file__)}:{run.data.lower()}",
        owners=learned.PLAYERS,
        batch_size=TASKS[run.data].examples // OWNERS,
        steps=run.steps,
        clip_norm=CLIP_NORM,
        noise_multiplier=gaussian.classical(epsilon=EPSILON, delta=DELTA) if run.mode == "noisy" else None,
        mode=run.mode,  # pyright: ignore[reportArgumentType]
        protocol=run.protocol,  # pyright: ignore[reportArgumentType]
        delta=DELTA,
        common=Common(),
    )
    params = sum(leaf.size for leaf in _leaves(run.data))
    terms = asked.terms(params, TASKS[run.data].examples)
    words = asked.words(params, TASKS[run.data].examples)[4:]  # an owner's come from its task
    kept, outs = folder / "servers.json", [folder / f"out-{owner}" for owner in learned.PLAYERS]
    if kept.exists():
        said = json.loads(kept.read_text())
        return Trained(terms, said["servers"], [read_rows(out / "results.json")[0] for out in outs], said["loads"])
    before = os.getloadavg()[0]
    with started(asked, terms, folder, patience=asked.patience) as servers:
        processes = []
        for owner, out in zip(learned.PLAYERS, outs, strict=True):
            command = [sys.executable, "-m", "dpaudit.cli.main", "secure", "train", asked.target, *words]
            command += ["--batch-size", str(asked.batch_size), "--steps", str(run.steps), "--delta", str(DELTA)]
            command += ["--servers", *servers.addresses, "--owner", owner, "--keys", str(folder / "keys")]
            command += ["--out", str(out), "--json"]
            processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        rows = []
        for process in processes:
            told, failed = process.communicate()
            if process.returncode:
                raise RuntimeError(failed)
            rows += json.loads(told)
        figures = servers.figures()
    loads = f"load {before:.1f} before and {os.getloadavg()[0]:.1f} after"
    kept.write_text(json.dumps({"servers": figures, "loads": loads}))
    return Trained(terms, figures, rows, loads)


def _leaves(name: str) -> list[Any]:
    import jax

    return jax.tree.leaves(learned.task(name).initial)


def compared(run: Protocol, terms: Terms, folder: Path) -> Compared:
    """Trains once more on the plaintext simulation, with the noise that the servers' sums contain."""
    step = schemes.Step(OWNERS, terms.examples, CLIP_NORM, gaussian.classical(epsilon=EPSILON, delta=DELTA))
    scheme = (schemes.mpc_only if run.mode == "plain" else schemes.spgc)(step)
    if scheme.scale != terms.scale:
        raise RuntimeError(f"the servers' scale {terms.scale} is not the simulation's {scheme.scale}")
    law = None if run.mode == "plain" else Binomial(terms.coins, terms.step_bits)
    train, test = load(run.data, None, 0)
    learn = learner(run.data, train.inputs.shape[1:])
    twin = Model(learned.task(run.data), terms)
    each = terms.examples // OWNERS
    rows = {name: learned.owned(train, name) for name in learned.PLAYERS}
    chosen = {name: batches(len(rows[name]), each, 0, name) for name in learned.PLAYERS}
    records = Records(folder / "h1", "h1", terms)
    differing, noises = 0, []
    for number in range(1, run.steps + 1):
        batch = {name: rows[name][chosen[name](number)] for name in rows}
        total = np.sum([twin.contribution((train.inputs[own], train.labels[own])) for own in batch.values()], axis=0)
        opened = records.opened(number).values
        noise = opened - total
        differing += int((np.abs(noise) > (law.reach if law else 0)).sum())
        released = schemes.release(scheme, [total], noise)
        differing += int((released != dequantize(opened, terms.scale)).sum())
        twin.learn(opened, terms.examples)
        noises.append(noise)
    records.close()
    flat = jnp.asarray(twin.arrays()["params"])
    probabilities = np.asarray(learn.probabilities(flat, jnp.asarray(test.inputs)), np.float64)
    accuracy = 100 * worth(probabilities, test.labels)["accuracy"]
    everything = np.concatenate(noises)
    return Compared(differing, everything.size, law and fit(law, everything), accuracy)


def fit(law: Binomial, noise: np.ndarray) -> float:
    """Returns the p-value of a chi-squared test of noise against its law, in cells of one step of its coins."""
    corners = [(2 * at - law.coins) * law.step // 2 for at in range(law.coins + 1)]
    edges = [at + 0.5 if at > 0 else at - 0.5 for at in corners]
    above = [binomial.tail(law, abs(at)) / 2 for at in corners]
    above = [part if at > 0 else 1 - part for part, at in zip(above, corners, strict=True)]
    masses = -np.diff([1.0, *above, 0.0])
    counts = np.histogram(noise, [-law.reach - 0.5, *edges, law.reach + 0.5])[0]
    keep = masses * noise.size >= 10
    expected = np.append(masses[keep], 1 - masses[keep].sum()) * noise.size
    seen = np.append(counts[keep], noise.size - counts[keep].sum())
    if expected[-1] < 5:
        expected, seen = (np.append(each[:-2], each[-2:].sum()) for each in (expected, seen))
    return float(stats.chisquare(seen, expected * noise.size / expected.sum()).pvalue)


def add(rows: Rows, run: Protocol, folder: Path) -> None:
    """Adds the rows of one training."""
    terms, figures, owners, loads = trained(run, folder)
    found = compared(run, terms, folder)
    setting: dict[str, Any] = {"data": run.data, "d": terms.dimension, "mode": run.mode, "protocol": run.protocol}
    setting |= {"epsilon": EPSILON if run.mode == "noisy" else None, "owners": OWNERS, "steps": run.steps}
    scale = f"{run.steps:,} steps of {terms.examples:,} records, three owner and two server processes, TLS, {loads}"
    seconds = float(np.mean([row["seconds_a_step"] for row in owners]))

    def one(quantity: str, ours: float | None, **more: Any) -> dict[str, Any]:
        return rows.add(quantity, setting, ours, scale=scale, seconds=seconds * run.steps, **more)

    one("protocol_differing", found.differing)["coordinates"] = found.coordinates
    if found.p_value is not None:
        one("protocol_noise_p", found.p_value)
    row = one("protocol_accuracy", owners[0]["measured"][-1]["accuracy"])
    row["simulated"] = found.accuracy
    one("protocol_step_seconds", seconds)
    one("protocol_minutes", seconds * run.steps / 60)
    one("protocol_gigabytes", (figures["h1_bytes_sent"] + figures["h2_bytes_sent"]) / 1e9)
    used = {name: figures[f"{name}_cpu_seconds"] for name in ("h1", "h2")}
    used["owners"] = sum(row["cpu_seconds"] for row in owners)
    one("protocol_cpu_seconds", sum(used.values()))["of"] = {name: round(value, 1) for name, value in used.items()}
    one("protocol_peak_gib", max(figures["h1_peak_gib"], figures["h2_peak_gib"]))
    if run.mode == "noisy":
        training = next(each for each in cost.TRAININGS if each.data == run.data)
        hours = cost.steps(training) * seconds / 3600
        paper = HOURS[run.data][COSTED.index(EPSILON)]
        one("protocol_hours", hours, paper_value=paper)["times_as_fast"] = paper / hours
    print(f"{run}: {seconds:.4f} s a step, {found}", flush=True)
    rows.finish_part(" ".join(map(str, run)))


def arguments(given: list[str] | None = None) -> Namespace:
    """Parses the command line, or ``given``."""
    parser = options(__doc__ or "", work="each training")
    parser.add_argument("--data", nargs="+", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--mnist", type=int, default=STEPS["MNIST"], help="steps of MNIST")
    parser.add_argument("--keep", action="store_true", help="keep the rows of other data sets")
    return parser.parse_args(given)


def main() -> None:
    chosen = arguments()
    rows = Rows("001", "spgc_protocol", chosen.out, chosen.seed)
    if chosen.keep and rows.file.exists():
        rows.rows += [row for row in read_rows(rows.file) if row["setting"]["data"] not in chosen.data]
    count = {**STEPS, "MNIST": chosen.mnist}
    wanted = [Protocol(name, *how, count[name]) for name in chosen.data for how in HOW]
    if chosen.quick:
        wanted = [Protocol("Cancer", *how, 20) for how in HOW]
    with tempfile.TemporaryDirectory() as temporary:
        for run in wanted:
            folder = Path(chosen.work or temporary) / "-".join(map(str, run))
            add(rows, run, folder)


if __name__ == "__main__":
    main()
