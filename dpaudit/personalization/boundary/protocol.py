"""Defines a protocol: what one round computes where. Source: paper 004, "Training procedure".

    protocol = Protocol(broadcast, each(rows(asked), compute, add), release, update)
    state, memory, transcript = run(key, protocol, state, memory, users, rounds=10)

Inside the trust boundary are the users' devices, the trusted distributor and the trusted aggregator. Outside are the
server, its developer and everybody else. The data flow of one round is:

    untrusted server      state -> model                        ``broadcast``
    trusted distributor   model, a device's request -> slice    ``select``     sent to that device alone
    device                key, slice, user -> message           ``compute``    sent to the aggregator alone
    trusted aggregator    messages -> total                     ``add``
                          key, total, memory -> releases        ``release``    the only exit
    untrusted server      state, releases -> state              ``update``

In general the authors of ``add`` and ``release`` are responsible for the sensitivity: how far one user can move a
total. :func:`private` leaves it to the boundary instead. The developer writes what a device computes, the aggregator
clips the messages, adds them up and adds noise for its own bound, and no code of the developer's runs in between::

    def gradient(key, weights, user):
        return jax.grad(loss)(weights, user)

    def update(weights, told):
        return weights - told["gradient"] / n

    devices = each(everything, gradient, clip_norm=1.0)
    steps = private(devices, gaussian("gradient", noise_multiplier=4.0), update=update)
    weights, memory, transcript = run(key, steps, weights, None, users, rounds=20, budget=Budget(1.0, 1e-6))
"""

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun
from jax.sharding import Mesh

from dpaudit import _validate
from dpaudit._engine import sharding, worlds
from dpaudit._engine.sharding import ALIKE, CUT
from dpaudit.mechanisms import clipping
from dpaudit.personalization.boundary.bounds import Bound, Bounded, Noised, clipped
from dpaudit.personalization.boundary.processes import Process, Release, shipped

CHUNK = 1_000  # devices computed at a time
JAX_FOLDER = os.path.dirname(jax.__file__) + os.sep
TELLING = ("callback", "print", "infeed", "outfeed", "ffi_call")  # in the names of primitives that reach the host
OWN_ARRAYS = "InternalMutableArrayEffect"  # of a reference that a program makes for itself


class Protocol(NamedTuple):
    """One round. Its functions are pure, jittable and without effects, and see only their arguments.

    Attributes:
      broadcast: ``broadcast(state) -> model``, on the untrusted server, for the trusted distributor.
      devices: ``devices(key, model, users) -> total``, inside the boundary; as :func:`each` makes it. If it has a
        ``chunk``, it also has ``in_chunks(chunk)``: the same devices, fewer of them computed at a time.
      release: ``release(key, total, memory) -> (releases, memory)``, in the trusted aggregator: a tuple of
        :class:`~dpaudit.personalization.boundary.processes.Release`, at most one of each process, and the aggregator's
        memory for the next round.
      update: ``update(state, releases) -> state``, on the untrusted server.
    """

    broadcast: Callable[[Any], Any]
    devices: Callable[[jax.Array, Any, Any], Any]
    release: Callable[[jax.Array, Any, Any], tuple[tuple[Release, ...], Any]]
    update: Callable[[Any, tuple[Release, ...]], Any]


class Select(NamedTuple):
    """Gives a device the slice of the model that it needs, through the trusted distributor (federated select).

    Attributes:
      ask: ``ask(user) -> request``, on the device; a pytree of arrays whose shapes are the same for all users.
      take: ``take(model, request) -> slice``, in the distributor.
    """

    ask: Callable[[Any], Any]
    take: Callable[[Any, Any], Any]

    def __call__(self, model: Any, user: Any) -> Any:
        return self.take(model, self.ask(user))


everything = Select(lambda user: (), lambda model, request: model)  # sends the whole model to every device


def rows(ask: Callable[[Any], jax.Array]) -> Select:
    """Selects the rows ``ask(user)``, int32 [capacity], of every array of the model.

    All users ask for the same number of rows; those who need fewer pad their request with any row.
    """
    return Select(ask, lambda model, request: jax.tree.map(lambda leaf: leaf[request], model))


class Devices(NamedTuple):
    """Computes the messages of devices of one kind and adds them up: ``devices(key, model, users) -> total``.

    Attributes:
      select: chooses the slice that a device downloads.
      compute: ``compute(key, slice, user) -> message``, on one device.
      add: ``add(total, messages) -> total``, in the aggregator; messages have a leading axis. A total of None stands
        for zeros.
      chunk: the largest number of devices computed at a time.
      mesh: the mesh whose accelerators (or processors) share the devices, or None for one accelerator.
    """

    select: Select
    compute: Callable[[jax.Array, Any, Any], Any]
    add: Callable[[Any, Any], Any]
    chunk: int
    mesh: Mesh | None

    def __call__(self, key: jax.Array, model: Any, users: Any) -> Any:
        count, parts = count_of(users), sharding.devices(self.mesh)
        share = count // parts

        def own(key: jax.Array, model: Any, users: Any) -> Any:
            start = sharding.place(self.mesh) * share
            return sharding.added(self._total(None, key, model, users, start), self.mesh)

        everywhere = sharding.shared_out(own, self.mesh, (ALIKE, ALIKE, CUT), ALIKE)
        if share * parts == count:
            return everywhere(key, model, users)
        even, left = (
            jax.tree.map(part, users) for part in (lambda x: x[: share * parts], lambda x: x[share * parts :])
        )
        return self._total(everywhere(key, model, even) if share else None, key, model, left, share * parts)

    def in_chunks(self, chunk: int) -> "Devices":
        """Returns the same devices, with at most ``chunk`` of them computed at a time."""
        return self._replace(chunk=chunk)

    def _total(self, total: Any, key: jax.Array, model: Any, users: Any, start: Any) -> Any:
        """Adds the messages of these users' devices to ``total``; the first device has number ``start``."""
        count = count_of(users)
        size = min(self.chunk, count)
        whole, rest = divmod(count, size) if size else (0, 0)

        def one(place: jax.Array, user: Any) -> Any:
            return self.compute(jax.random.fold_in(key, place), self.select(model, user), user)

        def some(first: Any, size: int) -> Any:
            part = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first, size), users)
            return jax.vmap(one)(start + first + jnp.arange(size), part)

        if total is None:
            shape = jax.eval_shape(lambda: self.add(None, some(0, size)))
            total = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)
        exact = type(self.add) is Bounded  # such a sum keeps what its additions round away, and is rounded once

        def add(total: Any, messages: Any) -> Any:
            return clipping.plus(total, self.add(None, messages)) if exact else self.add(total, messages)

        if exact:
            total = total, jax.tree.map(jnp.zeros_like, total)
        total, _ = jax.lax.scan(lambda total, i: (add(total, some(i * size, size)), None), total, jnp.arange(whole))
        if rest:
            total = worlds.after(total, lambda total: add(total, some(whole * size, rest)))
        return clipping.value(total) if exact else total


def count_of(users: Any) -> int:
    """Returns the number of users.

    Raises:
      InputError: no arrays, or arrays of different lengths.
    """
    sizes = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(users)}
    if len(sizes) != 1 or () in sizes:
        found = ", ".join(sorted(str(list(size)) for size in sizes)) or "none"
        raise _validate.expected("users", "arrays with one leading axis of users", f"leading axes {found}")
    return sizes.pop()[0]


def each(
    select: Select,
    compute: Callable[[jax.Array, Any, Any], Any],
    add: Callable[[Any, Any], Any] | None = None,
    *,
    clip_norm: float | None = None,
    bound: Bound | dict[str, Bound] | None = None,
    chunk: int = CHUNK,
    mesh: Mesh | None = None,
) -> Devices:
    """Makes the devices of a protocol from the functions of one device.

    The randomness of device i is a function of (key, i) alone, so the total does not depend on ``chunk`` and, up to
    rounding, not on the order.

    Args:
      select: the part of the model that a device downloads: :data:`everything`, :func:`rows` or another
        :class:`Select`.
      compute: ``compute(key, slice, user) -> message``, where user is ONE user's pytree.
      add: ``add(total, messages) -> total``, where messages are those of several devices, with a leading axis, and
        total is the sum so far, or None at first. Its author is responsible for the sensitivity. Give ``clip_norm`` or
        ``bound`` instead for a sum of messages that the aggregator clips first.
      clip_norm: the L2 norm that all numbers of a message together are clipped to.
      bound: a :class:`~dpaudit.personalization.boundary.bounds.Bound`, or a dictionary of them by name where a message
        is a dictionary of parts that different processes release.
      chunk: the largest number of devices computed at a time, >= 1; a smaller one needs less memory. If memory runs
        out, :func:`~dpaudit.personalization.boundary.aggregator.run` halves it (unless the accelerators belong to
        several processes).
      mesh: a mesh whose accelerators (or processors), also those of several processes (``jax.distributed``), share the
        users. Each adds up its own users, and these totals are added. The remainder of a number of users that it does
        not divide is computed everywhere.

    Returns:
      :class:`Devices`, to be called with users whose leaves have a leading axis.

    Raises:
      InputError: a value out of range; not exactly one of ``add``, ``clip_norm`` and ``bound``.
    """
    if sum(given is not None for given in (add, clip_norm, bound)) != 1:
        raise _validate.expected("each", "one of add, clip_norm and bound", (add, clip_norm, bound))
    if clip_norm is not None:
        bound = clipped(clip_norm)
    if isinstance(bound, dict):
        add = Bounded(tuple(bound[name] for name in sorted(bound)), tuple(sorted(bound)))
    elif bound is not None:
        add = Bounded((bound,))
    assert add is not None
    return Devices(select, compute, add, _validate.at_least(1, chunk=chunk), sharding.flat(mesh))


def private(
    devices: Devices,
    *processes: Process,
    update: Callable[[Any, dict[str, Any]], Any] = lambda state, told: state,
    broadcast: Callable[[Any], Any] = lambda state: state,
) -> Protocol:
    """Makes a protocol of one round whose sensitivity is the boundary's own bound.

    Args:
      devices: as :func:`each` makes them with ``clip_norm`` or ``bound``.
      *processes: as :func:`~dpaudit.personalization.boundary.processes.gaussian` makes them: one, or one for each part
        of the message that has its own bound, with the same names.
      update: ``update(state, told) -> state``, on the server; told has the noisy totals by the name of their process.
      broadcast: ``broadcast(state) -> model``; the whole state by default.

    Returns:
      A :class:`Protocol`; its first run starts with the memory ``None``.

    Raises:
      InputError: devices without a bound; processes of other names or of another kind.
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


def alone(function: Callable[..., Any], *like: Any) -> Callable[..., Any]:
    """Traces ``function`` on its own, where no other party's values exist, and returns the program as a function."""
    return _program(function, like)[1]


def silent(name: str, function: Callable[..., Any], *like: Any) -> Callable[..., Any]:
    """Traces a function that runs on raw data as :func:`alone` does, and refuses one that could tell the host.

    The program must not contain callbacks, prints, foreign functions or references to arrays that somebody else holds,
    at any depth of calls, loops and branches.

    Args:
      name: the function's name, for the error message.
      function: pure and jittable.
      *like: its arguments, or pytrees of ``jax.ShapeDtypeStruct``.

    Raises:
      InputError: a program that reaches the host or has any other effect.
    """
    program, call = _program(function, like)
    found = next(_telling(program.jaxpr, set()), None)
    outward = [type(effect).__name__ for effect in program.effects]
    outward = sorted(name for name in outward if name != OWN_ARRAYS)
    if found is None and outward:
        found = ", ".join(outward)
    if found is not None:
        raise _validate.expected(name, "a function without effects, because it runs on raw data", found)
    return call


def _program(function: Callable[..., Any], like: tuple[Any, ...]) -> tuple[ClosedJaxpr, Callable[..., Any]]:
    program, shape = jax.make_jaxpr(function, return_shape=True)(*like)
    structure, run = jax.tree.structure(shape), jax.jit(jaxpr_as_fun(program))

    def call(*arguments: Any) -> Any:
        return jax.tree.unflatten(structure, run(*jax.tree.leaves(arguments)))

    return program, call


def _telling(jaxpr: Jaxpr, seen: set[int]) -> Iterator[str]:
    """Yields the primitives of a program, and of the programs inside it, that reach the host, with their lines."""
    seen.add(id(jaxpr))
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if any(part in name for part in TELLING):
            yield name + _line(equation)
        for leaf in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program):
            body = getattr(leaf, "jaxpr", leaf) if _is_program(leaf) else None
            if body is not None and id(body) not in seen:
                yield from _telling(body, seen)


def _is_program(leaf: Any) -> bool:
    return isinstance(leaf, (ClosedJaxpr, Jaxpr))


def _line(equation: Any) -> str:
    """Returns " at file:line" of the innermost frame outside JAX, or an empty string."""
    traceback = equation.source_info.traceback
    frames = traceback.frames if traceback is not None else ()
    return next((f" at {f.file_name}:{f.line_num}" for f in frames if not f.file_name.startswith(JAX_FOLDER)), "")
