"""Descends along gradients of factored models without noise and without clipping, until other ratings stop improving.

It is what gradient steps reach where nothing is private. As in user-level DP-SGD
(:func:`experiments.paper004.methods.gradient_steps`), users' own halves are solved for, and item factors follow the
gradient; here it is of all ratings at once, by Adam. A tenth of the ratings is not learned from, and tells when to
stop.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpaudit.data.ratings import Ratings, split
from dpaudit.personalization.als import metrics, recommender, steps
from dpaudit.personalization.als.layout import Users, arranged
from dpaudit.personalization.als.steps import Model

EVERY, PATIENCE, MOST = 10, 5, 300  # steps between looks, looks without improvement, looks in all


def descended(key: jax.Array, train: Ratings, model: Model, choice: Mapping[str, Any]) -> Model:
    """Returns the model whose item factors are best for ratings that were not learned from.

    Args:
      key: JAX random key, consumed.
      train: ratings of all users.
      model: the first, with the factors to begin at.
      choice: ``learning_rate`` of Adam; ``decay``, the weight of the squared length of factors beside squared errors.
    """
    learned, watched = split(train, fractions=(0.9, 0.1), seed=int(jax.random.randint(key, (), 0, 1 << 30)))
    (rows,) = arranged(learned, buckets=[int(np.bincount(learned.users).max())])
    rule = optax.adam(choice["learning_rate"])
    state, best, least, since = (model.factors, rule.init(model.factors)), model, np.inf, 0
    for _ in range(MOST):
        state = _steps(rule, rows, model, choice["decay"], state)
        now = model._replace(factors=state[0])
        own = metrics.own_factors(now, (rows,), recommender.PLAIN, num_users=train.num_users)
        error = metrics.rmse(now, own, watched)
        since = 0 if error < least else since + 1
        best, least = (now, error) if error < least else (best, least)
        if since == PATIENCE:
            break
    return best


@partial(jax.jit, static_argnums=0)
def _steps(rule: Any, rows: Users, model: Model, decay: float, state: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
    def error(factors: jax.Array) -> jax.Array:
        fixed = model._replace(factors=jax.lax.stop_gradient(factors))
        own = steps.solved(recommender.PLAIN, steps.common(fixed), steps.taken(fixed, rows.items), rows)
        slices = steps.taken(model._replace(factors=factors), rows.items)
        told = jnp.einsum("uwz,uz->uw", jnp.concatenate([slices.public, slices.factors], axis=-1), own)
        squares = jnp.sum(rows.weights * (rows.values - told) ** 2) + decay * jnp.sum(factors**2)
        return squares / jnp.sum(rows.weights)

    def step(state: tuple[jax.Array, Any], _: None) -> tuple[tuple[jax.Array, Any], None]:
        factors, kept = state
        change, kept = rule.update(jax.grad(error)(factors), kept)
        return (factors + change, kept), None

    return jax.lax.scan(step, state, None, length=EVERY)[0]
