"""How far one user moves a total: clipped by the aggregator, whatever their device sends.

    clipped(1.0)                        # all numbers of a message together have an L2 norm of at most 1
    bounded(0.0, 100.0)                 # every number lies in [0, 100]
    bounded(0.0, 1.0, clip_norm=1.0)    # a count in one bin, or a little in several

A message with NaN in it counts as nothing, and so does an infinite one that no range makes finite. Sums are of float32
or wider, whatever devices send.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from dpaudit import check
from dpaudit.mechanisms.clipping import clip

MARGIN = 2.0**-16  # part of a clip norm that is left for rounding


class Bound(NamedTuple):
    """What is left of one message: ``bound(message) -> message``.

    Attributes:
      low, high: of every number; infinite for no range.
      clip_norm: L2 norm of all numbers together; infinite for none.
    """

    low: float
    high: float
    clip_norm: float

    def __call__(self, message: Any) -> Any:
        wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.promote_types(leaf.dtype, jnp.float32)), message)
        numbers, restored = ravel_pytree(wide)
        within = jnp.clip(numbers, self.low, self.high)
        sound = jnp.where(jnp.all(jnp.isfinite(within)), within, 0)
        return restored(sound if math.isinf(self.clip_norm) else clip(sound, self.clip_norm * (1 - MARGIN)))

    def sensitivity(self, like: Any) -> float:
        """The largest L2 norm of what is left of a message of these shapes."""
        size = sum(math.prod(jnp.shape(leaf)) for leaf in jax.tree.leaves(like))
        return min(self.clip_norm, max(abs(self.low), abs(self.high)) * math.sqrt(size) * (1 + MARGIN))


class Bounded(NamedTuple):
    """The aggregator's sum, ``bounded(total, messages) -> total``: every message is bounded before it is added.

    Attributes:
      bounds: one for the whole message, or one for each of its parts.
      names: of the parts, in order; none where there is one bound for all.
    """

    bounds: tuple[Bound, ...]
    names: tuple[str, ...] = ()

    def __call__(self, total: Any, messages: Any) -> Any:
        sums = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), jax.vmap(self._one)(messages))
        return sums if total is None else jax.tree.map(jnp.add, total, sums)

    def parts(self, tree: Any) -> list[tuple[Bound, Any]]:
        """Every bound, and the part of a message or total that it is of.

        Raises:
          InputError: a message of other parts.
        """
        if not self.names:
            return [(self.bounds[0], tree)]
        if not isinstance(tree, dict) or sorted(tree) != list(self.names):
            found = sorted(tree) if isinstance(tree, dict) else type(tree).__name__
            raise check.expected("compute", f"a message of the parts that have bounds, {list(self.names)}", found)
        return [(bound, tree[name]) for bound, name in zip(self.bounds, self.names, strict=True)]

    def _one(self, message: Any) -> Any:
        within = [bound(part) for bound, part in self.parts(message)]
        return dict(zip(self.names, within, strict=True)) if self.names else within[0]


def clipped(clip_norm: float) -> Bound:
    """Messages shortened to an L2 norm of ``clip_norm`` > 0, all their numbers together.

    Raises:
      InputError: clip_norm out of range.
    """
    return Bound(-math.inf, math.inf, float(check.positive(clip_norm=clip_norm)))


def bounded(low: float, high: float, *, clip_norm: float | None = None) -> Bound:
    """Messages whose every number is moved into [low, high]: ratings, ages, counts.

    Args:
      low, high: low < high.
      clip_norm: L2 norm of all numbers together besides, > 0; None for what the range allows.

    Raises:
      InputError: an empty range; clip_norm out of range.
    """
    if not check.finite(low=low) < check.finite(high=high):
        raise check.expected("high", f"a number > {low:g}", high)
    norm = math.inf if clip_norm is None else check.positive(clip_norm=clip_norm)
    return Bound(float(low), float(high), float(norm))
