"""Chooses how many trials a block holds, from the arrays of one trial and the kind of device."""

import math
from typing import Any, NamedTuple

from jax.extend.core import jaxprs_in_params

HOST_BLOCK_TRIALS = 64  # for trials that call Python: blocks run as a whole, and such trials are slow


class Room(NamedTuple):
    """Limits of a block on a kind of device.

    Attributes:
      bytes: of its largest array.
      trials: at most so many.
    """

    bytes: int
    trials: int


CPU = Room(1 << 21, 1 << 12)  # a core's cache
LEAST, MOST, SHARE = 1 << 21, 1 << 28, 256  # bytes of a block on an accelerator, and the part of its memory
ACCELERATOR_TRIALS = 1 << 16


def accelerator_room(memory_bytes: float) -> Room:
    """Returns the limits of a block on an accelerator: a part of its memory that leaves room for all of its arrays.

    Each step of a block has an overhead of some 10 microseconds on an accelerator, so a block should be as large as
    memory allows: 2,048 trials of 26,010 numbers fit into 256 MiB.

    Args:
      memory_bytes: as the device states it; rounded down to a power of two, so that devices of a kind agree.
    """
    share = min(max(memory_bytes / SHARE, LEAST), MOST)
    return Room(1 << int(math.log2(share)), ACCELERATOR_TRIALS)


def block_size(trial_bytes: int, room: Room) -> int:
    """Returns how many trials a block holds: the largest power of two that keeps its largest array within the limits.

    Args:
      trial_bytes: size of the largest array of one trial.
      room: on this kind of device.
    """
    fitting = room.bytes // max(trial_bytes, 1)
    return min(room.trials, 1 << max(fitting.bit_length() - 1, 0))


def calls_python(jaxpr: Any) -> bool:
    """Tells whether a program calls back to Python."""
    equations = getattr(jaxpr, "jaxpr", jaxpr).eqns
    return any(
        "callback" in one.primitive.name or any(map(calls_python, jaxprs_in_params(one.params))) for one in equations
    )


def largest_array(jaxpr: Any, room: Room) -> int:
    """Returns the bytes of the largest array that one trial computes, inner programs included.

    A call to Python counts as much as a large array.
    """
    sizes = [var.aval.size * getattr(var.aval.dtype, "itemsize", 4) for eqn in jaxpr.eqns for var in eqn.outvars]
    if any(eqn.primitive.name == "pure_callback" for eqn in jaxpr.eqns):
        sizes.append(room.bytes // HOST_BLOCK_TRIALS)
    inner = (sub for eqn in jaxpr.eqns for sub in jaxprs_in_params(eqn.params))
    return max([1, *sizes, *(largest_array(sub, room) for sub in inner)])
