"""Writes docs/accelerators.md from the rows of experiments.bench.accelerators, now and before the mending.

python -m experiments.bench.accelerators_page
"""

import math
from pathlib import Path

from dpaudit.report.rows import read_rows, replace_text
from experiments.bench.measured import measured
from experiments.pages import table

RESULTS = Path(__file__).parent / "results"
NOW, BEFORE = RESULTS / "bench_accelerators.json", RESULTS / "bench_accelerators_before.json"
SCHEDULE = RESULTS / "bench_accelerator_schedule.json"
TIMED, TABLED = RESULTS / "bench_gpu.json", RESULTS / "bench_nvidia-h200-16-cores.json"
PAGE = Path(__file__).parents[2] / "docs" / "accelerators.md"
CHIPS = {"h100": "One H100", "v5e": "One chip of a TPU v5e", "v6e": "One chip of a TPU v6e"}
SCALES = {"h100": ("h100:1x2x4", "h100:1x128x8"), "v5e": ("v5e:2x2",)}
DEVICES = {"h100": 1, "v5e": 1, "v5e:2x2": 4, "h100:1x2x4": 8, "h100:1x128x8": 1_024, "v5p:8x16x16": 2_048}

BATCH = "CNN32 x 1,024"
OTHERS = ["grouped convolutions", "a second convolution", "grouped, and a second convolution"]
OTHERS += ["inner products of positions"]
BESIDE = ["64 networks, convolutions", "64 networks, patches"]
# Bytes of the gradients of both convolutions of CNN32, 5 x 5, 3 to 64 and 64 to 64 channels: written once, read twice.
WRITTEN = 3.0 * 4 * 1_024 * 25 * 64 * (3 + 64)
# Bytes of their operands: patches 5 x 5 of 28 x 28 positions; of 14 x 10, patches and shifts of five rows each.
OPERANDS = 2.0 * 4 * 1_024 * (28 * 28 * 75 + 14 * 10 * (320 + 320))

HEAD = """# Accelerators

Every program of dpaudit is compiled for a TPU and for an H100 on a machine that has neither (`make accelerators`), and
tested: it compiles, has no loop over examples, clients, users or networks, no float64 and no call to the host, and its
temporaries stay below a limit. On a TPU no array of 16 MB or more takes over four times the bytes of its numbers, but
for a few arrays of five programs, whose last axis is short; `tests/accelerators/test_contract.py` names them.

!!! warning "Bounds, not times"

    What was run stands in one part, "Measured". All other numbers are read from compiled programs: bytes that a call
    reads and writes on one device, operations as the program states them, temporaries as XLA plans them. The roofline
    is a lower bound on the time of a call, which only bytes and operations limit; the true time is longer, by a factor
    that is known for what was measured alone.

A call of `full`, `kernel` or `plane` runs a block of trials, as many as the table says: these programs compare by the
trial, not by the call. `plane` draws two words a trial in the plane of its pair of gradients, so that its program is
the same for every d. A call of `DP-SGD`, `64 networks` and `federated round`
takes 20 steps or rounds. An arrow leads from the program before it was rewritten for accelerators to that of today; a
program that has not been compiled for a chip since is not listed there.

Loops whose length is known only at run time are counted as one iteration: before, on both chips, and today on a TPU,
`DP-SGD` and `64 networks` are counted with one microbatch a step. A GPU would ask the host before each iteration, so
that on an H100 all of them are computed, and the length of every loop is known: there the numbers on both sides of an
arrow are not comparable. Branches are counted with both of their sides, of which a run takes one: only `audit,
portfolio` has any, four, each on a number that is the same for all trials. A GPU asks the host for that number.
"""

ROOFLINE = """The roofline of an H100 assumes 3.35 TB/s, 494 TFLOP/s in products and 33.5 T other operations a second;
that of a v5e 819 GB/s, 197 TFLOP/s and 6.1 T; none is given for a v6e. Products in full precision, which every bound
depends on, take three to six passes, and may take that many times longer.
"""

KERNEL = """## The engine `kernel`

`dpaudit ldp --engine kernel --pair fixed` plays the trials of `full` for one pair of gradients by a Pallas kernel,
which adds up what an observer sees of a release while it draws it. For 1,024 trials with d = 26,010 the kernel moves
{moved} MB on one chip of a v5e, where `full` moves {full_moved} MB. It is an engine of its own because it is not the
mechanism as shipped, and so cannot find a bug in it; its random words are those of `full`, and so are its codes unless
rounding decides.

The instructions of the TPU's kernel are known: {block} bundles for a block of the cipher in 1,024 trials side by
side. At 1.5 10⁹ bundles a second that is at most {scheduled} trials a second on one chip of a v5e, waits for memory
not counted. For `full` there are only the operations of the program as stated, which allow at most {full} trials a
second. None of this was timed. A kernel stays if it is at least 1.3 times as fast as XLA's best on a device that was
measured (`python -m experiments.bench.kernels`).
"""

FORMS = """## Forms that are not taken

A clipped sum of CNN32 at 1,024 on an H100 moves {ratio} times the bytes of the plain gradient: {clipped} MB for
{plain}. The gradients of the convolutions are written out for every example, read once for the norms and once for the
sum, which is {written} MB. With the plain gradient's, {least} MB or {least_ratio} times cannot be avoided in this
form. The operands of the products, which are patches of images and shifted cotangents, are written once and read once,
which is {operands} MB. Other forms were compiled:

{table}

- *Grouped convolutions* compute each example's gradient as one feature group. They move more bytes, because their
  result is copied to another layout, and cuDNN's speed for groups of one channel cannot be known without a device.
- *A second convolution* with scaled cotangents replaces the sum over gradients that are written out. It computes every
  weight gradient twice, in full precision, which is bound to take longer than what the bytes save.
- *Grouped, and a second convolution* takes norms from the first form and the sum from the second: gradients are read
  once, and no patches of that layer are written. It moves {fewest_ratio} times the plain gradient's bytes. It would
  save {saved} MB, or {saved_ms} ms at 3.35 TB/s, for {more} 10⁹ more operations, or {more_ms} ms if three passes at
  494 TFLOP/s are enough; and cuDNN's speed is as unknown as in the first form.
- *Inner products of positions* give norms without gradients. Where positions cancel, what is left is rounding: a norm
  is known only to about 3/10,000 of the length of what cancels, where gradients that are written out show a tenth of a
  millionth. Norms decide how much a unit may weigh, so that this form is refused.

Networks side by side on one device (a microbatch of 15 for each of 64 CNN28) have convolutions with 64 feature groups,
or products with patches. A GPU takes patches. A TPU takes the convolutions, although it computes them as if every
group read the channels of all, because patches are padded and copied there:

{beside}
"""

TAIL = """## With more devices

The bytes that one device moves are proportional to the number of devices to the power of the exponent. In `full`,
`kernel`, `plane` and `user solves` each device gets as much work as a single one, so that 0 is perfect; user solves
gather all results on every device. The trials of an audit are divided, so that -1 is perfect. A round has 1,000
clients on one device and on eight, so that -1 is perfect, and 4 for each device beyond.

{scale}

A round has one all-reduce, and gathers the norms and the losses of its clients. A program that does not fit into
memory is refused in one line, with the bytes that it needs.
"""


class Read:
    """Values by program, machine and quantity."""

    def __init__(self, file: Path):
        rows = read_rows(file) if file.exists() else []
        self.known = {(r["setting"]["program"], r["setting"]["machine"], r["quantity"]): r["ours"] for r in rows}

    def get(self, program: str, machine: str, quantity: str) -> float | None:
        return self.known.get((program, machine, quantity))

    def programs(self, machine: str) -> list[str]:
        return list(dict.fromkeys(program for program, where, _ in self.known if where == machine))


def short(value: float | None, unit: float = 1) -> str:
    if value is None:
        return "–"
    value /= unit
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def pair(now: Read, before: Read, key: tuple[str, str, str], unit: float = 1) -> str:
    """Returns the value before, an arrow, and the value now; one value where they are the same or there was none."""
    found = [short(rows.get(*key), unit) for rows in (before, now)]
    return found[1] if found[0] in (found[1], "–") else " → ".join(found)


def on(machine: str, now: Read, before: Read) -> str:
    heads = ["program", "operations in products, 10⁹", "other operations, 10⁹", "MB moved", "MB of temporaries"]
    heads += ["kernels", "longest loop", "roofline, ms"]
    lines = []
    for program in now.programs(machine):
        if program in OTHERS + BESIDE:
            continue

        def both(quantity: str, unit: float = 1, program: str = program) -> str:
            return pair(now, before, (program, machine, quantity), unit)

        arithmetic = [
            short(now.get(program, machine, what), 1e9) for what in ("operations_in_products", "other_operations")
        ]
        planned = [both("bytes_moved", 1e6), both("bytes_of_temporaries", 1e6), both("kernels_launched")]
        bound = short(now.get(program, machine, "roofline_microseconds"), 1e3)
        name = program + ("" if (trials := in_a_call(now, program, machine)) is None else f", {trials:,} trials")
        lines.append([name, *arithmetic, *planned, both("longest_loop"), bound])
    return table(heads, lines)


def in_a_call(now: Read, program: str, machine: str) -> int | None:
    """Returns how many trials a call plays, where the rows tell the bytes of 1,024."""
    moved, some = (now.get(program, machine, what) for what in ("bytes_moved", "bytes_per_1024_trials"))
    return round(1_024 * moved / some) if moved and some else None


def exponent(one: float, many: float, ratio: float) -> float:
    return math.log(many / one) / math.log(ratio)


def scale(now: Read) -> str:
    lines = []
    for one, larger in SCALES.items():
        for program in now.programs(one):
            for machine in larger:
                moved = [now.get(program, where, "bytes_moved") for where in (one, machine)]
                if moved[0] and moved[1]:
                    grown = exponent(moved[0], moved[1], DEVICES[machine] / DEVICES[one])
                    held = short(now.get(program, machine, "bytes_of_temporaries"), 1e6)
                    together = short(now.get(program, machine, "collectives"))
                    row = [program, machine, f"{DEVICES[machine]:,}", *(short(x, 1e6) for x in moved)]
                    lines.append([*row, f"{round(grown, 2) + 0.0:.2f}", held, together])
    for program in now.programs("v5p:8x16x16"):
        moved, held, together = (
            now.get(program, "v5p:8x16x16", what) for what in ("bytes_moved", "bytes_of_temporaries", "collectives")
        )
        lines.append([program, "v5p:8x16x16", "2,048", "–", short(moved, 1e6), "–", short(held, 1e6), short(together)])
    heads = ["program", "machine", "devices", "MB moved by one alone", "MB moved by each", "exponent"]
    return table([*heads, "MB of temporaries", "collectives"], lines)


def kernel(now: Read, schedule: Read) -> str:
    """Returns the part on the kernel."""

    def known(rows: Read, program: str, quantity: str) -> float:
        found = rows.get(program, "v5e", quantity)
        assert found is not None
        return found

    full = "full, d = 26,010"
    played = 1024 * known(now, full, "bytes_moved") / known(now, full, "bytes_per_1024_trials")
    return KERNEL.strip().format(
        moved=short(known(now, "kernel of a TPU", "bytes_moved"), 1e6),
        full_moved=short(known(now, full, "bytes_per_1024_trials"), 1e6),
        block=short(known(schedule, "kernel of a TPU", "bundles_of_a_block")),
        scheduled=f"{known(schedule, 'kernel of a TPU', 'trials_per_second_at_most'):,.3g}".replace(
            "e+06", " million"
        ),
        full=f"{1e6 * played / known(now, full, 'roofline_microseconds'):,.0f}",
    )


def forms(now: Read) -> str:
    """Returns the part on other forms."""

    def moved(name: str) -> float:
        found = now.get(name, "h100", "bytes_moved")
        assert found is not None
        return found

    def row(name: str, title: str, machine: str) -> list[str]:
        quantities = [("bytes_moved", 1e6), ("bytes_of_temporaries", 1e6), ("operations_in_products", 1e9)]
        return [title, machine, *(short(now.get(name, machine, what), unit) for what, unit in quantities)]

    clipped, plain = moved(f"clipped sum, {BATCH}"), moved(f"plain gradient, {BATCH}")
    fewest = moved(OTHERS[2])
    products = [now.get(name, "h100", "operations_in_products") or 0 for name in (OTHERS[2], f"clipped sum, {BATCH}")]
    more = products[0] - products[1]
    titles = {f"clipped sum, {BATCH}": "as shipped"} | {name: name for name in OTHERS}
    heads = ["form", "machine", "MB moved", "MB of temporaries", "operations in products, 10⁹"]
    return FORMS.strip().format(
        ratio=f"{clipped / plain:.2f}",
        clipped=short(clipped, 1e6),
        plain=short(plain, 1e6),
        written=short(WRITTEN, 1e6),
        least=short(plain + WRITTEN, 1e6),
        operands=short(OPERANDS, 1e6),
        least_ratio=f"{(plain + WRITTEN) / plain:.2f}",
        fewest_ratio=f"{fewest / plain:.2f}",
        saved=short(clipped - fewest, 1e6),
        saved_ms=f"{1e3 * (clipped - fewest) / 3.35e12:.2f}",
        more=short(more, 1e9),
        more_ms=f"{1e3 * 3 * more / 494e12:.2f}",
        table=table(heads, [row(name, title, "h100") for name, title in titles.items()]),
        beside=table(heads, [row(name, name, on) for on in CHIPS for name in BESIDE if name in now.programs(on)]),
    )


def timed(now: Read) -> str:
    """Returns the part on what was measured."""
    called = in_a_call(now, "full, d = 26,010", "h100")
    assert called is not None
    return measured(
        read_rows(TIMED), read_rows(TABLED), lambda name: now.get(name, "h100", "roofline_microseconds"), called
    )


def page() -> str:
    now, before = Read(NOW), Read(BEFORE)
    chips = [f"## {title}\n\n{on(machine, now, before)}" for machine, title in CHIPS.items()]
    parts = [
        HEAD.strip(),
        timed(now),
        *chips,
        ROOFLINE.strip(),
        kernel(now, Read(SCHEDULE)),
        forms(now),
        TAIL.strip().format(scale=scale(now)),
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    replace_text(PAGE, page())


if __name__ == "__main__":
    main()
