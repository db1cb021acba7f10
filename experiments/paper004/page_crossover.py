"""Makes the tables and facts of the page on users, epsilon and rank."""

from collections.abc import Iterator
from typing import NamedTuple

from experiments.pages import Fact, Rows, fact, number, select, table, values

QUANTITY, BIAS, METHODS = "crossover rmse", "alternating", ("alternating", "gradient steps")


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
    """Yields all cells, in the order of their rows."""
    found = select(rows, QUANTITY)
    for data, users, epsilon in dict.fromkeys(
        (at["data"], at["users"], at["epsilon"]) for at in (row["setting"] for row in found)
    ):
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
        for data in ("made-up users", "Jester")
    )
    return fact(True, made=made, jokers=jokers, least=min(at["delta"] for at in (row["setting"] for row in found)))


def factors_pay(rows: Rows) -> Fact:
    """For each group of users, where each method's factors beat the biases of items."""
    found, told = list(cells(rows)), []
    for data, users in dict.fromkeys((cell.data, cell.users) for cell in found):
        own = [cell for cell in found if (cell.data, cell.users) == (data, users)]
        words = [f"{method} {_where([cell for cell in own if cell.best(method) < cell.bias])}" for method in METHODS]
        told.append(f"{users:,} {'of Jester' if data == 'Jester' else data}: " + ", ".join(words))
    return fact(told, told="; ".join(told))


def methods_compared(rows: Rows) -> Fact:
    """With noise and without: at how many numbers of users and epsilons each method has the lower error."""
    found = list(cells(rows))
    private = [cell for cell in found if cell.epsilon is not None]
    rest = [cell for cell in found if cell.epsilon is None]
    less = [cell.best("gradient steps") - cell.best("alternating") for cell in private]
    without = [cell.best("gradient steps") - cell.best("alternating") for cell in rest]
    return fact(
        True,
        cells=len(private),
        steps=sum(one < 0 for one in less),
        alternating=sum(one > 0 for one in less),
        most=max(less),
        least=min(less),
        rest=len(rest),
        without=sum(one > 0 for one in without),
        by=min(without),
    )


def repeated(rows: Rows) -> Fact:
    """Where there are several runs: whether the ranges of the two methods' best ranks are apart."""
    found, told = [cell for cell in cells(rows) if cell.ranges], []
    for cell in found:
        best = {method: min(errors, key=lambda rank: errors[rank]) for method, errors in cell.errors.items()}
        lower = min(METHODS, key=cell.best)
        (other,) = set(METHODS) - {lower}
        apart = cell.ranges[lower, best[lower]][1] < cell.ranges[other, best[other]][0]
        where = f"{cell.users:,} {'of Jester' if cell.data == 'Jester' else cell.data} {_where([cell])}"
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
    return " and ".join(parts) or "nowhere"
