"""Trains privately by DP-FTRL, whose noise is correlated over rounds, so that most of it cancels in the model.

    sampling = cyclic(examples=60_000, batch_size=500)
    strategy = banded(sampling.participation(2_000), bands=120)
    trainer = dp_ftrl(loss_fn, strategy=strategy, clip_norm=1.0, noise_multiplier=2.0, batch_size=500, optimizer=...)
    state, info = train(key, trainer, trainer.init(params), (images, labels), sampling, steps=2_000)
    epsilon(strategy, 2.0, delta=1e-5)

Its privacy needs no random sampling: only how often, and how far apart, an example takes part counts.
Neighbours are data sets of one size that differ in one example: "zero_out", where it is exchanged for one whose
gradient is always zero, or "replace", where it is exchanged for any other, which moves a sum twice as far.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import dp_accounting
import jax
import jax.numpy as jnp
import optax

from dpaudit import _validate
from dpaudit.mechanisms.claim import Claim
from dpaudit.mechanisms.clipping import wide
from dpaudit.training import per_example
from dpaudit.training.dp_sgd import Noise, Trainer, add_noise, noisy_sums
from dpaudit.training.sampling import Participation, Sampling

if TYPE_CHECKING:
    from dpaudit.training.matrix_noise import Strategy

SHIFTS = {"zero_out": 1, "replace": 2}  # how far one example moves a sum of clipped gradients, in clip norms


def dp_ftrl(
    loss_fn: Callable[..., jax.Array],
    *,
    strategy: "Strategy",
    clip_norm: Any,
    noise_multiplier: Any,
    batch_size: int,
    optimizer: optax.GradientTransformation,
    microbatch: int | None = None,
    dropout: bool = False,
    clipping: per_example.Clipping = per_example.flat,
) -> Trainer:
    """Returns a trainer whose round t releases (sum_i clip(g_i) + (C^-1 z)_t) / batch_size, z independent Gaussian.

    z has standard deviation clip_norm noise_multiplier sens(C), where sens(C) is the sensitivity of the strategy for
    its own participation pattern. With plain SGD the model is the noisy prefix sum of gradients; any other
    optimiser costs no privacy either.

    Args:
      strategy: the matrix C, from :mod:`dpaudit.training.matrix_noise`. Round t of the training is row t of C; a round
        past the last releases NaN, because no accounting covers it.
      noise_multiplier: as above, > 0.
      loss_fn, clip_norm, batch_size, optimizer, microbatch, dropout, clipping: as for
        :func:`dpaudit.training.dp_sgd.dp_sgd`.

    Returns:
      A :class:`dpaudit.training.dp_sgd.Trainer` for :func:`dpaudit.training.dp_sgd.train`, which refuses a sampling as
      :func:`refuse_more` does; its state holds the noise that later rounds cancel, which must stay as secret as the
      key.

    Raises:
      InputError: a value out of range; a loss that is no function; an optimizer that is not of optax.

    Source: Kairouz et al. 2021 (tree); Denisov et al. 2022 (any C).
    """
    clip_norm = _validate.positive(clip_norm=clip_norm)
    noise_multiplier = _validate.positive(noise_multiplier=noise_multiplier)
    trainer = noisy_sums(
        loss_fn,
        correlated(strategy, clip_norm * noise_multiplier * strategy.sensitivity(strategy.pattern)),
        clip_norm=clip_norm,
        batch_size=batch_size,
        optimizer=optimizer,
        microbatch=microbatch,
        dropout=dropout,
        clipping=clipping,
    )
    return trainer._replace(refuse=partial(refuse_more, strategy))


def refuse_more(strategy: "Strategy", sampling: Sampling) -> None:
    """Refuses a sampling whose examples take part more often, or with fewer rounds between, than the noise allows for.

    The noise is scaled to the strategy's pattern. For a sampling with another participation in n rounds, make the
    strategy for that, or replace its pattern: ``strategy._replace(pattern=sampling.participation(n))``.

    Raises:
      InputError: such a sampling; a schedule of fewer rounds than the strategy.
    """
    made_for = strategy.pattern
    given = sampling.participation(made_for.rounds)
    if given.most > made_for.most:
        raise _validate.expected("sampling", f"at most the {made_for.most} participations of the strategy", given.most)
    if given.most > 1 and given.separation < made_for.separation:
        wanted = f"at least the {made_for.separation} rounds between participations of the strategy"
        raise _validate.expected("sampling", wanted, given.separation)


def correlated(strategy: "Strategy", stddev: Any) -> Noise:
    """Returns noise C^-1 z over the rounds, z of standard deviation ``stddev``; NaN past the last round.

    It is drawn in the type of the sums, float32 or wider: noise of fewer digits would leave their last digits bare.
    """

    def init(params: Any) -> tuple[jax.Array, Any]:
        return jnp.int32(0), strategy.noising.init_multiply(_zeros(params))

    def add(key: jax.Array, total: Any, memory: tuple[jax.Array, Any]) -> tuple[Any, tuple[jax.Array, Any]]:
        t, past = memory
        noise, past = strategy.noising.multiply_next(add_noise(key, _zeros(total), stddev), past)
        accounted = t < strategy.pattern.rounds
        noisy = jax.tree.map(lambda leaf, noise: jnp.where(accounted, leaf + noise, jnp.nan), total, noise)
        return noisy, (t + 1, past)

    return Noise(init, add)


def epsilon(
    strategy: "Strategy",
    noise_multiplier: float,
    *,
    delta: float,
    participation: Participation | None = None,
    neighbouring: str = "zero_out",
) -> float:
    """Returns the epsilon of all rounds together, exactly that of one Gaussian release.

    Its multiplier is noise_multiplier sens(C, own pattern) / sens(C, participation), half of that for "replace".

    Args:
      strategy, noise_multiplier: as for :func:`dp_ftrl`.
      delta: in (0, 1).
      participation: that of the data's examples, ``sampling.participation(rounds)``; None for the strategy's own, to
        which :func:`dpaudit.training.dp_sgd.train` keeps; a loop that calls ``step`` has to do so itself.
        Fewer rounds are the first ones: what has been spent so far.
      neighbouring: "zero_out" or "replace".

    Returns:
      epsilon in nats.

    Raises:
      InputError: a value out of range.

    Source: Denisov et al. 2022; Balle and Wang 2018, Theorem 8.
    """
    noise_multiplier = _validate.positive(noise_multiplier=noise_multiplier)
    delta = _validate.open_unit(delta=delta)
    relative = _relative_sensitivity(strategy, participation, neighbouring)
    return float(dp_accounting.get_epsilon_gaussian(noise_multiplier / relative, delta))


def claim(
    strategy: "Strategy",
    noise_multiplier: float,
    *,
    participation: Participation | None = None,
    neighbouring: str = "zero_out",
) -> Claim:
    """Returns what all rounds together promise at every delta: a Gaussian curve with :func:`epsilon` as its points.

    Args:
      strategy, noise_multiplier, participation, neighbouring: as for :func:`epsilon`.

    Returns:
      A :meth:`dpaudit.Claim.gaussian`; "zero_out" is "add_remove" there: the example's gradients are present or
      absent.

    Raises:
      InputError: a value out of range.
    """
    noise_multiplier = _validate.positive(noise_multiplier=noise_multiplier)
    relative = _relative_sensitivity(strategy, participation, neighbouring)
    relation = "replace" if neighbouring == "replace" else "add_remove"
    return Claim.gaussian(relative / noise_multiplier, neighbouring=relation)


def noise_multiplier(
    strategy: "Strategy",
    target: float,
    *,
    delta: float,
    participation: Participation | None = None,
    neighbouring: str = "zero_out",
) -> float:
    """Returns the least noise multiplier that keeps ``target``, the inverse of :func:`epsilon`.

    Args:
      target: epsilon in nats, > 0.
      strategy, delta, participation, neighbouring: as for :func:`epsilon`.

    Raises:
      InputError: a value out of range.
    """
    target = _validate.positive(target=target)
    delta = _validate.open_unit(delta=delta)
    relative = _relative_sensitivity(strategy, participation, neighbouring)
    return float(dp_accounting.get_sigma_gaussian(target, delta)) * relative


def _relative_sensitivity(strategy: "Strategy", participation: Participation | None, neighbouring: str) -> float:
    shift = SHIFTS[_validate.one_of(SHIFTS, neighbouring=neighbouring)]
    asked = strategy.pattern if participation is None else participation
    return shift * strategy.sensitivity(asked) / strategy.sensitivity(strategy.pattern)


def _zeros(tree: Any) -> Any:
    return jax.tree.map(jnp.zeros_like, wide(tree))
