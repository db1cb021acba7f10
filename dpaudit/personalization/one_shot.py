"""Canary users in a single training: what its transcript tells of them, with an error that is known.

found, params = one_run(key, recipe, strategy, canaries=500, delta=1e-5, confidence=0.95)
found.mu, found.epsilon_lower
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpaudit import check
from dpaudit.federated.canary import Estimate, estimate, linear, random_directions
from dpaudit.personalization.boundary import run
from dpaudit.personalization.canary import Recipe, takes_part
from dpaudit.personalization.transcript import Transcript
from dpaudit.personalization.user_level import NAME, Training, Users
from dpaudit.training.canary import STRETCH
from dpaudit.training.matrix_noise import Strategy


def one_run(
    key: jax.Array, recipe: Recipe, strategy: Strategy, *, canaries: int, delta: float, confidence: float
) -> tuple[Estimate, Any]:
    """Trains once, with k canaries among the users, each of whose gradients is a direction of its own, and finds mu.

    Directions c_j are uniform on the sphere of all D parameters. With Y_j = sum_t (C Delta_j)_t (C g)_t of releases
    g, sqrt(D) <c_j, Y_j>/|Y_j| is N(0, 1) for a direction that had no part, whatever the data and the model, and
    N(|C Delta_j|/s, 1) for a canary, as nearly all of Y_j is noise: while k is far below s^2 D.

    Args:
      key: JAX random key, consumed.
      recipe: of the training; the last k of its users are canaries.
      strategy: C; for :func:`dpaudit.personalization.user_level.dp_sgd` that of
        :func:`dpaudit.training.matrix_noise.independent`.
      canaries: k >= 1.
      delta: in (0, 1), of the epsilons.
      confidence: in (0, 1), of each bound.

    Returns:
      (estimate, params): mu of the participation that the strategy is made for, if the noise is Gaussian, with its
      bounds, for an adversary who knows the rounds of a user; and the trained model.

    Raises:
      InputError: a value out of range; a run in which no canary took part.

    Source: Andrew et al. 2023, "One-shot Empirical Privacy Estimation for Federated Learning", Algorithm 1, with the
    variance of absent canaries' cosines as it is known, and correlated noise.
    """
    direction_key, run_key = jax.random.split(check.key(key=key))
    if check.at_least(1, canaries=canaries) > len(recipe.users.weights):
        raise check.expected("canaries", f"at most the {len(recipe.users.weights)} users", canaries)
    directions = random_directions(direction_key, recipe.params, canaries)
    training = _with_directions(recipe, directions)
    everyone, planted = _last_as_canaries(recipe.users, canaries)
    state, _, transcript = run(
        run_key, training.protocol, *training.init(recipe.params), (everyone, planted), recipe.rounds
    )
    moved = strategy.matrix()[: recipe.rounds, : recipe.rounds] @ takes_part(recipe, planted)[:, -canaries:]
    if not moved.any():
        raise check.expected("canaries", "so many that some take part", canaries)
    scores, lengths = _scores(directions, transcript, strategy, moved)
    whole = np.sum(lengths**2)
    worst = strategy.sensitivity(strategy.pattern)
    mu, error = worst * np.sum(lengths * scores) / whole, worst / math.sqrt(whole)
    return estimate(float(mu), error, delta, confidence), state.params


def _with_directions(recipe: Recipe, directions: Any) -> Training:
    """The training of two kinds of users, everybody else and canaries, of the same cohorts."""

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
    directions: Any, transcript: Transcript, strategy: Strategy, moved: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """sqrt(D) <c_j, Y_j>/|Y_j| and |C Delta_j|, [k] each; from inner products alone, in float64."""
    c, g = (
        np.asarray(jax.vmap(lambda tree: ravel_pytree(tree)[0])(tree), np.float64)
        for tree in (directions, transcript.values(NAME))
    )
    matrix = strategy.matrix()[: len(g), : len(g)]
    weight = matrix.T @ moved  # of round t's release in Y_j, [rounds, k]
    lengths = np.linalg.norm(moved, axis=0)
    along = np.sum(weight * (g @ c.T), axis=0)
    size = np.sqrt(np.sum(weight * (g @ g.T @ weight), axis=0))
    return np.where(size > 0, math.sqrt(c.shape[1]) * along / np.where(size > 0, size, 1.0), 0.0), lengths
