"""Replaces sources of randomness by recording ones while a function runs.

NumPy's factories and legacy functions, the module ``random``, ``os.urandom`` (and so ``secrets``), SciPy's ``rvs``
and, if it is imported, torch are replaced in every loaded module that holds them. Generators that modules hold are
replaced by recording ones with a new stream in each run.
"""

import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import CellType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from dpaudit.audits.recording import numpy_sources, random_source, scipy_source, torch_source
from dpaudit.audits.recording.numpy_sources import GENERATOR, STATE
from dpaudit.audits.recording.random_source import RANDOM
from dpaudit.audits.recording.trace import Stage, Trace

UNTOUCHED = ("numpy", "scipy", "jax", "jaxlib", "torch", "random", "secrets", "dpaudit", "_pytest", "pytest", "rich")
LOCK = threading.RLock()  # sources are replaced in the whole process


class Swap(NamedTuple):
    """One source and its replacement while a function runs.

    Attributes:
      holder: a module, a class, a module's dictionary or a closure's cell.
      name: in the holder.
      old, new: the source and its replacement.
      inherited: whether the holder inherits the name.
    """

    holder: Any
    name: str
    old: Any
    new: Any
    inherited: bool = False

    def set(self, value: Any) -> None:
        if isinstance(self.holder, dict):
            self.holder[self.name] = value
        else:
            setattr(self.holder, self.name, value)

    def undo(self) -> None:
        if self.inherited:
            delattr(self.holder, self.name)
        else:
            self.set(self.old)


class Sources:
    """The sources of randomness that a function may use; found once, replaced in every run."""

    def __init__(self, function: Any, adapters: Any = ()) -> None:
        self.stage = Stage()
        self.swaps: list[Swap] = []
        with LOCK:
            for install in (numpy_sources.put, random_source.put, scipy_source.put, torch_source.put):
                install(self.stage, self._put)
            for adapter in adapters:
                adapter.put(self.stage, self._put)
            self._put_in_modules(function)

    def _put(self, holder: Any, name: str, new: Any) -> None:
        inherited = isinstance(holder, type) and name not in vars(holder)
        self.swaps.append(Swap(holder, name, getattr(holder, name), new, inherited))

    def _put_in_modules(self, function: Any) -> None:
        """Finds sources that modules and the function hold under other names, and the generators that they hold."""
        known = {id(swap.old): swap.new for swap in self.swaps}
        spaces = {
            id(vars(module)): vars(module)
            for name, module in list(sys.modules.items())
            if isinstance(module, ModuleType) and name.split(".")[0] not in UNTOUCHED
        }
        own = getattr(function, "__globals__", {})
        spaces[id(own)] = own
        places = [(space, name, value) for space in spaces.values() for name, value in list(space.items())]
        cells = [cell for cell in getattr(function, "__closure__", None) or () if cell != CellType()]
        places += [(cell, "cell_contents", cell.cell_contents) for cell in cells]
        for holder, name, value in places:
            new = known.get(id(value))
            if new is None and type(value) in (GENERATOR, STATE, RANDOM):
                new = self._standing_for(value)
            if new is not None:
                self.swaps.append(Swap(holder, name, value, new))

    def _standing_for(self, value: Any) -> Any:
        if isinstance(value, GENERATOR):
            return numpy_sources.resumed(self.stage, numpy_sources.RecordingGenerator(value.bit_generator))
        if isinstance(value, STATE):
            return numpy_sources.resumed(self.stage, numpy_sources.RecordingState(value._bit_generator))
        return None if value is random._inst else random_source.resumed(self.stage, value)  # pyright: ignore

    @contextmanager
    def recorded(self, trace: Trace) -> Iterator[np.random.Generator]:
        """Replaces all sources within the context, and yields a recording generator for the function's argument."""
        with LOCK:
            rng = numpy_sources.fresh(trace)  # made first, so that its stream does not depend on the other sources
            self.stage.begin(trace)
            done: list[Swap] = []
            try:
                for swap in self.swaps:
                    swap.set(swap.new)
                    done.append(swap)
                yield rng
            finally:
                for swap in reversed(done):
                    swap.undo()
            trace.finish()
