"""Divides rows (trials, clients, networks, users) over a mesh of devices, which may belong to several processes.

A function of rows runs on every device with the device's own part of them. Its sums are added over devices, and
results that every process reads are replicated on every device.
"""

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

CORES = jax.make_user_context(None)  # with CORES(n): programs are traced as on a machine with n cores
_Function = TypeVar("_Function", bound=Callable[..., Any])

ALIKE, CUT = False, True  # of an argument or result: the same on all devices, or with its rows divided


def flat(mesh: Mesh | None) -> Mesh | None:
    """Returns a mesh of the same devices, whose axes together carry rows."""
    return None if mesh is None else Mesh(mesh.devices, mesh.axis_names)


def devices(mesh: Mesh | None) -> int:
    """Returns the number of devices: one without a mesh."""
    return 1 if mesh is None else mesh.size


def cores() -> int:
    """Returns how many of the machine's cores this process may use; all of its CPU devices share them."""
    if CORES.value is not None:
        return CORES.value
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def several_processes(mesh: Mesh | None) -> bool:
    """Tells whether the devices belong to more than one process."""
    return mesh is not None and mesh.is_multi_process


def placed(mesh: Mesh | None, cut: bool) -> NamedSharding | None:
    """Returns where to put an array before a call: with its rows divided, or whole on every device.

    None means to leave it where it is, since only compiled programs reach the devices of several processes.
    """
    return None if mesh is None or several_processes(mesh) else NamedSharding(mesh, _spec(mesh, cut))


def shared_out(function: Callable[..., Any], mesh: Mesh | None, arguments: Any, results: Any) -> Callable[..., Any]:
    """Returns ``function`` to run on every device of a :func:`flat` mesh, or unchanged without one.

    Args:
      function: of positional arguments; calls :func:`place`, :func:`added` and :func:`gathered` for what it needs from
        the other devices.
      mesh: the devices that divide the rows.
      arguments: a tuple, :data:`ALIKE` or :data:`CUT` for each.
      results: the same for the results; a prefix of their pytree.
    """
    if mesh is None:
        return function

    def specs(cut: Any) -> Any:
        return jax.tree.map(lambda cut: _spec(mesh, cut), cut)

    return jax.shard_map(function, mesh=mesh, in_specs=specs(arguments), out_specs=specs(results), check_vma=False)


def place(mesh: Mesh | None) -> Any:
    """Returns the number of this device, in the order of the rows."""
    return 0 if mesh is None else jax.lax.axis_index(mesh.axis_names)


def added(tree: Any, mesh: Mesh | None) -> Any:
    """Returns the sums over all devices, on each of them."""
    return tree if mesh is None else jax.lax.psum(tree, mesh.axis_names)


def gathered(tree: Any, mesh: Mesh | None) -> Any:
    """Returns the rows of all devices, on each of them."""
    return tree if mesh is None else jax.lax.all_gather(tree, mesh.axis_names, tiled=True)


def whole(tree: Any, mesh: Mesh | None) -> Any:
    """Replicates arrays on every device, inside a compiled function, so that every process can read them."""
    return tree if mesh is None else jax.lax.with_sharding_constraint(tree, NamedSharding(mesh, PartitionSpec()))


def by_compiler(function: _Function) -> _Function:
    """Lets the compiler place what ``function`` computes from arrays divided over a mesh with explicit axes.

    Of those, as ``jax.make_mesh`` makes them, JAX wants a placement of every intermediate value. Results are then
    whole on every device. Nothing changes for other arrays. What the function closes over is not on such a mesh.
    """

    @functools.wraps(function)
    def placed(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = jax.tree.flatten((args, kwargs))
        at = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)}
        divided = next(filter(_divided, at.values()), None)
        if divided is None:
            return function(*args, **kwargs)

        def inside(at: dict[int, jax.Array]) -> Any:
            args, kwargs = jax.tree.unflatten(structure, [at.get(i, leaf) for i, leaf in enumerate(leaves)])
            return function(*args, **kwargs)

        with jax.sharding.use_abstract_mesh(jax.typeof(divided).sharding.mesh):
            return jax.jit(jax.sharding.auto_axes(inside, out_sharding=PartitionSpec()))(at)

    placed.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    del placed.__wrapped__  # so that inspect.unwrap ends here
    return cast(_Function, placed)


def unplaced(tree: Any) -> Any:
    """Returns the same arrays, those divided over a mesh with explicit axes as if no mesh had been named."""

    def free(leaf: Any) -> Any:
        return jnp.asarray(np.asarray(leaf)) if isinstance(leaf, jax.Array) and _divided(leaf) else leaf

    return jax.tree.map(free, tree)


def _divided(array: jax.Array) -> bool:
    """Tells whether an array is divided over a mesh with explicit axes; within vmap, whether its rows are."""
    return any(jax.typeof(array).sharding.spec)


def of_first_process(tree: Any) -> Any:
    """Returns the arrays of the first process, bit by bit: they are sent as a sum, which would turn -0 into 0."""
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
