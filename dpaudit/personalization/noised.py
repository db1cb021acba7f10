"""The aggregator's exit where it bounds what users add: totals with noise for its own bounds."""

from typing import Any, NamedTuple

import jax

from dpaudit import check
from dpaudit.personalization.bounds import Bounded
from dpaudit.personalization.processes import Memory, Process, memoryless


class Noised(NamedTuple):
    """The aggregator's exit: every total with its process's noise, ``noised(key, total, memory)``.

    Attributes:
      processes: one for the whole total, or one for each of its parts, by name.
      add: of the devices, which bounds what one user adds.
    """

    processes: tuple[Process, ...]
    add: Bounded

    def __call__(self, key: jax.Array, total: Any, memory: tuple[Memory, ...]) -> Any:
        if not isinstance(memory, tuple) or len(memory) != len(self.processes):
            raise check.expected("memory", f"one of each of {len(self.processes)} processes, or None to begin", memory)
        pairs = [
            process.release(key, part, own, sensitivity=bound.sensitivity(part))
            for process, (bound, part), own in zip(self.processes, self.add.parts(total), memory, strict=True)
        ]
        releases, after = zip(*pairs, strict=True)
        return releases, after

    def init(self) -> tuple[Memory, ...]:
        """The memory before the first release."""
        return tuple(memoryless() for _ in self.processes)
