"""Computes the two steps of alternating minimisation: users' factors on their devices, item factors on the server.

**The user step.** With the item factors of the last round, z_j = (x_j, v_j) of item j, where x_j is a public part that
everybody has and v_j the learned one, a device solves for its user's factor exactly,

    u_i = argmin_u sum_j (y_ij - u' z_j)^2 + a_0 sum_all_j (u' z_j)^2 + (u - m)' diag(p) (u - m).

With weights w_ij (:func:`uniform`, :func:`tail`, :func:`adaptive`), u_v the part of u_i that belongs to v_j, clipped
to |u_v| <= L, and u_x the rest, it sends

    A_j = w_ij u_v u_v',     b_j = w_ij clip(y_ij - u_x' x_j, Y) u_v,     G = u_v u_v'.

Since sum_j w_ij^2 <= 1, one user moves all A_j together by at most L^2, all b_j by Y L, and G by L^2. The same holds
where the vector of all w_ij (y_ij - u_x' x_j) is clipped to the norm Y instead (``together``). A typical user's
is much shorter than the largest single rest, so Y can be smaller, and the noise with it. The factor itself is never
released.

**The item step.** The devices' ratings of item j give b_j = A_j v_j + noise, A_j = sum_i w_ij u_i u_i',
b_j = sum_i w_ij y_ij u_i. To a server that knows only the released A_j and b_j, this is a linear regression with noise
of covariance

    s_w A_j + s_b^2 I,

s_w the variance of the ratings times a typical weight, s_b the standard deviation of the release's noise. With the
prior v_j ~ N(W' x_j, diag(lambda)), x_j the public features of item j, the most likely W and then every v_j have
closed forms. Computing with released statistics costs no privacy, so the item step is exact.

**Unobserved items.** Where they count, the server takes A_j + a_0 G in place of A_j. Without a public part x_j, and up
to the weights w_ij and clipping, that minimises the user step's objective over v_j. With one, such as an intercept, it
is an approximation: in u_i' z_j = u_x' x_j + u_v' v_j the public part of an item that was not rated is no 0, and the
minimum has, beside b_j,

    -a_0 sum_i (u_x' x_j) u_v = -a_0 (sum_i u_v u_x') x_j,

whose sum over users no device sends: it would be one more statistic in the same mu^2. With it every step lowers the
objective; without it an item step may raise it.

Source: Chien et al. 2021, "Private Alternating Least Squares", Algorithm 1 and Section 4 (uniform and tail weights);
Krichene et al. 2023, arXiv 2302.07975 (adaptive weights, public features); paper 004, "factored models".
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpaudit import _validate
from dpaudit.mechanisms.clipping import clip, einsum, factor, wide
from dpaudit.personalization.als import solve
from dpaudit.personalization.als.layout import Users
from dpaudit.personalization.als.solve import ridge, spectrum

LEAST = 1e-15  # the smallest norm whose square is still a normal float32

Rule = Callable[[jax.Array, jax.Array], jax.Array]


class Model(NamedTuple):
    """The server's broadcast, with all that a device needs for predictions.

    Attributes:
      public: x, [m, p], features of items as a user's own model sees them; a column of ones is an intercept.
      factors: v, [m, r], learned.
      popularity: [m], noisy counts that were released; zeros before.
      mean: m, [p + r], the prior mean of a user's factor.
      precision: p, [p + r], > 0, its prior precision in units of one rating's; infinity fixes a coordinate to its
        mean.
    """

    public: jax.Array
    factors: jax.Array
    popularity: jax.Array
    mean: jax.Array
    precision: jax.Array


def widened(model: Model, own: jax.Array) -> Model:
    """Returns the model with more factors, all 0, of which every user has ``own``, [k], exactly."""

    def beside(first: jax.Array, more: jax.Array, axis: int = 0) -> jax.Array:
        return jnp.concatenate([first, more], axis, dtype=first.dtype)

    return model._replace(
        factors=beside(model.factors, jnp.zeros((len(model.factors), len(own))), 1),
        mean=beside(model.mean, own),
        precision=beside(model.precision, jnp.full(len(own), jnp.inf)),
    )


class Step(NamedTuple):
    """The settings that all devices share.

    Attributes:
      factor_norm: L, > 0.
      rating_clip: Y, > 0, the largest absolute rest of a rating.
      weights: the weights of a user's ratings.
      unobserved: a_0, >= 0, the weight of "no rating" as a rating of 0; 0 to use ratings only.
      together: whether Y is the norm of all of a user's weighted rests, and not the size of each.
    """

    factor_norm: float
    rating_clip: float
    weights: Rule
    unobserved: float = 0.0
    together: bool = False


class Common(NamedTuple):
    """The part of a download that is the same for all devices.

    Attributes:
      mean, precision: as the model's.
      everywhere: sum_j z_j z_j' of all items, [p + r, p + r].
    """

    mean: jax.Array
    precision: jax.Array
    everywhere: jax.Array


class Slice(NamedTuple):
    """The part of a download that is about the items which the device's user rated.

    Attributes:
      public: x, [w, p].
      factors: v, [w, r].
      popularity: [w].
    """

    public: jax.Array
    factors: jax.Array
    popularity: jax.Array


class Statistics(NamedTuple):
    """A device's message about each item, or the aggregator's sums of them.

    Attributes:
      gram: A_j, [w, r (r + 1)/2], packed (:mod:`dpaudit.personalization.als.solve`).
      moment: b_j, [w, r].
      users: G, [r (r + 1)/2], packed.
    """

    gram: jax.Array
    moment: jax.Array
    users: jax.Array


def embedded(model: Model) -> jax.Array:
    """Returns z of every item, [m, p + r]."""
    return jnp.concatenate([model.public, model.factors], axis=1)


def common(model: Model) -> Common:
    """Computes what the distributor sends to all devices."""
    embedding = embedded(model)
    return Common(model.mean, model.precision, einsum("ja,jb->ab", embedding, embedding))


def taken(model: Model, items: jax.Array) -> Slice:
    """Returns what the distributor sends to the devices that ask for these items, int32 [..., w]."""
    return Slice(model.public[items], model.factors[items], model.popularity[items])


def solved(step: Step, shared: Common, slices: Slice, users: Users) -> jax.Array:
    """Solves for every user's own factor u, [u, p + r]; it is the prior mean without ratings.

    Args:
      step, shared: the same for all.
      slices: of each user's device, leaves [u, w, ...].
      users: sound ones.
    """
    scale = shared.precision**-0.5  # 0 where pinned: coordinates in units of their own standard deviation
    prior = jnp.eye(len(scale), dtype=scale.dtype) + step.unobserved * shared.everywhere * scale[:, None] * scale
    pull = -step.unobserved * scale * einsum("ab,b->a", shared.everywhere, shared.mean)
    embedding = jnp.concatenate([slices.public, slices.factors], axis=-1)
    left = users.values - einsum("uwa,a->uw", embedding, shared.mean)
    return shared.mean + scale * ridge(embedding * scale, left, users.weights, prior, pull)


def solved_alone(step: Step, shared: Common, slices: Slice, user: Users) -> jax.Array:
    """Solves for one sound user's own factor, [p + r]; mapped over users, it calls :func:`solved` once for all."""

    @jax.custom_batching.custom_vmap
    def of_one(shared: Common, slices: Slice, user: Users) -> jax.Array:
        slices, users = jax.tree.map(lambda leaf: leaf[None], (slices, user))
        return solved(step, shared, slices, users)[0]

    @of_one.def_vmap
    def _(count: int, mapped: Any, *given: Any) -> tuple[jax.Array, bool]:
        if any(jax.tree.leaves(mapped[0])) or not all(jax.tree.leaves(mapped[1:])):
            raise NotImplementedError("devices are mapped over together, with one model for all")
        return solved(step, *given), True

    return of_one(shared, slices, user)


def statistics(step: Step, shared: Common, slices: Slice, users: Users) -> Statistics:
    """Computes the messages of the devices of sound users, leaves [u, w, ...]."""
    own = solved(step, shared, slices, users)
    public = slices.public.shape[-1]
    learned = wide(own[:, public:])
    norms = jnp.linalg.norm(learned, axis=1, keepdims=True)
    usable = jnp.isfinite(norms) & jnp.any(users.weights > 0, axis=1, keepdims=True)
    learned = jnp.where(usable, learned * factor(norms, step.factor_norm), 0)
    left = users.values - einsum("uwp,up->uw", slices.public, own[:, :public])
    weights = jax.vmap(step.weights)(slices.popularity, users.weights)
    if step.together:
        moved = jax.vmap(lambda rest: clip(rest, step.rating_clip))(weights * jnp.nan_to_num(left))
    else:
        moved = weights * jnp.clip(jnp.nan_to_num(left), -step.rating_clip, step.rating_clip)
    square = solve.packed_square(learned)
    return Statistics(weights[..., None] * square[:, None], moved[..., None] * learned[:, None], square)


def added(total: Statistics, items: jax.Array, messages: Statistics) -> Statistics:
    """Adds the devices' messages about their items, int32 [u, w], to the aggregator's sums.

    A GPU adds those of one item in any order.
    """
    rows, packed, rank = items.ravel(), messages.gram.shape[-1], messages.moment.shape[-1]
    return Statistics(
        total.gram.at[rows].add(messages.gram.reshape(-1, packed)),
        total.moment.at[rows].add(messages.moment.reshape(-1, rank)),
        total.users + messages.users.sum(axis=0),
    )


def uniform(popularity: jax.Array, present: jax.Array) -> jax.Array:
    """Gives each of a user's n ratings the weight 1/sqrt(n)."""
    return _of_norm_one(present)


def tail(most: int) -> Rule:
    """Gives 1/sqrt(n) to each of the user's ``most`` least popular items, of which there are n, and 0 to others.

    Args:
      most: how many ratings of a user count, >= 1; ties go to the earlier rating.

    Raises:
      InputError: most below 1.
    """
    most = _validate.at_least(1, most=most)

    def weights(popularity: jax.Array, present: jax.Array) -> jax.Array:
        order = jnp.argsort(jnp.where(present > 0, popularity, jnp.inf), stable=True)
        place = jnp.zeros_like(order).at[order].set(jnp.arange(len(order)))
        return _of_norm_one(jnp.where(place < most, present, 0))

    return weights


def adaptive(power: float) -> Rule:
    """Gives weights in proportion to popularity^-power, so that rare items get more of a user's contribution.

    Args:
      power: >= 0; 0 is :func:`uniform`. A popularity below 1 counts as 1.

    Raises:
      InputError: a negative power.
    """
    power = _validate.non_negative(power=power)

    def weights(popularity: jax.Array, present: jax.Array) -> jax.Array:
        return _of_norm_one(present * jnp.maximum(popularity, 1.0) ** -power)

    return weights


def _of_norm_one(weights: jax.Array) -> jax.Array:
    """Scales weights to a norm of at most 1 in spite of rounding; 0 if they are all 0, NaN or negligible.

    Popularity comes from the server, which is not trusted.
    """
    norm = jnp.sqrt(jnp.sum(weights**2, axis=-1, keepdims=True))
    return jnp.where(norm > LEAST, weights / (norm * (1 + 1e-6)), 0.0)


class Prior(NamedTuple):
    """The prior of the item factors.

    Attributes:
      variance: lambda, [r], > 0: of a factor about the features' prediction.
      ridge: of the map W, > 0: the inverse variance of its entries.
      rating_variance: s_w, > 0.
    """

    variance: jax.Array
    ridge: float
    rating_variance: float


def item_factors(
    gram: jax.Array, moment: jax.Array, features: jax.Array, prior: Prior, *, moment_stddev: jax.Array | float
) -> jax.Array:
    """Solves for the most likely item factors [m, r].

    Minimises, over V and W at once,

        sum_j (b_j - A_j v_j)' (s_w A_j + s_b^2 I)^-1 (b_j - A_j v_j)
            + (v_j - W' x_j)' diag(lambda)^-1 (v_j - W' x_j)  +  ridge |W|_F^2

    with A_j projected to the nearest positive semi-definite matrix. Without noise and features, v_j is the ridge
    regression (A_j + s_w diag(lambda)^-1)^-1 b_j.

    Args:
      gram: A, [m, r, r], symmetric, as released.
      moment: b, [m, r], as released.
      features: x, [m, f]; a column of ones gives all items a common part, [m, 0] a prior mean of 0.
      prior: of the factors.
      moment_stddev: s_b, >= 0, of the noise on each entry of ``moment``.
    """
    variance = jnp.asarray(prior.variance)
    values, vectors = spectrum(gram)
    noise = prior.rating_variance * values + moment_stddev**2
    informed = values > 0
    gain = jnp.where(informed, values / jnp.where(informed, noise, 1.0), 0.0)  # A (s_w A + s_b^2)^-1, eigenvalues
    precision = jnp.einsum("jab,jb,jcb->jac", vectors, gain * values, vectors)
    evidence = jnp.einsum("jab,jb,jcb,jc->ja", vectors, gain, vectors, moment)
    covariance = jnp.linalg.inv(precision + jnp.diag(1 / variance))
    weights = _map(precision, evidence, covariance, features, variance, prior.ridge)
    expected = features @ weights
    return jnp.einsum("jab,jb->ja", covariance, evidence + expected / variance)


def _map(
    precision: jax.Array,
    evidence: jax.Array,
    covariance: jax.Array,
    features: jax.Array,
    variance: jax.Array,
    ridge: float,
) -> jax.Array:
    """Solves for W [f, r]: the regression of all items on their features, each item's factor integrated out."""
    f, r = features.shape[1], len(variance)
    if not f:
        return jnp.zeros((0, r))
    # the precision of an item's evidence on its factor: (Lambda + precision^-1)^-1 = Lambda^-1 covariance precision
    seen = jnp.einsum("a,jab,jbc->jac", 1 / variance, covariance, precision)
    said = jnp.einsum("a,jab,jb->ja", 1 / variance, covariance, evidence)
    matrix = jnp.einsum("jp,jab,jq->paqb", features, seen, features).reshape(f * r, f * r)
    rows = jnp.einsum("jp,ja->pa", features, said).reshape(f * r)
    return jnp.linalg.solve(matrix + ridge * jnp.eye(f * r), rows).reshape(f, r)
