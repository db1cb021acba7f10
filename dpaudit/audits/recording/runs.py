"""Compares runs: noise that is the same in all of them, outputs that no noise hides, and what an output shows of the
noisy values and of the noise itself."""

from collections.abc import Callable

import numpy as np

from dpaudit import _validate
from dpaudit.audits.recording import affine
from dpaudit.audits.recording.outputs import Output, same
from dpaudit.audits.recording.pair import Run, Shown
from dpaudit.audits.recording.trace import CONTINUOUS, Endless, Node, Trace

FAR_DRAWS = 100  # more draws than twice those of the first run that a run with other noise may make


def most_draws(first: Run) -> int:
    """Returns the number of draws after which a run with other noise is stopped."""
    return 2 * len(first.trace.draws) + FAR_DRAWS


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


def shown(first: Run, second: Run, far: list[Run], independent: list[Run]) -> Shown:
    """Returns the values with noise in them that the output of a run shows.

    Args:
      first: of x0.
      second: its replay on x1.
      far: of x0 with extreme noise; without such runs, only values whose noise is followed into the output are known.
      independent: of x0 with other noise.
    """
    found: set[int] = set()
    fixed: set[int] = set()
    others = far or independent
    aligned = min((_aligned(first, one) for one in others), default=0)
    discrete = _discrete(first.trace)
    for number, node in enumerate(first.trace.nodes[:aligned]):
        if number in first.output.tagged:
            stays = all(_same_tags(first, one, number, ids=True) for one in others)
            if stays and _same_tags(first, second, number, ids=False):
                fixed.add(number)
        elif far and node.kind != "compared" and number not in first.trace.consumed:
            places = [run.output.places(run.trace.nodes[number].value) for run in (first, *far)]
            if any((one < 0).any() for one in places) or affine.roots(first.trace, node.tag.ids) & discrete:
                continue
            found.add(number)
            if number < len(second.trace.nodes):
                places.append(second.output.places(second.trace.nodes[number].value))
            layouts = [list(run.output.layout.items()) for run in (first, *far, second)]
            if all(np.array_equal(one, places[0]) for one in places) and all(one == layouts[0] for one in layouts):
                fixed.add(number)
    return Shown(found, fixed)


def _aligned(first: Run, other: Run) -> int:
    """Returns the number of nodes up to which two runs do the same."""
    pairs = zip(first.trace.nodes, other.trace.nodes, strict=False)
    parted = (at for at, (one, two) in enumerate(pairs) if _operation(one) != _operation(two))
    return next(parted, min(len(first.trace.nodes), len(other.trace.nodes)))


def _operation(node: Node) -> tuple[str, str, tuple[int, ...]]:
    return node.kind, node.where, np.shape(node.value)


def _discrete(trace: Trace) -> set[int]:
    """Returns the ids of draws of whole numbers, which an output may hold by chance."""
    found: set[int] = set()
    for block in trace.blocks:
        if block.draw is not None:
            raw = np.asarray(trace.draws[block.draw].raw)
            if np.array_equal(raw, np.rint(raw)):
                found.update(range(block.start, block.start + block.size))
    return found


def _same_tags(first: Run, other: Run, number: int, *, ids: bool) -> bool:
    """Tells whether both outputs hold the value of a node at the same places, and of the same noise."""
    then, now = first.output.tagged[number], other.output.tagged.get(number, {})
    return then.keys() == now.keys() and (not ids or all(np.array_equal(then[at].ids, now[at].ids) for at in then))


def reveals_noise(
    play: Callable[[Trace], Run], first: Run, second: Run, hiding: frozenset[int], seeds: dict[int, float]
) -> bool:
    """Tells whether an output depends on noise other than through the values that it hides: replays x1 with this noise
    drawn again, and with the values that it hid as they were.

    Args:
      play: runs the function on x1.
      first, second: the run on x0 and its replay.
      hiding: the ids of the noise.
      seeds: of such runs, each with the direction in which its noise is extreme, 1 or -1.
    """
    redrawn: dict[int, np.ndarray] = {}
    for block in first.trace.blocks:
        own = [one in hiding for one in range(block.start, block.start + block.size)]
        if block.draw is not None and any(own):
            redrawn[block.draw] = np.array(own)
    for seed, far in seeds.items() if redrawn else ():
        try:
            again = play(Trace(seed, first.trace, redrawn=redrawn, far=far, most=most_draws(first)))
        except (Endless, _validate.InputError):
            return True
        differ = different(second.output, again.output)
        if again.trace.diverged is not None or not all(_hides(first, second, again, path) for path in differ):
            return True
    return False


def _hides(first: Run, second: Run, again: Run, path: str) -> bool:
    """Tells whether numbers of the output that change with the noise are compared as sums of it and of data that
    differ: one noise that was added to the same difference twice."""
    tags = [run.output.tags.get(path) for run in (first, second, again)]
    then, now, *_ = tags
    if then is None or now is None or any(tag is None or tag.node != then.node for tag in tags):
        return False
    changed = ~same(second.output.values[path], again.output.values[path])
    return np.array_equal(then.ids, now.ids) and bool(np.all((then.offset != now.offset)[changed]))


def moved(first: Run, second: Run) -> list[tuple[str, bool]]:
    """Returns the places of the output that differ between a run and its replay although the values that noise hid
    are the same, each with whether only other noisy values are there; those that the data are added to once
    more are known from their noise."""
    held = [np.ravel(np.asarray(node.value, float)) for node in first.trace.nodes if (node.tag.ids >= 0).any()]
    found = []
    for path in different(first.output, second.output):
        then, now = first.output.tags.get(path), second.output.tags.get(path)
        if then is not None and now is not None and then.node == now.node:  # compared with its noise
            continue
        is_number = path in first.output.layout and path in second.output.layout
        exchanged = is_number and first.output.structure[path] == second.output.structure[path]
        if exchanged:
            one, other = first.output.values[path], second.output.values[path]
            changed = ~same(one, other)
            values = np.concatenate([one[changed], other[changed]]).astype(float)
            exchanged = bool(np.isin(values, np.concatenate(held) if held else []).all())
        found.append((path, exchanged))
    return found


def different(first: Output, other: Output) -> list[str]:
    """Returns the places at which two outputs are not the same."""
    paths = [path for path in first.values if path not in other.values or not _equal(first, other, path)]
    return paths + [path for path in other.values if path not in first.values]


def _equal(first: Output, other: Output, path: str) -> bool:
    return bool(np.all(same(first.values[path], other.values[path])))


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
