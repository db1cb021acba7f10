"""A small protocol with all that one can have: partial broadcast, two releases, an optimiser that remembers."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpaudit.personalization.boundary import processes
from dpaudit.personalization.boundary.protocol import Protocol, each, rows

ITEMS, RANK, CAPACITY = 40, 3, 5
OPTIMIZER = optax.sgd(0.1, momentum=0.9)
SUMS = processes.gaussian("sums", noise_multiplier=2.0)
COUNTS = processes.gaussian("counts", noise_multiplier=4.0)


def compute(key: jax.Array, part: jax.Array, user: Any) -> tuple[jax.Array, jax.Array]:
    """Which rows a user moves, and how far; those of weight zero were asked for, but are not moved."""
    step = jnp.tanh(user["values"][:, None] - part) + 0.1 * jax.random.normal(key, part.shape)
    return jnp.where(user["weights"] > 0, user["items"], 0), user["weights"][:, None] * step


def add(total: Any, messages: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    items, steps = messages
    sums, counts = (jnp.zeros((ITEMS, RANK)), jnp.zeros(ITEMS)) if total is None else total
    flat = items.reshape(-1)
    return sums.at[flat].add(steps.reshape(-1, RANK)), counts.at[flat].add(jnp.any(steps != 0, -1).reshape(-1))


def release(key: jax.Array, total: Any, memory: Any) -> Any:
    keys = jax.random.split(key)
    sums, first = SUMS.release(keys[0], total[0], memory[0], sensitivity=5.0)
    counts, second = COUNTS.release(keys[1], total[1], memory[1], sensitivity=3.0)
    return (sums, counts), (first, second)


def update(state: Any, releases: Any) -> Any:
    params, memory = state
    sums, counts = (release.value for release in releases)
    steps, memory = OPTIMIZER.update(-sums / jnp.maximum(counts, 1.0)[:, None], memory, params)
    return optax.apply_updates(params, steps), memory


DEVICES = each(rows(lambda user: user["items"]), compute, add, chunk=5)
PROTOCOL = Protocol(lambda state: state[0], DEVICES, release, update)


def start() -> tuple[Any, Any]:
    """(state, memory) before the first round."""
    params = jax.random.normal(jax.random.key(1), (ITEMS, RANK))
    like = jnp.zeros((ITEMS, RANK)), jnp.zeros(ITEMS)
    return (params, OPTIMIZER.init(params)), (SUMS.init(like[0]), COUNTS.init(like[1]))


def users(count: int, *, decoys: int = 0) -> dict[str, jax.Array]:
    """Users whose last two requests are decoys, which differ with ``decoys`` and are worth nothing."""
    items = jax.random.randint(jax.random.key(2), (count, CAPACITY), 0, ITEMS)
    others = jax.random.randint(jax.random.key(3 + decoys), (count, 2), 0, ITEMS)
    weights = jnp.broadcast_to(jnp.arange(CAPACITY) < CAPACITY - 2, (count, CAPACITY)).astype(jnp.float32)
    values = jax.random.normal(jax.random.key(4), (count, CAPACITY))
    return {"items": items.at[:, -2:].set(others), "values": values, "weights": weights}
