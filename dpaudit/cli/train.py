"""``dpaudit train``: a network trained privately, and the promise put to the test in the same run."""

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
    prepare,
    report,
)

if TYPE_CHECKING:
    from rich.progress import Progress

PARTS = 20  # of a training: each ends with progress and a checkpoint


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train:
    """Train a network by DP-SGD to a target epsilon, and audit it with canaries in the same run, on one device of one
    process; the status is that of dpaudit audit, and --out keeps the trained params (Orbax) too."""

    data: str = "digits"
    """A data set with images: digits, mnist, fashion_mnist, cifar10, svhn, ..."""
    epsilon: float = 4.0
    """The privacy loss to keep, in nats; the noise is the least that keeps it."""
    delta: float = 1e-5
    """Of every epsilon."""
    epochs: float = 30.0
    """Passes over records and canaries, rounded up to twenty equal parts."""
    steps: int | None = None
    """The number of steps, instead of epochs."""
    batch_size: int = 256
    """The expected number of records and canaries in a step's Poisson batch."""
    clip_norm: float = 1.0
    """L2 norm to which the gradient of each example is clipped."""
    learning_rate: float = 0.01
    """The optimiser's."""
    optimizer: str = "adam"
    """sgd or adam."""
    neighbouring: str = "add_remove"
    """What two neighbouring data sets are: add_remove or replace."""
    canaries: int = 1000
    """Rows that the audit adds, half of them by a coin each; they take room in the batches and so cost accuracy."""
    confidence: float = 0.95
    """Of the lower bound on epsilon."""
    checkpoint: str | None = None
    """Folder that keeps the training, for a run that is interrupted; it tells which canaries took part, so it is not
    for release. It stays, and one that is there already is refused without --resume."""
    resume: bool = False
    """Go on from the checkpoint of the same training; from the start if there is none."""
    data_dir: str | None = None
    """Where the data sets lie; else $DPAUDIT_DATA, else TensorFlow Datasets."""
    common: Annotated[Common, tyro.conf.arg(name="")]


def run(options: Train) -> int:
    """Trains, audits, prints; the exit status.

    Raises:
      InputError: unusable options or data.
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
    optimizers: dict[str, Callable[[float], optax.GradientTransformation]] = {"sgd": optax.sgd, "adam": optax.adam}
    optimizer = optimizers[_validate.one_of(optimizers, optimizer=options.optimizer)](
        _validate.positive(learning_rate=options.learning_rate)
    )
    kept = checkpoint_path(options.checkpoint, options.resume, "folder")
    train_data, test_data = (data.load(options.data, split=split, data_dir=options.data_dir) for split in data.SPLITS)
    steps = _steps(options, len(train_data.inputs) + options.canaries)
    out = prepare(options.common)
    began = time.perf_counter()
    with failures_in_one_line("training", "to come to its end"), bars_on_terminal() as bars:
        row, params = train_audited(
            jax.random.key(options.common.seed),
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
    report(options.common, [row], training_table(row), partial(write_training_page, row))
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
    task = bars.add_task("training", total=steps)

    def show(step: int, spent: Callable[[], float]) -> None:
        bars.update(task, completed=step, description=f"training, ε = {spent():.2f}")

    return show
