"""Arranges the ratings of many users in a few rectangles of similar users, so that the cost is linear in ratings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh

from dpaudit import _validate
from dpaudit._engine import worlds
from dpaudit.data.ratings import Ratings
from dpaudit.personalization.boundary.protocol import Devices, Select, each

NARROWEST = 4  # users with at most this many ratings share a bucket


class Users(NamedTuple):
    """The ratings of a batch of users, one row for each.

    Attributes:
      items: int32 ``[u, w]``; 0 where there is no rating.
      values: float32 ``[u, w]``; 0 where there is no rating.
      weights: float32 ``[u, w]``; 1 for a rating, 0 where there is none.
      index: int32 ``[u]``, the user that a row belongs to; -1 for padding, all of whose weights are 0.
    """

    items: jax.Array
    values: jax.Array
    weights: jax.Array
    index: jax.Array


def arranged(ratings: Ratings, *, buckets: Sequence[int] | None = None, rows: int = 1) -> tuple[Users, ...]:
    """Arranges every user's ratings in buckets of users with similarly many ratings.

    A user with n ratings is in the narrowest bucket of width >= n, and a user without ratings in the first; buckets
    without users are left out. By default users with up to 4, 8, 16, ... ratings share a bucket as wide as the longest
    of them needs, so less than half of every row is empty, except for the shortest users.

    Args:
      ratings: of all users.
      buckets: ascending widths, in ratings, to use instead.
      rows: pads every bucket to a multiple of this number of rows, for a mesh of devices or for batches.

    Returns:
      One batch of users for each width; a user's ratings are in the order of items.

    Raises:
      InputError: widths that do not ascend, or of which none holds the user with most ratings.
    """
    rows = _validate.at_least(1, rows=rows)
    counts = np.bincount(ratings.users, minlength=ratings.num_users)
    most = int(counts.max(initial=0))
    widths = _doubling(counts) if buckets is None else [_validate.at_least(1, buckets=width) for width in buckets]
    if not widths or np.any(np.diff(widths) <= 0):
        raise _validate.expected("buckets", "ascending widths", list(buckets or ()))
    if widths[-1] < most:
        raise _validate.expected("buckets", f"a last width >= {most}, the ratings of the user with most", widths[-1])
    kept, firsts, bucket = _by_user_and_item(ratings), np.cumsum(counts) - counts, np.searchsorted(widths, counts)
    found = []
    for number, width in enumerate(widths):
        members = np.flatnonzero(bucket == number)
        if len(members):
            padded = -(-len(members) // rows) * rows
            found.append(_bucket(*kept, members, firsts[members], counts[members], (padded, width)))
    return tuple(found)


@dataclass(frozen=True)
class Everybody:
    """Adds up the messages of users in buckets: ``everybody(key, model, buckets) -> total``, for a protocol.

    Attributes:
      devices: of one bucket.
    """

    devices: Devices

    def __call__(self, key: jax.Array, model: Any, buckets: Sequence[Users]) -> Any:
        def own(i: int) -> Any:
            return self.devices(jax.random.fold_in(key, i), model, buckets[i])

        total = own(0)
        for i in range(1, len(buckets)):
            total = worlds.after(total, lambda total, i=i: jax.tree.map(jnp.add, total, own(i)))
        return total

    @property
    def chunk(self) -> int:
        """The number of devices computed at a time."""
        return self.devices.chunk

    @property
    def mesh(self) -> Mesh | None:
        """The mesh that shares the devices."""
        return self.devices.mesh

    def in_chunks(self, chunk: int) -> "Everybody":
        """Returns the same devices, with at most ``chunk`` of them computed at a time."""
        return Everybody(self.devices.in_chunks(chunk))


def everybody(
    select: Select,
    compute: Callable[[jax.Array, Any, Users], Any],
    add: Callable[[Any, Any], Any],
    *,
    items: int,
    chunk: int,
    mesh: Mesh | None = None,
) -> Everybody:
    """Makes the devices of users in buckets, each of which first checks that its own row is :func:`sound`.

    Args:
      select, compute, add, chunk, mesh: as for :func:`dpaudit.personalization.boundary.protocol.each`.
      items: how many there are.
    """

    def own(user: Users) -> Users:
        return jax.tree.map(lambda leaf: leaf[0], sound(jax.tree.map(lambda leaf: leaf[None], user), items))

    looked = Select(lambda user: select.ask(own(user)), select.take)
    return Everybody(each(looked, lambda key, part, user: compute(key, part, own(user)), add, chunk=chunk, mesh=mesh))


def refuse_missing_items(buckets: Sequence[Users], **items: int) -> None:
    """Refuses tables with fewer items than the ratings have, whose users would lose all of theirs (:func:`sound`).

    Args:
      buckets: of :func:`arranged`; not looked at where JAX traces them.
      **items: by the name of the argument that has the tables, how many items they are of.

    Raises:
      InputError: fewer items than the ratings have.
    """
    ((name, count),) = items.items()
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(buckets)):
        return
    last = (int(jnp.max(jnp.where(users.weights > 0, users.items, -1), initial=-1)) for users in buckets)
    if count < (least := 1 + max(last, default=-1)):
        raise _validate.expected(name, f"at least {least} items, those of the ratings", count)


@jax.jit
def sound(users: Users, items: int) -> Users:
    """Removes the ratings of users whose rows are not as :func:`arranged` makes them.

    In a sound row, the places in use come first, items ascend without repetition and exist, and ratings are finite
    numbers. The others lose their ratings, because a broken device must not move a sum further than a sound one.

    Args:
      users: a batch.
      items: how many items there are.
    """
    present = users.weights > 0
    ascending = jnp.where(present[:, 1:], users.items[:, 1:] > users.items[:, :-1], True)
    in_front = present[:, :-1] >= present[:, 1:]
    known = (users.items >= 0) & (users.items < items) & jnp.isfinite(users.values)
    valid = jnp.all(ascending & in_front, axis=1) & jnp.all(known | ~present, axis=1)
    kept = present & valid[:, None]
    return Users(
        jnp.where(kept, users.items, 0), jnp.where(kept, users.values, 0), kept.astype(jnp.float32), users.index
    )


@partial(jax.jit, static_argnames="num_users")
def by_user(buckets: Sequence[Users], results: Sequence[jax.Array], num_users: int) -> jax.Array:
    """Puts results ``[u, ...]`` for the rows of each bucket in the order of users, ``[num_users, ...]``."""
    whole = jnp.zeros((num_users, *results[0].shape[1:]), results[0].dtype)
    for users, result in zip(buckets, results, strict=True):
        whole = whole.at[jnp.where(users.index < 0, num_users, users.index)].set(result, mode="drop")
    return whole


def _doubling(counts: np.ndarray) -> list[int]:
    """Returns the largest counts among users with up to 4, 5 to 8, 9 to 16, ... ratings."""
    octave = np.ceil(np.log2(np.maximum(counts, NARROWEST)))
    return [max(1, int(counts[octave == number].max())) for number in np.unique(octave)]


def _by_user_and_item(ratings: Ratings) -> tuple[np.ndarray, np.ndarray]:
    """Returns items and values in the order of users, and of items within a user."""
    place = ratings.users.astype(np.int64) * ratings.num_items + ratings.items
    if np.all(place[1:] > place[:-1]):
        return ratings.items, ratings.values
    order = np.argsort(place)
    return ratings.items[order], ratings.values[order]


def _bucket(
    items: np.ndarray,
    values: np.ndarray,
    members: np.ndarray,
    firsts: np.ndarray,
    counts: np.ndarray,
    shape: tuple[int, int],
) -> Users:
    """Puts the members' ratings, ``counts`` of them from ``firsts`` on, in the first rows of a rectangle."""
    places = np.arange(shape[1])
    present = np.zeros(shape, bool)
    present[: len(members)] = places < counts[:, None]
    taken = (firsts[:, None] + places)[present[: len(members)]]

    def filled(column: np.ndarray) -> jax.Array:
        out = np.zeros(shape, column.dtype)
        out[present] = column[taken]
        return jnp.asarray(out)

    index = np.full(shape[0], -1, np.int32)
    index[: len(members)] = members
    return Users(filled(items), filled(values), jnp.asarray(present.astype(np.float32)), jnp.asarray(index))
