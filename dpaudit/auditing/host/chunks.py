"""Runs chunks of trials of a function on the host. Imports no JAX, so that a worker process starts quickly.

The trials of a chunk share one generator, seeded by (key, world, number of the chunk), and the size of a chunk is
fixed, so releases depend neither on the number of processes nor on how many chunks run at a time.
"""

import pickle
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from hashlib import blake2b
from time import monotonic
from typing import Any, NamedTuple

import numpy as np

from dpaudit.auditing.host.reader import SIMPLE, Unreadable, token

ONE_BY_ONE, AT_ONCE = 32, 1 << 12  # trials of a chunk: called one by one, and in one call
PROBED = 8  # trials that are played twice
TICK = 0.05  # seconds between two ticks, which would cost as much as a quick call


class Plan(NamedTuple):
    """Everything that a process needs to run a function's trials.

    Attributes:
      function: ``function(rng, x) -> release``, or ``function(rng, x, n) -> n releases`` where it is ``batched``.
      inputs: of both worlds.
      setup: called once in each process, or None; its result, unless None, is passed on as ``state=``.
      features: ``features(release) -> numbers``, or None.
      batched: whether one call runs a whole chunk.
      chunk: trials that share a generator.
      trials: of each world.
      words: of the key.
    """

    function: Callable[..., Any]
    inputs: tuple[Any, Any]
    setup: Callable[[], Any] | None
    features: Callable[[Any], Any] | None
    batched: bool
    chunk: int
    trials: int
    words: tuple[int, ...]


class Stacked(NamedTuple):
    """Releases of one call as arrays with a leading axis, alone or in a tuple or dictionary."""

    tree: Any


def count(plan: Plan, number: int) -> int:
    """Returns the number of trials of a chunk; the last chunk may be shorter."""
    return min(plan.chunk, plan.trials - number * plan.chunk)


def generator(plan: Plan, world: int, number: int) -> np.random.Generator:
    """Returns the generator of a chunk."""
    return np.random.default_rng(np.random.SeedSequence(np.array([*plan.words, world, number], np.uint32)))


def ready(plan: Plan) -> Callable[..., Any]:
    """Calls ``setup`` and returns the function with the resulting state bound."""
    state = None if plan.setup is None else plan.setup()
    return plan.function if state is None else partial(plan.function, state=state)


def play(
    plan: Plan, function: Callable[..., Any], number: int, tick: Callable[[], None]
) -> tuple[list[Any] | Stacked, list[Any] | Stacked]:
    """Returns the releases of a chunk of both worlds.

    Every trial has its partner in the other world next to it, and a coin decides which is first. So what changes from
    call to call (a counter, a budget, the time) says nothing of the world.

    Args:
      plan: of the trials.
      function: from :func:`ready`.
      number: of the chunk.
      tick: called before calls of the function, of quick ones before some.

    Raises:
      Exception: whatever the function raises.
      ValueError: another number of releases than asked for.
    """
    rngs, trials, due = [generator(plan, world, number) for world in range(2)], count(plan, number), 0.0
    coins = generator(plan, len(rngs), number).integers(2, size=1 if plan.batched else trials)
    parts: tuple[list[Any], list[Any]] = [], []
    for world in np.stack([coins, 1 - coins], axis=1).ravel().tolist():
        now = monotonic()
        if now >= due:
            tick()
            due = now + TICK
        parts[world].append(_called(plan, function, world, rngs[world], trials))
    return (parts[0][0], parts[1][0]) if plan.batched else parts


def _called(plan: Plan, function: Callable[..., Any], world: int, rng: np.random.Generator, trials: int) -> Any:
    """Returns a release, or so many of them where the function is batched."""
    x = plan.inputs[world]
    return _stacked(_kept(function(rng, x, trials)), trials) if plan.batched else _kept(function(rng, x))


def _kept(release: Any) -> Any:
    """Copies a release, because the function may write its next one to the same memory."""
    if isinstance(release, (*SIMPLE, float, np.generic)):
        return release
    if isinstance(release, np.ndarray) and release.dtype != object:
        return release.copy()
    try:
        return deepcopy(release)
    except Exception:  # what cannot be copied, such as an open file
        return release


class Probed(NamedTuple):
    """The behaviour of a function that is run twice with generators of one seed.

    Attributes:
      repeats: its releases are the same.
      draws: it draws from its generator.
      varies: its releases differ from trial to trial.
      seen: tokens of the releases of both times.
    """

    repeats: bool
    draws: bool
    varies: bool
    seen: tuple[str, ...] = ()

    def is_copied(self, other: "Probed") -> bool:
        """Tells whether a function drew the same in another process, though not twice the same in one: from a
        generator of its own, which has the same seed in every process."""
        elsewhere = not (self.draws or self.repeats) and len(set(self.seen)) >= PROBED
        return elsewhere and self.seen == other.seen


def probe(plan: Plan, function: Callable[..., Any]) -> Probed:
    """Runs the first few trials of world 0 twice.

    Raises:
      Exception: whatever the function raises; a release that cannot be read.
    """
    rng = generator(plan, 0, 0)
    start, trials = str(rng.bit_generator.state), min(PROBED, plan.trials)
    runs = []
    for own in (rng, generator(plan, 0, 0)):
        calls = 1 if plan.batched else trials
        releases = [_called(plan, function, 0, own, trials) for _ in range(calls)]
        runs.append([token(release) for release in (one_by_one(releases[0]) if plan.batched else releases)])
    draws = str(rng.bit_generator.state) != start
    seen = (*runs[0], *runs[1])
    return Probed(runs[0] == runs[1], draws, len(set(seen)) > 1, seen)


class Inputs:
    """The inputs of both worlds, which the function must leave as they are, since all later trials have them too."""

    def __init__(self, plan: Plan) -> None:
        self._inputs = plan.inputs
        self._packed, self._tokens = self._pack(), self._read()

    def changed(self) -> bool:
        """Tells whether one of them holds something else than at first."""
        packed = self._pack()
        return (packed is None or packed != self._packed) and self._read() != self._tokens

    def _pack(self) -> bytes | None:
        """Returns a digest of both, a hundred times as fast as their tokens; None for what cannot be pickled."""
        try:
            return blake2b(pickle.dumps(self._inputs, pickle.HIGHEST_PROTOCOL)).digest()
        except Exception:
            return None

    def _read(self) -> list[str | None]:
        """Returns their tokens, None for one that cannot be read."""
        found: list[str | None] = []
        for x in self._inputs:
            try:
                found.append(token(x))
            except Unreadable:
                found.append(None)
        return found


def no_tick() -> None:
    """Tells nobody that a trial was played."""


def _stacked(releases: Any, trials: int) -> list[Any] | Stacked:
    """Checks the result of a batched call."""
    if isinstance(releases, list):
        found, stacked = len(releases), releases
    elif isinstance(releases, tuple) and len(releases) == trials and not all(map(_is_rows(trials), releases)):
        found, stacked = trials, list(releases)
    else:
        sizes = {len(leaf) if np.ndim(leaf) else 0 for leaf in leaves(releases)}
        found, stacked = sizes.pop() if len(sizes) == 1 else 0, Stacked(releases)
    if found != trials:
        raise ValueError(f"expected {trials} releases from one call, got {found or type(releases).__name__}")
    return stacked


def _is_rows(trials: int) -> Callable[[Any], bool]:
    return lambda leaf: isinstance(leaf, np.ndarray) and leaf.ndim > 0 and len(leaf) == trials


def leaves(tree: Any) -> Iterator[Any]:
    """Yields the arrays of a tuple or dictionary, or the array itself."""
    if isinstance(tree, dict):
        for value in tree.values():
            yield from leaves(value)
    elif isinstance(tree, tuple):
        for value in tree:
            yield from leaves(value)
    else:
        yield np.asarray(tree)


def one_by_one(releases: list[Any] | Stacked) -> list[Any]:
    """Returns the releases as a list."""
    if isinstance(releases, list):
        return releases
    trials = len(next(leaves(releases.tree)))
    return [_row(releases.tree, i) for i in range(trials)]


def _row(tree: Any, i: int) -> Any:
    if isinstance(tree, dict):
        return {name: _row(value, i) for name, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_row(value, i) for value in tree)
    return tree[i]
