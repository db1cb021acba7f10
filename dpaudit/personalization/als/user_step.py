"""The devices' half of alternating minimisation: a user's own factor, and the statistics of it that leave the device.

With the item factors of the last round, z_j = (x_j, v_j) of item j, x_j a public part that everybody holds and v_j
the learned one, a device finds its user's factor exactly,

    u_i = argmin_u sum_j (y_ij - u' z_j)^2 + a_0 sum_all_j (u' z_j)^2 + (u - m)' diag(p) (u - m),

and sends, with w_ij its weights, u_v the part of u_i that belongs to v_j, clipped to |u_v| <= L, and u_x the rest,

    A_j = w_ij u_v u_v',     b_j = w_ij clip(y_ij - u_x' x_j, Y) u_v,     G = u_v u_v'.

Since sum_j w_ij^2 <= 1, one user moves all A_j together by at most L^2, all b_j by Y L, and G by L^2. The factor
itself is never released.

Source: Chien et al. 2021, Algorithm 1 (the user step); paper 004, "factored models".
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpaudit.mechanisms.clipping import einsum, factor, wide
from dpaudit.personalization.als import solve
from dpaudit.personalization.als.layout import Users
from dpaudit.personalization.als.popularity import Rule
from dpaudit.personalization.als.solve import ridge


class Model(NamedTuple):
    """What the server broadcasts, and all that a device needs for predictions.

    Attributes:
      public: x, [m, p], features of items as a user's own model sees them; a column of ones is an intercept.
      factors: v, [m, r], learned.
      popularity: [m], noisy counts that were released; zeros before that.
      mean: m, [p + r], of a user's factor beforehand.
      precision: p, [p + r], > 0, of the same in units of one rating's; infinity pins a coordinate to its mean.
    """

    public: jax.Array
    factors: jax.Array
    popularity: jax.Array
    mean: jax.Array
    precision: jax.Array


class Step(NamedTuple):
    """What is the same for all devices.

    Attributes:
      factor_norm: L, > 0.
      rating_clip: Y, > 0, the largest size of what is left of a rating.
      weights: of ratings (:mod:`dpaudit.personalization.als.popularity`).
      unobserved: a_0, >= 0, the weight of "no rating" as a rating of 0; 0 for ratings proper.
    """

    factor_norm: float
    rating_clip: float
    weights: Rule
    unobserved: float = 0.0


class Common(NamedTuple):
    """What all devices download.

    Attributes:
      mean, precision: as the model's.
      everywhere: sum_j z_j z_j' of all items, [p + r, p + r].
    """

    mean: jax.Array
    precision: jax.Array
    everywhere: jax.Array


class Slice(NamedTuple):
    """What one device downloads of the items that its user rated.

    Attributes:
      public: x, [w, p].
      factors: v, [w, r].
      popularity: [w].
    """

    public: jax.Array
    factors: jax.Array
    popularity: jax.Array


class Statistics(NamedTuple):
    """What devices send of each item, or the aggregator's sums of it.

    Attributes:
      gram: A_j, [w, r (r + 1)/2], packed (:mod:`dpaudit.personalization.als.solve`).
      moment: b_j, [w, r].
      users: G, [r (r + 1)/2], packed.
    """

    gram: jax.Array
    moment: jax.Array
    users: jax.Array


def embedded(model: Model) -> jax.Array:
    """z of every item, [m, p + r]."""
    return jnp.concatenate([model.public, model.factors], axis=1)


def common(model: Model) -> Common:
    """What the distributor sends to all devices."""
    embedding = embedded(model)
    return Common(model.mean, model.precision, einsum("ja,jb->ab", embedding, embedding))


def taken(model: Model, items: jax.Array) -> Slice:
    """What the distributor sends to the devices that ask for these items, int32 [..., w]."""
    return Slice(model.public[items], model.factors[items], model.popularity[items])


def solved(step: Step, shared: Common, slices: Slice, users: Users) -> jax.Array:
    """Every user's own factor u, [u, p + r], exact; without ratings the mean, or what ``unobserved`` makes of it.

    Args:
      step, shared: the same for all.
      slices: of each user's device, leaves [u, w, ...].
      users: sound ones.
    """
    scale = shared.precision**-0.5  # 0 where pinned: coordinates in units of their own standard deviation
    prior = jnp.eye(len(scale)) + step.unobserved * shared.everywhere * scale[:, None] * scale
    pull = -step.unobserved * scale * einsum("ab,b->a", shared.everywhere, shared.mean)
    embedding = jnp.concatenate([slices.public, slices.factors], axis=-1)
    left = users.values - einsum("uwa,a->uw", embedding, shared.mean)
    return shared.mean + scale * ridge(embedding * scale, left, users.weights, prior, pull)


def statistics(step: Step, shared: Common, slices: Slice, users: Users) -> Statistics:
    """What the devices of sound users send, leaves [u, w, ...]."""
    own = solved(step, shared, slices, users)
    public = slices.public.shape[-1]
    learned = wide(own[:, public:])
    norms = jnp.linalg.norm(learned, axis=1, keepdims=True)
    usable = jnp.isfinite(norms) & jnp.any(users.weights > 0, axis=1, keepdims=True)
    learned = jnp.where(usable, learned * factor(norms, step.factor_norm), 0)
    left = users.values - einsum("uwp,up->uw", slices.public, own[:, :public])
    left = jnp.clip(jnp.nan_to_num(left), -step.rating_clip, step.rating_clip)
    weights = jax.vmap(step.weights)(slices.popularity, users.weights)
    square = solve.packed_square(learned)
    return Statistics(weights[..., None] * square[:, None], (weights * left)[..., None] * learned[:, None], square)


def added(total: Statistics, items: jax.Array, messages: Statistics) -> Statistics:
    """The aggregator's sums: ``total`` and what devices sent of their items, int32 [u, w].

    User by user: a scatter of few rows at a time is done in place, six times as fast on a CPU as one of all rows.
    """

    def add(total: Statistics, sent: tuple[jax.Array, Statistics]) -> tuple[Statistics, None]:
        rows, message = sent
        gram, moment = total.gram.at[rows].add(message.gram), total.moment.at[rows].add(message.moment)
        return Statistics(gram, moment, total.users + message.users), None

    return jax.lax.scan(add, total, (items, messages))[0]
