"""Tells what rules that adapt C did, from the curves of single runs."""

from typing import Any

from dpaudit.report.rows import read_rows
from experiments import pages
from experiments.common import read_all
from experiments.pages import Fact, Row, Rows, fact, only, select
from experiments.paper002.claims import AS_PRINTED, FEW, KEEPS, named

RESULTS = pages.HERE / "paper002" / "results"


def curve(name: str, sensitivity: int, scale: tuple[Any, ...]) -> Row:
    """Returns what a setting was like from look to look, in the mean of its trials."""
    kept = read_rows(RESULTS / "clip_size_curves.json")
    return only([row | {"quantity": "curve", "setting": row} for row in kept if "accuracy" in row], "curve",
                name=name, sensitivity=sensitivity, **named(scale))  # fmt: skip


def trials(name: str, sensitivity: int | None) -> Rows:
    """Returns what the trials of a setting were like from look to look, with all clients of all rounds."""
    kept = read_all(RESULTS / "clip_size_records.json")
    own = select([row | {"quantity": "curve", "setting": row} for row in kept], "curve",
                 name=name, sensitivity=sensitivity, **named(AS_PRINTED))  # fmt: skip
    return sorted(own, key=lambda row: row["trial"])


def first_trial(name: str, sensitivity: int) -> Row:
    """Returns what the first of these trials was like from look to look."""
    return trials(name, sensitivity)[0]


def wandering(rows: Rows) -> Fact:
    """The adaptive rule's C leaves its first value far behind, and comes back."""
    own = curve("adaptive0.05", 1, FEW)["clip_norm"]
    first = next(value for value in own if value != own[0])
    return fact(min(own) < first / 10 and own[-1] == first, first=first, low=min(own), last=own[-1])


def adapting(rows: Rows) -> Fact:
    """With all clients the quantile rule's C rises and falls back, and is below 1 after all the paper's rounds."""
    scale = ("mnist", 1_000, 1_000, 1_000)
    quick, slow = (curve(f"quantile(0.01){share}", KEEPS, scale) for share in ("50%", "10%"))
    long, slow_long = (trials(f"quantile(0.01){share}", KEEPS) for share in ("50%", "10%"))
    falls = all(max(own["clip_norm"]) > 3 * own["clip_norm"][-1] > 30 * 0.01 / 2 for own in (quick, slow, *long))
    ends = [[own["clip_norm"][-1] for own in found] for found in (long, slow_long)]
    top = max(quick["clip_norm"])
    at = quick["round"][quick["clip_norm"].index(top)]
    return fact(
        falls and max(own["accuracy"][-1] for own in (quick, *long)) < 0.12 and max(map(max, ends)) < 1,
        rounds=scale[1], half=0.5, tenth=0.1, top=top, at=at,
        end=quick["clip_norm"][-1], accuracy=100 * quick["accuracy"][-1],
        slow_top=max(slow["clip_norm"]), slow_end=slow["clip_norm"][-1], whole=AS_PRINTED[1],
        low=min(ends[0]), high=max(ends[0]), slow_low=min(ends[1]), slow_high=max(ends[1]),
    )  # fmt: skip


def overtaken(rows: Rows) -> Fact:
    """Over all of the paper's rounds the median rule's C jumps once, from either start; it leads the C that it began
    with, and falls behind."""
    rule, other, start = (first_trial(name, KEEPS) for name in ("adaptive0.01", "adaptive0.05", "clip0.01"))
    large, small = rule["clip_norm"][-1], rule["clip_norm"][0]
    jump = rule["clip_norm"].index(large)
    ahead = [a > b for a, b in zip(rule["accuracy"], start["accuracy"], strict=True)]
    last = max(i for i, leads in enumerate(ahead) if leads)
    once = all(
        own["clip_norm"] == [own["clip_norm"][0]] * jump + [large] * (len(own["round"]) - jump)
        for own in (rule, other)
    )
    return fact(
        once and large > small and all(ahead[jump:last]) and not ahead[-1], rounds=AS_PRINTED[1], small=small,
        other=other["clip_norm"][0], large=large, jump=rule["round"][jump - 1], last=rule["round"][last],
        end=100 * rule["accuracy"][-1], fixed=100 * start["accuracy"][-1], times=rule["loss"][-1] / start["loss"][-1],
    )  # fmt: skip
