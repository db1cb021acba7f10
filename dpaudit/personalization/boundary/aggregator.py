"""The trust boundary as a type: what a round computes where, and the only way out. Paper 004, "Training procedure".

    protocol = Protocol(broadcast, each(rows(asked), compute, add), release, update)
    state, memory, transcript = run(key, protocol, state, memory, users, rounds=10)
    transcript.epsilon(delta=1e-5)

Inside the boundary are users' devices, the trusted distributor and the trusted aggregator; outside are the server, its
developer and everybody else. What goes round:

    untrusted server      state -> model                        ``broadcast``
    trusted distributor   model, what a device asks -> slice    ``select``     told to that device alone
    device                key, slice, user -> message           ``compute``    told to the aggregator alone
    trusted aggregator    messages -> total                     ``add``
                          key, total, memory -> releases        ``release``    the only exit
    untrusted server      state, releases -> state              ``update``

Every party's functions are compiled by themselves. Those of devices, distributor and aggregator run on raw data and
must have no effects: a program with a callback, a print or the like is refused. The server's two are compiled before
there are any users: nothing from inside can reach them but a :class:`~dpaudit.personalization.boundary.processes.Release`, and
every one of these is in the :class:`~dpaudit.personalization.boundary.transcript.Transcript`. What the developer's program
holds from elsewhere (a closure over data that it owned before) crosses no boundary here.

How far one user moves a total is up to who writes ``add`` and ``release``, unless the boundary bounds it itself
(:mod:`dpaudit.personalization.boundary.private`). Who takes part, and so how many and for how many rounds, is taken for public;
what they have is hidden.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from dpaudit import _validate
from dpaudit._engine import sharding
from dpaudit._engine.memory import fitting
from dpaudit._engine.sharding import ALIKE, CUT
from dpaudit.kernels import philox
from dpaudit.personalization.boundary import admission
from dpaudit.personalization.boundary.bounds import Bound, Bounded, Noised, alone, clipped, silent
from dpaudit.personalization.boundary.budget import Budget
from dpaudit.personalization.boundary.ledger import Ledger
from dpaudit.personalization.boundary.processes import Release, memories, named, shipped
from dpaudit.personalization.boundary.transcript import Transcript

CHUNK = 1_000  # devices computed at a time


class Protocol(NamedTuple):
    """One round. Functions are pure, jittable, without effects, and see only what they are given.

    Attributes:
      broadcast: ``broadcast(state) -> model``, on the untrusted server, for the trusted distributor.
      devices: ``devices(key, model, users) -> total``, inside; as made by :func:`each`. One with a ``chunk`` also has
        ``in_chunks(chunk)``, the same devices with fewer of them computed at a time.
      release: ``release(key, total, memory) -> (releases, memory)``, in the trusted aggregator: a tuple of
        :class:`Release`, at most one of each process, and what the aggregator has to remember.
      update: ``update(state, releases) -> state``, on the untrusted server.
    """

    broadcast: Callable[[Any], Any]
    devices: Callable[[jax.Array, Any, Any], Any]
    release: Callable[[jax.Array, Any, Any], tuple[tuple[Release, ...], Any]]
    update: Callable[[Any, tuple[Release, ...]], Any]


class Select(NamedTuple):
    """How a device gets the slice it needs of a model (federated select), through the trusted distributor.

    Attributes:
      ask: ``ask(user) -> request``, on the device; a pytree of arrays whose shapes are the same for all users.
      take: ``take(model, request) -> slice``, in the distributor.
    """

    ask: Callable[[Any], Any]
    take: Callable[[Any, Any], Any]

    def __call__(self, model: Any, user: Any) -> Any:
        return self.take(model, self.ask(user))


everything = Select(lambda user: (), lambda model, request: model)  # the whole model, for every device


def rows(ask: Callable[[Any], jax.Array]) -> Select:
    """The rows ``ask(user)``, int32 [capacity], of every array of the model, padded with rows that are not needed."""
    return Select(ask, lambda model, request: jax.tree.map(lambda leaf: leaf[request], model))


class Devices(NamedTuple):
    """Devices of one kind and the sum of what they send: ``devices(key, model, users) -> total``.

    Attributes:
      select: the slice that a device downloads.
      compute: ``compute(key, slice, user) -> message``, on one device.
      add: ``add(total, messages) -> total``, in the aggregator; messages have a leading axis. A total of None stands
        for zeros.
      chunk: at most so many devices are computed at a time.
      mesh: over whose accelerators (or processors) they are shared out, or None for one.
    """

    select: Select
    compute: Callable[[jax.Array, Any, Any], Any]
    add: Callable[[Any, Any], Any]
    chunk: int
    mesh: Mesh | None

    def __call__(self, key: jax.Array, model: Any, users: Any) -> Any:
        count, parts = len(jax.tree.leaves(users)[0]), sharding.devices(self.mesh)
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
        """The same devices, at most so many of them at a time."""
        return self._replace(chunk=chunk)

    def _total(self, total: Any, key: jax.Array, model: Any, users: Any, start: Any) -> Any:
        """``total`` and what these users' devices send, the first of whom has number ``start``."""
        count = len(jax.tree.leaves(users)[0])
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
        total, _ = jax.lax.scan(
            lambda total, i: (self.add(total, some(i * size, size)), None), total, jnp.arange(whole)
        )
        return self.add(total, some(whole * size, rest)) if rest else total


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
    """The devices of a protocol, from what one device does.

    Device i draws from (key, i) alone, so the total depends neither on ``chunk`` nor, but for rounding, on the order.

    Args:
      select: what of the model a device downloads: :data:`everything`, :func:`rows` or another :class:`Select`.
      compute: ``compute(key, slice, user) -> message``: user is ONE user's pytree.
      add: ``add(total, messages) -> total``: messages are those of several devices, with a leading axis; total is the
        sum so far, or None for the first. How far one user moves it is up to who writes it; None for a sum of messages
        that the aggregator clips first:
      clip_norm: to this L2 norm, all numbers of a message together.
      bound: or as :mod:`dpaudit.personalization.boundary.bounds` says; by name where a message is a dictionary of parts that
        are released by processes of their own.
      chunk: at most so many devices are computed at a time, >= 1; fewer need less memory. Where memory runs out,
        :func:`run` goes on with half as many (not where accelerators are several processes').
      mesh: shares users out over its accelerators (or processors), those of several processes too
        (``jax.distributed``); each sums up its own users, and these totals are added. One that does not fit its number
        of users into equal parts computes the last few everywhere.

    Returns:
      :class:`Devices`, to be called with users whose leaves have a leading axis.

    Raises:
      InputError: a value out of range; none or several of ``add``, ``clip_norm`` and ``bound``.
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


def run(
    key: jax.Array,
    protocol: Protocol,
    state: Any,
    memory: Any,
    users: Any,
    rounds: int,
    *,
    budget: Budget | None = None,
    ledger: Ledger | None = None,
    who: Sequence[int | str] | None = None,
    minimum_users: int = 0,
    trusted: bool = False,
) -> tuple[Any, Any, Transcript]:
    """``rounds`` rounds as one program. Vmap over keys, states or users plays many runs at once.

    Args:
      key: JAX random key, consumed; what goes on from the memory that was returned may have the same, or another. A
        protocol that begins anew needs another: the accountant refuses noise that is drawn twice.
      protocol: of one round.
      state: of the server, pytree of arrays.
      memory: of the aggregator, as its processes' ``init`` make it, or as the run before returned it; None for the
        first run of a protocol of :func:`dpaudit.personalization.boundary.private.private`.
      users: pytree, whatever ``protocol.devices`` takes.
      rounds: >= 1.
      budget: what one user may cost at most, what the memory's releases and the ledger have charged included: the run
        makes as many rounds as it pays for. Not for runs that are mapped; nor is the ledger.
      ledger: that is charged before the run begins, of one process.
      who: the users' names, one for each row; who cannot pay is left out. None charges everybody there is alike.
      minimum_users: rows there have to be, or nothing is charged or released: the transcript is empty.
      trusted: whether a budget is kept, or a ledger charged, by a protocol that bounds and noises by itself, such as
        the shipped ones: its sensitivity is then what its author says.

    Returns:
      (state, memory, transcript). The memory is the aggregator's own and must stay as secret as the key.

    Raises:
      InputError: something other than a :class:`Release` at the exit, a process that releases twice in a round; a
        function with effects where there is raw data; a server whose state changes its structure; a single device
        that does not fit into memory; a budget that does not pay for one round, or for a protocol that the boundary
        does not bound.
      UnexpectedTracerError: JAX's own, with the line: a function that reaches for a value of another party.
    """
    rounds, devices = _validate.at_least(1, rounds=rounds), protocol.devices
    if memory is None and type(protocol.release) is Noised:
        memory = protocol.release.init()
    if who is not None or _validate.at_least(0, minimum_users=minimum_users):
        count = _rows(protocol, users)
        if who is not None and len(who) != count:
            raise _validate.expected("who", f"a name for each of {count} users", f"{len(who)} of them")
        if count < minimum_users:
            return state, memory, Transcript(())
    if budget is not None or ledger is not None:
        if not (trusted or enforced(protocol)):
            wanted = "one that the boundary bounds (each(..., clip_norm=), private(...)), or trusted=True"
            raise _validate.expected("protocol", wanted, "one whose releases are as private as its author says")
        streams = admission.streams(key, protocol, state, memory, users)
        rounds, members = admission.paid(key, streams, rounds, budget, ledger, who, least=max(1, minimum_users))
        if rounds == 0:
            return state, memory, Transcript(())
        if members is not None:
            users = jax.tree.map(lambda leaf: leaf[members], users)
    whole = getattr(devices, "chunk", 1)

    def rounds_of(chunk: int) -> tuple[Any, Any, Transcript]:
        smaller = protocol if chunk == whole else protocol._replace(devices=devices.in_chunks(chunk))
        return _run(key, smaller, state, memory, users, rounds)

    return fitting(rounds_of, whole, of="users", mesh=getattr(devices, "mesh", None))[0]


@partial(jax.jit, static_argnames=("protocol", "rounds"))
def _run(
    key: jax.Array, protocol: Protocol, state: Any, memory: Any, users: Any, rounds: int
) -> tuple[Any, Any, Transcript]:
    fast = jax.eval_shape(philox.from_key, key)
    broadcast = alone(protocol.broadcast, state)
    model = jax.eval_shape(broadcast, state)
    devices = silent("devices", protocol.devices, fast, model, users)
    total = jax.eval_shape(devices, fast, model, users)
    release = silent_release(protocol, fast, total, memory)
    releases, _ = jax.eval_shape(release, fast, total, memory)
    names = [each.process.name for each in releases]
    update = _server(protocol, state, releases)

    def behind(t: jax.Array, model: Any, memory: Any, users: Any) -> tuple[tuple[Release, ...], Any]:
        devices_key, release_key = round_keys(key, t, names, memory)
        return release(release_key, devices(devices_key, model, users), memory)

    def round(carry: tuple[Any, Any], t: jax.Array) -> tuple[tuple[Any, Any], tuple[Release, ...]]:
        state, memory = carry
        releases, memory = behind(t, broadcast(state), memory, users)
        return (update(state, releases), memory), releases

    (state, memory), releases = jax.lax.scan(round, (state, memory), jnp.arange(rounds))
    return state, memory, Transcript((releases,))


def _rows(protocol: Protocol, users: Any) -> int:
    """How many users there are, where devices are of one kind."""
    if not isinstance(protocol.devices, Devices):
        raise _validate.expected(
            "devices", "what boundary.each makes, where users are counted or named", protocol.devices
        )
    return len(jax.tree.leaves(users)[0])


def enforced(protocol: Protocol) -> bool:
    """Whether the boundary itself bounds and noises all that a protocol releases, as in
    :func:`dpaudit.personalization.boundary.private.private`."""
    devices, release = protocol.devices, protocol.release
    return (
        type(devices) is Devices
        and type(devices.add) is Bounded
        and type(release) is Noised
        and release.add == devices.add
        and all(map(shipped, release.processes))
    )


def round_keys(key: jax.Array, t: Any, names: Iterable[str], memory: Any) -> tuple[jax.Array, jax.Array]:
    """(of the devices, of the aggregator): what round t of :func:`run` with this key draws from.

    Args:
      key: of the run.
      t: number of the round in the run.
      names: of the processes that release; protocols that release other things have devices that draw otherwise.
      memory: that the round begins with, whose numbers tell a run from one that goes on from it.
    """
    own = named(jax.random.fold_in(philox.from_key(key), t), repr(list(names)))
    for part in memories(memory):
        own = jax.random.fold_in(own, part.number)
    devices, aggregator = jax.random.split(own)
    return devices, aggregator


@partial(jax.jit, static_argnames=("protocol",))
def replay(protocol: Protocol, state: Any, transcript: Transcript) -> Any:
    """The server's last state from its first and the transcript alone, bit for bit as :func:`run` left it.

    Args:
      protocol: of the run.
      state: that the run began with.
      transcript: of the run, or of several that went on from each other.

    Returns:
      The server's state.
    """
    for part in transcript.parts:
        update = _server(protocol, state, jax.tree.map(lambda leaf: leaf[0], part))
        state, _ = jax.lax.scan(lambda state, releases, update=update: (update(state, releases), None), state, part)
    return state


def _server(protocol: Protocol, state: Any, releases: tuple[Release, ...]) -> Callable[[Any, Any], Any]:
    """``update``, compiled by itself: a branch shares no arithmetic with what is around it, so replays are exact."""
    update = alone(protocol.update, state, releases)
    before, after = (jax.tree.map(_kind, tree) for tree in (state, jax.eval_shape(update, state, releases)))
    if before != after:
        raise _validate.expected("update", f"a state of the structure that it is given, {before}", after)

    def apart(state: Any, releases: tuple[Release, ...]) -> Any:
        always = jax.lax.optimization_barrier(jnp.bool_(True))  # which the compiler does not know
        return jax.lax.cond(always, update, lambda state, _: state, state, releases)

    return apart


def silent_release(protocol: Protocol, key: Any, total: Any, memory: Any) -> Callable[..., Any]:
    """``protocol.release`` as a program, which lets out releases and nothing else."""

    def release(key: jax.Array, total: Any, memory: Any) -> tuple[tuple[Release, ...], Any]:
        releases, memory = protocol.release(key, total, memory)
        return _checked(releases), memory

    return silent("release", release, key, total, memory)


def _checked(releases: Any) -> tuple[Release, ...]:
    """What the aggregator may let out."""
    if not isinstance(releases, tuple):
        raise _validate.expected("release", "a tuple of Releases", releases)
    for release in releases:
        if not isinstance(release, Release):
            raise _validate.expected("release", "nothing but what Process.release makes", type(release).__name__)
        if not release.fresh:
            changed = f"one of {release.process.name!r} that was mapped or compiled since"
            raise _validate.expected("release", "Releases as Process.release made them", changed)
    names = [release.process.name for release in releases]
    if len(set(names)) < len(names):
        raise _validate.expected("release", "at most one Release of each process a round", ", ".join(names))
    return releases


def _kind(leaf: Any) -> str:
    return f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}"
