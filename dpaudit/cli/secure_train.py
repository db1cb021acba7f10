"""Implements ``dpaudit secure train``: trains a user's model through the two servers (paper 001).

With ``--servers`` it plays the owners of this machine against servers that others run. Without, it also starts both
servers here, with keys of their own, which is for trying things out: whoever runs both servers learns everything.
"""

import dataclasses
import itertools
import math
import resource
import threading
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from dpaudit import _validate
from dpaudit._engine import hosts
from dpaudit.cli.command import (
    Common,
    bars_on_terminal,
    checkpoint_path,
    failures_in_one_line,
    keep_compiled,
    prepare,
    report,
    tell,
)
from dpaudit.cli.secure_terms import Servers, TermsOptions

if TYPE_CHECKING:
    from dpaudit.secure.protocol.agreement import Terms
    from dpaudit.training.two_servers import Participant, Progress, Spending, Task

_LOOK = 0.5  # seconds between looks at the servers of this machine
TOLD = 20  # values of a measure in the report, at most


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train(TermsOptions):
    """Train a model by owners whose gradients only the noisy sums of two servers reveal (paper 001).

    Every owner runs it on its own machine with --owner and --servers; without --servers it runs all of them and both
    servers here, with mutual TLS, to try a training out.
    """

    target: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE:NAME")]
    """FILE:NAME of a dpaudit.training.two_servers.Task: loss, initial parameters, records of an owner, optimizer,
    and what to measure."""
    batch_size: int
    """Examples of each owner in a step."""
    steps: int
    """Number of steps."""
    servers: tuple[str, str] | None = None
    """HOST:PORT of h1 and of h2; by default both are started on this machine."""
    owner: Annotated[tuple[str, ...], tyro.conf.arg(help_behavior_hint="(default: all)")] = ()
    """The owners that this process plays."""
    keys: str | None = None
    """Folder of `dpaudit secure keys`, which holds a folder for each owner played here."""
    delta: float = 1e-5
    """Delta at which epsilon is shown where there is no budget."""
    every: int = 50
    """Steps between two checkpoints."""
    patience: float = 600.0
    """Seconds to wait for the servers, and in a step for the other owners."""
    checkpoint: str | None = None
    """Folder that stores the training of each owner, and the state of servers started here, so that it can be resumed.
    Keep it as private as the records: it holds the shares of the step in progress. An existing one is refused without
    --resume."""
    resume: bool = False
    """Resume from the checkpoint of the same training; start afresh if there is none."""
    insecure: bool = False
    """Allow servers on other machines without certificates; anyone on the network path can then read both shares."""
    common: Annotated[Common, tyro.conf.arg(name="")]


def run(options: Train) -> None:
    """Trains, and reports what it took.

    Raises:
      InputError: options or the task are unusable, a server refuses, or one cannot be reached.
    """
    again = "; --resume continues" if options.checkpoint else ""
    with hosts.sigterm_interrupts(lambda: f"dpaudit: interrupted{again}"):
        keep_compiled()
        try:
            _train(options)
        except KeyboardInterrupt as interruption:
            raise type(interruption)(again) from None


def _train(options: Train) -> None:
    import jax

    from dpaudit.audits.ldp_client import versions
    from dpaudit.report.page import write_secure_page
    from dpaudit.report.page_secure import secure_table
    from dpaudit.secure.channel import ChannelError
    from dpaudit.training.two_servers import Spending

    _validate.at_least(1, steps=options.steps)
    _validate.at_least(1, every=options.every)
    task = load_task(options.target)
    measured(task, task.initial)
    terms = options.terms(_dimension(task), options.batch_size * len(options.owners))
    if 0 < terms.openings < options.steps:
        epsilon, delta = options.budget or (math.inf, 0.0)
        wanted = f"at most {terms.openings}, which spend the budget of epsilon {epsilon:g} at delta {delta:g}"
        raise _validate.expected("--steps", wanted, options.steps)
    names = tuple(terms.owner(owner=name) for name in options.owner or options.owners)
    if len(set(names)) < len(names):
        raise _validate.expected("--owner", "each owner once", " ".join(names))
    if options.servers is None:
        if set(names) != set(terms.owners):
            raise _validate.expected("--servers", "addresses of h1 and h2 for some of the owners", "none")
        for name in ("keys", "insecure"):
            if given := getattr(options, name):
                raise _validate.expected(f"--{name}", "none without --servers: those here have their own keys", given)
    kept, out = checkpoint_path(options.checkpoint, options.resume, "folder"), prepare(options.common)
    spending, began, cpu = Spending(terms, options.steps, options.delta), time.perf_counter(), _cpu()
    with ExitStack() as stack:
        folder = kept or Path(stack.enter_context(TemporaryDirectory()))
        addresses, keys, processes = options.servers, options.keys, Servers()
        if addresses is None:
            from dpaudit.cli.secure_local import started

            processes, keys = (
                stack.enter_context(started(options, terms, folder, patience=options.patience)),
                str(folder / "keys"),
            )
            addresses = processes.addresses
        follow = Follower(task, options, terms, spending)
        players = _players(options, task, terms, names, addresses, keys, kept)
        with ExitStack() as closing:
            for player in players:
                closing.callback(player.close)
            try:
                ended = _played(players, options, processes, follow, spending)
            except ChannelError as fault:
                raise _validate.expected("servers", "both to answer", fault) from None
        row = follow.row(players[0]) | processes.figures() | {"ended": ended}
    row |= {"target": options.target, "played": list(names), "seconds": time.perf_counter() - began}
    row |= {"cpu_seconds": _cpu() - cpu, "seed": options.common.seed, "versions": versions()}
    row |= {"device": jax.devices()[0].device_kind}
    try:
        report(options.common, [row], secure_table(row), partial(write_secure_page, row))
    finally:  # neither is lost where the other cannot be written
        if out is not None:
            _save(out / "params.npz", players[0].model.params)


def load_task(target: str) -> "Task":
    """Runs a user's file and finds the task in it, whose failure to return an owner's records is told in one line.

    Raises:
      InputError: no such file or name, a file that raises when it is run, a name for something else.
    """
    from dpaudit.auditing.domain import find
    from dpaudit.training.two_servers import Task

    found, _, place = find(target, "a task")
    if not isinstance(found, Task):
        raise _validate.expected(place, "a dpaudit.training.two_servers.Task", found)

    def records(owner: str) -> Any:
        with failures_in_one_line(target, f'records("{owner}") to return them'):
            return found.records(owner)

    return found._replace(records=records)


def measured(task: "Task", params: Any) -> dict[str, float]:
    """Measures a model as its task does; nothing if the task measures nothing.

    Raises:
      InputError: a measure called step, which would take the place of the number of the step in the report.
    """
    found = {name: float(value) for name, value in task.measure(params).items()} if task.measure else {}
    if "step" in found:
        raise _validate.expected("measure", "names other than step, which is the number of the step", "step")
    return found


def _dimension(task: "Task") -> int:
    import jax

    return sum(leaf.size for leaf in jax.tree.leaves(task.initial))


def _players(
    options: Train,
    task: "Task",
    terms: "Terms",
    names: tuple[str, ...],
    addresses: tuple[str, str],
    keys: str | None,
    kept: Path | None,
) -> "list[Participant]":
    from dpaudit.secure.service import certificates
    from dpaudit.training.two_servers import Participant

    players = []
    for name in names:
        own = certificates.read(Path(keys) / name, name=name) if keys else None
        players.append(
            Participant(
                name,
                task,
                terms,
                addresses,
                batch_size=options.batch_size,
                seed=options.common.seed,
                folder=kept and kept / name,
                patience=options.patience,
                own=own,
                insecure=options.insecure,
            )
        )
    return players


def _played(
    players: "list[Participant]", options: Train, servers: Servers, follow: "Follower", spending: "Spending"
) -> str:
    """Lets all owners of this process take part; returns why they ended."""
    with ThreadPoolExecutor(len(players)) as pool, _shown(options.steps) as show:
        calls = []
        for player in players:
            told = partial(follow.told, player, show) if player is players[0] else _silent
            calls.append(pool.submit(player.run, options.steps, options.every, told, spending))
        try:
            while not all(call.done() for call in calls):
                done, _ = wait(calls, _LOOK, FIRST_EXCEPTION)
                for call in done:
                    call.result()
                if len(done) < len(calls):  # a server that ends after the last step costs nobody anything
                    servers.check()
        except BaseException:
            for player in players:
                player.close()  # which ends the calls that wait
            raise
        return calls[0].result()


def _silent(progress: "Progress") -> None:
    """Shows nothing of the other owners, whose steps are the same."""


class Follower:
    """Follows the training of one owner for the bar and the report."""

    def __init__(self, task: "Task", options: Train, terms: "Terms", spending: "Spending") -> None:
        self._task, self._options, self._terms, self._spending = task, options, terms, spending
        self._times: list[float] = []  # when each step was completed
        self._after: set[int] = set()  # places in it of steps that began while the model was measured
        self._measured: list[tuple[int, dict[str, float]]] = []
        self._often = max(1, options.steps // TOLD)

    def told(self, player: "Participant", show: Any, progress: "Progress") -> None:
        """Notes a completed step, and measures the model now and then."""
        self._times.append(time.perf_counter())
        if self._task.measure and (progress.step % self._often == 0 or progress.step == self._options.steps):
            self._measured.append((progress.step, measured(self._task, player.model.params)))
            self._after.add(len(self._times))
        show(progress, self._measured[-1][1] if self._measured else {})

    def _seconds(self) -> float | None:
        """Returns the mean time of a step; leaves out those before which the model was measured, if others remain.

        While an owner measures, the servers prepare the step, whose time without the measuring would be too short.
        """
        took = [after - before for before, after in itertools.pairwise(self._times)]
        kept = [seconds for place, seconds in enumerate(took, 1) if place not in self._after] or took
        return sum(kept) / len(kept) if kept else None

    def row(self, player: "Participant") -> dict[str, Any]:
        """Returns what the report shows of the training."""
        from dpaudit.secure.noise.binomial import Binomial

        terms = self._terms
        multiplier = self._options.noise_multiplier
        if terms.noise == "binomial":
            multiplier = Binomial(terms.coins, terms.step_bits).std / terms.levels
        epsilon = self._spending.epsilon(player.releases)
        return {
            "owners": len(terms.owners),
            "owners_in_last_step": len(player.owners),
            "dimension": terms.dimension,
            "examples": terms.examples,
            "clip_norm": terms.clip_norm,
            "mode": terms.mode,
            "noise": terms.noise,
            "protocol": terms.protocol,
            "noise_multiplier": multiplier,
            "ring_bits": terms.ring_bits,
            "levels": terms.levels,
            "steps": player.step,
            "steps_asked": self._options.steps,
            "seconds_a_step": self._seconds(),
            "openings": player.releases,
            "epsilon": epsilon if math.isfinite(epsilon) else None,
            "delta": self._spending.delta,
            "budget": list(self._options.budget) if self._options.budget else None,
            "measured": [{"step": step} | _plain(found) for step, found in self._measured],
        }


def _plain(measured: dict[str, float]) -> dict[str, Any]:
    """Returns values for strict JSON: those that are not finite, as of a model that diverged, become text."""
    return {name: value if math.isfinite(value) else str(value) for name, value in measured.items()}


@contextmanager
def _shown(steps: int) -> Iterator[Any]:
    """Shows progress in a bar, or now and then in a line where there is no terminal."""
    from dpaudit.report.words import at_most

    with bars_on_terminal() as bars:
        task = bars and bars.add_task("training", total=steps)
        lock, said = threading.Lock(), [time.monotonic()]

        def show(progress: "Progress", measured: dict[str, float]) -> None:
            spent = f"ε = {at_most(progress.epsilon)}" if math.isfinite(progress.epsilon) else "no ε"
            more = "".join(f", {name} {value:.4g}" for name, value in measured.items())
            with lock:
                if bars is not None and task is not None:
                    bars.update(task, completed=progress.step, description=f"training, {spent}{more}")
                elif progress.step == steps or time.monotonic() - said[0] > 10:
                    said[0] = time.monotonic()
                    tell(f"dpaudit: step {progress.step} of {steps}, {spent}{more}")

        yield show


def _cpu() -> float:
    """Returns the processor seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _save(file: Path, params: Any) -> None:
    """Writes the parameters, by their path in the pytree; types that NumPy's files lack, as bfloat16, as float32."""
    import jax
    import numpy as np

    named: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        array = np.asarray(leaf)
        kept = array.astype(np.float32) if array.dtype.kind == "V" else array
        named[jax.tree_util.keystr(path, simple=True, separator=".")] = kept
    with zipfile.ZipFile(file, "w") as whole:  # numpy.savez has no room for a parameter called "file"
        for name, array in named.items():
            with whole.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)
