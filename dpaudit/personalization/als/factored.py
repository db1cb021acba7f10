"""Trains factored models with any encoders, f(u(theta_u, x_u), v(theta_v, x_v)) = u' v, by alternating minimisation.

    model = Factored(items=lambda params, items: tower.apply(params["tower"], features[items]), precision=10.0)
    training = user_level.dp_sgd(loss(model), sampling=poisson(examples=users, batch_size=500), clip_norm=1.0, ...)
    state, _, transcript = run(key, training.protocol, *training.init(params), everyone(key, bucket), rounds=300)

A user's factor has a part of their own, which their device solves for exactly and keeps, and optionally a part that a
shared tower computes from their features. The towers are learned from all users, by steps along their clipped
gradients (:mod:`dpaudit.personalization.user_level`), and released. A shared user tower is in the same gradient as the
item tower and is released with the same noise; only the part that is solved for stays local.

Source: paper 004, "Factored models and DP alternating minimisation"; Jain et al. 2021 (the billboard model).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpaudit.personalization import user_level
from dpaudit.personalization.als import layout
from dpaudit.personalization.als.layout import Users
from dpaudit.personalization.als.solve import ridge


class Factored(NamedTuple):
    """Two encoders and the prior of users' own factors.

    Attributes:
      items: ``items(params, items) -> [w, r]``, encodings of items int32 [w]; its data about items are public.
      precision: of a user's own factor about the shared part, > 0, a number or [r]; infinity fixes it to that part.
      users: ``users(params, features) -> [r]``, of one user's features, or None for a shared part of 0.
    """

    items: Callable[[Any, jax.Array], jax.Array]
    precision: Any
    users: Callable[[Any, Any], jax.Array] | None = None


class Person(NamedTuple):
    """The data on one user's device.

    Attributes:
      ratings: a row, [w].
      features: x_u, a pytree; () for none.
    """

    ratings: Users
    features: Any


def everyone(key: jax.Array, ratings: Users, features: Any = ()) -> user_level.Users:
    """Makes users for :mod:`dpaudit.personalization.user_level`, each a single example: all their ratings.

    Args:
      key: JAX random key that cohorts are drawn with, consumed.
      ratings: one bucket that holds all users, ``arranged(ratings, buckets=[most])``.
      features: x_u, leaves [u, ...].
    """
    examples = jax.tree.map(lambda leaf: leaf[:, None], Person(ratings, features))
    return user_level.Users(examples, jnp.any(ratings.weights > 0, axis=1, keepdims=True).astype(jnp.float32), key)


def loss(model: Factored, *, items: int) -> Callable[[Any, Person], jax.Array]:
    """Makes ``loss(params, person)``: half the mean squared error of a user's ratings at their best factor.

    The factor is solved for and then kept constant, so that the gradient is that of the encoders only. A row that is
    not sound (:func:`dpaudit.personalization.als.layout.sound`) has no gradient.

    Args:
      model: encoders.
      items: how many there are.
    """

    def of(params: Any, person: Person) -> jax.Array:
        ratings = jax.tree.map(lambda leaf: leaf[0], layout.sound(_batch(person.ratings), items))
        encoded = model.items(params, ratings.items)
        shared = _shared(model, params, person.features, encoded.shape[-1])
        own = jax.lax.stop_gradient(_own(model, encoded, shared, ratings))
        left = ratings.weights * (ratings.values - encoded @ (shared + own))
        return 0.5 * jnp.sum(left**2) / jnp.maximum(jnp.sum(ratings.weights), 1)

    return of


def predicted(model: Factored, params: Any, person: Person, asked: jax.Array) -> jax.Array:
    """Predicts a user's ratings [k] of items int32 [k] on their device; map it over users."""
    encoded = model.items(params, person.ratings.items)
    shared = _shared(model, params, person.features, encoded.shape[-1])
    return model.items(params, asked) @ (shared + _own(model, encoded, shared, person.ratings))


def _own(model: Factored, encoded: jax.Array, shared: jax.Array, ratings: Users) -> jax.Array:
    """Solves argmin_u sum_j w_j (y_j - (shared + u)' v_j)^2 + precision |u|^2, in units where the precision is 1."""
    scale = jnp.broadcast_to(jnp.asarray(model.precision, jnp.float32), shared.shape) ** -0.5
    left = ratings.values - encoded @ shared
    found = ridge((encoded * scale)[None], left[None], ratings.weights[None], jnp.eye(len(scale)))
    return scale * found[0]


def _shared(model: Factored, params: Any, features: Any, rank: int) -> jax.Array:
    return jnp.zeros(rank) if model.users is None else model.users(params, features)


def _batch(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[None], tree)
