"""Protocols whose sensitivity is the boundary's own: the developer writes what a device computes, and no clipping.

    def gradient(key, weights, user):
        return jax.grad(loss)(weights, user)

    def update(weights, told):
        return weights - told["gradient"] / n

    devices = each(everything, gradient, clip_norm=1.0)
    steps = private(devices, gaussian("gradient", noise_multiplier=4.0), update=update)
    weights, memory, transcript = run(key, steps, weights, None, users, rounds=20, budget=Budget(1.0, 1e-6))

Of such a protocol nothing that the developer wrote runs between the devices' messages and the releases: the aggregator
clips, adds up, and adds noise for its own bound. So its cost does not rest on anybody's word.
"""

from collections.abc import Callable
from typing import Any

from dpaudit import _validate
from dpaudit.personalization.boundary.aggregator import Devices, Protocol
from dpaudit.personalization.boundary.bounds import Bounded, Noised
from dpaudit.personalization.boundary.processes import Process, Release, shipped


def private(
    devices: Devices,
    *processes: Process,
    update: Callable[[Any, dict[str, Any]], Any] = lambda state, told: state,
    broadcast: Callable[[Any], Any] = lambda state: state,
) -> Protocol:
    """A protocol of one round, accounted by the boundary's own bounds.

    Args:
      devices: of :func:`dpaudit.personalization.boundary.aggregator.each` with ``clip_norm`` or ``bound``.
      *processes: of :func:`dpaudit.personalization.boundary.processes.gaussian`: one, or one for each part of the message that
        has a bound of its own, of the same names.
      update: ``update(state, told) -> state``, on the server; told are the noisy totals by the process's name.
      broadcast: ``broadcast(state) -> model``; the state as it is by default.

    Returns:
      A :class:`Protocol`; it begins with the memory ``None``.

    Raises:
      InputError: devices without a bound; processes of other names or another kind.
    """
    if type(devices) is not Devices or not isinstance(devices.add, Bounded):
        raise _validate.expected("devices", "what each(..., clip_norm=) or each(..., bound=) makes", devices)
    add = devices.add
    for process in processes:
        if not shipped(process):
            raise _validate.expected("processes", "those of processes.gaussian, as they are", process)
    names = [process.name for process in processes]
    wanted = list(add.names) or ["of any one name"]
    if len(names) != len(wanted) or (add.names and sorted(names) != sorted(wanted)):
        raise _validate.expected("processes", f"one for each bound, {', '.join(wanted)}", ", ".join(names) or "none")
    if add.names:
        processes = tuple(sorted(processes, key=lambda process: process.name))

    def told(state: Any, releases: tuple[Release, ...]) -> Any:
        return update(state, {release.process.name: release.value for release in releases})

    return Protocol(broadcast, devices, Noised(processes, add), told)
