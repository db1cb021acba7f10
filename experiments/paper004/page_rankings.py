"""Makes the table and facts on private rankings."""

from itertools import pairwise
from typing import Any

from experiments import pages
from experiments.pages import Fact, Rows, fact, number, only, ranged, select, table

RECALL = "private recall@20"


def rankings(rows: Rows) -> str:
    """Tabulates recall by epsilon, beside the best without factors, and an item's own moment over its noise."""
    lines = []
    for row in select(rows, RECALL):
        at = row["setting"]
        before = _before(rows, row)
        signal = [
            one["ours"] for one in select(rows, "moment over noise") if one["setting"]["epsilon"] == at["epsilon"]
        ]
        chosen = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in at["choice"].items())
        epsilon = "inf" if at["epsilon"] is None else at["epsilon"]
        own = number(signal[0], 3) if signal else "–"
        lines.append([number(epsilon, 0), ranged(row, 3), ranged(before, 3), own, chosen])
    head = ["ε", "second moments", "alternating, above", "an item's moment over its noise", "chosen by public users"]
    return table(head, lines)


def ranking_gains(rows: Rows) -> Fact:
    """With noise, recall by second moments rises at every step of epsilon, by Student's interval over the splits, and
    is always above alternating minimisation's."""
    (bare,) = select(rows, RECALL, epsilon=None)
    found = sorted((row for row in select(rows, RECALL) if row is not bare), key=_budget)
    steps = [pages.apart(after, before, 5) for before, after in pairwise(found)]
    at = found[0]["setting"]
    values = ", ".join(f"{row['ours']:.3f}" for row in found)
    leads = [row["ours"] - _before(rows, row)["ours"] for row in found]
    epsilons = ", ".join(f"{row['setting']['epsilon']:g}" for row in found)
    told = {
        "values": values,
        "epsilons": epsilons,
        "without": bare["ours"],
        "lead": max(leads),
        "scale": found[0]["scale"],
        "public": at["public_users"],
        "delta": at["delta"],
    }
    told |= {"most": at["candidates"], "least": min(gain - error for gain, error in steps)}
    return fact(all(gain > error for gain, error in steps) and min(leads) > 0, **told)


def drowned(rows: Rows) -> Fact:
    """At no epsilon with noise does alternating minimisation gain two hundredths over the smallest, and an item's own
    moment is shorter than its noise at all but the largest."""
    signals = select(rows, "moment over noise")
    recalls = [
        row["ours"]
        for row in select(rows, "recall@20", method="ranking, public features")
        if row["setting"]["epsilon"] is not None
    ]
    shortest, longest = (pick(row["ours"] for row in signals) for pick in (min, max))
    flat = max(recalls) - min(recalls)
    more = 1 / min(row["ours"] for row in signals if row["setting"]["epsilon"] == 5.0)
    return fact(flat < 0.02 and longest < 1, shortest=shortest, longest=longest, flat=flat, more=more, at=5.0)


def _before(rows: Rows, row: dict[str, Any]) -> dict[str, Any]:
    return only(rows, "recall@20", method="ranking, public features", epsilon=row["setting"]["epsilon"])


def _budget(row: dict[str, Any]) -> float:
    return row["setting"]["epsilon"]
