"""Bounds how far one user can move a total: the aggregator clips every message, then adds noise for its own bound.

    clipped(1.0)                        # all numbers of a message together have an L2 norm of at most 1
    bounded(0.0, 100.0)                 # every number lies in [0, 100]
    bounded(0.0, 1.0, clip_norm=1.0)    # a count of one in one bin, or fractions of it in several

A message that contains NaN counts as zero, and so does one with infinite numbers that no range makes finite. Sums are
in float32 or wider, whatever the devices send. Runs keep what additions round away, and round a sum once: a user
moves a sum S by at most the bound and 2^-23 |S|, which float32 cannot tell apart.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from dpaudit import _validate
from dpaudit.mechanisms.clipping import clip
from dpaudit.personalization.boundary.processes import Mark, Memory, Process, memoryless, shipped

MARGIN = 2.0**-16  # the fraction of a clip norm that is left for rounding errors
FEW = 64  # messages that are added up one after the other


class Bound(NamedTuple):
    """Clips one message: ``bound(message) -> message``.

    Attributes:
      low, high: the range of every number; infinite for no range.
      clip_norm: the L2 norm of all numbers together; infinite for no clipping.
    """

    low: float
    high: float
    clip_norm: float

    def __call__(self, message: Any) -> Any:
        for leaf in jax.tree.leaves(message):
            if not any(jnp.issubdtype(leaf.dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_)):
                raise _validate.expected("compute", "a message of real numbers", f"some of type {leaf.dtype}")
        wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.promote_types(leaf.dtype, jnp.float32)), message)
        numbers, restored = ravel_pytree(wide)
        within = jnp.clip(numbers, self.low, self.high)
        sound = jnp.where(jnp.all(jnp.isfinite(within)), within, 0)
        return restored(sound if math.isinf(self.clip_norm) else clip(sound, self.clip_norm * (1 - MARGIN)))

    def sensitivity(self, like: Any) -> float:
        """Returns the largest L2 norm that a clipped message of these shapes can have."""
        size = sum(math.prod(jnp.shape(leaf)) for leaf in jax.tree.leaves(like))
        return min(self.clip_norm, max(abs(self.low), abs(self.high)) * math.sqrt(size) * (1 + MARGIN))


class Bounded(NamedTuple):
    """Adds up messages in the aggregator, each clipped before it is added: ``bounded(total, messages) -> total``.

    Attributes:
      bounds: one for the whole message, or one for each of its parts.
      names: the names of the parts, in order; empty if there is one bound for the whole.
    """

    bounds: tuple[Bound, ...]
    names: tuple[str, ...] = ()

    def __call__(self, total: Any, messages: Any) -> Any:
        if not jax.tree.leaves(messages):
            raise _validate.expected("compute", "a message of at least one array", messages)
        sums = jax.tree.map(_summed, jax.vmap(self._one)(messages))
        return sums if total is None else jax.tree.map(jnp.add, total, sums)

    def parts(self, tree: Any) -> list[tuple[Bound, Any]]:
        """Returns every bound with its part of a message or total.

        Raises:
          InputError: a message with other parts.
        """
        if not self.names:
            return [(self.bounds[0], tree)]
        if not isinstance(tree, dict) or sorted(tree) != list(self.names):
            found = sorted(tree) if isinstance(tree, dict) else type(tree).__name__
            raise _validate.expected("compute", f"a message of the parts that have bounds, {list(self.names)}", found)
        return [(bound, tree[name]) for bound, name in zip(self.bounds, self.names, strict=True)]

    def _one(self, message: Any) -> Any:
        within = [bound(part) for bound, part in self.parts(message)]
        return dict(zip(self.names, within, strict=True)) if self.names else within[0]


def _summed(messages: jax.Array) -> jax.Array:
    """Adds up the first axis, many messages by halves, so that few roundings are those of a large sum."""
    while (half := len(messages) // 2) > FEW // 2:
        rest = messages[2 * half :]
        messages = jnp.concatenate([messages[:half] + messages[half : 2 * half], rest])
    return jnp.sum(messages, axis=0)


def clipped(clip_norm: float) -> Bound:
    """Clips all numbers of a message together to the L2 norm ``clip_norm`` > 0.

    Raises:
      InputError: clip_norm out of range.
    """
    return Bound(-math.inf, math.inf, float(_validate.positive(clip_norm=clip_norm)))


def bounded(low: float, high: float, *, clip_norm: float | None = None) -> Bound:
    """Clips every number of a message to [low, high], for ratings, ages or counts.

    Args:
      low, high: low < high.
      clip_norm: also the L2 norm of all numbers together, > 0; None for what the range allows.

    Raises:
      InputError: an empty range; clip_norm out of range.
    """
    if not _validate.finite(low=low) < _validate.finite(high=high):
        raise _validate.expected("high", f"a number > {low:g}", high)
    norm = math.inf if clip_norm is None else _validate.positive(clip_norm=clip_norm)
    return Bound(float(low), float(high), float(norm))


class Noised(NamedTuple):
    """Releases every total with its process's noise, scaled to the bound: ``noised(key, total, memory)``.

    Attributes:
      processes: one for the whole total, or one for each of its parts, in the order of their names.
      add: the devices' sum, which bounds what one user adds.
    """

    processes: tuple[Process, ...]
    add: Bounded

    def __call__(self, key: jax.Array, total: Any, memory: tuple[Memory, ...]) -> Any:
        if not isinstance(memory, tuple) or len(memory) != len(self.processes):
            raise _validate.expected(
                "memory", f"one of each of {len(self.processes)} processes, or None to begin", memory
            )
        pairs = [
            process.release(key, part, own, sensitivity=bound.sensitivity(part))
            for process, (bound, part), own in zip(self.processes, self.add.parts(total), memory, strict=True)
        ]
        releases, after = zip(*pairs, strict=True)
        return releases, after

    def init(self) -> tuple[Memory, ...]:
        """Returns the memory before the first release."""
        marks = [Mark(repr(process.event(1))) if shipped(process) else () for process in self.processes]
        return tuple(memoryless()._replace(process=mark) for mark in marks)
