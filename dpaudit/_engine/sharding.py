"""Rows shared out over a mesh of devices, of several processes too: one way for trials, clients, networks and users.

Rows are whatever a program has many of. A function of rows runs on every device with the device's own part of them;
what it adds up is added over devices, and what all processes are to read is made whole on every device.
"""

import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

ALIKE, CUT = False, True  # an argument or a result that is the same on all devices; one whose rows are shared out


def flat(mesh: Mesh | None) -> Mesh | None:
    """The same devices, whatever the mesh's axes were made for: here they only carry rows."""
    return None if mesh is None else Mesh(mesh.devices, mesh.axis_names)


def devices(mesh: Mesh | None) -> int:
    """How many there are: one without a mesh."""
    return 1 if mesh is None else mesh.size


def cores() -> int:
    """How many of the machine's cores this process may use: all of its CPU devices share them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def several_processes(mesh: Mesh | None) -> bool:
    """Whether the devices belong to more than one process."""
    return mesh is not None and mesh.is_multi_process


def placed(mesh: Mesh | None, cut: bool) -> NamedSharding | None:
    """Where an array is to lie beforehand whose rows are cut, or that is whole on every device; None for where it is:
    the devices of several processes are reached by compiled programs alone."""
    return None if mesh is None or several_processes(mesh) else NamedSharding(mesh, _spec(mesh, cut))


def shared_out(function: Callable[..., Any], mesh: Mesh | None, arguments: Any, results: Any) -> Callable[..., Any]:
    """``function`` on every device of a :func:`flat` mesh, or as it is without one.

    Args:
      function: of positional arguments; calls :func:`place`, :func:`added` and :func:`gathered` for what it has to
        know of the other devices.
      mesh: whose devices divide the rows of what is cut.
      arguments: a tuple, :data:`ALIKE` or :data:`CUT` for each.
      results: the same for the results; a pytree that begins like them.
    """
    if mesh is None:
        return function

    def specs(cut: Any) -> Any:
        return jax.tree.map(lambda cut: _spec(mesh, cut), cut)

    return jax.shard_map(function, mesh=mesh, in_specs=specs(arguments), out_specs=specs(results), check_vma=False)


def place(mesh: Mesh | None) -> Any:
    """The number of this device, in the order of the rows."""
    return 0 if mesh is None else jax.lax.axis_index(mesh.axis_names)


def added(tree: Any, mesh: Mesh | None) -> Any:
    """Sums over all devices, known to each."""
    return tree if mesh is None else jax.lax.psum(tree, mesh.axis_names)


def gathered(tree: Any, mesh: Mesh | None) -> Any:
    """The rows of all devices, known to each."""
    return tree if mesh is None else jax.lax.all_gather(tree, mesh.axis_names, tiled=True)


def whole(tree: Any, mesh: Mesh | None) -> Any:
    """Inside a compiled function: the same arrays, whole on every device, so that every process can read them."""
    return tree if mesh is None else jax.lax.with_sharding_constraint(tree, NamedSharding(mesh, PartitionSpec()))


def of_first_process(tree: Any) -> Any:
    """The arrays of the first process, to the last bit: what is sent is added up, which would turn -0 into 0."""
    leaves, structure = jax.tree.flatten(tree)
    leaves = [np.asarray(leaf) for leaf in leaves]
    sizes = [leaf.nbytes for leaf in leaves]
    whole = b"".join(leaf.tobytes() for leaf in leaves)
    words = np.frombuffer(whole + bytes(-len(whole) % 4), np.int32)
    told = np.asarray(multihost_utils.broadcast_one_to_all(words)).tobytes()
    ends = np.cumsum(sizes)
    parts = [
        np.frombuffer(told[end - size : end], leaf.dtype).reshape(leaf.shape)
        for leaf, size, end in zip(leaves, sizes, ends, strict=True)
    ]
    return jax.tree.unflatten(structure, parts)


def _spec(mesh: Mesh, cut: bool) -> PartitionSpec:
    return PartitionSpec(mesh.axis_names) if cut else PartitionSpec()
