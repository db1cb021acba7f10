"""Tells which kind of device a program is traced for: JAX's default device, or one that the caller names.

A form that is fast on one kind of device is slow on another, so code that chooses between two while JAX traces it asks
here, and nowhere else. That way a machine without an accelerator can compile what an accelerator would run::

    with named("tpu", memory_bytes=16 << 30):
        compiled = jax.jit(program).lower(*shapes).compile()
"""

import math
from contextlib import AbstractContextManager
from typing import NamedTuple

import jax

from dpaudit import _validate

KINDS = ("cpu", "gpu", "tpu")


class Named(NamedTuple):
    """A kind of device that is not at hand."""

    kind: str
    memory_bytes: float


_named = jax.make_user_context()  # JAX keeps what it has traced under each value apart


def current() -> str:
    """Returns the kind of device that programs are traced for: "cpu", "gpu" or "tpu"."""
    named: Named | None = _named.value
    if named is not None:
        return named.kind
    chosen = getattr(jax.config, "jax_default_device")  # noqa: B009 - a device, the name of a platform, or None
    if isinstance(chosen, jax.Device):
        return chosen.platform
    return jax.default_backend() if chosen is None else jax.local_devices(backend=chosen)[0].platform


def on_cpu() -> bool:
    """Tells whether programs are traced for a CPU."""
    return current() == "cpu"


def memory_bytes() -> float | None:
    """Returns the memory of the device that was named; None where programs run on the devices at hand."""
    named: Named | None = _named.value
    return None if named is None else named.memory_bytes


def named(kind: str, *, memory_bytes: float = math.inf) -> AbstractContextManager[None]:
    """Traces programs for another kind of device, which the machine need not have.

    Args:
      kind: "cpu", "gpu" or "tpu".
      memory_bytes: of each device, by which blocks of work are sized.

    Raises:
      InputError: another kind.
    """
    if kind not in KINDS:
        raise _validate.expected("platform", " or ".join(KINDS), kind)
    return _named(Named(kind, memory_bytes))
