"""Judges what the paper says of how runs go on, from round to round, by the trials with all clients of all rounds."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

from experiments.pages import Claim, Rows, Verdict, verdicts
from experiments.paper002.adaptive import trials
from experiments.paper002.claims import AS_PRINTED, COMMAND, KEEPS
from experiments.paper002.runs import NON_PRIVATE

LATE, EARLY, FIRST = 0.9, 0.2, 0.01  # shares of the rounds
GUESSING = math.log(10)  # the loss of ten equal probabilities
SWITCHED = {"0.05to0.01(20%)": 0.2, "0.05to0.01(60%)": 0.6}  # when C is lowered
QUARTERS = (0.25, 0.5, 0.75, 1.0)
LARGEST_BIN = 0.09375  # the middle of the histogram's last
Run = dict[str, Any]


class Course(NamedTuple):
    """Something that the paper says of how runs go on."""

    says: str
    settings: tuple[str, ...]
    is_so: Callable[[Run], bool]  # of one trial of one of these settings
    told: Callable[[Run], str]


def values(run: Run, name: str) -> list[float]:
    """Returns a quantity at every look; infinite where learning has diverged."""
    return [math.inf if value is None else value for value in run[name]]


def at(run: Run, name: str, share: float) -> float:
    """Returns a quantity when this share of the rounds has passed."""
    return values(run, name)[round(share * len(run["round"])) - 1]


def lowest(run: Run) -> float:
    """Returns after which share of the rounds the loss was lowest."""
    loss = values(run, "loss")
    return run["round"][loss.index(min(loss))] / run["round"][-1]


def falls_again(run: Run) -> bool:
    """The loss has risen from its lowest when C is lowered, and ends below what it was then."""
    when = SWITCHED[run["name"]]
    place = round(when * len(run["round"]))
    before = values(run, "loss")[:place]
    return min(before) < before[-1] > at(run, "loss", 1)


def diverges(run: Run) -> bool:
    """The loss is above that of guessing within the first fifth of the rounds, and at the end."""
    early = values(run, "loss")[: round(EARLY * len(run["round"]))]
    return max(early) > GUESSING and at(run, "loss", 1) > GUESSING


def grows(run: Run, name: str) -> bool:
    """A quantity is larger after each quarter of the rounds than after the one before."""
    found = [at(run, name, share) for share in QUARTERS]
    return all(later > earlier for earlier, later in pairwise(found))


def shrinks(run: Run, name: str) -> bool:
    found = [at(run, name, share) for share in QUARTERS]
    return all(later < earlier for earlier, later in pairwise(found))


def by_quarters(name: str) -> Callable[[Run], str]:
    return lambda run: f"{at(run, name, QUARTERS[0]):.3g} to {at(run, name, 1):.3g}"


def turns(run: Run) -> bool:
    """The loss is lowest neither at first nor late."""
    return FIRST < lowest(run) < LATE


def jumps_to_stay(run: Run) -> bool:
    """C is the largest bin's after a tenth of the rounds, which is the first update, and ever after."""
    return set(run["clip_norm"][round(0.1 * len(run["round"])) :]) == {LARGEST_BIN}


def turned(run: Run) -> str:
    return f"lowest in round {round(lowest(run) * run['round'][-1]):,}"


def switched(run: Run) -> str:
    return f"{at(run, 'loss', SWITCHED[run['name']]):.3f} to {at(run, 'loss', 1):.3f}"


# fmt: off
COURSES = (
    Course("Section 4.3: with C = 0.01 the loss keeps falling (lowest in the last tenth of the rounds)", ("clip0.01",), lambda run: lowest(run) >= LATE, turned),
    Course("Section 4.3: with 0.05 it turns from falling to rising", ("clip0.05",), turns, turned),
    Course("Section 4.3: with 0.1 as well, earlier than with 0.05", ("clip0.1",), lambda run: turns(run) and lowest(run) < min(map(lowest, trials("clip0.05", KEEPS))), turned),
    Course("Section 4.3: with 0.5 and 1.0 it rises from the start (lowest in the first hundredth)", ("clip0.5", "clip1.0"), lambda run: lowest(run) <= FIRST, turned),
    Course("Section 4.4: switching to 0.01 turns a loss that has risen into one that falls", tuple(SWITCHED), falls_again, switched),
    Course("Section 4.5: adaptive0.01's loss turns from falling to rising", ("adaptive0.01",), turns, turned),
    Course("Section 4.5: the median rule sets C to the largest bin at its first update, and leaves it there", ("adaptive0.01", "adaptive0.05"), jumps_to_stay, lambda run: f"{at(run, 'clip_norm', 1):g}"),
    Course(f"Section 4.5: the quantile rules' loss diverges early (above guessing, {GUESSING:.2f}, within a fifth of the rounds and at the end)", ("quantile(0.01)10%", "quantile(0.01)50%"), diverges, lambda run: f"ends at {at(run, 'loss', 1):.3g}"),
    Course("Section 4.5: the quantile rules' C keeps growing, at either quantile (from quarter to quarter)", ("quantile(0.01)10%", "quantile(0.01)50%"), lambda run: grows(run, "clip_norm"), lambda run: f"at most {max(values(run, 'clip_norm')):.3g}, {at(run, 'clip_norm', 1):.3g} at the end"),
    Course("Section 5: with C = 0.01 and 0.05 gradients keep growing (from quarter to quarter)", ("clip0.01", "clip0.05"), lambda run: grows(run, "norm"), by_quarters("norm")),
    Course("Section 5: without privacy they become shorter", (NON_PRIVATE,), lambda run: shrinks(run, "norm"), by_quarters("norm")),
)
# fmt: on


def course_verdicts(rows: Rows) -> str:
    return verdicts([Claim(course.says, "", judged(course), COMMAND) for course in COURSES], rows)


def judged(course: Course) -> Callable[[Rows], Verdict]:
    """Judges by all trials: it holds if it is so in each, fails for a setting of which it is so in none, and is open
    otherwise, as with a single trial."""

    def verdict(rows: Rows) -> Verdict:
        own = {name: trials(name, None if name == NON_PRIVATE else KEEPS) for name in course.settings}
        so = {name: [course.is_so(run) for run in found] for name, found in own.items()}
        several = min(map(len, so.values())) > 1
        none = any(len(each) > 1 and not any(each) for each in so.values())
        holds = False if none else True if several and all(map(all, so.values())) else None
        told = [f"{name}: {'; '.join(map(course.told, found))}" for name, found in own.items()]
        counts = " and ".join(f"{sum(each)} of {len(each)}" for each in so.values())
        return Verdict(
            holds, f"{counts} trials ({', '.join(told)})", f"{AS_PRINTED[1]:,} rounds, all {AS_PRINTED[2]:,} clients"
        )

    return verdict
