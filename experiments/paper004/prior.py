"""Learns the prior of users' own tastes from public users, without noise.

A rating of item j by user i is modelled as y_ij = x_j' t_i + b_j + noise, with the item's public features x_j, tastes
t_i ~ N(m, S), and noise of variance s^2. Expectation maximisation finds m, S and s^2 (S shrunk towards
START/rating_variance, as if seen in ``weight`` more users); between its steps, b_j is the mean of what is left of the
item's ratings, shrunk as if ``shrinkage`` more ratings had left 0.

Source: Laird and Ware 1982, "Random-Effects Models for Longitudinal Data", Section 4.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from dpaudit.data.ratings import Ratings
from dpaudit.personalization.als.steps import Model

CENTRE, NOISE = 3.5, 0.85  # what it begins with: the middle of what people rate, and the variance of a rating
INTERCEPT, TASTE = 5.0, 30.0  # precisions that S is shrunk to, in units of one rating's
OUTER, INNER = 4, 6  # steps of b, and of m, S and s^2 in each


class Tastes(NamedTuple):
    """The prior of users' tastes, and what the public users' ratings say of the items.

    Attributes:
      mean: m, [p].
      covariance: S, [p, p].
      variance: s^2, of a rating.
      biases: b, [m].
    """

    mean: np.ndarray
    covariance: np.ndarray
    variance: float
    biases: np.ndarray


def learned(ratings: Ratings, public: np.ndarray, *, weight: float = 30.0, shrinkage: float = 8.0) -> Tastes:
    """Learns the prior from the ratings of public users; ``public`` is x, [m, p], whose first column is ones."""
    public, count = np.asarray(public, float), public.shape[1]
    start = NOISE * np.diag(1 / np.r_[INTERCEPT, np.full(count - 1, TASTE)])
    now = Tastes(np.r_[CENTRE, np.zeros(count - 1)], start, NOISE, np.zeros(len(public)))
    order = np.argsort(ratings.users, kind="stable")
    cuts = np.flatnonzero(np.diff(ratings.users[order])) + 1
    people = [(ratings.items[own], ratings.values[own].astype(float)) for own in np.split(order, cuts)]
    for _ in range(OUTER):
        for _ in range(INNER):
            now = _improved(now, people, public, start, weight)
        left, number = np.zeros(len(public)), np.zeros(len(public))
        for items, values in people:
            own, _ = _posterior(now, public[items], values - now.biases[items])
            left[items] += values - public[items] @ own
            number[items] += 1
        now = now._replace(biases=left / (number + shrinkage))
    return now


def model(tastes: Tastes, public: np.ndarray, *, biased: bool) -> Model:
    """Returns the public model in which users' tastes have this prior.

    Its first feature is what an average user thinks of an item, x_j' m, of which everybody has 1; the others, x_j' R
    with R R' = S/s^2, are such that tastes in them are independent, each of precision 1.

    Args:
      tastes: the prior.
      public: x, [m, p].
      biased: whether an average user's opinion has the public users' biases of items.
    """
    average = public @ tastes.mean + (tastes.biases if biased else 0.0)
    turned = public @ np.linalg.cholesky(tastes.covariance / tastes.variance)
    items, count = turned.shape
    shown = jnp.asarray(np.column_stack([average, turned]), jnp.float32)
    mean, precision = jnp.zeros(1 + count).at[0].set(1.0), jnp.ones(1 + count).at[0].set(jnp.inf)
    return Model(shown, jnp.zeros((items, 0)), jnp.zeros(items), mean, precision)


def _posterior(tastes: Tastes, rows: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the mean and the covariance of one user's tastes given their ratings, less the items' biases."""
    spread = np.linalg.inv(np.linalg.inv(tastes.covariance) + rows.T @ rows / tastes.variance)
    return tastes.mean + spread @ rows.T @ (values - rows @ tastes.mean) / tastes.variance, spread


def _improved(
    tastes: Tastes, people: list[tuple[np.ndarray, np.ndarray]], public: np.ndarray, start: np.ndarray, weight: float
) -> Tastes:
    """Makes one step of expectation maximisation."""
    means, spreads, squares, number = [], np.zeros_like(tastes.covariance), 0.0, 0
    for items, values in people:
        rows, centred = public[items], values - tastes.biases[items]
        own, spread = _posterior(tastes, rows, centred)
        means.append(own)
        spreads += spread
        squares += np.sum((centred - rows @ own) ** 2) + np.einsum("wa,ab,wb->", rows, spread, rows)
        number += len(items)
    mean = np.mean(means, axis=0)
    apart = np.asarray(means) - mean
    covariance = (apart.T @ apart + spreads + weight * start) / (len(people) + weight)
    return Tastes(mean, covariance, squares / number, tastes.biases)
