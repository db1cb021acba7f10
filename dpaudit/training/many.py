"""Trains many networks of one kind at once (other keys, data sets or clip norms), in as few programs as memory allows.

One training is a function of what differs between them::

    def run(key, clip_norm):
        trainer = dp_sgd(loss_fn, clip_norm=clip_norm, ...)
        return train(key, trainer, trainer.init(params), data, sampling, 1_000)[0].params

    params = train_many(run, (jax.random.split(key, 64), jnp.linspace(0.1, 1.0, 64)))
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from dpaudit import _validate
from dpaudit._engine import memory, sharding
from dpaudit._engine.sharding import ALIKE, CUT
from dpaudit.training.forms import side_by_side

CACHED = 4 << 20  # bytes of the trainings that a CPU core runs as one program: small networks together, others alone
SHARE = 0.8  # of an accelerator's free memory, by default


def train_many(
    run: Callable[..., Any],
    arguments: tuple[Any, ...],
    *,
    shared: tuple[Any, ...] = (),
    at_once: int | None = None,
    memory_gib: float | None = None,
    mesh: Mesh | None = None,
    progress: Callable[[int], None] | None = None,
) -> Any:
    """Calls ``run(*one, *shared)`` for each of the arguments, on every device or core, as many at once as fit.

    A network's result does not depend on which others are trained beside it, except for rounding.

    Args:
      run: one training, ``run(*one, *shared) -> pytree`` of arrays; pure, as for ``jax.vmap``. Calls with the same
        function and arguments of the same shapes share a compiled program.
      arguments: of all trainings; every leaf has a leading axis of N >= 1.
      shared: arguments that all have in common, such as large data: kept once on each device, not compiled into the
        program.
      at_once: trainings in one program on one device. By default as many as fit into ``memory_gib``, and on a CPU
        as many as fit into its caches. If memory runs out, the rest is trained with half as many at once (not where
        devices belong to several processes).
      memory_gib: the memory that the trainings of one device may use, in GiB, as XLA plans it; a training that needs
        more runs alone. By default 0.8 of what is free on an accelerator, and no limit on a CPU.
      mesh: divides the trainings over its devices. Those of several processes (``jax.distributed``) make the same
        call and get the same result. Without one, an accelerator runs them on the default device and a CPU as many
        programs at a time as it has cores.
      progress: called with the number of trainings done, after each program.

    Returns:
      The results of ``run``, every leaf with a leading axis of N.

    Raises:
      InputError: leaves of different lengths; a value out of range; a single training that does not fit into memory.
    """
    lengths = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(arguments)}
    if len(lengths) != 1 or lengths in ({()}, {(0,)}):
        raise _validate.expected(
            "arguments", "leaves with one leading axis of N >= 1 trainings", sorted(map(list, lengths))
        )
    ((count,),) = lengths
    arguments, shared = jax.tree.map(jnp.asarray, (arguments, shared))
    mesh = sharding.flat(mesh)
    on_cpu = memory.platform(mesh) == "cpu"
    budget = SHARE * memory.free(mesh) if memory_gib is None else _validate.positive(memory_gib=memory_gib) * 2**30
    workers = min(sharding.cores(), count) if on_cpu and mesh is None else 1
    most = -(-count // (workers * sharding.devices(mesh)))
    if at_once is None:
        fitting = min(budget / workers, CACHED) if on_cpu else budget
        at_once = max(1, int(fitting / _Group(run, 1, mesh).bytes(arguments, shared)))
        at_once = -(-most // -(-most // at_once))  # as even as can be
    at_once = min(most, _validate.at_least(1, at_once=at_once))
    while at_once > 1 and workers * _Group(run, at_once, mesh).bytes(arguments, shared) > budget:
        at_once //= 2
    if (everywhere := sharding.placed(mesh, ALIKE)) is not None:
        shared = jax.device_put(shared, everywhere)
    found: list[Any] = []
    done = 0

    def rest(together: int) -> None:
        """Trains the networks that are left, ``together`` on each device at a time."""
        nonlocal done
        programs = min(workers, together)
        group = _Group(run, together // programs, mesh)
        with ThreadPoolExecutor(programs) as pool:
            for part in pool.map(partial(_part, group, arguments, shared, count), range(done, count, group.size)):
                found.append(part)
                done = min(count, done + group.size)
                if progress is not None:
                    progress(done)

    memory.fitting(rest, at_once * workers, of="trainings", mesh=mesh)
    return jax.tree.map(lambda *parts: jnp.concatenate(parts)[:count], *found)


def _part(group: "_Group", arguments: Any, shared: Any, count: int, first: int) -> Any:
    """Runs the trainings from number ``first`` on, as many as the group has."""
    chosen = (
        jnp.arange(first, first + group.size) % count
    )  # the last group is filled up with the first trainings again
    given = jax.tree.map(lambda leaf: leaf[chosen], arguments)
    if (cut := sharding.placed(group.mesh, CUT)) is not None:
        given = jax.device_put(given, cut)
    return jax.block_until_ready(_trained(group, given, shared))


class _Group(NamedTuple):
    """One program: ``at_once`` networks on every device."""

    run: Callable[..., Any]
    at_once: int
    mesh: Mesh | None

    @property
    def size(self) -> int:
        return self.at_once * sharding.devices(self.mesh)

    def bytes(self, arguments: tuple[Any, ...], shared: tuple[Any, ...]) -> int:
        """Returns the bytes that XLA plans to use on a device beside shared data; the program is cached."""

        def shape(leaf: jax.Array) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(
                (self.size, *leaf.shape[1:]), leaf.dtype, sharding=sharding.placed(self.mesh, CUT)
            )

        def whole(leaf: jax.Array) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding.placed(self.mesh, ALIKE))

        given = jax.tree.map(shape, arguments), jax.tree.map(whole, shared)
        plan: Any = _trained.lower(self, *given).compile().memory_analysis()
        kept = sum(leaf.nbytes for leaf in jax.tree.leaves(shared))
        return plan.temp_size_in_bytes + plan.output_size_in_bytes + plan.argument_size_in_bytes - kept


@partial(jax.jit, static_argnums=0)
def _trained(group: _Group, arguments: tuple[Any, ...], shared: tuple[Any, ...]) -> Any:
    def on_one(arguments: tuple[Any, ...], shared: tuple[Any, ...]) -> Any:
        if group.at_once > 1:
            with side_by_side():
                return jax.vmap(lambda one: group.run(*one, *shared))(arguments)
        alone = group.run(
            *jax.tree.map(lambda leaf: leaf[0], arguments), *shared
        )  # without vmap, which would turn branches into selects
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], alone)

    trained = sharding.shared_out(on_one, group.mesh, (CUT, ALIKE), CUT)(arguments, shared)
    return sharding.whole(trained, group.mesh) if sharding.several_processes(group.mesh) else trained
