"""Compares independent runs, to find noise that is the same in all of them, and outputs that no noise hides."""

import numpy as np

from dpaudit.audits.recording.compare import Run
from dpaudit.audits.recording.outputs import Output, same
from dpaudit.audits.recording.trace import CONTINUOUS


def constant_draws(runs: list[Run]) -> set[int]:
    """Returns the numbers of draws that were the same in independent runs."""
    first, *others = runs
    found = set()
    for number, draw in enumerate(first.trace.draws):
        raws = [other.trace.draws[number].raw if number < len(other.trace.draws) else None for other in others]
        if draw.law in CONTINUOUS and all(
            raw is not None and np.array_equal(np.asarray(raw), np.asarray(draw.raw)) for raw in raws
        ):
            found.add(number)
    return found


def told_apart(firsts: list[Output], seconds: list[Output]) -> tuple[str, str] | None:
    """Returns a place of the output that had one value in every run on x0, whatever the noise, and a different one in
    every run on x1, and what differs: "structure" or "value"."""
    known = [set(one.structure.items()) for one in firsts]
    always = set.intersection(*known)
    for path, shape in sorted(always, key=str):
        if all(one.structure.get(path) != shape for one in seconds):
            return path, "structure"
    never = set.union(*(set(one.structure.items()) for one in firsts))
    for path, shape in sorted(set.intersection(*(set(one.structure.items()) for one in seconds)) - never, key=str):
        return path, f"structure {list(shape)}"
    for path, shape in sorted(always, key=str):
        if any(one.structure.get(path) != shape for one in seconds):
            continue
        value = firsts[0].values[path]
        fixed = np.logical_and.reduce([same(value, one.values[path]) for one in firsts])
        for group in (firsts, seconds):
            base = group[0].values[path]
            fixed = np.logical_and.reduce([same(base, one.values[path]) for one in group])
            others = seconds if group is firsts else firsts
            differ = np.logical_and.reduce([~same(base, one.values[path]) for one in others])
            if np.any(fixed & differ):
                at = np.argwhere(np.atleast_1d(fixed & differ))[0].tolist() if np.ndim(base) else []
                return path + "".join(f"[{one}]" for one in at), "value"
    return None
