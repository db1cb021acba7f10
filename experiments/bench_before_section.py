"""The part of experiments/README.md that sets an earlier checkout's figures beside this one's."""

from collections.abc import Iterable

from experiments.markdown import Rows, digits, number, ranged, select, table


def section(rows: Rows) -> Iterable[str]:
    """Markdown blocks, in reading order."""
    yield "## The same figures before many devices and now\n"
    yield (
        "Command: `python -m experiments.bench_before --checkout DIR`, DIR a checkout of the commit before trials, clients, "
        "networks and users could be shared out over devices. Both sides ran in turn (before, now, now, before) on one CPU; "
        "a ratio is that of two neighbouring runs with its range over pairs, above 1 where this one is better. The last "
        "column is the machine's own pace at the end of a part; where sides differ by less than their ranges, nothing is shown to have changed.\n"
    )
    lines = []
    for ratio in select(rows, "times_as_good"):
        sides = (select(rows, "figure", **ratio["setting"], side=side)[0] for side in ("before", "now"))
        times = ranged(ratio) if ratio["ours_low"] < ratio["ours_high"] else number(ratio["ours"], 2)
        lines.append([ratio["setting"]["what"], *(digits(side["ours"]) for side in sides), times, ratio["scale"]])
    yield table(["what", "before", "now", "times as good [range]", "ran"], lines)
    for value, what in (
        (1, "The same in both, so that nothing but the machine sets them apart"),
        (0, "Other programs"),
    ):
        found = [row["setting"]["what"] for row in select(rows, "same_program") if row["ours"] == value]
        if found:
            yield f"{what}, by their lowered text (`experiments.bench_programs`): {'; '.join(found)}.\n"
