"""Makes gradient steps whose author clips, adds noise and accounts himself, as he should or with one thing wrong.

*Clip left out*: the sum is of gradients as they are. *Noise reused*: every round draws with the same key, which the
accountant refuses; or the author draws once, keeps it in the aggregator's memory, and gives every round another
fingerprint. *Participation broken*: accounted for one round of each user, who is in all of them. *Count unaccounted*:
how many took part is released too, by a process that claims to cost nothing. *Model leaked*: so is the sum of the
weights that devices fitted for themselves, clipped like the gradients but without noise.
"""

import math
from typing import Any, NamedTuple

import dp_accounting
import jax
import jax.numpy as jnp
from dp_accounting import GaussianDpEvent, NoOpDpEvent

from dpaudit.personalization.boundary.processes import Process, gaussian
from dpaudit.personalization.boundary.protocol import Protocol, each, everything
from dpaudit.training.dp_sgd import Noise, add_noise

WIDTH, ROUNDS, CLIP, RATE = 3, 16, 1.0, 0.01
Z = math.sqrt(ROUNDS) * dp_accounting.get_sigma_gaussian(1.0, 1e-6)
START = jnp.zeros(WIDTH)
OTHERS = jax.random.normal(jax.random.key(0), (10, WIDTH))
FAR = jnp.full((1, WIDTH), 1e3)  # whose gradient is longer than the clip norm in every round
NEAR = jnp.full((1, WIDTH), 0.3)  # whose gradient changes from round to round


class Author(NamedTuple):
    """What the author does; sound as it is.

    Attributes:
      clips: whether devices' gradients are clipped.
      draws: ``"anew"`` for every round; ``"same key"``, the aggregator's memory forgotten; ``"once"``, the noise kept.
      accounts: the rounds that the event of n rounds counts, None for all n.
      counts: whether the number of devices is released aside.
      leaks: whether the devices' own weights are released aside.
    """

    clips: bool = True
    draws: str = "anew"
    accounts: int | None = None
    counts: bool = False
    leaks: bool = False


FAULTS = {  # what the author does, and the canary who shows it
    "clip left out": (Author(clips=False), FAR),
    "noise reused, same key": (Author(draws="same key"), FAR),
    "noise reused, drawn once": (Author(draws="once"), NEAR),
    "participation broken": (Author(accounts=1), FAR),
    "count unaccounted": (Author(counts=True), FAR),
    "model leaked": (Author(leaks=True), FAR),
}


def authored(author: Author) -> Protocol:
    """Returns the protocol of gradient steps toward the users' mean."""
    process, aside = _process(author), gaussian("aside", noise_multiplier=0.0)._replace(event=lambda n: NoOpDpEvent())
    extra = author.counts or author.leaks

    def compute(key: jax.Array, state: jax.Array, user: jax.Array) -> Any:
        gradient = user - state
        short = gradient * jnp.minimum(1, CLIP / jnp.maximum(jnp.linalg.norm(gradient), 1e-30))
        return {"gradient": short if author.clips else gradient, "count": jnp.float32(1), "own": short}

    def add(total: Any, messages: Any) -> Any:
        sums = jax.tree.map(lambda leaf: leaf.sum(axis=0), messages)
        return sums if total is None else jax.tree.map(jnp.add, total, sums)

    def release(key: jax.Array, total: Any, memory: Any) -> Any:
        if author.draws == "same key":
            key = jax.random.key(0)
        told, after = process.release(key, total["gradient"], memory[0], sensitivity=CLIP)
        after = memory[0] if author.draws == "same key" else after
        if not extra:
            return (told,), (after, *memory[1:])
        beside = total["count"] if author.counts else total["own"]
        also, later = aside.release(key, beside, memory[1], sensitivity=CLIP)
        return (told, also), (after, later)

    def update(state: jax.Array, releases: Any) -> jax.Array:
        return state + RATE * releases[0].value

    return Protocol(lambda state: state, each(everything, compute, add), release, update)


def memory(author: Author) -> Any:
    """Returns the aggregator's memory before the first round."""
    own = _process(author).init(START)
    return (own, gaussian("aside", noise_multiplier=0.0).init(START)) if author.counts or author.leaks else (own,)


def _process(author: Author) -> Process:
    process = gaussian("gradient", noise_multiplier=Z)
    if author.accounts is not None:
        most = author.accounts
        process = process._replace(event=lambda n: GaussianDpEvent(Z / math.sqrt(min(n, most))))
    if author.draws == "once":
        process = process._replace(noise=_drawn_once)
    return process


def _drawn_once(sensitivity: Any) -> Noise:
    """Draws in the first round, and adds the same to every later total."""

    def add(key: jax.Array, total: Any, kept: Any) -> tuple[Any, Any]:
        noise = jnp.where(jnp.any(kept != 0), kept, add_noise(key, jnp.zeros_like(total), Z * sensitivity))
        return total + noise, noise

    return Noise(jnp.zeros_like, add)
