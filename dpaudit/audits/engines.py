"""Plays the client's game by Monte Carlo: `full` with the real mechanism, `plane` for LDP-SGD in the gradients' plane.

Only `full` can find a bug in the mechanism. `kernel` plays the trials of `full` on a TPU or a recent GPU without
writing their releases, by the program in :mod:`dpaudit.kernels.randomized_trial`, and `exact` is the closed form in
:mod:`dpaudit.audits.oracle`. An observer can use three bits of a release z, which an engine returns as one code per
trial:

* ``GUESS``: the cosine rule says g1, cos(z, g1) > cos(z, g0) (Eq. (3) of paper 000; ties go to g0);
* ``SIDE1``, ``SIDE0``: <z, g1> > 0 and <z, g0> > 0, which is all that the optimal test of LDP-SGD needs; for another
  randomizer, what its :class:`Observer` reads.

The game is paired: trial i uses the same pair of gradients in both worlds, so that both error rates are about the same
mixture of pairs, and Eq. (2) bounds epsilon for one pair for all trials as well as for a fresh pair in each.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.tree_util import Partial

from dpaudit import _platform, _validate
from dpaudit._engine import memory
from dpaudit._engine.game import sweep, trial_key
from dpaudit.auditing.attacks.distinguish import cosine_direction
from dpaudit.audits.oracle import Pair, far_sides, geometry, settle_angle
from dpaudit.mechanisms import ldp_sgd
from dpaudit.mechanisms.clipping import norm_and_direction

TOGETHER = 512  # trials that `kernel` draws at a time
HOPPER = 9.0  # compute capability that Mosaic's GPU programs need
Sides = tuple[jax.Array, jax.Array]
GUESS, SIDE1, SIDE0, NOT_A_NUMBER = 1, 2, 4, 8
QUARTER, HALF = np.uint32(1 << 30), np.uint32(1 << 31)  # turns of a circle in units of 2^-32


def pairs(key: jax.Array, craft: Callable[[jax.Array], tuple[jax.Array, jax.Array]], count: int, **how: Any) -> Pair:
    """Computes the planes of ``count`` freshly crafted pairs, a block of gradients at a time.

    Args:
      key: a jax.random key, consumed; pair i is a function of (key, i) alone.
      craft: ``craft(key) -> (g0, g1)``, jittable (a ``Partial`` if it holds data).
      count: number of pairs.
      **how: batch, mesh, checkpoint, progress of :func:`dpaudit._engine.game.sweep`.

    Returns:
      A :class:`Pair` of arrays [count].

    Raises:
      InputError: a gradient that is not finite.
    """
    key = trial_key(key)
    planes = sweep(Partial(_plane_of, key, _partial(craft)), count, **how).astype(np.float64)
    bad = int((~np.isfinite(planes)).any(axis=1).sum())
    if bad:
        raise _validate.InputError(f"craft: expected finite gradients, got NaN or infinity in {bad} of {count} pairs")
    norm0, norm1, angle = planes.T
    return Pair(norm0, norm1, settle_angle(norm0, norm1, angle))


def _plane_of(key: jax.Array, craft: Partial, trial: jax.Array) -> jax.Array:
    return jnp.stack(geometry(*craft(jax.random.fold_in(key, trial))))


def plane(
    key: jax.Array,
    pair: Pair,
    trials: int,
    *,
    epsilons: Sequence[float],
    clip_norm: float,
    repeats: int = 1,
    **how: Any,
) -> np.ndarray:
    """Samples trials in the plane, one angle and one coin each: exact in distribution, but for the coin's 32 bits.

    The plane is a circle of 2^32 steps with g0 at 0 and g1 at theta. The direction v is uniform on it; the release is
    v or -v, on its gradient's side with probability Q, a multiple of 2^-32 and at most 1 - 2^-32: an epsilon of 18 is
    played at 18.006, 21 at 21.08, and none above 32 ln 2 = 22.18. All comparisons are sign bits of 32-bit differences.

    Args:
      key: a jax.random key, consumed; trial i of a repeat is a function of (key, repeat, i, trials).
      pair: one pair (shape [] or [1]) for all trials, or [trials]: trial i uses pair i.
      trials: per world and repeat.
      epsilons: one game for each, in nats.
      clip_norm: L.
      repeats: independent repetitions.
      **how: batch, mesh, checkpoint, progress of :func:`dpaudit._engine.game.sweep`, whose unit is a repeat.

    Returns:
      Codes, uint8 [2, len(epsilons), repeats, trials].
    """
    one = plane_game(key, pair, trials, epsilons=epsilons, clip_norm=clip_norm)
    return sweep(one, repeats, **how).transpose(1, 2, 0, 3)


def plane_game(key: jax.Array, pair: Pair, trials: int, *, epsilons: Sequence[float], clip_norm: float) -> Partial:
    """Returns the function that :func:`plane` sweeps over: the number of a repeat -> its codes."""
    key = trial_key(key)
    turns = [np.atleast_1d(_word(pair.angle / (2 * np.pi))), np.atleast_1d(pair.angle == 0)]
    keep = [
        np.stack([np.atleast_1d(_word(1 - far)) for far in far_sides(pair, epsilon=e, clip_norm=clip_norm)])
        for e in epsilons
    ]
    repeat = partial(_plane_repeat, trials=trials)
    return Partial(repeat, key, *map(jnp.asarray, turns), jnp.asarray(np.stack(keep, axis=1)))


def _word(share: np.ndarray) -> np.ndarray:
    """Rounds a share in [0, 1] of 2^32 to the nearest word (1 becomes 2^32 - 1)."""
    return np.minimum(np.rint(share * 2.0**32), 2**32 - 1).astype(np.uint32)


def _plane_repeat(
    key: jax.Array, angle: jax.Array, tie: jax.Array, keep: jax.Array, repeat: jax.Array, *, trials: int
) -> jax.Array:
    """Plays one repeat: angle, tie [P], keep [2, E, P], with P = 1 or trials -> codes [2, E, trials]."""
    words = jax.random.bits(jax.random.fold_in(key, repeat), (2, *keep.shape[:2], trials), jnp.uint32)
    direction, coin = words

    def ahead(z: jax.Array) -> jax.Array:  # in the half circle centred a quarter turn further on
        return z < HALF

    own = jnp.stack([jnp.zeros_like(angle), angle])[:, None, :]  # where g_0 and g_1 lie
    on_side = ahead(direction - own + QUARTER)
    z = jnp.where(on_side == (coin < keep), direction, direction + HALF)
    guess = ahead(z - angle // 2) & ~tie
    side1, side0 = ahead(z - angle + QUARTER), ahead(z + QUARTER)
    return _code(guess, side1, side0)


def _seen(cosine0: jax.Array, cosine1: jax.Array, tie: jax.Array, sides: Sides) -> jax.Array:
    """Returns what an observer sees of releases whose cosines with g0 and g1, and sides (1, 0), are given."""
    broken = NOT_A_NUMBER * jnp.isnan(cosine0 + cosine1).astype(jnp.uint8)
    return _code((cosine1 > cosine0) & ~tie, *sides) | broken


def _code(guess: jax.Array, side1: jax.Array, side0: jax.Array) -> jax.Array:
    return (GUESS * guess + SIDE1 * side1 + SIDE0 * side0).astype(jnp.uint8)


def full(
    key: jax.Array,
    craft: Callable[[jax.Array], tuple[jax.Array, jax.Array]],
    trials: int,
    *,
    epsilons: Sequence[float],
    clip_norm: float,
    repeats: int = 1,
    pair_key: jax.Array,
    fresh: bool = True,
    randomize: Callable[..., jax.Array] = ldp_sgd.randomize,
    observe: Callable[..., "Observer"] | None = None,
    **how: Any,
) -> np.ndarray:
    """Plays trials of the mechanism as shipped, on whole gradients.

    Args:
      key: a jax.random key, consumed; each trial is a function of (key, world, epsilon's place, repeat, i).
      craft: ``craft(key) -> (g0, g1)``, jittable; trial i of every repeat uses pair i of :func:`pairs`.
      trials: per world and repeat.
      epsilons: one game for each, in nats.
      clip_norm: L.
      repeats: independent repetitions.
      pair_key: the key of the pairs, as given to :func:`pairs`.
      fresh: False for one fixed pair, pair 0, in all trials.
      randomize: the mechanism, ``randomize(key, x, epsilon=..., clip_norm=...)``; another one to audit it instead.
      observe: ``observe(randomize, epsilons, clip_norm) -> Observer``; None for :func:`signs`.
      **how: batch, mesh, checkpoint, progress of :func:`dpaudit._engine.game.sweep`.

    Returns:
      Codes, uint8 [2, len(epsilons), repeats, trials].

    Raises:
      InputError: epsilon or clip_norm not positive; a release that holds NaN.
    """
    setting: dict[str, Any] = {"clip_norm": clip_norm, "repeats": repeats, "fresh": fresh, "randomize": randomize}
    setting |= {"observe": observe}
    return _numbers(sweep(full_game(key, craft, epsilons=epsilons, pair_key=pair_key, **setting), trials, **how))


def _numbers(codes: np.ndarray) -> np.ndarray:
    """Returns codes [trials, E, repeats, 2] as [2, E, repeats, trials]; refuses releases that hold NaN."""
    bad = int((codes & NOT_A_NUMBER > 0).sum())
    if bad:
        raise _validate.InputError(f"mechanism: expected releases of numbers, got NaN in {bad} of {codes.size} trials")
    return codes.transpose(3, 1, 2, 0)


class Observer(NamedTuple):
    """How an observer gets and reads releases of every epsilon; ``place`` is the position of one among them.

    Attributes:
      release: ``release(key, x, place) -> z``.
      sides: ``sides(inner, norms, place, dimension) -> (SIDE1, SIDE0)``, from <z, u_i> with the directions u_0, u_1,
        and from the norms before clipping; both are pairs in the order (0, 1).
    """

    release: Partial
    sides: Partial


def signs(randomize: Callable[..., jax.Array], epsilons: Sequence[float], clip_norm: float) -> Observer:
    """Returns the observer of LDP-SGD, who reads the sign of <z, g>. Other epsilons find the same compiled program."""
    release = partial(_with_traced_loss, randomize=randomize, clip_norm=clip_norm)
    return Observer(Partial(release, jnp.asarray(epsilons, jnp.float32)), Partial(_signs))


def _with_traced_loss(
    losses: jax.Array,
    key: jax.Array,
    x: jax.Array,
    place: jax.Array,
    *,
    randomize: Callable[..., Any],
    clip_norm: float,
) -> jax.Array:
    return randomize(key, x, epsilon=losses[place], clip_norm=clip_norm)


def _signs(inner: Sides, norms: Sides, place: jax.Array, dimension: int) -> Sides:
    del norms, place, dimension
    return inner[1] > 0, inner[0] > 0


def full_game(
    key: jax.Array,
    craft: Callable[[jax.Array], tuple[jax.Array, jax.Array]],
    *,
    epsilons: Sequence[float],
    clip_norm: float,
    pair_key: jax.Array,
    repeats: int = 1,
    fresh: bool = True,
    randomize: Callable[..., jax.Array] = ldp_sgd.randomize,
    observe: Callable[..., Observer] | None = None,
) -> Partial:
    """Returns the function that :func:`full` sweeps over: the number of a trial -> its codes."""
    for epsilon in epsilons:
        epsilon = _validate.positive(epsilon=epsilon)
    clip_norm = _validate.positive(clip_norm=clip_norm)
    observer = (observe or signs)(randomize, epsilons, clip_norm)
    run = partial(_full_trial, losses=len(epsilons), repeats=repeats, fresh=fresh)
    return Partial(run, trial_key(key), trial_key(pair_key), _partial(craft), observer)


def _full_trial(
    key: jax.Array,
    pair_key: jax.Array,
    craft: Partial,
    observer: Observer,
    trial: jax.Array,
    *,
    losses: int,
    repeats: int,
    fresh: bool,
) -> jax.Array:
    """Plays all epsilons, repeats and worlds of one trial -> codes [E, repeats, 2]; its pair is crafted once."""
    pair = jnp.stack(craft(jax.random.fold_in(pair_key, trial if fresh else 0)))
    (norm0, unit0), (norm1, unit1) = (norm_and_direction(g) for g in pair)
    tie = ~jnp.any(cosine_direction(*pair) != 0)
    units = jnp.stack([_or_opposite(unit0, unit1), _or_opposite(unit1, unit0)])
    trial_key = jax.random.fold_in(key, trial)

    def world(number: jax.Array) -> jax.Array:
        g = pair[number]  # outside of the loop over releases, so that XLA computes its norm and direction once

        def game(index: jax.Array) -> jax.Array:
            place = index // (2 * repeats)
            z = observer.release(jax.random.fold_in(trial_key, index), g, place)
            cosine0, cosine1 = jnp.sum(units[0] * z), jnp.sum(units[1] * z)
            return _seen(cosine0, cosine1, tie, observer.sides((cosine0, cosine1), (norm0, norm1), place, z.size))

        return jax.lax.map(game, 2 * jnp.arange(repeats * losses) + number)

    return jax.lax.map(world, jnp.arange(2)).T.reshape(losses, repeats, 2)


def kernel(
    key: jax.Array,
    craft: Callable[[jax.Array], tuple[jax.Array, jax.Array]],
    trials: int,
    *,
    epsilons: Sequence[float],
    clip_norm: float,
    repeats: int = 1,
    pair_key: jax.Array,
    mesh: Mesh | None = None,
    **how: Any,
) -> np.ndarray:
    """Plays the trials of :func:`full` with one fixed pair, by a program that draws releases without writing them.

    A trial has the key and the random words that it has in :func:`full`, so its code is the same unless rounding
    decides. It is not the mechanism as shipped: it cannot find a bug in that one. Units of ``TOGETHER`` trials are
    drawn side by side.

    Args:
      key, craft, trials, epsilons, clip_norm, repeats, pair_key: as for :func:`full`, with ``fresh=False``.
      mesh: a device mesh over which the trials are split, or None for one device.
      **how: batch, checkpoint, progress of :func:`dpaudit._engine.game.sweep`, whose unit is ``TOGETHER`` trials.

    Returns:
      Codes, uint8 [2, len(epsilons), repeats, trials].

    Raises:
      InputError: epsilon or clip_norm not positive; a release that holds NaN; a device that cannot run it.
    """
    refuse_device(mesh)
    from dpaudit.kernels import randomized_trial

    games: dict[str, Any] = {"epsilons": epsilons, "clip_norm": clip_norm, "pair_key": pair_key, "repeats": repeats}
    one = kernel_game(key, craft, products=randomized_trial.on(memory.platform(mesh)), **games)
    codes = sweep(one, math.ceil(trials / TOGETHER), mesh=mesh, **how)
    return _numbers(codes.reshape(-1, *codes.shape[2:])[:trials])


def refuse_device(mesh: Mesh | None) -> None:
    """Refuses devices that cannot run `kernel`: all but TPUs and GPUs of compute capability 9.0 (Hopper) and later.

    Raises:
      InputError: such a device.
    """
    found = memory.platform(mesh)
    if found == "gpu" and _platform.memory_bytes() is None:  # at hand, not named
        device = jax.local_devices()[0] if mesh is None else mesh.devices.flat[0]
        if float(device.compute_capability) < HOPPER:
            found = f"{device.device_kind}, of {device.compute_capability}"
    if found not in ("tpu", "gpu"):
        able = f"full on this device; kernel needs a TPU or a GPU of compute capability {HOPPER} or later"
        raise _validate.expected("engine", able, f"kernel on {found}")


def kernel_game(
    key: jax.Array,
    craft: Callable[[jax.Array], tuple[jax.Array, jax.Array]],
    *,
    epsilons: Sequence[float],
    clip_norm: float,
    pair_key: jax.Array,
    repeats: int = 1,
    products: Callable[[jax.Array, jax.Array], jax.Array] | None = None,
) -> Partial:
    """Returns the function that :func:`kernel` sweeps over: the number of a unit -> the codes of its trials.

    Args:
      key, craft, epsilons, clip_norm, pair_key, repeats: as for :func:`kernel`.
      products: of :mod:`dpaudit.kernels.randomized_trial`; None for the device's own.
    """
    from dpaudit.kernels import randomized_trial

    for epsilon in epsilons:
        epsilon = _validate.positive(epsilon=epsilon)
    clip_norm = _validate.positive(clip_norm=clip_norm)
    drawn = randomized_trial.together(products or randomized_trial.products)
    run = partial(_kernel_trials, products=drawn, clip_norm=clip_norm, repeats=repeats)
    return Partial(run, trial_key(key), trial_key(pair_key), _partial(craft), jnp.asarray(epsilons, jnp.float32))


def _kernel_trials(
    key: jax.Array,
    pair_key: jax.Array,
    craft: Partial,
    losses: jax.Array,
    unit: jax.Array,
    *,
    products: Callable[[jax.Array, jax.Array], jax.Array],
    clip_norm: float,
    repeats: int,
) -> jax.Array:
    """Plays all epsilons, repeats and worlds of a unit's trials -> codes [TOGETHER, E, repeats, 2]."""
    from dpaudit.kernels.randomized_trial import cosines

    pair = jnp.stack(craft(jax.random.fold_in(pair_key, 0)))
    of_one = 2 * repeats * len(losses)
    play = jnp.arange(TOGETHER * of_one, dtype=jnp.uint32)
    trial, index = unit * TOGETHER + play // of_one, play % of_one
    keys = jax.vmap(lambda trial, index: jax.random.fold_in(jax.random.fold_in(key, trial), index))(trial, index)
    how: dict[str, Any] = {"epsilon": losses[index // (2 * repeats)], "clip_norm": clip_norm, "products": products}
    inner0, inner1 = cosines(keys, pair, index % 2, **how).T
    there0, there1 = (jnp.any(norm_and_direction(g)[1] != 0) for g in pair)
    cosine0, cosine1 = jnp.where(there0, inner0, -inner1), jnp.where(there1, inner1, -inner0)  # as _or_opposite
    tie = ~jnp.any(cosine_direction(*pair) != 0)
    return _seen(cosine0, cosine1, tie, (cosine1 > 0, cosine0 > 0)).reshape(TOGETHER, len(losses), repeats, 2)


def _or_opposite(unit: jax.Array, other: jax.Array) -> jax.Array:
    """Replaces a zero vector by the opposite of the other one, as in :class:`dpaudit.audits.oracle.Pair`."""
    return jnp.where(jnp.any(unit != 0), unit, -other)


def _partial(function: Callable[..., Any]) -> Partial:
    return function if isinstance(function, Partial) else Partial(function)
