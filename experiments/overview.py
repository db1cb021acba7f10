"""Makes the tables and facts of experiments/README.md, each from the rows of one folder."""

from collections.abc import Sequence

from experiments import pages
from experiments.bench.page import ranged, tabled
from experiments.pages import Claim, Fact, Row, Rows, fact, table

HEADLINES = {  # figures of the benchmarks that this page quotes, and the peers beside them
    "`full` LDP-SGD trials, d = 26,010, a second": ("PyTorch",),
    "clipped gradient sum of CNN32, batch 256, seconds": ("jax-privacy", "torch, plain", "Opacus ghost"),
    "a federated round of 1,000 clients, CNN28, one draw of noise, a device a core, seconds": ("PyTorch vmap",),
    "a federated round of 1,000 clients, CNN28, one draw of noise, one device, seconds": ("PyTorch vmap",),
    "a dropout sample of CNN32, microseconds": ("plain vmap", "torch"),
    "exact user solves of rank 32, a second": ("NumPy, stacked",),
}


def claims_of(folder: str) -> Sequence[Claim]:
    return pages.page_of(folder).CLAIMS


def verdicts(folder: str) -> str:
    return pages.verdicts(claims_of(folder), pages.rows_of(folder))


paper000, paper001, paper002, paper003, paper004, trust = (
    lambda rows, folder=folder: verdicts(folder) for folder in pages.FOLDERS[:6]
)


def libraries(rows: Rows) -> str:
    return verdicts("libraries")


def counted(rows: Rows) -> Fact:
    """Counts the papers' claims by verdict, but for those that are ours."""
    words = []
    for folder in pages.FOLDERS[:5]:
        own = pages.rows_of(folder)
        words += [claim.judge(own).word for claim in claims_of(folder) if "(our " not in claim.says]
    holds, fails, still = (words.count(word) for word in ("holds", "fails", "open"))
    return fact(holds + fails + still == len(words), claims=len(words), holds=holds, fails=fails, open=still)


def bench(rows: Rows) -> str:
    """Returns a few of the benchmarks' ratios, from the rows of their table."""
    lines = []
    for row in tabled(pages.rows_of("bench")):
        wanted = HEADLINES.get(row["figure"], ())
        if row["peer"] and any(row["peer"].startswith(name) for name in wanted):
            lines.append([row["figure"], ranged(row, "ours"), row["peer"], ratio(row)])
    return table(["what", "ours [range]", "peer", "times as good [range]"], lines)


def ratio(row: Row) -> str:
    return "not measured" if row["ratio"] is None else ranged(row, "ratio")
