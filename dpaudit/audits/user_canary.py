"""Audits user-level trainings by canary users, for an adversary who reads the whole transcript.

Many trainings give the scores of two worlds by :func:`dpaudit.play`::

    recipe = Recipe(loss_fn, params, everyone, rounds=16, sampling=cohorts, clip_norm=0.3, noise_multiplier=1.0,
                    optimizer=optax.sgd(0.5), make=partial(dp_ftrl, strategy=strategy))
    seat = worst_user(recipe, strategy)
    scores = dpaudit.play(key, release(recipe, seat.user), statistic(recipe, strategy, seat), trials=100_000)
    shift(scores)                       # mu, with its standard error; accounted is 1/noise_multiplier

One training with canaries estimates mu with a known error::

    found, params = one_run(key, recipe, strategy, canaries=500, delta=1e-5, confidence=0.95)
    found.mu, found.epsilon_lower

The loss of a canary user's examples depends only on a parameter of their own. Their gradient is far longer than the
clip norm and orthogonal to everybody else's, which makes the canary the hardest user to hide. It goes through the same
cohorts, clipping, sums, noise and boundary as any other, so a fault in any of these shows.

Let Delta [rounds], of zeros and ones, be the known rounds in which the canary takes part. Its coordinate x of all
releases, in clip norms, is Delta + s C^-1 z, and T = <C Delta, C x>/(s |C Delta|) is the optimal statistic: N(0, 1)
without the canary and N(mu, 1) with it, mu = |C Delta|/s.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from dpaudit import _validate
from dpaudit.auditing.attacks.base import Distinguisher
from dpaudit.auditing.bounds import gdp
from dpaudit.audits.federated_canary import Estimate, estimate, linear, random_directions
from dpaudit.audits.training_canary import STRETCH
from dpaudit.mechanisms.claim import Claim, Mechanism
from dpaudit.personalization.boundary.aggregator import run
from dpaudit.personalization.boundary.transcript import Transcript, without_values
from dpaudit.personalization.user_level import NAME, Loss, Training, Users, clipped_sum, dp_ftrl
from dpaudit.training.sampling import Sampling

if TYPE_CHECKING:
    from dpaudit.training.matrix_noise import Strategy


class Recipe(NamedTuple):
    """The settings of a user-level training to audit.

    Attributes:
      loss_fn: ``loss_fn(params, example) -> scalar`` of ONE example.
      params: where training starts.
      users: all users (:class:`dpaudit.personalization.user_level.Users`); canaries take the places of some of them.
      rounds, sampling, clip_norm, noise_multiplier, optimizer: of the training.
      make: :func:`dpaudit.personalization.user_level.dp_sgd`, or ``dp_ftrl`` with a strategy; bind further settings by
        ``functools.partial``.
    """

    loss_fn: Loss
    params: Any
    users: Users
    rounds: int
    sampling: Sampling
    clip_norm: float
    noise_multiplier: float
    optimizer: optax.GradientTransformation
    make: Callable[..., Training] = dp_ftrl

    def training(self, loss_fn: Loss) -> Training:
        """Makes the training with this loss."""
        return self.make(
            loss_fn,
            sampling=self.sampling,
            clip_norm=self.clip_norm,
            noise_multiplier=self.noise_multiplier,
            optimizer=self.optimizer,
        )


class Seat(NamedTuple):
    """A user whose participation is known.

    Attributes:
      user: the number.
      taken: [rounds], 1 where the user takes part, else 0.
      length: |C taken|: how far the user moves the decorrelated releases, in clip norms.
    """

    user: int
    taken: np.ndarray
    length: float


class Shift(NamedTuple):
    """The distance between two worlds' scores, in standard deviations, with its standard error."""

    mu: float
    error: float


class _Row(NamedTuple):
    record: Any
    push: jax.Array  # 0 for a record, else the sign by which the example moves the canaries' parameter


def release(
    recipe: Recipe, user: int, *, crowd: bool = False, secret: bool = False
) -> Callable[[jax.Array, Any], Any]:
    """Makes a whole training a function of "is the canary there?", for :func:`dpaudit.play`.

    Args:
      recipe: of the training.
      user: whose place the canary takes.
      crowd: whether all other users move the canary's coordinate the other way.
      secret: whether cohorts are drawn anew from the key of each run; otherwise they are those of ``recipe.users``.

    Returns:
      ``release(key, present) -> [rounds]``: the coordinate of the canary's parameter in every release, in clip norms.

    Raises:
      InputError: a user that does not exist, or in whose place a canary would be dropped.
    """
    training, start, everyone = _planted(recipe, user, crowd)

    def one(key: jax.Array, present: Any) -> jax.Array:
        transcript = _played(key, recipe, training, start, _present(everyone, user, present), secret)
        return transcript.values(NAME)["canary"] / recipe.clip_norm

    return one


def worst_user(recipe: Recipe, strategy: "Strategy") -> Seat:
    """Finds the user whose participation, in the order of ``recipe.users``, moves the releases furthest.

    Args:
      recipe: of the training; its cohorts are public.
      strategy: C.

    Raises:
      InputError: more rounds than the strategy has.
    """
    table = takes_part(recipe, recipe.users)
    lengths = np.linalg.norm(_matrix(recipe, strategy) @ table, axis=0)
    user = int(lengths.argmax())
    return Seat(user, table[:, user], float(lengths[user]))


def statistic(recipe: Recipe, strategy: "Strategy", seat: Seat) -> Callable[[jax.Array], jax.Array]:
    """Makes T of a release: N(0, 1) without the canary, N(seat.length/s, 1) with it, s = noise_multiplier sens(C).

    Args:
      recipe, strategy: of the training.
      seat: of the canary, as from :func:`worst_user`.

    Raises:
      InputError: a seat that takes no part; more rounds than the strategy has.

    Source: the likelihood ratio of Gaussian releases (Neyman and Pearson).
    """
    matrix = _matrix(recipe, strategy)
    _validate.positive(length=seat.length)
    stddev = recipe.noise_multiplier * strategy.sensitivity(strategy.pattern)
    direction = jnp.asarray(matrix.T @ matrix @ seat.taken / (stddev * seat.length), jnp.float32)
    return lambda x: jnp.dot(x, direction, precision=jax.lax.Precision.HIGHEST)


def shift(scores: np.ndarray) -> Shift:
    """Estimates mu, the difference of the worlds' means over their standard deviation, for normal scores.

    Args:
      scores: [2, n], n >= 2.

    Returns:
      mu, and sqrt(2/n + mu^2/(4 n)), its standard error.

    Raises:
      InputError: scores of another shape, or that are not numbers; scores without noise.
    """
    scores = np.asarray(scores, np.float64)
    if scores.ndim != 2 or len(scores) != 2 or scores.shape[1] < 2:
        raise _validate.expected("scores", "those of two worlds, [2, n] with n >= 2", f"shape {list(scores.shape)}")
    without, present = _validate.finite(scores=scores)
    deviation = math.sqrt((without.var(ddof=1) + present.var(ddof=1)) / 2)
    mu = float((present.mean() - without.mean()) / _validate.positive(deviation=deviation))
    return Shift(mu, math.sqrt((2 + mu**2 / 4) / scores.shape[1]))


def mu_bounds(scores: np.ndarray, *, threshold: float, confidence: float) -> tuple[float, float]:
    """Bounds mu by how often scores exceed a threshold, without assumptions on the scores.

    Args:
      scores: [2, n].
      threshold: fixed in advance; half of the accounted mu is best for T.
      confidence: in (0, 1), of each bound.

    Returns:
      (lower, upper), as of :func:`dpaudit.auditing.bounds.gdp.mu_bounds`: a lower bound above the accounted mu shows a
      fault.

    Raises:
      InputError: scores that are not numbers; a confidence out of range.
    """
    scores = np.asarray(scores, np.float64)
    if np.isnan(scores).any():
        raise _validate.expected("scores", "numbers", f"{np.isnan(scores).sum()} NaN of {scores.size}")
    without, present = scores > threshold
    errors = int(without.sum()), int(np.sum(~present))
    lower, upper = gdp.mu_bounds(*errors, without.size, present.size, confidence=confidence)
    return float(lower), float(upper)


def in_crowd(recipe: Recipe, user: int, *, delta: float | None = None) -> Mechanism:
    """Makes a training whose users all move one coordinate one way, except the canary, who moves it the other way.

    If users take part in a fixed order, with equally many in every round, the canary's round visibly lacks one
    contribution, even to those who do not know the order. Random sampling hides it, because the size of a round
    varies.

    Args:
      recipe: of the training.
      user: whose place the canary takes.
      delta: in (0, 1), of the claim; None claims the whole accounted curve.

    Returns:
      A :class:`dpaudit.Mechanism` of "is the canary there?", 0 or 1, that releases [rounds]; its claim is the
      accounting of one run's transcript. :data:`largest` is the distinguisher to use.

    Raises:
      InputError: a value out of range.

    Source: Chua et al. 2024, "How Private are DP-SGD Implementations?", Section 4 (shuffled batches).
    """
    training, start, everyone = _planted(recipe, user, crowd=True)
    played = without_values(
        lambda key: _played(key, recipe, training, start, everyone, secret=True), jax.random.key(0)
    )
    if delta is None:
        claim = played.claim()
    else:
        claim = Claim(played.epsilon(delta, users=len(everyone.weights)), delta, "add_remove")
    return Mechanism(release(recipe, user, crowd=True, secret=True), claim)


largest = Distinguisher(lambda key, mechanism, x0, x1: jnp.max, None)  # scores a release by its largest round


def _planted(recipe: Recipe, user: int, crowd: bool) -> tuple[Training, Any, Users]:
    """Returns the training with the canaries' parameter, its initial parameters, and all users with the canary."""
    n, width = recipe.users.weights.shape
    if _validate.at_least(0, user=user) >= n:
        raise _validate.expected("user", f"one of 0..{n - 1}", user)
    push = jnp.full((n, width), -1.0 if crowd else 0.0).at[user].set(1.0)
    everyone = recipe.users._replace(
        examples=_Row(recipe.users.examples, push),
        weights=recipe.users.weights.at[user].set(1.0),
    )
    length = STRETCH * recipe.clip_norm

    def loss(params: Any, row: _Row) -> jax.Array:
        own = length * row.push * params["canary"]
        return jnp.where(row.push == 0, recipe.loss_fn(params["network"], row.record), own)

    start = {"network": recipe.params, "canary": jnp.zeros(())}
    own = jax.tree.map(lambda leaf: leaf[user][None], (everyone.examples, everyone.weights))
    alone = jax.jit(partial(clipped_sum, loss, clip_norm=recipe.clip_norm, mean=True, most=1))
    if alone(start, *own)["canary"] == 0:  # a gradient that is not finite is dropped as a whole
        wanted = f"examples of user {user}, padding included, with a finite gradient at params"
        raise _validate.expected("users", wanted, "some whose gradient training drops, with the canary's")
    return recipe.training(loss), start, everyone


def _present(everyone: Users, user: int, present: Any) -> Users:
    return everyone._replace(weights=everyone.weights.at[user].mul(present))


def _played(
    key: jax.Array, recipe: Recipe, training: Training, start: Any, everyone: Users, secret: bool
) -> Transcript:
    run_key, cohort_key = jax.random.split(key)
    if secret:
        everyone = everyone._replace(cohorts=cohort_key)
    return run(run_key, training.protocol, *training.init(start), everyone, recipe.rounds)[2]


def takes_part(recipe: Recipe, everyone: Users) -> np.ndarray:
    """Returns who takes part, [rounds, n] of ones and zeros.

    Raises:
      InputError: a recipe without rounds.
    """
    _validate.at_least(1, rounds=recipe.rounds)
    drawn, present = jax.vmap(partial(recipe.sampling.draw, everyone.cohorts))(jnp.arange(recipe.rounds))
    table = np.zeros((recipe.rounds, len(everyone.weights)))
    np.maximum.at(table, (np.arange(recipe.rounds)[:, None], np.asarray(drawn)), np.asarray(present))
    return table


def one_run(
    key: jax.Array, recipe: Recipe, strategy: "Strategy", *, canaries: int, delta: float, confidence: float
) -> tuple[Estimate, Any]:
    """Trains once with k canaries among the users, each with a random direction as its gradient, and estimates mu.

    Directions c_j are uniform on the sphere of all D parameters. With Y_j = sum_t (C Delta_j)_t (C g)_t of releases
    g, sqrt(D) <c_j, Y_j>/|Y_j| is N(0, 1) for a direction that had no part, whatever the data and the model. For a
    canary it is N(|C Delta_j|/s, 1), as long as k is far below s^2 D, because nearly all of Y_j is then noise.

    Args:
      key: JAX random key, consumed.
      recipe: of the training; the last k of its users are canaries.
      strategy: C; for :func:`dpaudit.personalization.user_level.dp_sgd` it is
        :func:`dpaudit.training.matrix_noise.independent`.
      canaries: k >= 1.
      delta: in (0, 1), of the epsilons.
      confidence: in (0, 1), of each bound.

    Returns:
      (estimate, params): mu, with its bounds, of the participation that the strategy is made for, if the noise is
      Gaussian and the adversary knows the rounds of a user; and the trained model.

    Raises:
      InputError: a value out of range; a run in which no canary took part; more rounds than the strategy has, or than
        the training accounts; releases that are not numbers.

    Source: Andrew et al. 2023, "One-shot Empirical Privacy Estimation for Federated Learning", Algorithm 1, with the
    known variance of absent canaries' cosines, and correlated noise.
    """
    direction_key, run_key = jax.random.split(_validate.key(key=key))
    if _validate.at_least(1, canaries=canaries) > len(recipe.users.weights):
        raise _validate.expected("canaries", f"at most the {len(recipe.users.weights)} users", canaries)
    directions = random_directions(direction_key, recipe.params, canaries)
    training = _with_directions(recipe, directions)
    everyone, planted = _last_as_canaries(recipe.users, canaries)
    state, _, transcript = run(
        run_key, training.protocol, *training.init(recipe.params), (everyone, planted), recipe.rounds
    )
    moved = _matrix(recipe, strategy) @ takes_part(recipe, planted)[:, -canaries:]
    if not moved.any():
        raise _validate.expected("canaries", "enough of them that some take part", canaries)
    transcript.event()  # refuses rounds that have no accounting
    scores, lengths = _scores(directions, transcript, strategy, moved)
    whole = np.sum(lengths**2)
    worst = strategy.sensitivity(strategy.pattern)
    mu, error = worst * np.sum(lengths * scores) / whole, worst / math.sqrt(whole)
    return estimate(float(mu), error, delta, confidence), state.params


def _matrix(recipe: Recipe, strategy: "Strategy") -> np.ndarray:
    """Returns the rows and columns of C of the recipe's rounds."""
    if _validate.at_least(1, rounds=recipe.rounds) > strategy.pattern.rounds:
        raise _validate.expected("rounds", f"at most the {strategy.pattern.rounds} of the strategy", recipe.rounds)
    return strategy.matrix()[: recipe.rounds, : recipe.rounds]


def _with_directions(recipe: Recipe, directions: Any) -> Training:
    """Makes the training of two kinds of users in the same cohorts: ordinary ones and canaries."""

    def of_canary(params: Any, number: jax.Array) -> jax.Array:
        own = jax.tree.map(lambda leaf: leaf[number], directions)
        return STRETCH * recipe.clip_norm * linear(params, own)

    ordinary, planted = recipe.training(recipe.loss_fn), recipe.training(of_canary)

    def devices(key: jax.Array, model: Any, both: tuple[Users, Users]) -> Any:
        (total, round), (more, _) = (
            training.protocol.devices(key, model, kind)
            for training, kind in zip((ordinary, planted), both, strict=True)
        )
        return jax.tree.map(jnp.add, total, more), round

    return ordinary._replace(protocol=ordinary.protocol._replace(devices=devices))


def _last_as_canaries(everyone: Users, canaries: int) -> tuple[Users, Users]:
    n = len(everyone.weights)
    number = jnp.arange(n) - (n - canaries)
    ordinary = everyone._replace(weights=jnp.where(number[:, None] < 0, everyone.weights, 0.0))
    planted = Users(jnp.maximum(number, 0)[:, None], (number >= 0).astype(jnp.float32)[:, None], everyone.cohorts)
    return ordinary, planted


def _scores(
    directions: Any, transcript: Transcript, strategy: "Strategy", moved: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Computes sqrt(D) <c_j, Y_j>/|Y_j| and |C Delta_j|, [k] each, by inner products in float64."""
    c, g = (
        np.asarray(jax.vmap(lambda tree: ravel_pytree(tree)[0])(tree), np.float64)
        for tree in (directions, transcript.values(NAME))
    )
    _validate.finite(releases=g)
    matrix = strategy.matrix()[: len(g), : len(g)]
    weight = matrix.T @ moved  # of round t's release in Y_j, [rounds, k]
    lengths = np.linalg.norm(moved, axis=0)
    along = np.sum(weight * (g @ c.T), axis=0)
    size = np.sqrt(np.sum(weight * (g @ g.T @ weight), axis=0))
    return np.where(size > 0, math.sqrt(c.shape[1]) * along / np.where(size > 0, size, 1.0), 0.0), lengths
