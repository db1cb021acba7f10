"""Holds the record of one run: its draws, the values that noise was added to, and where in the code they happened."""

import sys
import sysconfig
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

CONTINUOUS = {"laplace", "gaussian", "gumbel", "logistic", "exponential", "uniform", "cauchy"}
NO_NOISE = -1  # the id of a number without noise
FAR = 25.0  # in units of the scale
GOLDEN, SILVER = 0.6180339887, 0.7548776662  # steps that spread what is made extreme, no two numbers alike
FOLDERS = (sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"))  # of files that are named from there on
OWN = ("dpaudit.audits.recording",)
LIBRARIES = ("numpy", "scipy", "torch", "random", "secrets", "functools", "contextlib", "statistics", "copy")


class Block(NamedTuple):
    """Random numbers that were drawn, or computed from others, together.

    Attributes:
      start, size: their ids are start, ..., start + size - 1.
      law: of each in units of its scale: "laplace", "gaussian", "uniform", another name, or "unknown".
      lattice: the spacing of their possible values in units of their scale, or 0 if they are not on a grid.
      parents: the ids that they were computed from; empty for a draw.
      disjoint: whether no draw is part of two of them.
      draw: the number of the draw, or None.
    """

    start: int
    size: int
    law: str
    lattice: float = 0.0
    parents: frozenset[int] = frozenset()
    draw: int | None = None
    disjoint: bool = True


class Draw(NamedTuple):
    """One call of a source of randomness.

    Attributes:
      source: such as ``"numpy.random.Generator.laplace"``.
      law: its distribution.
      parameters: those that are neither location nor scale, and those of draws that are not followed any further.
      shape: of the numbers drawn, or None.
      raw: the numbers drawn, in units of the scale.
      where: ``file:line`` of the call.
      followed: whether the numbers are followed into the values that they are added to; otherwise only the call is
        recorded.
    """

    source: str
    law: str
    parameters: dict[str, Any]
    shape: tuple[int, ...] | None
    raw: Any
    where: str
    followed: bool


class Tag(NamedTuple):
    """How an array is composed: ``offset + coefficient * noise[ids]``, element by element.

    Attributes:
      trace: the run it belongs to.
      node: its number there.
      offset, coefficient, ids: of the shape of the array.
      pure: whether nothing was added to the noise, not even 0.
    """

    trace: "Trace"
    node: int
    offset: np.ndarray
    coefficient: np.ndarray
    ids: np.ndarray
    pure: bool


class Node(NamedTuple):
    """One value with noise in it.

    Attributes:
      kind: "draw", "affine", "compared", "derived" (a nonlinear function of pure noise) or "observed" (a nonlinear
        function of anything else, whose value is not followed any further).
      value: the value that the program received.
      tag: how it is composed.
      inputs: the nodes that it was computed from.
      where: ``file:line``.
    """

    kind: str
    value: Any
    tag: Tag
    inputs: tuple[int, ...]
    where: str


class Seed(NamedTuple):
    """A generator that was given a seed.

    Attributes:
      source: what was seeded.
      seed: as text.
      where: ``file:line``.
    """

    source: str
    seed: str
    where: str


class Diverged(NamedTuple):
    """The first point at which the run on x1 did something other than the run on x0.

    Attributes:
      said: the difference, in words.
      where: ``file:line``.
      what: "calls", "shape", "law" or "operations".
    """

    said: str
    where: str
    what: str


class Endless(BaseException):
    """Stops a run that draws endlessly. Not an Exception, so that the function cannot catch it by mistake."""


class Trace:
    """Records one run; with ``replayed``, gives it the draws and the noisy values of an earlier run.

    Args:
      seed: of the draws.
      replayed: the earlier run.
      redrawn: of its draws by number, the numbers that are drawn again nevertheless, as an array of booleans. What
        they hid keeps the value of the earlier run.
      far: 1.0 or -1.0 to make unbounded noise extreme, in opposite directions, to see whether the function keeps it.
      most: the number of draws after which the run is stopped.
    """

    def __init__(
        self,
        seed: int,
        replayed: "Trace | None" = None,
        *,
        redrawn: dict[int, np.ndarray] | None = None,
        far: float = 0.0,
        most: int | None = None,
    ) -> None:
        self.random = np.random.Generator(np.random.PCG64(seed))
        self.replayed = replayed
        self.redrawn = {} if redrawn is None else redrawn
        self.far, self.most = far, most
        self.draws: list[Draw] = []
        self.nodes: list[Node] = []
        self.blocks: list[Block] = []
        self.starts = np.zeros(64, int)  # of the blocks
        self.seeds: list[Seed] = []
        self.consumed: set[int] = set()
        self.lost: list[str] = []  # where noise was made that was written to before it was added to anything
        self.diverged: Diverged | None = None
        self.threads: set[int] = set()
        self.spent = np.zeros(64, bool)  # ids of noise that already hides data
        self.entries: dict[int, int] = {}  # id -> the node at which the noise was first added to data
        self.same: dict[int, np.ndarray] = {}  # of a node, where its value equals the earlier run's without noise
        self.margins: dict[int, np.ndarray] = {}  # of comparisons: the gap between the two values
        self.aligned = 0  # nodes of a replay that correspond to those of the earlier run
        self.size = 0
        self.is_open = True
        self.follows = True  # False if the function is only run, for the trials of an audit

    def block(self, size: int, law: str, **more: Any) -> np.ndarray:
        """Allots ids to new random numbers, [size]."""
        if len(self.blocks) == self.starts.size:
            self.starts = np.concatenate([self.starts, np.zeros(self.starts.size, int)])
        self.starts[len(self.blocks)] = self.size
        self.blocks.append(Block(self.size, size, law, **more))
        self.size += size
        if self.size > self.spent.size:
            self.spent = np.concatenate([self.spent, np.zeros(2 * self.size, bool)])
        parents = list(more.get("parents", ()))
        if parents and self.spent[parents].all():  # computed from released values
            self.spent[self.size - size : self.size] = True
        return np.arange(self.size - size, self.size)

    def draw(
        self,
        source: str,
        law: str,
        shape: tuple[int, ...] | None,
        make: Callable[[], Any],
        parameters: dict[str, Any] | None = None,
        *,
        followed: bool = True,
    ) -> Any:
        """Returns what ``make`` draws; in a replay, the corresponding draw of the earlier run."""
        if not self.follows:
            return make()
        if self.most is not None and len(self.draws) >= self.most:
            raise Endless
        self.threads.add(threading.get_ident())
        where = caller()
        parameters = {} if parameters is None else parameters
        raw = self._recorded(source, law, shape, where)
        if raw is None:
            raw = self._extreme(law, make()) if followed else make()
        elif len(self.draws) in self.redrawn:
            again = self.redrawn[len(self.draws)].reshape(np.shape(raw))
            raw = np.where(again, self._extreme(law, make()), raw)
        self.draws.append(Draw(source, law, parameters, shape, raw, where, followed))
        return raw

    def _extreme(self, law: str, raw: Any) -> Any:
        if not self.far or law not in ("laplace", "gaussian"):
            return raw
        raw = np.asarray(raw)
        spread = 2 * ((np.arange(1, raw.size + 1) * GOLDEN + len(self.draws) * SILVER) % 1) - 1
        return raw + self.far * FAR * (np.sign(spread) + spread).reshape(raw.shape)

    def _recorded(self, source: str, law: str, shape: tuple[int, ...] | None, where: str) -> Any:
        earlier, place = self.replayed, len(self.draws)
        if earlier is None or self.diverged is not None:
            return None
        if place >= len(earlier.draws):
            self._diverge(f"a draw of {law} noise that x0 does not draw", where, "calls")
            return None
        then = earlier.draws[place]
        if (then.source, then.law) != (source, law):
            self._diverge(f"{law} noise is drawn where x0 draws {then.law}", where, "law")
        elif then.shape != shape:
            self._diverge(f"{law} noise of shape {shape}, for x0 of shape {then.shape}", where, "shape")
        elif then.where != where:
            self._diverge(f"{law} noise is drawn here, for x0 at {then.where}", where, "calls")
        else:
            return then.raw
        return None

    def node(
        self,
        kind: str,
        value: Any,
        offset: Any,
        coefficient: Any,
        ids: Any,
        inputs: tuple[int, ...] = (),
        *,
        pure: bool = False,
        margin: Any = None,
    ) -> tuple[Any, Tag]:
        """Adds a value with noise in it. In a replay the program receives the value of the run on x0, so that
        everything computed from released values stays the same. The margin of a comparison is the difference whose
        sign it tests."""
        where = caller()
        shape = np.shape(value)
        offset, coefficient = (_spread(np.asarray(one, float), shape) for one in (offset, coefficient))
        ids = _spread(np.asarray(ids), shape)
        place = len(self.nodes)
        if margin is not None:
            self.margins[place] = np.asarray(margin)
        if self.replayed is not None and self.diverged is None:
            value = self._released(kind, value, offset, coefficient, ids, where)
            pure = self.replayed.nodes[place].tag.pure if self.diverged is None else pure
        tag = Tag(self, place, offset, coefficient, ids, pure)
        held = value.copy() if isinstance(value, np.ndarray) else value
        self.nodes.append(Node(kind, held, tag, inputs, where))
        self.consumed.update(inputs)
        return value, tag

    def _released(
        self, kind: str, value: Any, offset: np.ndarray, coefficient: np.ndarray, ids: np.ndarray, where: str
    ) -> Any:
        """Returns the value that the program receives in a replay. If this noise hides data for the first time, that
        is the value that x0 released; otherwise the value itself, which differs if more data was added."""
        assert self.replayed is not None
        place, shape = len(self.nodes), np.shape(value)
        then = self.replayed.nodes[place] if place < len(self.replayed.nodes) else None
        fresh = (ids >= 0) & ~self.spent[np.maximum(ids, 0)]
        if then is None or (then.kind, then.where) != (kind, where):
            self._diverge("noise is used differently than for x0", where, "operations")
            return value
        if np.shape(then.value) != shape:
            if fresh.any():
                said = f"a noisy value of shape {shape}, for x0 of shape {np.shape(then.value)}"
                self._diverge(said, where, "shape")
            else:
                self.aligned = place + 1
            return value
        self.aligned = place + 1
        seen, before = self.margins.get(place, value), self.replayed.margins.get(place, then.value)
        with np.errstate(invalid="ignore"):
            same = np.asarray(seen) == np.asarray(before)
            moved = (offset != then.tag.offset) | (coefficient != then.tag.coefficient)
        self.same[place] = same
        self.spent[ids[fresh & moved]] = True
        hides = fresh & moved & (~same | (kind == "draw"))  # an equal value is a sum of released ones
        for one in np.unique(ids[hides]).tolist():
            self.entries.setdefault(one, place)
        if same.all():
            return value
        mixed = np.where(fresh & moved if self.redrawn else fresh, then.value, value)
        return mixed if isinstance(value, np.ndarray) else mixed[()]

    def _diverge(self, said: str, where: str, what: str) -> None:
        self.diverged = Diverged(said, where, what)

    def finish(self) -> None:
        """Closes the run; a replay that stopped early has diverged."""
        self.is_open = False
        earlier = self.replayed
        if earlier is not None and self.diverged is None and len(self.draws) < len(earlier.draws):
            left = earlier.draws[len(self.draws)]
            self._diverge(f"{left.law} noise that x0 draws is not drawn", left.where, "calls")

    def law_of(self, ids: np.ndarray) -> np.ndarray:
        """Returns the number of the block of each id, [n]; -1 for no noise."""
        starts = self.starts[: len(self.blocks)]
        return np.where(ids < 0, -1, np.searchsorted(starts, ids, side="right") - 1)


def _spread(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return array if array.shape == shape else np.broadcast_to(array, shape)


class Stage:
    """Holds the current run, for the functions that replace the sources."""

    def __init__(self) -> None:
        self.trace = Trace(0)
        self.trace.is_open = False
        self.at_begin: list[Callable[[Trace], Any]] = []
        self.random_class: Any = None

    def begin(self, trace: Trace) -> None:
        """Starts a run: every source gets a stream that is a function of the run's seed."""
        self.trace = trace
        for start in self.at_begin:
            start(trace)


def caller() -> str:
    """Returns ``file:line`` of the nearest frame that belongs neither to this package's recording nor to a library of
    arrays and random numbers."""
    frame = sys._getframe(1)
    found = frame
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(OWN) and name.split(".")[0] not in LIBRARIES:
            found = frame
            break
        frame = frame.f_back
    return f"{_short(found.f_code.co_filename)}:{found.f_lineno}"


def _short(file: str) -> str:
    for folder in FOLDERS:
        if file.startswith(folder + "/"):
            return file[len(folder) + 1 :]
    return file


def twins(trace: Trace) -> dict[int, int]:
    """Maps the ids of noise that was drawn again, by a generator whose state or seed was used before, to the first."""
    first: dict[tuple[str, float], int] = {}
    twins: dict[int, int] = {}
    for block in trace.blocks:
        if block.draw is None or block.law not in CONTINUOUS:
            continue
        for place, value in enumerate(np.ravel(np.asarray(trace.draws[block.draw].raw, float))):
            earlier = first.setdefault((block.law, float(value)), block.start + place)
            if earlier != block.start + place:
                twins[block.start + place] = earlier
    return twins
