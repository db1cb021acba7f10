"""Runs protocols: the rounds of a training as one program, with every release recorded and its cost kept to a budget.

    state, memory, transcript = run(key, protocol, state, memory, users, rounds=10)
    transcript.epsilon(delta=1e-5)

The functions of every party are compiled separately. Those of the devices, the distributor and the aggregator run on
raw data and must have no effects: a program with a callback, a print or the like is refused. The server's two
functions are compiled before there are any users. The only values from inside the boundary that reach them are
:class:`~dpaudit.personalization.boundary.processes.Release` objects, all of which are in the
:class:`~dpaudit.personalization.boundary.transcript.Transcript`. Data that the developer's program already held
elsewhere, as in a closure, are not protected here.

Who takes part, and therefore how many users there are and in how many rounds, is assumed to be public; their data are
hidden.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import ComposedDpEvent
from jax.core import Tracer

from dpaudit import _validate
from dpaudit._engine.fingerprint import digest, raw, text
from dpaudit._engine.memory import fitting
from dpaudit.kernels import philox
from dpaudit.personalization.boundary.bounds import Bounded, Noised
from dpaudit.personalization.boundary.budget import Budget, affordable, spent
from dpaudit.personalization.boundary.ledger import Ledger, Stream
from dpaudit.personalization.boundary.processes import Mark, Memory, Release, memories, named, shipped
from dpaudit.personalization.boundary.protocol import Devices, Protocol, alone, count_of, silent
from dpaudit.personalization.boundary.transcript import Transcript


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
    """Runs ``rounds`` rounds of a protocol as one program; map it over keys, states or users for many runs at once.

    Args:
      key: JAX random key, consumed. A run that continues from the returned memory may use the same key or another. A
        protocol that starts again needs another key: the accountant refuses noise that is drawn twice.
      protocol: one round.
      state: the server's state, a pytree of arrays.
      memory: the aggregator's memory, as the ``init`` of its processes makes it or as the previous run returned it,
        whole: it also names the run of the ledger that it began in;
        None for the first run of a protocol made by :func:`~dpaudit.personalization.boundary.protocol.private`.
      users: pytree, whatever ``protocol.devices`` takes.
      rounds: >= 1.
      budget: the most that one user may cost, including earlier releases of this memory and the charges in the ledger.
        Without a ledger, the same processes must have made all of these releases. The run makes as many rounds as the
        budget pays for. Budgets and ledgers do not work with mapped runs.
      ledger: a ledger that is charged before the run starts; only for runs of one process.
      who: the users' names, one for each row; users who cannot pay are left out. None charges everybody alike.
      minimum_users: the least number of rows; with fewer, nothing is charged or released and the transcript is empty.
      trusted: whether to accept a budget or a ledger for a protocol that bounds and adds noise itself, such as the
        ones in :mod:`dpaudit.personalization.als`, so that its author's word is taken for the sensitivity, and for
        earlier releases of the memory where there is no ledger.

    Returns:
      (state, memory, transcript). The memory belongs to the aggregator and must be kept as secret as the key.

    Raises:
      InputError: no protocol or key; users whose arrays are of different lengths; a ``release`` that returns anything
        but :class:`Release` objects, or two of one process in a round; a function with effects where there is raw
        data; a server whose state changes its structure; a single device that does not fit into memory; a budget that
        does not pay for one round, or that is given for a protocol which the boundary does not bound, or for a memory
        with releases of other processes.
      UnexpectedTracerError: raised by JAX, with the line, if a function uses a value of another party.
    """
    if not isinstance(protocol, Protocol):
        raise _validate.expected("protocol", "a Protocol, such as private(...) makes", protocol)
    key = _validate.key(key=key)
    rounds, devices = _validate.at_least(1, rounds=rounds), protocol.devices
    if isinstance(devices, Devices):
        count_of(users)
    memory = _own(protocol, memory)
    if who is not None or _validate.at_least(0, minimum_users=minimum_users):
        count = _rows(protocol, users)
        if who is not None and len(who) != count:
            raise _validate.expected("who", f"a name for each of {count} users", f"{len(who)} of them")
        if count < minimum_users:
            return state, memory, Transcript(())
    firsts = [part.first for part in memories(memory)]
    bare = _begun_in([()] * len(firsts), memory)
    if budget is not None or ledger is not None:
        if not (trusted or enforced(protocol)):
            wanted = "one that the boundary bounds (each(..., clip_norm=), private(...)), or trusted=True"
            raise _validate.expected("protocol", wanted, "one whose releases are as private as its author says")
        streams = _streams(key, protocol, state, memory, users)
        if ledger is None and enforced(protocol):
            _refuse_others(streams, memory)
        if ledger is not None:
            own = Mark(_identity(key, streams))
            firsts = [first if stream.began else own for stream, first in zip(streams, firsts, strict=True)]
        rounds, members = _admitted(key, streams, rounds, budget, ledger, who, least=max(1, minimum_users))
        if rounds == 0:
            return state, memory, Transcript(())
        if members is not None:
            users = jax.tree.map(lambda leaf: leaf[members], users)
    whole = getattr(devices, "chunk", 1)

    def rounds_of(chunk: int) -> tuple[Any, Any, Transcript]:
        smaller = protocol if chunk == whole else protocol._replace(devices=devices.in_chunks(chunk))
        return _run(key, smaller, state, bare, users, rounds)

    state, memory, transcript = fitting(rounds_of, whole, of="users", mesh=getattr(devices, "mesh", None))[0]
    return state, _begun_in(firsts, memory), transcript


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


def _own(protocol: Protocol, memory: Any) -> Any:
    """Returns the memory to begin with, marked by the processes of this run where they have made all its releases."""
    first = protocol.release.init() if type(protocol.release) is Noised else ()
    marks = iter([part.process for part in first])

    def marked(part: Any) -> Any:
        if not isinstance(part, Memory):
            return part
        mark = next(marks, ())
        begins = not isinstance(part.number, Tracer) and not np.any(np.asarray(part.number))
        return part._replace(process=mark if begins or part.process == mark else ())

    begun = first if memory is None and first else memory
    return jax.tree.map(marked, begun, is_leaf=lambda part: isinstance(part, Memory))


def _begun_in(firsts: Sequence[Any], memory: Any) -> Any:
    """Returns a memory that names the runs in which its streams began; compiled programs are given none."""
    each = iter(firsts)

    def named(part: Any) -> Any:
        return part._replace(first=next(each)) if isinstance(part, Memory) else part

    return jax.tree.map(named, memory, is_leaf=lambda part: isinstance(part, Memory))


def _refuse_others(streams: Sequence[Stream], memory: Any) -> None:
    """Refuses a memory whose releases a budget cannot count, because not all of them are of these processes."""
    for (process, began, _), part in zip(streams, memories(memory), strict=True):
        if began and not part.process:
            wanted = f"one whose releases are all of this process {process.name!r}, which the budget counts"
            raise _validate.expected("memory", wanted, f"{began} of which some may be of another")


def _rows(protocol: Protocol, users: Any) -> int:
    """Counts the users of a protocol whose devices are of one kind."""
    if not isinstance(protocol.devices, Devices):
        raise _validate.expected(
            "devices", "what protocol.each makes, where users are counted or named", protocol.devices
        )
    return count_of(users)


def enforced(protocol: Protocol) -> bool:
    """Tells whether the boundary itself clips and adds the noise to everything that a protocol releases.

    That is so for the protocols of :func:`~dpaudit.personalization.boundary.protocol.private`.
    """
    devices, release = protocol.devices, protocol.release
    return (
        type(devices) is Devices
        and type(devices.add) is Bounded
        and type(release) is Noised
        and release.add == devices.add
        and all(map(shipped, release.processes))
    )


def round_keys(key: jax.Array, t: Any, names: Iterable[str], memory: Any) -> tuple[jax.Array, jax.Array]:
    """Returns the keys of round t of :func:`run`: (the devices' key, the aggregator's key).

    Args:
      key: the key of the run.
      t: the number of the round in the run.
      names: the names of the processes that release, so that protocols with different releases draw differently.
      memory: the memory that the round begins with; its numbers distinguish a run from its continuation.
    """
    own = named(jax.random.fold_in(philox.from_key(key), t), repr(list(names)))
    for part in memories(memory):
        own = jax.random.fold_in(own, part.number)
    devices, aggregator = jax.random.split(own)
    return devices, aggregator


@partial(jax.jit, static_argnames=("protocol",))
def replay(protocol: Protocol, state: Any, transcript: Transcript) -> Any:
    """Computes the server's last state from its first and the transcript alone, bit for bit as :func:`run` did.

    Args:
      protocol: the protocol of the run.
      state: the state that the run began with.
      transcript: the transcript of the run, or of several consecutive runs.

    Returns:
      The server's state.

    Raises:
      InputError: a protocol whose update returns a state of another structure.
    """
    for part in transcript.parts:
        update = _server(protocol, state, jax.tree.map(lambda leaf: leaf[0], part))
        state, _ = jax.lax.scan(lambda state, releases, update=update: (update(state, releases), None), state, part)
    return state


def _server(protocol: Protocol, state: Any, releases: tuple[Release, ...]) -> Callable[[Any, Any], Any]:
    """Compiles ``update`` separately, as a branch that shares no arithmetic with the rest: replays are exact."""
    update = alone(protocol.update, state, releases)
    before, after = (jax.tree.map(_kind, tree) for tree in (state, jax.eval_shape(update, state, releases)))
    if before != after:
        raise _validate.expected("update", f"a state of the structure that it is given, {before}", after)

    def apart(state: Any, releases: tuple[Release, ...]) -> Any:
        always = jax.lax.optimization_barrier(jnp.bool_(True))  # the compiler cannot know this, so it keeps the branch
        return jax.lax.cond(always, update, lambda state, _: state, state, releases)

    return apart


def silent_release(protocol: Protocol, key: Any, total: Any, memory: Any) -> Callable[..., Any]:
    """Traces ``protocol.release`` as a program without effects that returns nothing but releases."""

    def release(key: jax.Array, total: Any, memory: Any) -> tuple[tuple[Release, ...], Any]:
        releases, memory = protocol.release(key, total, memory)
        return _checked(releases), memory

    return silent("release", release, key, total, memory)


def _checked(releases: Any) -> tuple[Release, ...]:
    """Returns the releases if they are what the aggregator may let out."""
    if not isinstance(releases, tuple):
        raise _validate.expected("release", "a tuple of Releases", releases)
    for release in releases:
        if not isinstance(release, Release):
            raise _validate.expected("release", "only what Process.release makes", type(release).__name__)
        if not release.fresh:
            changed = f"one of {release.process.name!r} that was mapped or compiled since"
            raise _validate.expected("release", "Releases as Process.release made them", changed)
    names = [release.process.name for release in releases]
    if len(set(names)) < len(names):
        raise _validate.expected("release", "at most one Release of each process a round", ", ".join(names))
    return releases


def _kind(leaf: Any) -> str:
    return f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}"


def _streams(key: jax.Array, protocol: Protocol, state: Any, memory: Any, users: Any) -> list[Stream]:
    """Lists the processes that release in a run, with the number of releases that each has made before.

    Raises:
      InputError: a memory of other processes; a mapped run.
    """
    if type(protocol.release) is Noised:
        processes = protocol.release.processes
    else:
        model = jax.eval_shape(protocol.broadcast, state)
        total = jax.eval_shape(lambda *given: protocol.devices(*given), philox.from_key(key), model, users)
        processes = [
            each.process for each in jax.eval_shape(lambda *given: protocol.release(*given), key, total, memory)[0]
        ]
    parts = memories(memory)
    if len(parts) != len(processes):
        raise _validate.expected("memory", f"one of each of {len(processes)} processes, or None to begin", memory)
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((key, state, memory, users))):
        raise _validate.expected("budget", "a run that is not mapped or traced, since every run costs", "a traced one")
    began = [_validate.at_least(0, memory=part.number) for part in parts]
    return [Stream(process, n, part.first or "") for process, n, part in zip(processes, began, parts, strict=True)]


def _admitted(
    key: jax.Array,
    streams: Sequence[Stream],
    rounds: int,
    budget: Budget | None,
    ledger: Ledger | None,
    who: Sequence[int | str] | None,
    *,
    least: int,
) -> tuple[int, np.ndarray | None]:
    """Charges a run and returns how much of it is paid for.

    Args:
      key: the key of the run.
      streams: the processes that release once a round.
      rounds: the rounds asked for.
      budget, ledger, who: as for :func:`run`.
      least: the least number of users who have to be able to pay.

    Returns:
      (rounds, users): the rounds that are paid for, 0 if too few users can pay, and the numbers of the users who take
      part, or None for all.

    Raises:
      InputError: a budget that does not pay for a single round of any user.
    """

    def event(rounds: int) -> ComposedDpEvent:
        return ComposedDpEvent([stream.process.event(stream.began + rounds) for stream in streams])

    if ledger is not None:
        if jax.process_count() > 1:
            raise _validate.expected("ledger", "a run of one process, which charges it once", jax.process_count())
        most, able = ledger.charge(_identity(key, streams), streams, rounds, budget=budget, who=who, least=least)
        if most or (able is not None and able.any()):
            return most, None if able is None else np.flatnonzero(able)
    else:
        most = rounds if budget is None else affordable(lambda r: budget.pays(event(r)), rounds)
        if most:
            return most, None
    cost = math.nan if budget is None else spent(event(1), budget.delta)
    before = " beside what users have spent" if ledger is not None else ""
    wanted = f"one that pays for a round, of epsilon {_validate.no_less(cost)}{before}"
    raise _validate.expected("budget", wanted, budget)


def _identity(key: jax.Array, streams: Sequence[Stream]) -> str:
    """Digests everything that the noise of a run is drawn from."""
    began = [(stream.process.name, stream.began) for stream in streams]
    return digest([raw(philox.from_key(key)), text(began)])
