"""Gives every experiment what all share: its options, its comparison rows, and how they are kept."""

import argparse
import inspect
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from dpaudit import _platform
from dpaudit._engine import hosts
from dpaudit._engine.fingerprint import Identity, refuse_another
from dpaudit._validate import expected
from dpaudit.auditing.result import json_number
from dpaudit.cli.command import bars_on_terminal, perform
from dpaudit.report.rows import prepare_out, read_rows, write_rows
from experiments import fingerprint

HERE = Path(__file__).parent
Run = TypeVar("Run", bound=tuple[Any, ...])
PROGRAMS = {  # the module that makes each file of rows
    "ldp_client_audit": "paper000.run",
    "spgc": "paper001.run",
    "spgc_audit": "paper001.audit",
    "spgc_cost": "paper001.cost",
    "spgc_printed": "paper001.printed",
    "spgc_protocol": "paper001.protocol",
    "spgc_service": "paper001.service",
    "spgc_table": "paper001.table_one",
    "clip_size": "paper002.run",
    "clip_size_devices": "paper002.devices",
    "clip_size_unstated": "paper002.unstated",
    "federated_audit": "paper002.audit",
    "mc_dropout_full": "paper003.full_scale",
    "mc_dropout_unstated": "paper003.unstated",
    "mc_dropout_risk": "paper003.run",
    "training_audit": "paper003.audit",
    "personalization": "paper004.run",
    "personalization_jester": "paper004.jester",
    "personalization_movielens": "paper004.movielens",
    "personalization_rankings": "paper004.rankings",
    "personalization_dpals": "paper004.dpals",
    "personalization_scale": "paper004.scale",
    "personalization_audit": "paper004.audit",
    "personalization_protocols": "paper004.protocols",
    "personalization_crossover": "paper004.crossover",
    "coverage": "trust.coverage",
    "dp_sniper": "trust.dp_sniper",
    "fault_zoo": "trust.fault_zoo",
    "libraries": "libraries.run",
    "peers": "libraries.peers",
    "recorded": "libraries.recorded",
    "replayed": "libraries.replayed",
    "worst_key": "trust.worst_key",
}


def program(name: str) -> str:
    """Returns the module below this folder that makes the rows of a file."""
    stem = name.partition(".")[0]
    return PROGRAMS.get(stem, f"bench.{stem.removeprefix('bench_')}")


def results(name: str) -> Path:
    """Returns the committed rows of a name."""
    return HERE / program(name).partition(".")[0] / "results" / f"{name}.json"


def files_of(file: Path) -> list[Path]:
    """Returns the files that there are of some rows: their own, and those beside it."""
    return [found for found in (file, *sorted(file.parent.glob(f"{file.stem}.*{file.suffix}"))) if found.exists()]


def read_all(file: Path) -> list[dict[str, Any]]:
    """Returns the rows of these files."""
    return [row for found in files_of(file) for row in read_rows(found)]


def options(description: str, *, work: str = "", share: bool = False) -> argparse.ArgumentParser:
    """--quick, --out, --data-dir, --seed; --work, for which what it keeps is told; --share of runs among processes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small version, in under a minute, on bundled data")
    parser.add_argument("--out", default=None, help="directory for results.json; default: the committed results")
    parser.add_argument("--data-dir", default=None, help="where the data sets lie; else $DPAUDIT_DATA")
    parser.add_argument("--seed", type=int, default=0)
    if work:
        parser.add_argument("--work", default=None, metavar="DIR", help=f"keeps {work}, to go on from")
    if share:
        told = "every N-th run from the I-th on, counted from 0, and no rows"
        parser.add_argument("--share", type=_share, default=None, metavar="I/N", help=told)
    return parser


def _share(text: str) -> str:
    """Refuses a share that would leave runs out, such as 2/2: shares are counted from 0."""
    found = re.fullmatch(r"([0-9]+)/([0-9]+)", text)
    if not (found and int(found[1]) < int(found[2])):
        raise argparse.ArgumentTypeError(f"expected I/N with I from 0 to N - 1, got {text}")
    return text


def refuse_homeless(chosen: argparse.Namespace) -> None:
    """Raises InputError where what takes hours has no --work to be kept in."""
    if chosen.work is None and not chosen.quick:
        raise expected("--work", "a folder for what takes hours", "none")


def shared_out(wanted: Sequence[Run], share: str | None) -> Sequence[Run]:
    """Returns the runs that fall to a process: all, or those of ``--share I/N``."""
    first, every = (0, 1) if share is None else map(int, share.split("/"))
    return wanted[first::every]


def as_command(main: Callable[[], None]) -> None:
    """Runs an experiment as a command: on all devices of all processes that were started together, of which one
    speaks, and until SIGTERM, from which the same command goes on where ``--work`` keeps what was done."""

    def one_speaks() -> None:
        if hosts.first():
            return main()
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            main()

    how_to_resume = "; the same command goes on" if any(part.startswith("--work") for part in sys.argv) else ""
    perform(Path(sys.argv[0]).stem, one_speaks, lambda: how_to_resume)


def seconds(run: Callable[[], object]) -> float:
    """Times one call, until the arrays that it returns are there."""
    began = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - began


def peak_gib() -> float:
    """This process's own peak of memory; ``ru_maxrss`` would count that of the process that started it."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 2**20


def growth_gib(run: Callable[[], Any]) -> float:
    """Measures how far this process's memory rises while ``run()`` works, above what it holds before."""
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far, such as that of a compilation
    before = peak_gib()
    run()
    return peak_gib() - before


@contextmanager
def answering(command: Sequence[str]) -> Iterator[Callable[[str], Any]]:
    """Starts a process to talk to: ``ask(line)`` returns what it answers, one line of JSON. It ends when its input
    does."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        to, back = process.stdin, process.stdout

        def ask(line: str) -> Any:
            print(line, file=to, flush=True)
            return json.loads(back.readline())

        yield ask


def refuse_stale(record: dict[str, Any], identity: Identity, file: Path) -> None:
    """Nothing, where a record in a work folder is of the program, the settings and the data that would make it now.

    A record from before records carried an ``identity`` passes, and the rows made of it carry no fingerprint.

    Raises:
      InputError: a record of another run; the message names the parts that differ.
    """
    if record.get("identity") is not None:
        refuse_another(identity, record["identity"], "experiment", file.name)


def there(record: dict[str, Any], identity_of: Callable[[], Identity]) -> Identity:
    """Returns what identifies a run on the kind of device that its record is from, so that records of GPUs can be put
    together without one: by the program that is traced for them, and not by first models, which they round
    otherwise."""
    device = record.get("device") or _platform.current()
    kind = device if device in _platform.KINDS else "tpu" if device.startswith("TPU") else "gpu"
    if kind == _platform.current():
        return identity_of()
    with _platform.named(kind):
        return {name: part for name, part in identity_of().items() if name != "start"}


def kept_records(
    wanted: Sequence[Run],
    play: Callable[[Run, Callable[[int], None]], dict[str, Any]],  # its second argument is told what is done
    file_of: Callable[[Run], Path | None],
    identity_of: Callable[[Run], Identity],
    told: Callable[[dict[str, Any]], str],  # a record in a few words
    total: int,  # of what is done in a run
) -> list[dict[str, Any]]:
    """Returns the record of every run, found in its file or made and kept there, with a line for each."""
    found = []
    with bars_on_terminal() as bars:
        for number, run in enumerate(wanted, 1):
            file, name = file_of(run), ", ".join(str(part) for part in run if part is not None)
            if file is not None and file.exists():
                (record,) = read_rows(file)
                refuse_stale(record, there(record, partial(identity_of, run)), file)
            else:
                record = play(run, bar_of(bars, name, total))
                if file is not None:
                    file.parent.mkdir(parents=True, exist_ok=True)
                    write_rows([record], file)
            found.append(record)
            print(f"{number}/{len(wanted)} {name}: {told(record)}", flush=True)
    return found


def bar_of(bars: Any, name: str, total: int) -> Callable[[int], None]:
    """Returns what is called with how much is done; ``bars`` is None where no terminal shows them."""
    if bars is None:
        return lambda done: None
    task = bars.add_task(name, total=total)
    return lambda done: bars.update(task, completed=done)


class Rows:
    """Collects comparison rows, prints each as it comes, and writes the file after every part.

    With ``keep``, the rows of quantities that are not measured this time stay in the file, or those of which a
    ``keep(row)`` says so. ``data_dir`` is where data sets lie, for parts that read them. ``beside(row)`` names the
    file beside that has a row, NAME.BESIDE.json; "" for the file itself.

    Every row carries ``made_by``: the fingerprint of the program, the part of it and its arguments (null outside
    :meth:`run`), and how many rows were there before, on which the keys of some parts depend; and the ``fingerprint``
    of these and the seed. Rows from before there were fingerprints have null, and the commit that added them.
    """

    def __init__(
        self,
        paper: str,
        name: str,
        out: str | None,
        seed: int,
        *,
        keep: bool | Callable[[dict[str, Any]], bool] = False,
        data_dir: str | None = None,
        beside: Callable[[dict[str, Any]], str] = lambda row: "",
    ):
        self.paper, self.seed, self.rows, self.data_dir, self.beside = paper, seed, [], data_dir, beside
        self.made_by: dict[str, Any] = {"program": fingerprint.of_module(program(name))}
        self.made_by |= {"part": None, "arguments": None, "at": None}
        self.file = results(name) if out is None else Path(out) / "results.json"
        if out is not None:
            hosts.once(lambda: str(prepare_out(out, force=True)))
        self.earlier = read_all(self.file) if keep else []
        self.keep = keep if callable(keep) else self._not_measured
        self.began = time.perf_counter()

    @contextmanager
    def of_records(self, records: Sequence[dict[str, Any]]) -> Iterator[None]:
        """Rows made of a work folder's records carry no fingerprint where one of these has none."""
        before = self.made_by
        if any(record.get("identity") is None for record in records):
            self.made_by = before | {"program": None}
        try:
            yield
        finally:
            self.made_by = before

    def run(self, part: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Runs ``part(rows, *arguments, **named)``, whose rows carry what ``make reproduce`` makes them again from.

        Args:
          part: in the ``REPRODUCIBLE`` of its experiment, by its name.
          *arguments, **named: values that JSON knows.
        """
        bound = inspect.signature(part).bind(self, *arguments, **named)
        bound.apply_defaults()
        given = json.loads(json.dumps(dict(list(bound.arguments.items())[1:])))
        before, self.made_by = self.made_by, self.made_by | {"part": part.__name__, "arguments": given}
        self.made_by["at"] = len(self.rows)
        try:
            return part(self, *arguments, **named)
        finally:
            self.made_by = before

    def add(
        self,
        quantity: str,
        setting: dict[str, Any],
        ours: float | None,
        bounds: Sequence[float | None] = (None, None),
        *,
        scale: str,
        paper_value: float | None = None,
        seconds: float | None = None,
    ) -> dict[str, Any]:
        """Adds one number of ours, with its range, beside the paper's; the row, to which more may be added.

        ``seconds`` is how long what it tells of took; where that is not given, the time since the part began.
        """
        took = time.perf_counter() - self.began if seconds is None else seconds
        row = {"paper": self.paper, "quantity": quantity, "setting": setting}
        row |= {"ours": json_number(ours), "ours_low": json_number(bounds[0]), "ours_high": json_number(bounds[1])}
        row |= {"paper_value": paper_value, "scale": scale, "seed": self.seed}
        row |= {"seconds": float(f"{took:.3g}"), "device": jax.devices()[0].device_kind}
        self.rows.append(row | self.signature())
        return self.rows[-1]

    def signature(self) -> dict[str, Any]:
        """Returns the fields of a row that identify what made it."""
        known = self.made_by["program"] is not None
        return {"fingerprint": fingerprint.of(self.made_by, self.seed) if known else None, "made_by": self.made_by}

    def spread(self, quantity: str, setting: dict[str, Any], values: Sequence[float], *, scale: str) -> None:
        """Adds the median of what was measured several times, with its range; printed as it comes."""
        middle, low, high = (float(of(values)) for of in (np.median, np.min, np.max))
        self.add(quantity, setting, middle, (low, high), scale=scale)
        print(f"{quantity} {setting}: {middle:.4g} [{low:.4g}, {high:.4g}]  {scale}", flush=True)

    def finish_part(self, title: str) -> None:
        """Writes what there is; nothing computed so far can be lost."""
        files: dict[str, list[dict[str, Any]]] = {"": []}
        for row in [row for row in self.earlier if self.keep(row)] + self.rows:
            name = self.beside(row)
            files.setdefault(f".{name}" if name else "", []).append(row)
        for ending in sorted(files, reverse=True):  # a row that moves to a file beside is written there first
            self.write(files[ending], ending)
        for file in files_of(self.file) if hosts.first() else ():
            if file.stem.removeprefix(self.file.stem) not in files:
                file.unlink()
        print(f"{title}: {len(self.rows)} rows in {self.file.name}, {time.perf_counter() - self.began:.0f} s")
        self.began = time.perf_counter()

    def _not_measured(self, row: dict[str, Any]) -> bool:
        return row["quantity"] not in {own["quantity"] for own in self.rows}

    def write(self, rows: Sequence[dict[str, Any]], ending: str = "") -> None:
        """These rows, in the file or in one beside it whose name ends so; the first process writes for all."""
        if hosts.first():
            write_rows(rows, self.file.with_name(self.file.stem + ending + self.file.suffix))
