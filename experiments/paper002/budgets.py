"""Sets the rule that asks clients nothing, a budget of noise, beside the paper's settings."""

from experiments.pages import Fact, Rows, fact, select, table
from experiments.paper002.claims import judge, margins, named, spread
from experiments.paper002.columns import columns, title
from experiments.paper002.published import BUDGETS, ROUNDS

BEST = "poly(0.05)1.0"  # the paper's best schedule


def rule(rows: Rows) -> str:
    """Returns the rule that asks clients nothing, beside the paper's best schedule, in the same trials."""
    lines = []
    for scale, noise in (*columns(rows, whole=True), *columns(rows, whole=False)):
        own = {each.margin.row["setting"]["closest"][0]: each for each in judge(margins(rows, scale, noise))}
        if set(BUDGETS) <= own.keys():
            find = {
                row["setting"]["name"]: row
                for row in select(rows, "accuracy_percent", sensitivity=noise, **named(scale))
            }
            cells = [f"{spread(find[name])} ({own[name]})" for name in BUDGETS]
            lines.append([title(scale, noise), spread(find[BEST]), *cells])
    return table(["data, scale, noise", BEST, *BUDGETS], lines)


def never_behind(rows: Rows) -> Fact:
    """Returns the rule is nowhere certainly less accurate than the best schedule; where it is certainly more."""
    every = (*columns(rows, whole=True), *columns(rows, whole=False))
    found = [(column, each) for column in every for each in judge(margins(rows, *column))]
    own = [(column, each) for column, each in found if each.margin.row["setting"]["closest"][0] in BUDGETS]
    held = [column for column, each in own if each.holds]
    behind = any(each.holds is False for _, each in own)
    told = {"compared": len(own), "more": len(held), "where": "; ".join(dict.fromkeys(title(*c) for c in held))}
    return fact(held and not behind, **told)


def begin(rows: Rows) -> str:
    """Where the two budgets begin that soon are one."""
    del rows
    return " and ".join(name.removeprefix("budget(").rstrip(")") for name in BUDGETS[1:])


def best_at(rows: Rows) -> Fact:
    """With fewer rounds another of the paper's settings may be better than its best schedule."""
    told = []
    for scale, noise in columns(rows, whole=False):
        found = select(rows, "accuracy_percent", sensitivity=noise, **named(scale))
        own = {row["setting"]["name"]: row for row in found}
        best = max((row for name, row in own.items() if name not in BUDGETS), key=lambda row: row["ours"])
        if set(BUDGETS) <= own.keys() and scale[1] < ROUNDS and best is not own.get(BEST):
            told.append(f"{title(scale, noise)}: {best['setting']['name']} {spread(best)}")
    return fact(told, told="; ".join(told))
