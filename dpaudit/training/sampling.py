"""Samples the examples of each step; each way of sampling carries the accounting that is true of it.

    sampling = poisson(examples=60_000, batch_size=256)
    indices, weights = sampling.draw(key, step)     # [capacity] each, of a fixed shape; weight 0 is padding

A batch has a fixed shape, so that a training is one program; padding has weight zero.

A schedule is public where privacy rests on how often, and how far apart, an example (or user) takes part, as that of
DP-FTRL does, and not on chance: :func:`spaced` makes one, :func:`scheduled` takes any that keeps to its declared
participation::

    sampling = spaced(key, examples=6_000, batch_size=100, rounds=500, separation=40)
    strategy = blt(sampling.participation(500))
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import DpEvent, NeighboringRelation
from scipy.special import kl_div

from dpaudit import _validate

OVERFLOW = 1e-30  # how often, at most, a step of Poisson sampling finds more examples than its arrays hold
GRID = 1 << 23  # float32 uniforms are multiples of 1/GRID
NOBODY = -1  # fills up a row of a schedule

Draw = Callable[[jax.Array, jax.Array | int], tuple[jax.Array, jax.Array]]
Event = Callable[[float, int, NeighboringRelation], DpEvent]


class Participation(NamedTuple):
    """The worst case of when one example may take part; made by :func:`participation`.

    Attributes:
      rounds: rounds in all.
      separation: the least difference between the rounds of two participations; 1 allows every round.
      most: the largest number of participations.
    """

    rounds: int
    separation: int
    most: int


class Sampling(NamedTuple):
    """A way to form batches.

    Attributes:
      draw: ``draw(key, step) -> (indices [capacity], weights [capacity])``, jittable; key is the same in every step.
        Padding has index 0 and weight 0.
      event: ``event(noise_multiplier, steps, relation) -> DpEvent`` of a whole training, for accounting by privacy
        loss distributions; noise_multiplier is the noise's standard deviation over the clip norm. Raises InputError
        for a relation in which this way of sampling has no true accounting.
      renyi_event: the same for accounting by Renyi divergences.
      batch_size: the (expected) number of examples a step, by which sums are divided.
      capacity: length of a batch's arrays.
      examples: size of the data set.
      participation: ``participation(rounds) -> Participation`` of one example in as many rounds.
    """

    draw: Draw
    event: Event
    renyi_event: Event
    batch_size: int
    capacity: int
    examples: int
    participation: Callable[[int], Participation]


def participation(rounds: int, *, separation: int = 1, most: int | None = None) -> Participation:
    """Describes at most ``most`` participations in ``rounds`` rounds, ``separation`` or more rounds apart.

    Args:
      rounds, separation: >= 1.
      most: >= 1; None for as many as fit, which is also the upper limit.

    Raises:
      InputError: a value out of range.
    """
    fitting = math.ceil(_validate.at_least(1, rounds=rounds) / _validate.at_least(1, separation=separation))
    return Participation(
        int(rounds), int(separation), fitting if most is None else min(_validate.at_least(1, most=most), fitting)
    )


def poisson(examples: int, batch_size: int, *, capacity: int | None = None) -> Sampling:
    """Samples every example in every step with probability q = batch_size/examples, independently.

    q is rounded up to a multiple of 2^-23, as the uniforms are; the accounting uses the rounded one.

    Args:
      examples: size n of the data set.
      batch_size: expected size of a batch, at most n.
      capacity: the largest batch; if more examples are drawn, a random subset takes part, whose cost is in the
        accounting by privacy loss distributions, except that the lower of two indices with equal uniforms stays: a
        probability of taking part is thereby wrong by at most 2^-23. None for a size that is exceeded with probability
        below 1e-30 a step, which adds less than 1e-30 (1 + e^epsilon) steps to delta and is left out.

    Returns:
      A :class:`Sampling` for "add_remove" and "replace"; by Renyi divergences for "add_remove" alone.

    Raises:
      InputError: a size out of range.

    Source: Abadi et al. 2016, Section 3.1; truncation: arXiv 2508.15089.
    """
    batch_size = fitting(examples, batch_size)
    rate = math.ceil(batch_size / examples * GRID) / GRID
    truncates = capacity is not None
    if capacity is None:
        capacity = _large_enough(examples, rate)
    elif not batch_size <= _validate.at_least(1, capacity=capacity) <= examples:
        raise _validate.expected("capacity", f"a size in {batch_size}..{examples}", capacity)

    def draw(key: jax.Array, step: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        uniforms = jax.random.uniform(jax.random.fold_in(key, step), (examples,))
        if truncates:
            least, indices = jax.lax.top_k(-uniforms, capacity)  # of too many, a random subset
            taken = -least < rate
        else:
            (indices,) = jnp.nonzero(uniforms < rate, size=capacity, fill_value=examples)
            taken = indices < examples
        return jnp.where(taken, indices, 0), taken.astype(jnp.float32)

    def event(noise_multiplier: float, steps: int, relation: NeighboringRelation) -> DpEvent:
        if truncates:
            one = dp_accounting.TruncatedSubsampledGaussianDpEvent(examples, rate, capacity, noise_multiplier)
        else:
            one = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise_multiplier))
        return dp_accounting.SelfComposedDpEvent(one, steps)

    def renyi_event(noise_multiplier: float, steps: int, relation: NeighboringRelation) -> DpEvent:
        if truncates:
            raise _validate.expected("accounting", "pld where Poisson batches have a capacity of their own", "rdp")
        if relation is not NeighboringRelation.ADD_OR_REMOVE_ONE:
            raise _validate.expected("accounting", "pld for Poisson batches under replace", "rdp")
        return event(noise_multiplier, steps, relation)

    return Sampling(draw, event, renyi_event, batch_size, capacity, examples, participation)


def fixed_size(examples: int, batch_size: int) -> Sampling:
    """Takes a random subset of ``batch_size`` examples in every step, independently of other steps.

    It is uniformly random except where uniforms, multiples of 2^-23, are equal: the lower index is taken, so that an
    example takes part with probability batch_size/examples to within 2^-23, which the accounting leaves out.

    Returns:
      A :class:`Sampling` for "replace" (the number of examples is public), by Renyi divergences alone.

    Raises:
      InputError: a size out of range.

    Source: Wang, Balle and Kasiviswanathan 2019, Theorem 27.
    """
    batch_size = fitting(examples, batch_size)

    def draw(key: jax.Array, step: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        uniforms = jax.random.uniform(jax.random.fold_in(key, step), (examples,))
        return jax.lax.top_k(uniforms, batch_size)[1], jnp.ones(batch_size)

    def event(noise_multiplier: float, steps: int, relation: NeighboringRelation) -> DpEvent:
        raise _validate.expected("accounting", "rdp for batches of a fixed size", "pld")

    def renyi_event(noise_multiplier: float, steps: int, relation: NeighboringRelation) -> DpEvent:
        _replace_only(relation, "batches of a fixed size")
        replaced = dp_accounting.GaussianDpEvent(noise_multiplier / 2)  # one example for another: twice the clip norm
        one = dp_accounting.SampledWithoutReplacementDpEvent(examples, batch_size, replaced)
        return dp_accounting.SelfComposedDpEvent(one, steps)

    return Sampling(draw, event, renyi_event, batch_size, batch_size, examples, participation)


def shuffled(examples: int, batch_size: int) -> Sampling:
    """Takes the examples in a new random order every epoch, ``batch_size`` a step; an incomplete step is left out.

    No amplification is claimed: an example takes part in at most one step of an epoch, so T steps are
    ceil(T / steps an epoch) Gaussian releases of it.

    Returns:
      A :class:`Sampling` for "replace" (adding an example would change every batch), by either accounting.

    Raises:
      InputError: a size out of range.

    Source: parallel composition within an epoch, given its order.
    """
    batch_size = fitting(examples, batch_size)
    epoch = examples // batch_size

    def draw(key: jax.Array, step: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        order = jax.random.permutation(jax.random.fold_in(key, step // epoch), examples)
        return jax.lax.dynamic_slice_in_dim(order, step % epoch * batch_size, batch_size), jnp.ones(batch_size)

    return in_order(
        draw, examples, batch_size, lambda rounds: participation(rounds, most=math.ceil(rounds / epoch)), "shuffled"
    )


def cyclic(examples: int, batch_size: int) -> Sampling:
    """Takes the examples in the same random order every epoch, so an example's rounds are one epoch apart.

    Meant for DP-FTRL, which gains from the separation. A rest that fills no step is never taken. For DP-SGD it costs
    the same as :func:`shuffled`.

    Returns:
      A :class:`Sampling` for "replace", by either accounting.

    Raises:
      InputError: a size out of range.

    Source: Choquette-Choo et al. 2023a, (k, b)-participation.
    """
    once = shuffled(examples, batch_size)
    epoch = examples // once.batch_size

    def draw(key: jax.Array, step: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        return once.draw(key, step % epoch)

    return in_order(draw, examples, batch_size, lambda rounds: participation(rounds, separation=epoch), "cyclic")


def in_order(
    draw: Draw, examples: int, batch_size: int, pattern: Callable[[int], Participation], name: str
) -> Sampling:
    """Builds a sampling without amplification: only the number of an example's participations counts.

    Args:
      draw, examples, batch_size: as in :class:`Sampling`; ``batch_size`` is the capacity too.
      pattern: ``pattern(rounds) -> Participation`` that ``draw`` satisfies. T steps count as one Gaussian release for
        each of an example's participations, at most.
      name: of such batches, in messages.

    Returns:
      A :class:`Sampling` for "replace", by either accounting.
    """

    def event(noise_multiplier: float, steps: int, relation: NeighboringRelation) -> DpEvent:
        _replace_only(relation, f"{name} batches")
        one = dp_accounting.GaussianDpEvent(noise_multiplier)
        return dp_accounting.SelfComposedDpEvent(one, pattern(steps).most)

    def renyi_event(noise_multiplier: float, steps: int, relation: NeighboringRelation) -> DpEvent:
        return event(noise_multiplier / 2, steps, relation)  # Renyi accounting takes noise over sensitivity

    return Sampling(draw, event, renyi_event, batch_size, batch_size, examples, pattern)


def _large_enough(examples: int, rate: float) -> int:
    """Returns the least size that is exceeded with probability below ``OVERFLOW``, by Chernoff's bound."""

    def exceeded(size: int) -> float:
        """Returns -ln of the bound on Pr[more than ``size`` take part]: n KL(size/n || rate)."""
        share = size / examples
        return examples * float(kl_div(share, rate) + kl_div(1 - share, 1 - rate))

    sizes = range(math.ceil(examples * rate), examples)
    return sizes.start + bisect_left(sizes, -math.log(OVERFLOW), key=exceeded)


def fitting(examples: int, batch_size: int) -> int:
    """Returns ``batch_size`` as an int, and refuses one below 1 or above the number of examples.

    Raises:
      InputError: either of the two.
    """
    _validate.at_least(1, examples=examples)
    if _validate.at_least(1, batch_size=batch_size) > examples:
        raise _validate.expected("batch_size", f"at most {examples}, the number of examples", batch_size)
    return int(batch_size)


def _replace_only(relation: NeighboringRelation, what: str) -> None:
    if relation is not NeighboringRelation.REPLACE_ONE:
        raise _validate.expected("neighbouring", f"replace for {what}", "add_remove")


def scheduled(table: Any, *, examples: int, separation: int = 1, most: int | None = None) -> Sampling:
    """Takes the examples ``table[t]`` in round t, whatever the key, and nobody after the last round.

    Args:
      table: [rounds, m], whole numbers in 0..examples - 1, or -1 for nobody; a round may be empty.
      examples: size of the data set.
      separation: declared least difference between the rounds of an example's participations.
      most: declared largest number of an example's participations; None for as many as the separation allows.

    Returns:
      A :class:`Sampling` for "replace". Its ``participation(rounds)`` is the declared one, of the first rounds.

    Raises:
      InputError: a table of another shape, with an example that does not exist, or in which an example takes part more
        often or sooner again than declared; the message names it with its rounds. Nothing is left out to make it fit.
    """
    given = np.asarray(table)
    if given.ndim != 2 or 0 in given.shape or given.dtype.kind not in "iu":
        raise _validate.expected("table", "whole numbers [rounds, m]", f"{given.dtype}{list(given.shape)}")
    examples = _validate.at_least(1, examples=examples)
    strange = given[(given < NOBODY) | (given >= examples)]
    if strange.size:
        raise _validate.expected("table", f"examples in 0..{examples - 1}, or {NOBODY} for nobody", int(strange[0]))
    rounds, width = given.shape
    declared = participation(rounds, separation=separation, most=most)
    _kept(given, declared)
    front = np.sort(given, axis=1)[:, ::-1]  # padding last
    rows = jnp.asarray(np.ascontiguousarray(front), jnp.int32)

    def draw(key: jax.Array, step: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        batch = jnp.where(jnp.asarray(step) < rounds, rows[step], NOBODY)
        return jnp.maximum(batch, 0), (batch != NOBODY).astype(jnp.float32)

    def pattern(asked: int) -> Participation:
        if _validate.at_least(1, rounds=asked) > rounds:
            raise _validate.expected("rounds", f"at most the {rounds} of the schedule", asked)
        return participation(asked, separation=separation, most=declared.most)

    return in_order(draw, examples, width, pattern, "scheduled")


def spaced(key: jax.Array, examples: int, batch_size: int, rounds: int, *, separation: int) -> Sampling:
    """Takes the examples in a new random order every epoch, each at least ``separation`` rounds after its last time.

    An epoch has examples // batch_size rounds. Each of them takes a uniformly random subset of the examples that have
    not taken part in this epoch nor in the last separation - 1 rounds; with m separation <= examples there are always
    enough.

    Args:
      key: JAX random key, consumed.
      examples: size of the data set.
      batch_size: m, at most examples.
      rounds: >= 1.
      separation: at most an epoch's rounds; then the order is that of :func:`cyclic`, except for the rest that does
        not fill an epoch.

    Returns:
      A :class:`Sampling` like that of :func:`scheduled`: at most one participation an epoch.

    Raises:
      InputError: a value out of range.
    """
    batch_size, rounds = fitting(examples, batch_size), _validate.at_least(1, rounds=rounds)
    epoch = examples // batch_size
    if _validate.at_least(1, separation=separation) > epoch:
        raise _validate.expected("separation", f"at most the {epoch} rounds of an epoch", separation)
    table = _orders(_validate.key(key=key), examples, batch_size, rounds, separation=separation)
    return scheduled(table, examples=examples, separation=separation, most=math.ceil(rounds / epoch))


@partial(jax.jit, static_argnums=(1, 2, 3), static_argnames="separation")
def _orders(key: jax.Array, examples: int, batch_size: int, rounds: int, *, separation: int) -> jax.Array:
    epoch = examples // batch_size

    def draw(last: jax.Array, t: jax.Array) -> tuple[jax.Array, jax.Array]:
        free = (last < t // epoch * epoch) & (t - last >= separation)
        places = jnp.where(free, jax.random.uniform(jax.random.fold_in(key, t), (examples,)), 2.0)
        batch = jax.lax.top_k(-places, batch_size)[1]
        return last.at[batch].set(t), batch

    return jax.lax.scan(draw, jnp.full(examples, -rounds - separation), jnp.arange(rounds))[1]


def _kept(table: np.ndarray, declared: Participation) -> None:
    """Refuses a table in which an example takes part otherwise than declared."""
    rounds, places = np.nonzero(table != NOBODY)
    who = table[rounds, places]
    order = np.lexsort((rounds, who))
    who, rounds = who[order], rounds[order]
    again = who[1:] == who[:-1]
    close = np.flatnonzero(again & (np.diff(rounds) < declared.separation))
    if close.size:
        i = close[0]
        raise _validate.expected(
            "table",
            f"at least {declared.separation} rounds from one participation to the next",
            f"{rounds[i + 1] - rounds[i]} of example {who[i]}, in rounds {rounds[i]} and {rounds[i + 1]}",
        )
    examples, counts = np.unique(who, return_counts=True)
    if counts.size and counts.max() > declared.most:
        worst = counts.argmax()
        raise _validate.expected(
            "table", f"at most {declared.most} participations", f"{counts[worst]} of example {examples[worst]}"
        )
