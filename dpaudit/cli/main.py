"""Parses the ``dpaudit`` command line and runs its commands."""

import dataclasses
import itertools
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
from dpaudit.cli import audit, given, secure, train
from dpaudit.cli.command import (
    Common,
    bars_on_terminal,
    checkpoint_path,
    even_if_unread,
    failures_in_one_line,
    how_to_resume,
    key_of,
    note_out,
    perform,
    prepare,
    ready_to_print,
    report,
    resumed,
    show,
    worst,
)
from dpaudit.cli.options import parsed_as
from dpaudit.cli.output import kept_for_results

if TYPE_CHECKING:
    from rich.progress import Progress

    from dpaudit.audits.randomizers import Randomizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ldp:
    """Audit the randomizer of a client of federated learning, from its side (paper 000); the status is that of the
    worst row: 0 (consistent, or computed without trials), 1 (violation), 2 (error) or 3 (underpowered: too few trials
    to know)."""

    data: tuple[str, ...] = ("digits",)
    """Image data sets: digits, mnist, fashion_mnist, cifar10, svhn, ..."""
    craft: tuple[str, ...] = ("all",)
    """How the two gradients are crafted: benign, label_flip, gradient_flip, collusion, dummy (all: these five),
    likeliest_flip (the likeliest wrong label for any other), and the counter-examples zero_against_large and
    watermark."""
    mechanism: Literal["ldp_sgd", "gaussian", "privunit"] = "ldp_sgd"
    """The client's randomizer: LDP-SGD, Gaussian noise on the clipped gradient (with --delta), or PrivUnit."""
    epsilon: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    """Claimed privacy losses, in nats."""
    delta: float | None = None
    """Claimed delta, which Gaussian noise needs and the others do not have."""
    trials: int = 10_000
    """Games per repeat (K of Algorithm 3), half of them in each world."""
    repeats: int = 10
    """Number of tests to average; the bounds pool all of them."""
    engine: Literal["full", "plane", "exact", "kernel"] = "full"
    """full runs the shipped mechanism, plane samples in the plane of the two gradients (LDP-SGD only), exact is the
    closed form, kernel plays full's trials of a fixed pair on a TPU or a recent GPU without writing releases."""
    pair: Literal["fresh", "fixed"] = "fresh"
    """Whether every trial gets a fresh pair of gradients, or all trials share one fixed pair."""
    clip_norm: float = 0.2
    """L2 norm to which gradients are clipped (L). The default is that of the paper's table."""
    pretraining_steps: int = 100
    """Adam steps on the server's model before it is sent to clients. The default is that of the paper's table."""
    confidence: float = 0.95
    """Confidence with which all bounds of the table hold together."""
    data_dir: str | None = None
    """Folder of the data sets; by default $DPAUDIT_DATA, else TensorFlow Datasets."""
    checkpoint: str | None = None
    """Folder that stores the progress of the run, so that it can be resumed. An existing one is refused without
    --resume."""
    resume: bool = False
    """Resume from the checkpoint of the same test, on this or another machine, in the directory --out that it began to
    fill; start afresh if there is none."""
    common: Annotated[Common, tyro.conf.arg(name="")]


@dataclasses.dataclass(frozen=True)
class Plan:
    """Plan the number of trials of an audit, both fixed in advance and for an audit that may stop at any time."""

    target: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="FILE:NAME")] = None
    """FILE:NAME, as for audit: plan for this mechanism, after a pilot audit. Without it, plan for a perfect attack."""
    epsilon: float | None = None
    """Claimed privacy loss, in nats; by default the mechanism's claim."""
    delta: float | None = None
    """Claimed delta; by default that of the mechanism's claim, else 0."""
    confidence: float = 0.95
    """Confidence required to report a violation."""
    true_epsilon: float | None = None
    """True privacy loss to detect; by default twice the claim."""
    trials: int | None = None
    """Trials for which to report the expected bounds; by default as many as a fixed number needs."""
    rate: float | None = None
    """Trials per second; by default measured for a second on the mechanism, or on a Laplace one with ten numbers."""
    seed: int = 0
    """Seed of a mechanism's pilot audit."""
    json: bool = False
    """Print the plan as JSON instead of a table."""


@dataclasses.dataclass(frozen=True)
class Data:
    """List the data sets and where each would be read from."""

    data_dir: str | None = None
    """Folder of the data sets; by default $DPAUDIT_DATA."""


def main() -> None:
    """Runs the console script. Its status is 0 (for ``audit``, ``examine``, ``ldp`` and ``train`` that of their
    verdict), 2 for unusable input, 130 or 143 (SIGTERM) when interrupted."""
    ready_to_print()
    if sys.argv[1:] == ["--version"]:
        with even_if_unread():
            print(f"dpaudit {__version__}")
        return
    try:
        command = parsed()
    except (BrokenPipeError, SystemExit) as ended:  # it has printed help, or refused an option
        with even_if_unread():
            sys.stdout.flush()
        sys.exit(getattr(ended, "code", 0))
    measure = {
        Ldp: _ldp,
        audit.Audit: _audited,
        audit.Examine: audit.examine,
        train.Train: train.run,
    }
    others = {Plan: _plan, Data: _data, secure.Secure: secure.run}
    run: Callable[[Any], int | None] = (measure | others)[type(command)]
    measures = type(command) in measure
    with kept_for_results():
        resuming = partial(how_to_resume, command)
        perform("dpaudit", partial(run, command), resuming, measures=measures, judges=True, options=command)


def parsed(arguments: Sequence[str] | None = None) -> Any:
    """Parses the command line, or ``arguments``."""
    commands = (
        Annotated[Ldp, tyro.conf.subcommand("ldp")]
        | Annotated[audit.Audit, tyro.conf.subcommand("audit")]
        | Annotated[audit.Examine, tyro.conf.subcommand("examine")]
        | Annotated[train.Train, tyro.conf.subcommand("train")]
        | Annotated[Plan, tyro.conf.subcommand("plan")]
        | Annotated[Data, tyro.conf.subcommand("data")]
        | Annotated[secure.Secure, tyro.conf.subcommand("secure")]
    )
    about = "Measure how private a mechanism really is. `dpaudit --version` prints the version."
    return parsed_as(commands, arguments, prog="dpaudit", description=about)


def _audited(options: audit.Audit) -> int:
    """Audits a mechanism, or what the user already has; returns the exit status."""
    kind = audit.source(options)
    return audit.run(options) if kind == "target" else given.run(options, kind)


def _ldp(options: Ldp) -> int:
    """Audits a client's randomizer; returns the exit status."""
    from dpaudit.audits import ldp_client, randomizers
    from dpaudit.data import NAMES
    from dpaudit.report.page import write_page
    from dpaudit.report.rows import write_rows
    from dpaudit.report.table import audit_table

    unique = {name: tuple(dict.fromkeys(getattr(options, name))) for name in ("data", "epsilon")}
    options = dataclasses.replace(options, **unique)  # a test that is asked for twice is one test
    named = [tuple(ldp_client.ACCESS) if name == "all" else (name,) for name in options.craft]
    crafts = tuple(dict.fromkeys(itertools.chain.from_iterable(named)))
    for name in options.data:
        _validate.one_of(NAMES, data=name)
    for name in crafts:
        _validate.one_of((*ldp_client.CRAFTS, "all"), craft=name)
    randomizer = randomizers.of(options.mechanism, options.delta)
    key = key_of(options.common.seed)
    kept = checkpoint_path(options.checkpoint, options.resume, "folder")
    common = resumed(options.common, kept)
    out = prepare(common)
    rows: list[dict[str, Any]] = []
    try:
        with bars_on_terminal() as bars:
            for part in _ldp_rows(options, key, crafts, randomizer, bars):
                rows += part
                if out is not None and hosts.first():
                    if kept is not None:
                        note_out(kept, out)
                    write_rows(rows, out / "results.json")
    except KeyboardInterrupt as interruption:
        told = f"; {len(rows)} finished rows are in {out.name}/results.json" if rows and out is not None else ""
        raise type(interruption)(told) from None
    finally:
        if rows:
            planned = len(options.data) * len(crafts) * len(options.epsilon)
            report(common, rows, audit_table(rows, planned), partial(write_page, rows, planned=planned))
    return worst(row["verdict"] for row in rows)


def _ldp_rows(
    options: Ldp, key: Any, crafts: tuple[str, ...], randomizer: "Randomizer", bars: "Progress | None"
) -> Iterator[list[dict[str, Any]]]:
    """Yields the rows of one data set and craft setting at a time."""
    import jax

    from dpaudit import data
    from dpaudit.audits import ldp_client

    for name in options.data:
        parts = ldp_client.audit_client(
            jax.random.fold_in(key, zlib.crc32(name.encode())),
            data.load(name, split="train", data_dir=options.data_dir),
            data.load(name, split="test", data_dir=options.data_dir),
            crafts=crafts,
            epsilons=options.epsilon,
            clip_norm=options.clip_norm,
            pretraining_steps=options.pretraining_steps,
            trials=options.trials,
            repeats=options.repeats,
            randomizer=randomizer,
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
    from dpaudit.auditing.result import json_number
    from dpaudit.report.table import plan_table

    rate = options.rate
    found, measured = _planned(options)
    if rate is None:
        found = found._replace(rate=measured())
    row = {name: json_number(value) for name, value in found._asdict().items()}
    row |= {
        f"{name}_seconds": json_number(found.seconds(getattr(found, name)))
        for name in ("least", "fixed", "sequential_median", "sequential_most")
    }
    timed = "a Laplace mechanism on ten numbers" if options.target is None else options.target
    rate_of = "the rate given" if rate is not None else f"{timed}, timed on this machine"
    show(row, plan_table(found, rate_of), options.json)


def _planned(options: Plan) -> "tuple[Any, Callable[[], float]]":
    """Returns the plan, and a function that measures its trials per second."""
    import jax

    from dpaudit._engine.game import trials_per_second
    from dpaudit.auditing.bounds.plan import plan
    from dpaudit.auditing.domain import load
    from dpaudit.mechanisms.claim import Claim, Mechanism

    asked: dict[str, Any] = {name: getattr(options, name) for name in ("confidence", "true_epsilon", "trials", "rate")}
    if options.target is None:
        if options.epsilon is None:
            raise _validate.expected("--epsilon", "the claimed loss, or FILE:NAME of a mechanism with a claim", "none")
        return plan(options.epsilon, delta=options.delta or 0.0, **asked), _stand_in_rate
    from dpaudit.auditing.plan_mechanism import plan_mechanism

    key = key_of(options.seed)
    case = load(options.target)
    claim = audit.own_claim(case)
    if options.epsilon is not None:
        claim = audit.restated(claim, options.epsilon, options.delta)
    elif options.delta is not None and claim is not None:
        claim = claim.at(options.delta) if claim.is_curve else Claim(claim.epsilon, options.delta, claim.neighbouring)
    with failures_in_one_line(options.target, "a mechanism that runs in every trial"):
        found = plan_mechanism(*case[:3], key=key, claim=claim, **asked)
    apply = case.mechanism.apply if isinstance(case.mechanism, Mechanism) else case.mechanism
    pair = case.x0, case.x1
    return found, lambda: trials_per_second(
        jax.random.key(0), lambda key, world: apply(key, pair[world]), _first_number, seconds=1.0
    )


def _first_number(release: Any) -> Any:
    import jax
    import jax.numpy as jnp

    return jnp.ravel(jax.tree.leaves(release)[0])[0].astype(jnp.float32)


def _stand_in_rate() -> float:
    """Measures the trials per second of a light mechanism on this machine."""
    import jax
    import jax.numpy as jnp

    from dpaudit._engine.game import trials_per_second
    from dpaudit.mechanisms import laplace

    apply = laplace.mechanism(epsilon=1.0, clip_norm=1.0).apply
    return trials_per_second(jax.random.key(0), lambda key, world: apply(key, jnp.full(10, world / 10)), jnp.sum)


def _data(options: Data) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from dpaudit.data import available

    table = Table("name", "contents", "from", title="Data sets", title_justify="left")
    for row in available(options.data_dir):
        table.add_row(*map(Text, row))  # a folder's name may look like Rich's markup
    with even_if_unread():
        Console().print(table)


if __name__ == "__main__":
    main()
