"""Evaluates a model on held-out ratings, with users' factors computed from their other ratings as on their devices.

Both metrics use the users' data without noise. They are for experiments and are not private.
"""

from typing import Any

import jax
import numpy as np

from dpaudit import _validate
from dpaudit._engine import worlds
from dpaudit.data.ratings import Ratings
from dpaudit.personalization.als import steps
from dpaudit.personalization.als.layout import Users, by_user, sound
from dpaudit.personalization.als.steps import Model, Step


def own_factors(model: Model, history: tuple[Users, ...], step: Step, *, num_users: int) -> jax.Array:
    """Computes every user's factor, [num_users, p + r], as their device does; the mean for users without ratings."""
    found = []
    for users in history:
        rows = sound(users, len(model.factors))
        own = steps.solved(step, steps.common(model), steps.taken(model, rows.items), rows)
        found.append(worlds.waited_for(own))
    return by_user(history, found, num_users)


def rmse(model: Model, factors: Any, held_out: Ratings) -> float:
    """Computes the root mean squared error of the held-out ratings, predictions clipped to their scale.

    Raises:
      InputError: a model or factors that are not finite; nothing held out; factors of another number of users.
    """
    embedding, factors = _sound(model, factors, held_out)
    rows = factors[held_out.users], embedding[held_out.items]
    predicted = np.clip(np.einsum("nz,nz->n", *rows), held_out.low, held_out.high)
    return float(np.sqrt(np.mean((predicted - held_out.values) ** 2)))


def recall(model: Model, factors: Any, seen: Ratings, held_out: Ratings, *, k: int = 20) -> float:
    """Computes recall@k: the mean over users of the share of held-out items (k at most) among the first k.

    Items that a user has rated before are not ranked. Users without held-out ratings do not count.

    Raises:
      InputError: a model or factors that are not finite, which rank nothing; nothing held out; k out of range.

    Source: Liang et al. 2018 (recall@k as published for MovieLens-20M).
    """
    k = _validate.at_least(1, k=k)
    embedding, factors = _sound(model, factors, held_out)
    wanted = [np.array([], int)] * held_out.num_users
    for user, items in _grouped(held_out):
        wanted[user] = items
    known = dict(_grouped(seen))
    found = []
    for user, items in enumerate(wanted):
        if len(items):
            scores = embedding @ factors[user]
            scores[known.get(user, [])] = -np.inf
            first = np.argpartition(-scores, min(k, len(scores) - 1))[:k]
            found.append(len(np.intersect1d(first, items)) / min(k, len(items)))
    return float(np.mean(found))


def _sound(model: Model, factors: Any, held_out: Ratings) -> tuple[np.ndarray, np.ndarray]:
    """Returns (embedding of items, users' factors), if they can be evaluated on what is held out."""
    if not len(held_out.values):
        raise _validate.expected("held_out", "at least one rating", "none")
    if len(factors) != held_out.num_users:
        raise _validate.expected("factors", f"a row for each of {held_out.num_users} users", f"{len(factors)} rows")
    embedding = np.asarray(steps.embedded(model), np.float64)
    return _validate.finite(model=embedding), np.asarray(_validate.finite(factors=factors))


def _grouped(ratings: Ratings) -> list[tuple[int, np.ndarray]]:
    order = np.argsort(ratings.users, kind="stable")
    users, firsts = np.unique(ratings.users[order], return_index=True)
    return list(zip(users.tolist(), np.split(ratings.items[order], firsts[1:]), strict=False))  # no users: one part
