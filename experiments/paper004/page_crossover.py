"""Makes the tables and facts of the page on users, epsilon and rank."""

import math
from collections.abc import Iterator
from typing import NamedTuple

from experiments.pages import Fact, Rows, fact, number, only, select, table, values

QUANTITY, BIAS, METHODS = "crossover rmse", "alternating", ("alternating", "gradient steps")
JESTER, NOWHERE = "Jester", "nowhere"
FAR_BELOW = 0.1  # delta times the users, from which delta is not far below one over the users


class Cell(NamedTuple):
    """The errors at one number of users and one epsilon: of item biases, and of each method by rank."""

    data: str
    users: int
    epsilon: float | None
    bias: float
    errors: dict[str, dict[int, float]]
    ranges: dict[tuple[str, int], tuple[float, float]]  # by method and rank; empty where there was one run

    def best(self, method: str) -> float:
        """Returns a method's error at the rank that has the lowest, which nobody chose."""
        return min(self.errors[method].values())


def cells(rows: Rows) -> Iterator[Cell]:
    """Yields all cells, made-up users first, by their number and epsilon."""
    found = select(rows, QUANTITY)
    several = {(at["data"], at["users"], at["epsilon"]) for at in (row["setting"] for row in found)}
    for data, users, epsilon in sorted(several, key=lambda one: (one[0] == JESTER, one[1], one[2] or math.inf)):
        own = select(found, QUANTITY, data=data, users=users, epsilon=epsilon)
        errors = {
            method: {row["setting"]["rank"]: row["ours"] for row in select(own, QUANTITY, method=method)}
            for method in METHODS
        }
        ranges = {
            (row["setting"]["method"], row["setting"]["rank"]): (row["ours_low"], row["ours_high"])
            for row in own
            if row.get("ours_low") is not None
        }
        bias = errors[BIAS].pop(0)
        yield Cell(data, users, epsilon, bias, errors, ranges)


def crossover(rows: Rows) -> str:
    """Tabulates all errors; the lowest of a line is bold."""
    ranks = [rank for rank in values(select(rows, QUANTITY), "rank") if rank]
    lines = []
    for cell in cells(rows):
        places = [(BIAS, 0), *((method, rank) for method in METHODS for rank in ranks)]
        found = [cell.bias, *(cell.errors[method][rank] for method, rank in places[1:])]
        shown = [f"**{one:.3f}**" if one == min(found) else f"{one:.3f}" for one in found]
        ends = [cell.ranges.get(place) for place in places]
        shown = [f"{one} [{end[0]:.3f}, {end[1]:.3f}]" if end else one for one, end in zip(shown, ends, strict=True)]
        lines.append([cell.data, f"{cell.users:,}", number(_epsilon(cell), 0), *shown])
    head = [f"{name}, rank {rank}" for name in ("alternating", "steps") for rank in ranks]
    return table(["users", "number", "ε", "item biases", *head], lines)


def crossover_run(rows: Rows) -> Fact:
    found = select(rows, QUANTITY)
    made, jokers = (
        ", ".join(f"{n:,}" for n in values(select(found, QUANTITY, data=data), "users"))
        for data in ("made-up users", JESTER)
    )
    each = [row["setting"] for row in found]
    product = max(at["delta"] * at["users"] for at in each)
    least = min(at["delta"] for at in each)
    return fact(FAR_BELOW < product < 1, made=made, jokers=jokers, least=least, product=product)


def factors_pay(rows: Rows) -> Fact:
    """For each group of users, where each method's factors beat the biases of items."""
    found, told = list(cells(rows)), []
    for own in _groups(found):
        words = [f"{method} {_where([cell for cell in own if cell.best(method) < cell.bias])}" for method in METHODS]
        told.append(f"{_who(own[0])}: " + ", ".join(words))
    return fact(told, told="; ".join(told))


def lowest(rows: Rows) -> str:
    """Tabulates, for each group of users, what has the lowest error at each epsilon."""
    found = list(cells(rows))
    epsilons = sorted({cell.epsilon or math.inf for cell in found})
    names = ("item biases", "alternating", "steps")
    lines = []
    for group in _groups(found):
        first = {cell.epsilon or math.inf: names[_first(cell)] for cell in group}
        lines.append([group[0].data, f"{group[0].users:,}", *(first.get(epsilon, "–") for epsilon in epsilons)])
    head = [f"ε = {number('inf' if math.isinf(epsilon) else epsilon, 0)}" for epsilon in epsilons]
    return table(["users", "number", *head], lines)


def methods_compared(rows: Rows) -> Fact:
    """Without noise alternating minimisation has the lower error everywhere, and noise costs it more than gradient
    steps, or as much."""
    found = _costs(rows)
    leads = [whole.best("gradient steps") - whole.best("alternating") for whole, _ in found]
    lost, less = ([one for whole, group in found for one in _lost(whole, group, method)] for method in METHODS)
    apart = [round(one - other, 3) for one, other in zip(lost, less, strict=True)]
    return fact(
        min(leads) > 0 and min(apart) >= 0,
        by=min(leads),
        most=max(leads),
        groups=len(found),
        cells=len(apart),
        more=sum(one > 0 for one in apart),
    )


def ahead_from(rows: Rows) -> Fact:
    """Where both methods' factors beat the biases, alternating minimisation is ahead from some epsilon on.

    ``alone`` is where only its own beat them: outside of these it has the lowest error there.
    """
    told, sound = [], True
    for group in _groups(list(cells(rows))):
        paying = [cell for cell in group if all(cell.best(method) < cell.bias for method in METHODS)]
        ahead = [cell.best("alternating") < cell.best("gradient steps") for cell in paying]
        sound &= ahead == sorted(ahead)
        if any(ahead):
            first = paying[ahead.index(True)].epsilon
            told.append(f"{'only without noise' if first is None else f'from ε = {first:g} on'} with {_who(group[0])}")
        elif ahead:
            told.append(f"nowhere with {_who(group[0])}")
    groups = [[cell for cell in group if _alone(cell)] for group in _groups(list(cells(rows)))]
    alone = "; ".join(f"{_where(group)} with {_who(group[0])}" for group in groups if group) or NOWHERE
    return fact(sound and told, told="; ".join(told), alone=alone)


def _alone(cell: Cell) -> bool:
    """Tells whether the factors of alternating minimisation beat the biases and those of gradient steps do not."""
    ours, steps = (cell.best(method) < cell.bias for method in METHODS)
    return ours and not steps


def rank_chosen(rows: Rows) -> Fact:
    """On most of Jester's users at the smallest epsilon, alternating minimisation leads with the best rank, and is
    behind with the lower one that public users choose for it."""
    most = max(at["users"] for at in (row["setting"] for row in select(rows, QUANTITY, data=JESTER)))
    noisy = [cell for cell in cells(rows) if (cell.data, cell.users) == (JESTER, most) and cell.epsilon is not None]
    cell = min(noisy, key=lambda cell: cell.epsilon or 0.0)
    ours, steps = (only(rows, "jester rmse", method=method, epsilon=cell.epsilon) for method in METHODS)
    errors = cell.errors["alternating"]
    best, chosen = min(errors, key=lambda rank: errors[rank]), ours["setting"]["choice"]["rank"]
    lead, behind = cell.best("gradient steps") - cell.best("alternating"), ours["ours"] - steps["ours"]
    return fact(
        lead > 0 and behind > 0 and chosen < best,
        epsilon=number(cell.epsilon, 0),
        users=most,
        chosen=chosen,
        best=best,
        lead=lead,
        behind=behind,
    )


def many_are_enough(rows: Rows) -> Fact:
    """Among as many users as there are, the least noise costs gradient steps next to nothing, so that it is their
    steps that hold them back, and alternating minimisation is ahead."""
    found = _costs(rows)
    most = max(whole.users for whole, _ in found)
    ((whole, group),) = [pair for pair in found if pair[0].users == most]
    cell = max(group, key=lambda cell: cell.epsilon or 0.0)
    (alternating,), (steps,) = (_lost(whole, [cell], method) for method in METHODS)
    lead = cell.best("gradient steps") - cell.best("alternating")
    return fact(
        lead > 0 and abs(steps) < 0.01,
        users=most,
        epsilon=number(cell.epsilon, 0),
        steps=_thousandths(steps),
        alternating=_thousandths(alternating),
        lead=lead,
        rest=whole.best("gradient steps") - whole.best("alternating"),
    )


def noise_costs(rows: Rows) -> str:
    """Tabulates what factors bring without noise, and by how much noise raises the error of each method."""
    found = _costs(rows)
    epsilons = sorted({cell.epsilon for _, group in found for cell in group if cell.epsilon is not None})
    lines = []
    for whole, group in found:
        cells_of = [f"{whole.bias - whole.best(method):.3f}" for method in METHODS]
        for method in METHODS:
            lost = dict(zip((cell.epsilon for cell in group), _lost(whole, group, method), strict=True))
            cells_of += [_thousandths(lost[epsilon]) if epsilon in lost else "–" for epsilon in epsilons]
        lines.append([whole.data, f"{whole.users:,}", *cells_of])
    short = ("alternating", "steps")
    head = [f"{name} bring" for name in short] + [f"noise costs {n}, ε = {e:g}" for n in short for e in epsilons]
    return table(["users", "number", *head], lines)


def other_users(rows: Rows) -> Fact:
    """Where errors without noise are means of runs with other users each, those with noise are of one run, and so of
    other users: what noise costs is known to what users differ by."""
    found = [(whole, cell) for whole, group in _costs(rows) for cell in group]
    unlike = [whole for whole, cell in found if whole.ranges and not cell.ranges]
    apart = sorted(high - low for whole in unlike for low, high in whole.ranges.values())
    names = ", ".join(dict.fromkeys(f"{whole.users:,} {whole.data}" for whole in unlike))
    return fact(apart and apart[-1] > 0.01, who=names, least=min(apart, default=0), most=max(apart, default=0))


def bring_and_cost(rows: Rows) -> Fact:
    """What alternating minimisation's factors bring hardly depends on the made-up users' number, what noise costs at
    the smallest epsilon falls with it."""
    found = [pair for pair in _costs(rows) if pair[0].data != JESTER]
    brought = [whole.bias - whole.best("alternating") for whole, _ in found]
    least = min(cell.epsilon for _, group in found for cell in group if cell.epsilon is not None)
    cost = [
        _lost(whole, [cell for cell in group if cell.epsilon == least], "alternating")[0] for whole, group in found
    ]
    return fact(
        cost == sorted(cost, reverse=True) and max(brought) - min(brought) < min(brought) / 4,
        least=number(least, 0),
        cost=", ".join(f"{one:.3f}" for one in cost),
        users=", ".join(f"{whole.users:,}" for whole, _ in found),
        brought=", ".join(f"{one:.3f}" for one in brought),
    )


def _groups(found: list[Cell]) -> list[list[Cell]]:
    """Returns the cells of each group of users."""
    keys = dict.fromkeys((cell.data, cell.users) for cell in found)
    return [[cell for cell in found if (cell.data, cell.users) == key] for key in keys]


def _costs(rows: Rows) -> list[tuple[Cell, list[Cell]]]:
    """Returns, of each group of users that has both, the cell without noise and those with it."""
    found = []
    for group in _groups(list(cells(rows))):
        *noisy, last = group  # without noise is after every epsilon
        if noisy and last.epsilon is None:
            found.append((last, noisy))
    return found


def _lost(whole: Cell, group: list[Cell], method: str) -> list[float]:
    """Returns by how much noise raises a method's error, with its best rank in each cell."""
    return [cell.best(method) - whole.best(method) for cell in group]


def _first(cell: Cell) -> int:
    """Returns 0 where biases alone have the lowest error, 1 where alternating minimisation has it, else 2."""
    errors = [cell.bias, *(cell.best(method) for method in METHODS)]
    return errors.index(min(errors))


def _thousandths(value: float) -> str:
    return f"{value:.3f}".replace("-0.000", "0.000")


def _who(cell: Cell) -> str:
    return f"{cell.users:,} {'of Jester' if cell.data == JESTER else cell.data}"


def repeated(rows: Rows) -> Fact:
    """Where there are several runs: whether the ranges of the two methods' best ranks are apart."""
    found, told = [cell for cell in cells(rows) if cell.ranges], []
    for cell in found:
        best = {method: min(errors, key=lambda rank: errors[rank]) for method, errors in cell.errors.items()}
        lower = min(METHODS, key=cell.best)
        (other,) = set(METHODS) - {lower}
        apart = cell.ranges[lower, best[lower]][1] < cell.ranges[other, best[other]][0]
        where = f"{_who(cell)} {_where([cell])}"
        told.append((apart, f"{lower} with {where}" if apart else f"neither with {where}"))
    return fact(told, apart=sum(apart for apart, _ in told), cells=len(told), told="; ".join(text for _, text in told))


def features_alone(rows: Rows) -> Fact:
    """What public features bring to alternating minimisation, and its lead over gradient steps with the same features,
    which is smaller; of the models with features, none that was chosen has factors."""
    with_them, without, steps = (
        {row["setting"]["epsilon"]: row for row in select(rows, "rmse", method=method) if row["setting"]["epsilon"]}
        for method in ("alternating, public features", "alternating", "gradient steps, public features")
    )
    gains = [without[epsilon]["ours"] - row["ours"] for epsilon, row in with_them.items()]
    leads = {epsilon: steps[epsilon]["ours"] - row["ours"] for epsilon, row in with_them.items()}
    ranks = {row["setting"]["choice"]["rank"] for row in with_them.values()}
    return fact(
        min(gains) > max(leads.values()) and ranks == {0},
        least=min(gains),
        most=max(gains),
        lead=max(leads.values()),
        behind=-min(leads.values()),
    )


def _epsilon(cell: Cell) -> float | str:
    return "inf" if cell.epsilon is None else cell.epsilon


def _where(paying: list[Cell]) -> str:
    """Lists the epsilons of cells, in words."""
    finite = [f"{cell.epsilon:g}" for cell in paying if cell.epsilon is not None]
    parts = ([f"at ε = {', '.join(finite)}"] if finite else []) + ["without noise"] * (len(paying) > len(finite))
    return " and ".join(parts) or NOWHERE
