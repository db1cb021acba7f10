"""``dpaudit ...``: parse, call, print."""

import dataclasses
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from dpaudit import _validate
from dpaudit._engine import hosts
from dpaudit._version import __version__
from dpaudit.cli import audit, secure, train
from dpaudit.cli.command import Common, bars_on_terminal, checkpoint_path, perform, prepare, report, show, to_go_on

if TYPE_CHECKING:
    from rich.progress import Progress


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ldp:
    """Audit LDP-SGD from a federated-learning client's side (paper 000)."""

    data: tuple[str, ...] = ("digits",)
    """Data sets with images: digits, mnist, fashion_mnist, cifar10, svhn, ..."""
    craft: tuple[str, ...] = ("all",)
    """How the two gradients are made: benign, label_flip, gradient_flip, collusion, dummy (all five: all), and the
    counter-examples zero_against_large and watermark."""
    epsilon: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    """Promised privacy losses, in nats."""
    trials: int = 10_000
    """K of Algorithm 3: games per repeat, half of them in each world."""
    repeats: int = 10
    """Tests to average; the bounds pool them all."""
    engine: Literal["full", "plane", "exact"] = "full"
    """full runs the shipped mechanism, plane samples in the plane of the two gradients, exact is the closed form."""
    pair: Literal["fresh", "fixed"] = "fresh"
    """A fresh pair of gradients for every trial, or one fixed pair for all."""
    clip_norm: float = 1.0
    """L, the L2 norm to which gradients are clipped."""
    pretraining_steps: int = 100
    """Adam steps of the server's model before it is sent out."""
    confidence: float = 0.95
    """With which all bounds of the table hold together."""
    data_dir: str | None = None
    """Where the data sets lie; else $DPAUDIT_DATA, else TensorFlow Datasets."""
    checkpoint: str | None = None
    """Folder that keeps what has been played, for a run that is interrupted. It stays, and one that is there already
    is refused without --resume."""
    resume: bool = False
    """Go on from the checkpoint of the same test, on this or another machine; from the start if there is none."""
    common: Annotated[Common, tyro.conf.arg(name="")]


@dataclasses.dataclass(frozen=True)
class Plan:
    """How many trials a question needs, with a number fixed in advance and with one that may stop at any time."""

    epsilon: float
    """The claimed privacy loss, in nats."""
    delta: float = 0.0
    """The claimed delta."""
    confidence: float = 0.95
    """With which a violation shall be called one."""
    true_epsilon: float | None = None
    """The loss that is to be found out; twice the claim by default."""
    trials: int | None = None
    """Trials for which to tell the bounds to expect; by default as many as a fixed number needs."""
    rate: float | None = None
    """Trials a second; without it, a Laplace mechanism on ten numbers is timed for a second."""
    json: bool = False
    """Print the plan as JSON instead of a table."""


@dataclasses.dataclass(frozen=True)
class Data:
    """List the data sets, and where each would be read from."""

    data_dir: str | None = None
    """Where the data sets lie; else $DPAUDIT_DATA."""


def main() -> None:
    """The console script: 0 (``audit``, ``examine``, ``train``: what they found), 2 for unusable input, 130 or 143
    (SIGTERM) when interrupted."""
    if sys.argv[1:] == ["--version"]:
        print(f"dpaudit {__version__}")
        return
    command = parsed()
    measure = {
        Ldp: _ldp,
        audit.Audit: audit.run,
        audit.Examine: audit.examine,
        train.Train: train.run,
    }
    others = {Plan: _plan, Data: _data, secure.Secure: secure.run}
    run: Callable[[Any], int | None] = (measure | others)[type(command)]
    perform("dpaudit", partial(run, command), partial(to_go_on, command), measures=type(command) in measure)


def parsed(given: Sequence[str] | None = None) -> Any:
    """The command that was typed, or ``given``."""
    return tyro.cli(
        Annotated[Ldp, tyro.conf.subcommand("ldp")]
        | Annotated[audit.Audit, tyro.conf.subcommand("audit")]
        | Annotated[audit.Examine, tyro.conf.subcommand("examine")]
        | Annotated[train.Train, tyro.conf.subcommand("train")]
        | Annotated[Plan, tyro.conf.subcommand("plan")]
        | Annotated[Data, tyro.conf.subcommand("data")]
        | Annotated[secure.Secure, tyro.conf.subcommand("secure")],
        args=given,
        prog="dpaudit",
        description="Measures how private a mechanism really is. `dpaudit --version` prints the version.",
        config=(tyro.conf.FlagCreatePairsOff,),
    )


def _ldp(options: Ldp) -> None:
    from dpaudit.audits import ldp_client
    from dpaudit.data import NAMES
    from dpaudit.report.page import write_page
    from dpaudit.report.rows import write_rows
    from dpaudit.report.table import audit_table

    crafts = tuple(ldp_client.ACCESS) if options.craft == ("all",) else options.craft
    for name in options.data:
        _validate.one_of(NAMES, data=name)
    for name in crafts:
        _validate.one_of((*ldp_client.CRAFTS, "all"), craft=name)
    checkpoint_path(options.checkpoint, options.resume, "folder")
    out = prepare(options.common)
    rows: list[dict[str, Any]] = []
    try:
        with bars_on_terminal() as bars:
            for part in _ldp_rows(options, crafts, bars):
                rows += part
                if out is not None and hosts.first():
                    write_rows(rows, out / "results.json")
    except KeyboardInterrupt as interruption:
        kept = f"; {len(rows)} finished rows are in {out.name}/results.json" if rows and out is not None else ""
        raise type(interruption)(kept) from None
    finally:
        if rows:
            report(options.common, rows, audit_table(rows), partial(write_page, rows))


def _ldp_rows(options: Ldp, crafts: tuple[str, ...], bars: "Progress | None") -> Iterator[list[dict[str, Any]]]:
    """The rows of one data set and craft setting at a time."""
    import jax

    from dpaudit import data
    from dpaudit.audits import ldp_client

    for name in options.data:
        parts = ldp_client.audit_client(
            jax.random.fold_in(jax.random.key(options.common.seed), zlib.crc32(name.encode())),
            data.load(name, split="train", data_dir=options.data_dir),
            data.load(name, split="test", data_dir=options.data_dir),
            crafts=crafts,
            epsilons=options.epsilon,
            clip_norm=options.clip_norm,
            pretraining_steps=options.pretraining_steps,
            trials=options.trials,
            repeats=options.repeats,
            engine=options.engine,
            pair=options.pair,
            confidence=options.confidence,
            datasets=len(options.data),
            mesh=hosts.mesh("trials"),
            checkpoint=None if options.checkpoint is None else Path(options.checkpoint) / name,
            progress=_stages(bars, name),
        )
        for part in parts:
            yield [row | {"seed": options.common.seed} for row in part]


def _stages(bars: "Progress | None", label: str) -> Callable[[str, int], Callable[[int], None]] | None:
    if bars is None:
        return None

    def stage(name: str, total: int) -> Callable[[int], None]:
        task = bars.add_task(f"{label}, {name}", total=total)

        def advance(done: int) -> None:
            bars.update(task, completed=done, visible=done < total)

        return advance

    return stage


def _plan(options: Plan) -> None:
    from dpaudit.auditing.bounds.plan import plan
    from dpaudit.auditing.result import json_number
    from dpaudit.report.table import plan_table

    asked = dataclasses.asdict(options)
    as_json, rate = asked.pop("json"), asked.pop("rate")
    found = plan(**asked, rate=rate)
    if rate is None:
        found = found._replace(rate=_stand_in_rate())
    row = {name: json_number(value) for name, value in found._asdict().items()}
    row |= {
        f"{name}_seconds": json_number(found.seconds(getattr(found, name)))
        for name in ("least", "fixed", "sequential_median", "sequential_most")
    }
    rate_of = "the rate given" if rate is not None else "a Laplace mechanism on ten numbers, timed on this machine"
    show(row, plan_table(found, rate_of), as_json)


def _stand_in_rate() -> float:
    """Trials a second of a light mechanism on this machine."""
    import jax
    import jax.numpy as jnp

    from dpaudit._engine.game import trials_per_second
    from dpaudit.mechanisms import laplace

    apply = laplace.mechanism(epsilon=1.0, clip_norm=1.0).apply
    return trials_per_second(jax.random.key(0), lambda key, world: apply(key, jnp.full(10, world / 10)), jnp.sum)


def _data(options: Data) -> None:
    from rich.console import Console
    from rich.table import Table

    from dpaudit.data import available

    table = Table("name", "contents", "from", title="Data sets", title_justify="left")
    for row in available(options.data_dir):
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main()
