"""Makes audit recipes of private alternating least squares, as shipped and broken, with a worst-case user.

Three faults. *Ratings not clipped*: noise calibrated for ratings of size 1 where they reach 3, as public code did on
MovieLens-10M, with its equal shares of both statistics. *A count on the side*: how many devices took part is released
too, by a process that says it costs nothing. *A factor that leaks*: the sum of users' own factors, unclipped, is added
to the first item's moment.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from dp_accounting import NoOpDpEvent

from dpaudit.audits.transcript_audit import Recipe, extreme
from dpaudit.personalization.als import steps
from dpaudit.personalization.als.layout import Users, sound
from dpaudit.personalization.als.least_squares import Shares, alternating, counted
from dpaudit.personalization.als.steps import Model, Prior, Rule, Step
from dpaudit.personalization.boundary import processes
from dpaudit.personalization.boundary.processes import memoryless
from dpaudit.personalization.boundary.protocol import Protocol

ITEMS, CLIP, REACH = 3, 1.0, 3.0
OTHERS = Users(jnp.array([[0, 1], [1, 2]]), jnp.array([[0.8, -0.3], [1.2, 0.4]]), jnp.ones((2, 2)), jnp.arange(2))
START = memoryless()
Make = Callable[..., Protocol]


def model(rank: int) -> Model:
    """Returns an intercept; a bias that users have with weight 1, pinned if it is all; and other factors."""
    factors = 0.3 * jax.random.normal(jax.random.key(1), (ITEMS, rank))
    mean, precision = jnp.zeros(1 + rank).at[1].set(1.0), jnp.full(1 + rank, 5.0)
    precision = precision.at[1].set(jnp.inf) if rank == 1 else precision
    return Model(jnp.ones((ITEMS, 1)), factors, jnp.zeros(ITEMS), mean, precision)


def sound_rounds(rule: Rule = steps.uniform, *, unobserved: float = 0.0, rank: int = 2, clip: float = CLIP) -> Make:
    """``make(noise_multiplier=z)`` of rounds as they ship, whose statistics have equal shares of mu^2."""
    shares = Shares(1 / 3, 1 / 3, 1 / 3) if unobserved else Shares(0.5, 0.5)
    return partial(
        alternating,
        Step(1.0, clip, rule, unobserved),
        features=jnp.ones((ITEMS, 1)),
        prior=Prior(jnp.full(rank, 0.1), 5.0, 0.1),
        shares=shares,
    )


def not_clipped(*, noise_multiplier: float) -> Protocol:
    """Returns the noise of ratings clipped at 1, the devices of ratings clipped at 3."""
    claimed, real = (sound_rounds(clip=clip)(noise_multiplier=noise_multiplier) for clip in (CLIP, REACH))
    return claimed._replace(devices=real.devices)


def count_aside(*, noise_multiplier: float) -> Protocol:
    """Rounds, and how many devices took part, with as much noise but accounted as nothing."""
    rounds = sound_rounds()(noise_multiplier=noise_multiplier)
    count = processes.gaussian("devices", noise_multiplier=noise_multiplier)._replace(event=lambda n: NoOpDpEvent())

    def devices(key: jax.Array, model: Model, buckets: tuple[Users, ...]) -> Any:
        present = [jnp.any(sound(users, ITEMS).weights > 0, axis=1).sum() for users in buckets]
        return rounds.devices(key, model, buckets), jnp.float32(sum(present))

    def release(key: jax.Array, inside: Any, memory: Any) -> Any:
        first, second = jax.random.split(key)
        (statistics,), memory_of_rounds = rounds.release(first, inside[0], memory[0])
        number, memory_of_count = count.release(second, inside[1], memory[1], sensitivity=1.0)
        return (statistics, number), (memory_of_rounds, memory_of_count)

    return Protocol(rounds.broadcast, devices, release, lambda model, out: rounds.update(model, out[:1]))


def leaking(*, noise_multiplier: float) -> Protocol:
    """Rounds whose devices add their users' own factors to what is summed of the first item."""
    rounds = sound_rounds()(noise_multiplier=noise_multiplier)
    step = Step(1.0, CLIP, steps.uniform)

    def devices(key: jax.Array, model: Model, buckets: tuple[Users, ...]) -> Any:
        total = rounds.devices(key, model, buckets)
        for users in (sound(users, ITEMS) for users in buckets):
            known = steps.common(model), steps.taken(model, users.items), users
            rated = jnp.any(users.weights > 0, axis=1)
            own = steps.solved(step, *known)[:, model.public.shape[1] :]
            total = total._replace(moment=total.moment.at[0].add(rated @ own))
        return total

    return rounds._replace(devices=devices)


def recipe(make: Make, noise_multiplier: float, *, rounds: int, rank: int = 2, memory: Any = START) -> Recipe:
    """Two users, and one who rates the first item as nobody would."""
    return Recipe(make, noise_multiplier, model(rank), memory, (OTHERS,), extreme(item=0), rounds)


FAULTS: dict[str, tuple[Make, Any]] = {
    "ratings not clipped": (not_clipped, START),
    "a count on the side": (count_aside, (START, START)),
    "a factor that leaks": (leaking, START),
}
SOUND: dict[str, tuple[Make, int, int]] = {  # make, rank, rounds
    "popularity": (partial(counted, items=ITEMS), 1, 1),
    "bias of items": (sound_rounds(rank=1), 1, 1),
    "rounds, uniform weights": (sound_rounds(), 2, 3),
    "rounds, tail weights": (sound_rounds(steps.tail(1)), 2, 3),
    "rounds, adaptive weights": (sound_rounds(steps.adaptive(0.25)), 2, 3),
    "rounds, unobserved items": (sound_rounds(unobserved=0.1), 2, 3),
}
