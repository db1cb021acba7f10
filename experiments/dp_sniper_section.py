"""The part of experiments/README.md that sets our audits beside DP-Sniper's published table."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from experiments.markdown import table

Rows = Sequence[dict[str, Any]]

NAMES = {
    "laplace": "Laplace",
    "truncated_geometric": "TruncatedGeometric",
    "laplace_parallel": "LaplaceParallel",
    "rappor": "RAPPOR",
    "one_time_rappor": "OneTimeRAPPOR",
    "svt34_parallel": "SVT34Parallel",
    "prefix_sum": "PrefixSum",
    "numerical_svt": "NumericalSVT",
}
NAMES |= {f"noisy_hist{i}": f"NoisyHist{i}" for i in (1, 2)}
NAMES |= {f"report_noisy_max{i}": f"ReportNoisyMax{i}" for i in range(1, 5)}
NAMES |= {f"svt{i}": f"SVT{i}" for i in range(1, 7)}

HEADER = [
    "mechanism",
    "ours",
    "exact, this pair",
    "DP-Sniper linear / network",
    "the same, our trials",
    "StatDP-Fixed",
    "verdict on 0.1",
    "attack",
    "seconds",
    "their seconds",
]


def section(rows: Rows) -> Iterable[str]:
    """Markdown blocks, in reading order."""
    first = rows[0]["setting"]
    yield "## A published black-box table: DP-Sniper\n"
    yield "Command: `python -m experiments.dp_sniper`, then `make results`.\n"
    yield (
        f"**Certified lower bounds on ε**, delta 0. Ours: confidence {first['confidence']:g}, {rows[0]['scale']}; pair and "
        "attack were chosen, and the attack was trained, on other trials. DP-Sniper: confidence 0.9, 200,000,000 final "
        "samples of each world. *The same, our trials* is the bound that the rates of the better of their two attacks "
        "would give, read in either direction, with our trials and our confidence: what differs from it is the attack, what differs between it and "
        "theirs is the number of samples. *Exact* is the most that the pair we chose could show under the best test, by "
        "quadrature (–: not worked out); it is not the mechanism's ε, which other pairs may exceed. Seconds are for the "
        "whole of a mechanism, search included, on different machines.\n"
    )
    yield table(HEADER, [_line(row) for row in rows])
    behind = [row for row in rows if row["ours"] < row["paper_value"]]
    beaten = [row for row in rows if row["ours"] < row["setting"]["published_rates_at_our_trials"]]
    yield (
        f"At or above the larger published DP-Sniper bound: {len(rows) - len(behind)} of {len(rows)}"
        + (f"; below: {', '.join(_shortfall(row) for row in behind)}. " if behind else ". ")
        + "Below what their attack would give with our trials: "
        + (", ".join(NAMES[row["setting"]["mechanism"]] for row in beaten) or "none")
        + ".\n"
    )
    above = [
        f"{NAMES[row['setting']['mechanism']]} ({row['paper_value']:.4f} against {_number(row['setting']['exact_of_family'])})"
        for row in rows
        if row["setting"]["exact_of_family"] is not None
        and row["paper_value"] > float(row["setting"]["exact_of_family"])
    ]
    if above:
        yield (
            f"Published bounds above what any pair of their family can show: {', '.join(above)}; a bound at confidence "
            "0.9 may err.\n"
        )
    yield SOURCES


SOURCES = """**Sources, and what could not be verified.**

- Published bounds, rates and times: the reference results in the authors' repository (eth-sri/dp-sniper,
  eval_sp2021/reference-results); their plotting script draws the plot of bounds from them. That they
  equal the printed figure digit by digit could not be verified: the paper's text was not at hand. Their machine is
  not stated in those files. Of their two StatDP-Fixed runs only the first is shown; it failed on NumericalSVT.
- Mechanisms, parameters (ε = 0.1; c = 1, threshold 1, SVT1 0.5; SVT34Parallel and NumericalSVT c = 2; LaplaceParallel
  20 times 0.005; RAPPOR 20 bits, 4 hashes) and the family of input pairs: the same repository. Two checks against their
  logs hold: RAPPOR's bits (MurmurHash3) are those that their trained attack weighs, and the truncated geometric law has
  the two probabilities that they counted.
- Privacy of the variants as proven by Lyu, Su and Li (SVT1 and SVT2 ε, SVT4 (1 + 6c)/4 ε = 0.175, SVT3, 5 and 6 no
  finite ε) and by Wang et al. (NumericalSVT ε) is quoted from memory of those papers, not checked in their text. With
  ten queries SVT3 and SVT6 are finite: the exact column shows how much.
- DP-Finder's and Delta-Siege's numbers for these mechanisms were not sourced and are left out.
"""


def _line(row: dict[str, Any]) -> list[str]:
    setting, published = row["setting"], row["setting"]["published"]
    return [
        NAMES[setting["mechanism"]],
        f"{row['ours']:.4f}",
        _number(setting["exact_of_pair"]),
        f"{published['linear']:.4f} / {published['network']:.4f}",
        f"{setting['published_rates_at_our_trials']:.4f}",
        _number(published["statdp"]),
        setting["verdict"],
        setting["attack"],
        f"{row['seconds']:.0f}",
        " / ".join(f"{seconds:.0f}" for seconds in published["seconds"]),
    ]


def _shortfall(row: dict[str, Any]) -> str:
    return f"{NAMES[row['setting']['mechanism']]} by {row['paper_value'] - row['ours']:.4f}"


def _number(value: Any) -> str:
    if value is None:
        return "–"
    return "∞" if math.isinf(float(value)) else f"{value:.4f}"
