"""Searches for the user whom a protocol hides worst, by how far one moves its releases.

    anybody = domain.box((3,), -10.0, 10.0)
    canary = worst_user(key, steps, weights, users, anybody, rounds=20)
    dpaudit.audit(steps, users, canary, key=audit_key, state=weights, rounds=20)
    dpaudit.audit(steps, users, anybody, key=key, state=weights, rounds=20)         # both in one call

With Delta_t what a user adds to the total of round t, in standard deviations of its noise, the log likelihood ratio of
the whole transcript has mean |Delta|^2/2, |Delta|^2 = sum_t |Delta_t|^2 (:mod:`dpaudit.audits.protocol_audit`). The
search maximises |Delta|^2 over users, in the models of a few runs without them. Where the boundary does not add the
noise itself, its deviation is unknown, and Delta_t is in the units of the total.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from dpaudit import _validate
from dpaudit.auditing.domain import Domain, Pair, checked
from dpaudit.auditing.search_pairs import challengers, take
from dpaudit.audits.protocol_audit import alone, begun, joined, scaled
from dpaudit.personalization.boundary.aggregator import enforced, run
from dpaudit.personalization.boundary.protocol import Protocol

RUNS = 8  # whose models a user is tried with


def worst_user(
    key: jax.Array,
    protocol: Protocol,
    state: Any,
    users: Any,
    anybody: Domain | dict[str, Domain],
    *,
    rounds: int,
    memory: Any = None,
    starts: int = 64,
    steps: int = 30,
) -> Any:
    """Looks for the user who moves the releases of a run furthest.

    A population of random users, and some of the others, evolves: each competes with a move toward the best ones, a
    random move and a new user (differential evolution, :func:`dpaudit.auditing.search_pairs.challengers`). A search
    that finds nothing proves nothing.

    Args:
      key: JAX random key, consumed.
      protocol, state, users, rounds, memory: as for :func:`dpaudit.audits.protocol_audit.of_protocol`.
      anybody: the domain of one user, without an axis of users, such as :func:`dpaudit.auditing.domain.box`; a
        dictionary of domains where a user is a dictionary.
      starts: users to start from, the population.
      steps: of the search.

    Returns:
      The user, with a leading axis of 1: a canary for ``of_protocol``.

    Raises:
      InputError: a value out of range; users of another shape than the others.

    Source: the mean of the log likelihood ratio of Gaussian releases (Neyman and Pearson).
    """
    starts, steps = _validate.at_least(4, starts=starts), _validate.at_least(1, steps=steps)
    rounds = _validate.at_least(1, rounds=rounds)
    anybody = _of_parts(anybody) if isinstance(anybody, dict) else checked(anybody=anybody)
    jax.eval_shape(lambda key: joined(users, jax.tree.map(lambda leaf: leaf[None], anybody.draw(key)[1])), key)
    run_key, draw_key, key = jax.random.split(_validate.key(key=key), 3)
    memory = begun(protocol, memory)

    def models(key: jax.Array) -> Any:
        """Returns what the server broadcast in every round of a run without the user."""
        transcript = run(key, protocol, state, memory, users, rounds)[2]

        def one(state: Any, releases: Any) -> tuple[Any, Any]:
            return protocol.update(state, releases), protocol.broadcast(state)

        return jax.lax.scan(one, state, transcript.parts[0])[1]

    broadcast = jax.vmap(models)(jax.random.split(run_key, RUNS))
    broadcast = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), broadcast)
    every_round = jnp.arange(RUNS * rounds), broadcast
    in_deviations = enforced(protocol)

    def squared(pair: Any) -> jax.Array:
        canary = alone(users, jax.tree.map(lambda leaf: leaf[None], pair[1]))

        def moved(numbered: Any) -> jax.Array:
            _, model = numbered
            total = protocol.devices(key, model, canary)
            numbers = scaled(protocol, total) if in_deviations else ravel_pytree(total)[0]
            return jnp.sum(jnp.square(numbers * 1.0))

        return jnp.nan_to_num(jax.lax.map(moved, every_round).mean(), posinf=jnp.finfo(jnp.float32).max)

    drawn = jax.vmap(anybody.draw)

    def first(key: jax.Array) -> Any:
        members = drawn(jax.random.split(key, starts))
        if jax.tree.structure(users) != jax.tree.structure(members[1]):  # buckets of users
            return members
        some = jax.tree.map(lambda leaf, own: jnp.asarray(leaf[: starts // 2], own.dtype), users, members[1])
        known = jax.tree.map(lambda leaf, own: own.at[: len(leaf)].set(leaf), some, members[1])
        return jax.vmap(anybody.project)((known, known))

    def step(members: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        fresh_key, move_key = jax.random.split(key)
        values = jax.vmap(squared)(members)
        fresh = drawn(jax.random.split(fresh_key, starts))

        def rivals(key: jax.Array, i: jax.Array) -> list[Any]:
            return challengers(key, anybody, members, fresh, jnp.argsort(-values), i, None)

        moved = jax.vmap(rivals)(jax.random.split(move_key, starts), jnp.arange(starts))
        every = [members, *moved, fresh]
        found = jnp.stack([values, *(jax.vmap(squared)(rival) for rival in every[1:])])
        winner, numbers = jnp.argmax(found, axis=0), jnp.arange(starts)
        return jax.tree.map(lambda *leaves: jnp.stack(leaves)[winner, numbers], *every), found.max()

    @jax.jit
    def searched(key: jax.Array, draw_key: jax.Array) -> Any:
        members, _ = jax.lax.scan(step, first(draw_key), jax.random.split(key, steps))
        return take(members, jnp.argmax(jax.vmap(squared)(members)))

    return jax.tree.map(lambda leaf: leaf[None], searched(key, draw_key)[1])


def is_domain(canary: Any) -> bool:
    """Tells whether a canary is given as a domain, or as domains by name, in which to search for it."""
    return isinstance(canary, Domain) or (
        isinstance(canary, dict) and any(isinstance(part, Domain) for part in canary.values())
    )


def _of_parts(parts: dict[str, Domain]) -> Domain:
    """Returns the domain of users with independent parts."""
    for name, part in parts.items():
        checked(**{name: part})

    def both(pairs: dict[str, Pair]) -> Pair:
        return {name: pair[0] for name, pair in pairs.items()}, {name: pair[1] for name, pair in pairs.items()}

    def draw(key: jax.Array) -> Pair:
        keys = jax.random.split(key, len(parts))
        return both({name: part.draw(key) for key, (name, part) in zip(keys, parts.items(), strict=True)})

    def project(pair: Pair) -> Pair:
        return both({name: part.project((pair[0][name], pair[1][name])) for name, part in parts.items()})

    return Domain(draw, project)
