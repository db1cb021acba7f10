"""Implements ``dpaudit train``, which trains a network privately and audits its privacy claim in the same run."""

import dataclasses
import math
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import tyro

from dpaudit import _validate
from dpaudit._engine import hosts
from dpaudit.cli.command import (
    STATUS,
    Common,
    bars_on_terminal,
    checkpoint_path,
    failures_in_one_line,
    key_of,
    prepare,
    report,
)

if TYPE_CHECKING:
    from rich.progress import Progress

PARTS = 20  # parts of a training, each of which ends with a progress report and a checkpoint


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train:
    """Train a network by DP-SGD to a target epsilon and audit it with canaries in the same run, on one device of one
    process. The exit status has the meaning of dpaudit audit's; --out also stores the trained parameters (Orbax)."""

    data: str = "digits"
    """Image data set: digits, mnist, fashion_mnist, cifar10, svhn, ..."""
    epsilon: float = 4.0
    """Target privacy loss, in nats, which determines the noise."""
    delta: float = 1e-5
    """Delta of the target and of the audit."""
    epochs: float = 30.0
    """Passes over records and canaries; steps are rounded up to a multiple of twenty."""
    steps: int | None = None
    """Number of steps, instead of epochs."""
    batch_size: int = 256
    """Expected number of records and canaries in the Poisson batch of a step."""
    clip_norm: float = 1.0
    """L2 norm to which the gradient of each example is clipped."""
    learning_rate: float = 0.01
    """Learning rate of the optimizer."""
    optimizer: str = "adam"
    """Optimizer: sgd or adam."""
    neighbouring: str = "add_remove"
    """Neighbouring relation of data sets: add_remove or replace."""
    canaries: int = 1000
    """Number of canaries, each taking part with probability 1/2; they displace records and so cost accuracy."""
    confidence: float = 0.95
    """Confidence of the lower bound on epsilon."""
    checkpoint: str | None = None
    """Folder that stores the training, so that it can be resumed. Do not publish it: it reveals which canaries took
    part. An existing one is refused without --resume."""
    resume: bool = False
    """Resume from the checkpoint of the same training; start afresh if there is none."""
    data_dir: str | None = None
    """Folder of the data sets; by default $DPAUDIT_DATA, else TensorFlow Datasets."""
    common: Annotated[Common, tyro.conf.arg(name="")]


def run(options: Train) -> int:
    """Trains the network, audits the training and reports both; returns the exit status.

    Raises:
      InputError: options or data are unusable.
    """
    import jax
    import optax

    from dpaudit import data
    from dpaudit._engine.checkpoint import save_parameters
    from dpaudit.audits.audited_training import train_audited
    from dpaudit.audits.ldp_client import versions
    from dpaudit.report.page import write_training_page
    from dpaudit.report.table import training_table

    hosts.alone("train", "one training runs on one device")
    _validate.one_of(data.NAMES, data=options.data)
    optimizers: dict[str, Callable[[float], optax.GradientTransformation]] = {"sgd": optax.sgd, "adam": optax.adam}
    optimizer = optimizers[_validate.one_of(optimizers, optimizer=options.optimizer)](
        _validate.positive(learning_rate=options.learning_rate)
    )
    key = key_of(options.common.seed)
    kept = checkpoint_path(options.checkpoint, options.resume, "folder")
    train_data, test_data = (data.load(options.data, split=split, data_dir=options.data_dir) for split in data.SPLITS)
    steps = _steps(options, len(train_data.inputs) + options.canaries)
    out = prepare(options.common)
    began = time.perf_counter()
    with failures_in_one_line("training", "to come to its end"), bars_on_terminal() as bars:
        row, params = train_audited(
            key,
            train_data,
            test_data,
            epsilon=options.epsilon,
            delta=options.delta,
            steps=steps,
            batch_size=options.batch_size,
            clip_norm=options.clip_norm,
            optimizer=optimizer,
            neighbouring=options.neighbouring,
            canaries=options.canaries,
            confidence=options.confidence,
            every=max(1, steps // PARTS),
            checkpoint=kept,
            progress=None if bars is None else _shown(bars, steps),
        )
    row |= {"optimizer": options.optimizer, "learning_rate": options.learning_rate, "seed": options.common.seed}
    row |= {"seconds": time.perf_counter() - began, "versions": versions()}
    row |= {"device": jax.devices()[0].device_kind}
    try:
        report(options.common, [row], training_table(row), partial(write_training_page, row))
    finally:  # what took hours is kept even if its page cannot be written
        if out is not None:
            save_parameters(out / "params", params)
    return STATUS[row["verdict"]]


def _steps(options: Train, rows: int) -> int:
    _validate.at_least(1, batch_size=options.batch_size)
    if options.steps is not None:
        return _validate.at_least(1, steps=options.steps)
    passes = _validate.positive(epochs=options.epochs) * rows / options.batch_size
    return PARTS * math.ceil(passes / PARTS)


def _shown(bars: "Progress", steps: int) -> Callable[[int, Callable[[], float]], None]:
    from dpaudit.report.words import at_most

    task = bars.add_task("training", total=steps)

    def show(step: int, spent: Callable[[], float]) -> None:
        bars.update(task, completed=step, description=f"training, ε = {at_most(spent())}")

    return show
