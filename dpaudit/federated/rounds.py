"""Runs rounds of federated learning: draws clients, adds up their messages and steps. Paper 002, Algorithm 1.

    server = federated(client, clip_size.fixed(0.05), clients_per_round=1_000, optimizer=optax.sgd(1.0))
    state, info = run(key, server, server.init(params), population.iid(...), (images, labels), rounds=100)

:func:`run` is one program, pure in its key, so ``jax.vmap`` over keys or learning rates simulates many federations at
once. Clients are computed in chunks, so the memory does not grow with their number, in all or in a round.

:func:`simulate` is a loop around it on the host, with progress, metrics, and a checkpoint to resume from::

    done = simulate(key, server, params, population, data, 10_000, every=500, evaluate=evaluate, progress=print)
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from dpaudit import _validate
from dpaudit._engine import memory, sharding
from dpaudit._engine.fingerprint import of_run
from dpaudit._engine.long_run import Parts, in_parts
from dpaudit._engine.sharding import ALIKE, CUT
from dpaudit.federated.clients import Client, Sent, wide
from dpaudit.federated.clip_size import LARGEST, Rule
from dpaudit.federated.population import Population, sample_clients
from dpaudit.kernels import philox

CHUNK = 1_000  # clients computed at a time
EDGES = 2.0 ** np.arange(-12, 13)  # of the histogram of norms, which also has a bin below the first and above the last
WORSE = 5.0  # a loss this many times that of the first round counts as diverged


class State(NamedTuple):
    """The state that a round hands to the next one.

    Attributes:
      params: the server's model.
      opt_state: of the server's optimiser.
      rule: of the clip size; ``rule.clip_norm`` is what clients use next.
      round: rounds done, int32.
    """

    params: Any
    opt_state: Any
    rule: Any
    round: jax.Array


class Info(NamedTuple):
    """Diagnostics of a round; not for release, because all but ``released`` has no noise.

    Attributes:
      loss: mean over clients of their mean loss before the round; not finite where a client's is not.
      norm: mean L2 norm of the updates before clipping; not finite where a client's is not.
      clip_norm: C of the round.
      clipped: how many updates were longer than C.
      dropped: how many updates were not finite, and so counted as zero.
      histogram: [26] updates by their norms: below EDGES[0], between the powers of two EDGES, from EDGES[-1] on.
      released: the statistic that the rule's aggregator released in this round; zeros in rounds without one, None for
        a rule that releases nothing.
    """

    loss: jax.Array
    norm: jax.Array
    clip_norm: jax.Array
    clipped: jax.Array
    dropped: jax.Array
    histogram: jax.Array
    released: Any


class Server(NamedTuple):
    """A federation, in the manner of optax.

    Attributes:
      init: ``init(params) -> State``.
      step: ``step(key, state, clients, train, data, chunk=chunk) -> (State, Info)``: one round of ``clients`` clients,
        of whom client k trains on the rows ``train(k)`` of ``data``.
      clients_per_round: m.
      draw: ``draw(key, clients) -> [m]``: the clients of the round that ``step`` makes of this key.
      chunk: clients computed at a time on one device, unless memory runs out.
      mesh: of devices, or None for one.
    """

    init: Callable[[Any], State]
    step: Callable[..., tuple[State, Info]]
    clients_per_round: int
    draw: Callable[[jax.Array, int], jax.Array]
    chunk: int
    mesh: Mesh | None


def federated(
    client: Client,
    rule: Rule,
    *,
    clients_per_round: int,
    optimizer: optax.GradientTransformation,
    chunk: int = CHUNK,
    mesh: Mesh | None = None,
) -> Server:
    """Makes a server that steps along the mean of the messages of m clients, drawn anew in every round.

    Args:
      client: what clients send, as from :func:`dpaudit.federated.clients.gaussian`.
      rule: of the clip size (:mod:`dpaudit.federated.clip_size`).
      clients_per_round: m, distinct clients.
      optimizer: the server's; ``optax.sgd(learning_rate)`` for Algorithm 1.
      chunk: the largest number of clients computed at a time on one device, >= 1; a smaller one needs less memory. If
        memory runs out, :func:`run` halves it (unless the devices belong to several processes).
      mesh: a mesh whose devices, also those of several processes (``jax.distributed``), share a round's clients. Every
        process makes the same calls and gets the same results, which are those of one device up to rounding.

    Returns:
      A :class:`Server`.

    Raises:
      InputError: a value out of range; an optimizer that is not of optax; clients_per_round that the mesh's devices
        do not divide.

    Source: paper 002, Algorithm 1.
    """
    for name, value, kind in (("client", client, Client), ("rule", rule, Rule)):
        if not isinstance(value, kind):
            raise _validate.expected(name, f"a {kind.__name__} of dpaudit.federated", value)
    _validate.optimizer(optimizer=optimizer)
    m = _validate.at_least(1, clients_per_round=clients_per_round)
    chunk = _validate.at_least(1, chunk=chunk)
    devices, mesh = sharding.devices(mesh), sharding.flat(mesh)
    if m % devices:
        raise _validate.expected("clients_per_round", f"a multiple of the mesh's {devices} devices", m)

    def init(params: Any) -> State:
        return State(params, optimizer.init(wide(params)), rule.init(), jnp.int32(0))

    def sent_by(
        chunk: int, key: jax.Array, params: Any, clip_norm: Any, rows_of: Any, data: Any, drawn: jax.Array
    ) -> Sent:
        """Computes the messages of the clients ``drawn``, whose places in the round give each a key."""

        def part(first: Any, size: int) -> Sent:
            places = first + jnp.arange(size)
            rows = jax.vmap(rows_of)(drawn[places - start])
            batch = jax.tree.map(lambda leaf: leaf[rows], data)
            return client.send(jax.vmap(partial(jax.random.fold_in, key))(places), params, batch, clip_norm)

        start = sharding.place(mesh) * len(drawn)
        total, *of_each = _in_chunks(part, start, len(drawn), chunk)
        return Sent(sharding.added(total, mesh), *sharding.gathered(of_each, mesh))

    def draw(key: jax.Array, clients: int) -> jax.Array:
        if m > clients:
            raise _validate.expected("clients_per_round", f"at most the {clients} clients", m)
        return sample_clients(jax.random.split(key, 4)[0], clients, m)

    def step(
        key: jax.Array, state: State, clients: int, rows_of: Any, data: Any, chunk: int = chunk
    ) -> tuple[State, Info]:
        _, send_key, noise_key, rule_key = jax.random.split(key, 4)
        clip_norm = state.rule.clip_norm
        everywhere = sharding.shared_out(partial(sent_by, chunk), mesh, (*[ALIKE] * 5, CUT), ALIKE)
        drawn = sharding.whole(
            draw(key, clients), mesh
        )  # otherwise JAX draws it in parts, which devices would have to exchange
        sent = everywhere(send_key, state.params, clip_norm, rows_of, data, drawn)
        total = client.noise(noise_key, sent.total, clip_norm, m)
        mean = jax.tree.map(lambda leaf: leaf / m, total)
        updates, opt_state = optimizer.update(mean, state.opt_state, wide(state.params))  # as for init
        released = _released(rule, rule_key, state, sent.norms)
        seen = state.rule if rule.watch is None else rule.watch(state.rule, mean)
        after = State(
            optax.apply_updates(state.params, updates), opt_state, rule.update(seen, released), state.round + 1
        )
        return after, _info(sent, clip_norm, released)

    return Server(init, step, m, draw, chunk, mesh)


def run(
    key: jax.Array, server: Server, state: State, population: Population, data: Any, rounds: int
) -> tuple[State, Info]:
    """Runs ``rounds`` rounds from ``state`` on, as one program.

    All randomness of round t is a function of (key, t), so a simulation can be split into calls of any length with the
    same key and gives the same parameters, bit for bit.

    Args:
      key: JAX random key, the same for every call of one simulation, for nothing else.
      server: as from :func:`federated`.
      state: ``server.init(params)``, or that of an earlier call.
      population: who the clients are (:mod:`dpaudit.federated.population`).
      data: pytree with leaves [rows, ...]; a client's examples are rows of it.
      rounds: how many rounds, >= 0.

    Returns:
      (state, info), info with leaves [rounds].

    Raises:
      InputError: no key or population; more clients in a round than there are; data with fewer rows than the
        population draws from, or not all of one length; a negative number of rounds; a single client that does not fit
        into memory.
    """
    key, rounds = _validate.key(key=key), _validate.at_least(0, rounds=rounds)
    refuse_missing_rows(population, data)

    def rounds_of(chunk: int) -> tuple[State, Info]:
        return _run(key, server, chunk, state, population.clients, population.train, data, rounds)

    largest = min(server.chunk, server.clients_per_round // sharding.devices(server.mesh))
    return memory.fitting(rounds_of, largest, of="clients", mesh=server.mesh)[0]


def refuse_missing_rows(population: Population, data: Any) -> None:
    """Refuses data that may lack rows of some client, where JAX would silently use the last row.

    Raises:
      InputError: no population; fewer rows than it draws from; leaves of several lengths.
    """
    if not isinstance(population, Population):
        raise _validate.expected("population", "a Population of dpaudit.federated", population)
    lengths = sorted({jnp.shape(leaf)[0] if jnp.ndim(leaf) else 0 for leaf in jax.tree.leaves(data)})
    if len(lengths) != 1:
        raise _validate.expected("data", "leaves with one number of rows", lengths)
    if population.rows is not None and lengths[0] < population.rows:
        raise _validate.expected("data", f"the {population.rows} rows that the population draws from", lengths[0])


def participants(key: jax.Array, server: Server, clients: int, rounds: int) -> jax.Array:
    """Returns the clients of the first ``rounds`` rounds of :func:`run` with this key, [rounds, m].

    Raises:
      InputError: no key; more clients in a round than there are; a negative number of rounds.
    """
    return _participants(_validate.key(key=key), server, clients, _validate.at_least(0, rounds=rounds))


@partial(jax.jit, static_argnames=("server", "clients", "rounds"))
def _participants(key: jax.Array, server: Server, clients: int, rounds: int) -> jax.Array:
    fast = philox.from_key(key)
    return jax.lax.map(lambda t: server.draw(jax.random.fold_in(fast, t), clients), jnp.arange(rounds))


# The state is not donated: where memory runs out, a smaller chunk starts from it again, and JAX would have deleted it.
@partial(jax.jit, static_argnames=("server", "chunk", "clients", "rounds"))
def _run(
    key: jax.Array, server: Server, chunk: int, state: State, clients: int, train: Any, data: Any, rounds: int
) -> tuple[State, Info]:
    fast = philox.from_key(key)

    def step(state: State, _: None) -> tuple[State, Info]:
        return server.step(jax.random.fold_in(fast, state.round), state, clients, train, data, chunk)

    return jax.lax.scan(step, state, None, length=rounds)


def _in_chunks(part: Callable[[Any, int], Sent], start: Any, count: int, size: int) -> Sent:
    """Computes ``part(first, size)`` for clients start..start + count, full chunks in a loop and then the rest."""
    size = min(size, count)
    whole, rest = divmod(count, size)
    if whole == 1 and not rest:
        return part(start, size)

    def add(total: Any, i: jax.Array) -> tuple[Any, tuple[jax.Array, jax.Array]]:
        sent = part(start + i * size, size)
        return jax.tree.map(jnp.add, total, sent.total), (sent.norms, sent.losses)

    shape = jax.eval_shape(lambda: part(start, size).total)
    total = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)
    total, (norms, losses) = jax.lax.scan(add, total, jnp.arange(whole))
    sent = Sent(total, norms.ravel(), losses.ravel())
    if rest:
        last = part(start + whole * size, rest)
        sent = Sent(
            jax.tree.map(jnp.add, sent.total, last.total),
            jnp.concatenate([sent.norms, last.norms]),
            jnp.concatenate([sent.losses, last.losses]),
        )
    return sent


def _released(rule: Rule, key: jax.Array, state: State, norms: jax.Array) -> Any:
    """Returns the aggregator's statistic, zeros in rounds without one."""
    if rule.report is None or rule.release is None:
        return None
    report, release = rule.report, rule.release

    def now() -> Any:
        return release(key, jax.vmap(partial(report, state.rule))(norms))

    def nothing() -> Any:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(now))

    return now() if rule.every == 1 else jax.lax.cond((state.round + 1) % rule.every == 0, now, nothing)


def _info(sent: Sent, clip_norm: jax.Array, released: Any) -> Info:
    finite = jnp.isfinite(sent.norms)
    bins = jnp.searchsorted(jnp.asarray(EDGES, jnp.float32), sent.norms, side="right")
    histogram = jnp.zeros(len(EDGES) + 1, jnp.int32).at[bins].add(finite.astype(jnp.int32))
    return Info(
        loss=jnp.mean(sent.losses),
        norm=jnp.mean(sent.norms),
        clip_norm=clip_norm,
        clipped=jnp.sum(finite & (sent.norms > clip_norm)),
        dropped=jnp.sum(~finite),
        histogram=histogram,
        released=released,
    )


def simulate(
    key: jax.Array,
    server: Server,
    params: Any,
    population: Population,
    data: Any,
    rounds: int,
    *,
    every: int = 100,
    checkpoint: str | os.PathLike[str] | None = None,
    evaluate: Callable[[Any], dict[str, float]] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Parts:
    """Runs a federation to round ``rounds``, in calls of :func:`run` that end at the multiples of ``every``.

    Parameters and info are those of one call, bit for bit, however the run is split, killed and resumed.

    Args:
      key, server, population, data: as for :func:`run`.
      params: the server's first model.
      rounds: >= 1. A finished run resumes from its checkpoint when given more rounds.
      every: rounds between two evaluations, >= 1.
      checkpoint: a folder that keeps the state and all info after each call; the same simulation resumes from it. It
        contains statistics of the clients' data without noise, so it is not for release.
      evaluate: ``evaluate(params) -> dict of floats``, of the same names each time, after each call.
      progress: called with the number of rounds done after each call and, of a checkpoint, before the first.

    Returns:
      :class:`Parts` with the last :class:`State` and every round's ``Info``, which is not for release. A federation
      that diverges still runs to its end; :func:`diverged` finds the round.

    Raises:
      InputError: a value out of range; more clients in a round than there are; a checkpoint that is damaged, beyond
        ``rounds``, or of another simulation.
    """
    key = _validate.key(key=key)
    refuse_missing_rows(population, data)
    start = server.init(params)

    def step(
        key: jax.Array, state: Any, given: Any
    ) -> Any:  # not compiled, so that the identity includes the constants of a loss
        return server.step(key, state, population.clients, *given)

    return in_parts(
        lambda state, part: run(key, server, state, population, data, part),
        start,
        rounds,
        unit="rounds",
        every=every,
        identity=lambda: of_run(step, key=key, start=start, data=(population.train, data)),
        checkpoint=checkpoint,
        evaluate=None if evaluate is None else lambda state: evaluate(state.params),
        progress=progress,
    )


def diverged(info: Info) -> int | None:
    """Returns the first round in which learning has failed, or None.

    Learning has failed if a loss or an update is not finite, the clip norm is at its maximum, or the loss is more than
    five times that of the first round (if that is positive).

    Args:
      info: of every round, as from :func:`simulate` or :func:`run`.
    """
    loss = np.asarray(info.loss, np.float64)
    lost = ~np.isfinite(loss) | (np.asarray(info.dropped) > 0) | (np.asarray(info.clip_norm) >= LARGEST)
    first = loss[:1]
    lost |= (first > 0) & (loss > WORSE * first)
    return int(np.argmax(lost)) if lost.any() else None
