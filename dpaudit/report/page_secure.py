"""Renders what is told of a training through two servers: its table on the screen and the body of its page."""

import itertools
from html import escape
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from dpaudit.report import markup, words

PROTOCOLS = {"circuit": "a garbled circuit", "transfers": "oblivious transfers"}
PROMISE = (
    "A party that sees what one server sees, and everything of all other owners, learns about an example what the "
    "noisy sums reveal: an ε of {epsilon} at δ = {delta:g} for an example that was in every step and could have been "
    "replaced by any other. This holds if the two servers do not collude and all parties follow the protocol."
)
NO_PROMISE = (
    "The sums were opened {why}, so nothing is promised about what they reveal of an example. The servers still learn "
    "nothing else of the owners' gradients, if the two do not collude and all parties follow the protocol."
)


def secure_lines(row: dict[str, Any]) -> list[tuple[str, str]]:
    """Lists the numbers of one training, a row of ``dpaudit secure train``, with their meanings."""
    steps = f"{row['steps']:,} of {row['steps_asked']:,}"
    ended = "; the budget is spent" if row["ended"] == "budget" else ""
    budget = f" (budget {row['budget'][0]:g} at δ = {row['budget'][1]:g})" if row["budget"] else ""
    spent = f"{words.at_most(row['epsilon'])} at δ = {row['delta']:g}{budget}, of {row['openings']:,} openings"
    ring = f"{row['ring_bits']} bits, {row['levels']:,} units in a clip norm of {row['clip_norm']:g}"
    lines = [
        ("steps", steps + ended),
        ("ε spent", spent if row["epsilon"] is not None else f"no limit is known: {_why(row)}"),
        ("owners", f"{row['owners']}, of whom {', '.join(row['played'])} here"),
        ("sum", f"{row['dimension']:,} coordinates of {row['examples']:,} examples a step"),
        ("noise", _noise(row)),
        ("ring", ring),
    ]
    if row["measured"]:
        last = row["measured"][-1]
        lines[1:1] = [(name, f"{float(value):.4g} after step {last['step']:,}") for name, value in _numbers(last)]
    if "h1_bytes_sent" in row:
        both = row["h1_bytes_sent"] + row["h2_bytes_sent"]
        peak = max(row["h1_peak_gib"], row["h2_peak_gib"])
        used = f"{row['h1_cpu_seconds']:.1f} s of h1, {row['h2_cpu_seconds']:.1f} s of h2"
        lines += [("between servers", f"{both / 1e6:,.1f} MB"), ("servers", f"{used}, at most {peak:.2f} GiB")]
    return [*lines, ("time", f"{row['seconds']:.1f} s, {row['cpu_seconds']:.1f} s of the processor for owners here")]


def secure_table(row: dict[str, Any]) -> Table:
    """Makes a table of one training through two servers, one line per number."""
    table = Table(box=SIMPLE_HEAD, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    for name, value in secure_lines(row):
        table.add_row(Text(name), Text(value))  # names of measures are the user's
    return table


def render(row: dict[str, Any]) -> str:
    """Renders the body of the page."""
    if row["epsilon"] is None:
        promise = NO_PROMISE.format(why=_why(row))
    else:
        promise = PROMISE.format(epsilon=words.at_most(row["epsilon"]), delta=row["delta"])
    parts = [
        f"<h1>Training of {escape(row['target'].rpartition(':')[2])} through two servers</h1>",
        f'<div class="box">{markup.paragraph(promise)}</div>',
        "<h2>Every number</h2>",
        markup.definitions([*secure_lines(row), ("seed", str(row["seed"])), ("versions", row["versions"])]),
    ]
    if row["measured"]:
        names = list(dict.fromkeys(itertools.chain.from_iterable(of for of in row["measured"])))
        cells = [[f"{float(of[name]):.4g}" if name in of else "–" for name in names] for of in row["measured"]]
        parts += ["<h2>By step</h2>", markup.table(names, cells)]
    return "\n".join(parts)


def _numbers(measured: dict[str, Any]) -> list[tuple[str, Any]]:
    """Lists what was measured; a number that is not finite is text, such as "nan"."""
    return [(name, value) for name, value in measured.items() if name != "step"]


def _why(row: dict[str, Any]) -> str:
    return "without noise" if row["mode"] == "plain" else "with the paper's table of noise, which is not private"


def _noise(row: dict[str, Any]) -> str:
    if row["mode"] == "plain":
        return "none: the sums are opened as they are"
    made = f"{row['noise']}, by {PROTOCOLS[row['protocol']]}"
    return f"{row['noise_multiplier']:.4g} clip norms in each coordinate ({made})"
