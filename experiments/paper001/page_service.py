"""Makes the table and facts on the cost of many owners, for the page of costs."""

from experiments.pages import Fact, Rows, fact, number, only, select, table
from experiments.paper001.cost import OWNERS


def norm_costs(rows: Rows) -> str:
    """Tabulates what the check of norms costs for an owner, and how many owners were checked together."""
    lines = []
    for row in select(rows, "norm_cpu_seconds"):
        at = row["setting"]
        payload = only(rows, "norm_bytes", **at)["ours"]
        times = " to ".join(f"{1e3 * row[end]:.1f}" for end in ("ours_low", "ours_high"))
        lines.append([f"{at['d']}", f"{at['owners']}", f"{payload / 1e6:.2f}", f"{1e3 * row['ours']:.1f} [{times}]"])
    head = ["coordinates", "owners together", "MB an owner", "ms of processor an owner, both servers"]
    return table(head, lines)


def norm_of_noise(rows: Rows) -> Fact:
    """Compares the check's bytes for the usual number of owners with those of a step's noise by transfers."""
    ours = only(rows, "norm_bytes", d=642, owners=len(OWNERS))["ours"] / 642
    few, many = (only(rows, "norm_bytes", d=642, owners=count)["ours"] for count in (len(OWNERS), 100))
    return fact(abs(few / many - 1) < 0.05, each=ours)


def many_owners(rows: Rows) -> Fact:
    """States what a step of a thousand owners takes."""
    first, second = (only(rows, "many_cpu_seconds", server=name) for name in ("h1", "h2"))
    at, wall = first["setting"], only(rows, "many_seconds")
    slowest = max(first["ours"], second["ours"])
    return fact(
        slowest < 3,
        owners=at["owners"],
        d=at["d"],
        cpu=slowest,
        allows=60 / slowest,
        wall=number(wall["ours"]),
        a_minute=60 / wall["ours"],
        low=number(wall["ours_low"]),
        high=number(wall["ours_high"]),
    )


def other_sampler(rows: Rows) -> Fact:
    """Compares OpenDP's sampler of the discrete Gaussian with the one used here."""
    ours, theirs = (only(rows, "gaussian_draws", sampler=name) for name in ("dpaudit", "OpenDP"))
    times = ours["ours"] / theirs["ours"]
    return fact(times > 1, times=times, version=theirs["setting"]["version"], sigma=ours["setting"]["sigma"])
