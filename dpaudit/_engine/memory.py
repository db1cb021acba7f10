"""Reads how much memory devices have, and retries with half as much work when it runs out."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.core import Tracer
from jax.errors import JaxRuntimeError
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from dpaudit import _platform, _validate
from dpaudit._engine.sharding import several_processes

Result = TypeVar("Result")


def ran_out(error: BaseException) -> bool:
    """Tells whether an error is XLA's for a lack of device memory; calls that fail immediately raise ValueError."""
    text = str(error)
    if isinstance(error, JaxRuntimeError):
        return "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower()
    return isinstance(error, ValueError) and text.startswith("RESOURCE_EXHAUSTED")


def fitting(attempt: Callable[[int], Result], size: int, *, of: str, mesh: Mesh | None = None) -> tuple[Result, int]:
    """Returns ``attempt(size)``, halving the size as long as the device's memory runs out.

    Args:
      attempt: does the work, ``size`` units at a time; its result is the same for any size, and it may be called
        again after it has failed.
      size: >= 1.
      of: the word for the units, in the plural, for the message.
      mesh: of the devices. Nothing is retried if they belong to several processes, because a process that takes
        smaller steps than the others would wait for them forever.

    Returns:
      (result, the size that fitted), once the result is computed.

    Raises:
      InputError: memory ran out although only one unit was computed at a time.
    """
    while True:
        try:
            result = attempt(size)
            return (result if _traced(result) else jax.block_until_ready(result)), size
        except (JaxRuntimeError, ValueError) as error:
            if not ran_out(error):
                raise
            if size == 1 or several_processes(mesh):
                wanted = f"room on a device for {of}, {size} at a time"
                raise _validate.expected("memory", wanted, str(error).splitlines()[0]) from None
        size //= 2  # after the handler, when the memory of the failed attempt has been released


def limit(mesh: Mesh | None) -> float:
    """Returns the bytes that a device of the mesh, or the default device, can hold; infinite where it does not say."""
    return _least(mesh, lambda stats: stats["bytes_limit"])


def free(mesh: Mesh | None) -> float:
    """Returns the bytes that are not in use on the fullest device; infinite where it does not say."""
    return _least(mesh, lambda stats: stats["bytes_limit"] - stats["bytes_in_use"])


def _least(mesh: Mesh | None, number: Callable[[dict[str, int]], int]) -> float:
    """Returns the smallest number of all devices, the same in every process."""
    if (named := _platform.memory_bytes()) is not None:
        return named
    known = [stats for stats in (device.memory_stats() for device in _own(mesh)) if stats and "bytes_limit" in stats]
    least = min(map(number, known), default=math.inf)
    if several_processes(mesh):
        least = float(np.min(multihost_utils.process_allgather(np.float32(least))))
    return least


def platform(mesh: Mesh | None) -> str:
    """Returns the kind of the devices: "cpu", "gpu" or "tpu"."""
    return _platform.current() if mesh is None else mesh.devices.flat[0].platform


def _own(mesh: Mesh | None) -> list[Any]:
    """Returns the devices of this process."""
    if mesh is not None:
        return list(mesh.local_devices)
    chosen = getattr(jax.config, "jax_default_device")  # noqa: B009 - a device, the name of a platform, or None
    return [chosen] if isinstance(chosen, jax.Device) else jax.local_devices(backend=chosen)[:1]


def _traced(tree: Any) -> bool:
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))
