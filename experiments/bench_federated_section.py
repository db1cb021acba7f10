"""The part of experiments/README.md that tells what federated rounds cost: tables from bench_federated's rows."""

from collections.abc import Iterable, Sequence
from typing import Any

from experiments.bench_federated_sides import EXAMPLES
from experiments.bench_training_sides import NETWORKS
from experiments.markdown import number, ranged, select, table

Rows = Sequence[dict[str, Any]]


def section(rows: Rows) -> Iterable[str]:
    """Markdown blocks, in reading order."""
    yield "## Speed and memory of federated rounds\n"
    yield (
        "Command: `python -m experiments.bench_federated`. Medians [range] over the rounds of timing; ratios were formed round by "
        "round.\n"
    )
    yield from _round(rows)
    yield from _growth(rows)
    yield from _memory(rows)
    yield from _long(rows)


def _round(rows: Rows) -> Iterable[str]:
    found = select(rows, "round_seconds")
    setting = found[0]["setting"]
    yield (
        f"**One round of {setting['clients_per_round']:,} clients x {EXAMPLES} images**, {setting['network']} "
        f"({NETWORKS[setting['network']].parameters:,} parameters), {found[0]['scale']}, on {found[0]['device']}. Every client's "
        "gradient is clipped as one, and the server steps along the noisy mean. All sides are given the same clients; each of "
        "these draws its own noise, or, where a side says so, theirs is one draw, the same in law. Without noise, the last column is "
        "the difference of the mean, relative to that of vmap(grad).\n"
    )
    lines = []
    for row in found:
        apart = select(rows, "mean_difference", side=row["setting"]["side"])
        difference = f"{apart[0]['ours']:.1e}" if apart else "–"
        lines.append([row["setting"]["side"], _settings(row), ranged(row, 3), difference])
    yield table(["side", "settings", "seconds", "difference"], lines)
    ratios = select(rows, "round_ratio")
    own, others = (list(dict.fromkeys(row["setting"][end] for row in ratios)) for end in ("to", "of"))
    times = {(row["setting"]["of"], row["setting"]["to"]): ranged(row, 1) for row in ratios}
    yield "The seconds of the other sides, as multiples of ours:\n"
    yield table(["side", *own], [[other, *(times[other, side] for side in own)] for other in others])


def _growth(rows: Rows) -> Iterable[str]:
    found = select(rows, "size_seconds")
    yield f"**Ever more clients in a round**, drawn from ten million; one draw of noise, one device, {found[0]['scale']}.\n"
    each = select(rows, "client_microseconds")
    lines = [
        [f"{row['setting']['clients_per_round']:,}", ranged(row, 3), ranged(own, 0)]
        for row, own in zip(found, each, strict=True)
    ]
    yield table(["clients a round", "seconds", "microseconds per client"], lines)


def _memory(rows: Rows) -> Iterable[str]:
    found = select(rows, "peak_mib")
    if not found:
        return
    yield (
        f"**Peak memory of a round**, each in a process of its own ({found[0]['scale']}), above what the process held when the "
        "program was compiled; and what XLA plans for temporaries. Clients are computed a thousand at a time.\n"
    )
    planned = {row["setting"]["clients"]: row["ours"] for row in select(rows, "planned_mib")}
    lines = [[row["setting"]["clients"], ranged(row, 1), number(planned[row["setting"]["clients"]])] for row in found]
    yield table(["clients", "MiB", "planned MiB"], lines)
    few, many = (planned[f"1,000 of {clients}"] for clients in ("10,000", "10,000,000"))
    yield f"Ten million clients rather than ten thousand change the plan by {many - few:+.3f} MiB.\n"


def _long(rows: Rows) -> Iterable[str]:
    for row in select(rows, "run_seconds"):
        (rate,) = select(rows, "rounds_per_second", **row["setting"])
        yield (
            f"**{row['setting']['rounds']:,} rounds** of {row['setting']['clients_per_round']:,} clients, {row['setting']['network']}, "
            f"on {row['device']}: {number(row['ours'], 1)} seconds, {row['scale']}; {ranged(rate, 0)} rounds a second.\n"
        )


def _settings(row: dict[str, Any]) -> str:
    fixed = ("network", "clients_per_round", "side")
    return ", ".join(f"{name} {value}" for name, value in row["setting"].items() if name not in fixed) or "–"
