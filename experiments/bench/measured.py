"""Writes what was measured on an accelerator, beside what was asked of it and what its compiled program is bound by.

The rows are those of :mod:`experiments.bench.gpu`. The bounds are those of an H100, which computes as fast as an H200.
"""

from collections.abc import Callable
from typing import NamedTuple

from experiments.bench.page import ranged
from experiments.pages import Row, Rows, only, table

TOLD = """## Measured on one {device}

`make bench-gpu` on {date}, in a host of {cores} cores, with JAX {jax}, PyTorch {torch} and Opacus {opacus}. Products
whose precision is not stated are in TF32 on all sides, as XLA has them there.

{table}

The bound is the roofline of the compiled program on an H100, below; an H200 computes as fast, and its memory is
{wider:.1f} times as fast. What was timed took {least} to {most} times its bound. The other sides are in
[the table of benchmarks](../experiments/bench/RESULTS.md). The benchmark of the engine `kernel` was stopped after a
minute, before it had timed anything: whether the kernel stays is still open.
"""

H100, H200 = 3.35e12, 4.8e12  # bytes a second of their memory, by the vendor
SUM, ROUND, STEP = "clipped sum, CNN32 x 1,024", "federated round, 1,000 x 5", "a step of a network of paper 003"


class Asked(NamedTuple):
    """One figure, as :mod:`experiments.bench.gpu` states it; of those without a number none was."""

    what: str
    row: Callable[[Rows], Row]
    least: float | None = None
    most: float | None = None
    program: str = ""  # that the bound is of
    milliseconds: Callable[[float], float] | None = None  # of a call of it, from the figure


def gradient(side: str) -> Callable[[Rows], Row]:
    return lambda rows: only(rows, "gradient_seconds", network="CNN32", side=side)


def ratio(over: str) -> Callable[[Rows], Row]:
    return lambda rows: only(rows, "gradient_ratio", of=over, to="ours, clipped")


def inverse(row: Row) -> Row:
    return row | {"ours": 1 / row["ours"], "ours_low": 1 / row["ours_high"], "ours_high": 1 / row["ours_low"]}


def figures(in_a_call: float) -> list[Asked]:
    """Returns what was asked; a call of `full` plays so many trials, one of the rounds twenty."""
    return [
        Asked(
            "trials of `full`, d = 26,010, a second",
            lambda rows: only(rows, "full_trials_per_second", d=26_010),
            least=2e6, program="full, d = 26,010", milliseconds=lambda rate: 1e3 * in_a_call / rate,
        ),
        Asked("clipped sum of CNN32, batch 1,024, seconds", gradient("ours, clipped"), program=SUM,
              milliseconds=lambda seconds: 1e3 * seconds),
        Asked("its plain gradient, seconds", gradient("ours, plain"), program="plain gradient, CNN32 x 1,024",
              milliseconds=lambda seconds: 1e3 * seconds),
        Asked("the clipped sum's time over the plain gradient's", lambda rows: inverse(ratio("ours, plain")(rows)),
              most=3.3),
        Asked("Opacus's time over the clipped sum's, per-sample gradients", ratio("Opacus per-sample gradients"),
              least=3),
        Asked("and ghost clipping", ratio("Opacus ghost clipping"), least=3),
        Asked("10,000 federated rounds of 1,000 clients, seconds", lambda rows: only(rows, "run_seconds"), most=60,
              program=ROUND, milliseconds=lambda seconds: 1e3 * seconds / 10_000 * 20),
        Asked("a step of one of 32 networks of paper 003's scale, milliseconds",
              lambda rows: only(rows, "paper_step_milliseconds", scale="paper")),
        Asked("all 4,010 trainings of its games, hours, estimated",
              lambda rows: only(rows, "paper_hours", scale="paper")),
    ]  # fmt: skip


def reached(asked: Asked, value: float) -> str:
    if asked.least is None and asked.most is None:
        return "–"
    return "yes" if (asked.least or 0) <= value <= (asked.most or value) else "**no**"


def measured(rows: Rows, machine: Rows, bound: Callable[[str], float | None], in_a_call: float) -> str:
    """Returns the part of the page.

    Args:
      rows: of the benchmark on the accelerator.
      machine: the rows of its table, which tell where and when.
      bound: microseconds of a program's roofline, by its name.
      in_a_call: trials that a call of `full` plays.
    """
    lines, over = [], []
    for asked in figures(in_a_call):
        row = asked.row(rows)
        wanted = "–" if asked.least is None else f"at least {asked.least:,.0f}"
        wanted = wanted if asked.most is None else f"at most {asked.most:g}"
        times = ""
        if asked.milliseconds is not None:
            least = bound(asked.program)
            assert least is not None
            over.append(1e3 * asked.milliseconds(row["ours"]) / least)
            times = f"{over[-1]:.1f}"
        lines.append([asked.what, wanted, ranged(row, "ours"), reached(asked, row["ours"]), times or "–"])
    of, versions = machine[0], machine[0]["versions"]
    return TOLD.strip().format(
        device=of["machine"]["accelerator"], cores=of["machine"]["cores"], date=of["date"].split()[0],
        **{name: versions[name].split("+")[0] for name in ("jax", "torch", "opacus")},
        table=table(["what", "asked", "measured [range]", "reached", "times its bound"], lines),
        wider=H200 / H100, least=f"{min(over):.1f}", most=f"{max(over):.1f}",
    )  # fmt: skip
