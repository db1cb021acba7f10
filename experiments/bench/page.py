"""Makes the table of benchmarks beside their peers: one for each machine, from one run of `make bench`."""

from experiments.bench.products import ALONE, operations
from experiments.bench.training import BATCH
from experiments.pages import Fact, Row, Rows, fact, named, short, table

FILES = ("bench_*-cores.json", "bench_secure_before.json")
NOT_MEASURED = "not measured"


def tabled(rows: Rows) -> Rows:
    """Returns the rows of the table alone."""
    return [row for row in rows if "figure" in row]


def machines(rows: Rows) -> str:
    rows = tabled(rows)
    names = dict.fromkeys(map(name_of, rows))
    return "\n\n".join(machine(name, [row for row in rows if name_of(row) == name]) for name in names)


def machine(name: str, rows: Rows) -> str:
    """Writes what ran where and when, and the table."""
    known: dict[str, dict[str, str]] = {}
    for row in rows:
        versions = ", ".join(f"{package} {version}" for package, version in row["versions"].items())
        known.setdefault(versions, {})[row["part"]] = when(row)
    ran = [
        f"{versions}: {'; '.join(f'{part}, {date}' for part, date in parts.items())}."
        for versions, parts in known.items()
    ]
    lines = [[named(row["figure"]), ranged(row, "ours"), peer(row), ratio(row)] for row in rows]
    return "\n\n".join([f"**{name}**", *ran, table(["what", "ours [range]", "peer", "ratio [range]"], lines)])


def when(row: Row) -> str:
    """Returns the date, the load when the part began, and, of later rows, the machine's pace then."""
    if "gflops" not in row:
        return f"{row['date']} at load {row['load']:.1f}"
    pace = f"{row['gflops']:.0f} GFLOP/s and {row['copied_gigabytes_a_second']:.1f} GB/s"
    return f"{row['date']} at load {row['load']:.1f}, {pace}"


def name_of(row: Row) -> str:
    of = row["machine"]
    host = f"{of['processor']}, {of['cores']} cores, {of['memory_gib']:.0f} GiB"
    return host if of["accelerator"] is None else f"{of['accelerator']} in a host of {host}"


def peer(row: Row) -> str:
    if row["peer"] is None:
        return "–"
    version = row["versions"].get(row["package"])
    name = row["peer"] if version is None else f"{row['peer']} ({row['package']} {version})"
    return f"{name}: {NOT_MEASURED if row['peer_value'] is None else short(row['peer_value'])}"


def ratio(row: Row) -> str:
    if row["peer"] is None:
        return "–"
    return NOT_MEASURED if row["ratio"] is None else ranged(row, "ratio")


def ranged(row: Row, name: str) -> str:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return short(row[name]) + ("" if low is None or low == high else f" [{short(low)}, {short(high)}]")


def slower(rows: Rows) -> Fact:
    """Where a peer is the faster one, whatever was timed beside it."""
    found = [row for row in tabled(rows) if row["ratio"] is not None and row["ratio"] < 1 and row["package"]]
    told = "; ".join(f"{row['figure']}{on(row)}: {row['ratio']:.2g} times {row['peer']}" for row in found)
    return fact(found, told=told)


def on(row: Row) -> str:
    return f", on {row['machine']['accelerator']}" if row["machine"]["accelerator"] else ""


def steps_before(rows: Rows) -> Fact:
    """Compares a step of two servers with an earlier commit's, both with their defaults and timed in turns."""
    found = [row for row in rows if row.get("quantity") == "step_ratio" and row["setting"]["step"] == "default"]
    found.sort(key=lambda row: row["setting"]["d"])
    told = ", ".join(f"{ranged(row, 'ours')} at d = {row['setting']['d']:,}" for row in found)
    return fact(all(row["ours_low"] > 1 for row in found), told=told, before=found[0]["setting"]["before"])


def clipping(rows: Rows) -> Fact:
    """Clipping the large network's gradients costs about a plain gradient."""
    (row,) = (
        row
        for row in tabled(rows)
        if row["figure"].startswith("clipped gradient sum of CNN32, batch 256")
        and row["peer"].startswith("ours, plain")
    )
    return fact(0.8 < row["ratio"] < 1.5, ratio=ranged(row, "ratio"))


def products(rows: Rows) -> Fact:
    """Bounds the clipped sum of the large network by its products, beside 0.75 of PyTorch's plain gradient."""
    own = (row for row in tabled(rows) if row["figure"].startswith(f"clipped gradient sum of CNN32, batch {BATCH}"))
    found = {row["peer"]: row for row in own}
    alone, plain = found[ALONE], found["torch, plain"]
    asked, least, ours = 0.75 * plain["peer_value"], alone["peer_value"], alone["ours"]
    told = {
        "count": f"{operations(BATCH) / 1e9:.0f}",
        "rate": f"{operations(BATCH) / 1e9 / least:.0f}",
        "alone": short(least),
        "asked": short(asked),
        "left": short(asked - least),
        "rest": short(ours - least),
    }
    return fact(least < asked < ours, **told)
