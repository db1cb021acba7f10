"""Ranks films by factors from second moments, with settings that cost no privacy.

    python -m experiments.paper004.rankings                      # MovieLens-100K of $DPAUDIT_DATA, twenty minutes
    python -m experiments.paper004.rankings --quick --out DIR    # made-up ratings: under a minute

As on Jester (:mod:`experiments.paper004.jester`), a tenth of the users is taken to be public and chooses, and the
private users and their splits are those of ``experiments.personalization``. Alternating minimisation finds an item's
factor in that item's own moment b_j (:mod:`dpaudit.personalization.als.steps`); a row has the length of b_j over that
of the noise in it, the median over items, by a model that was learned without noise. Second moments
(:mod:`dpaudit.personalization.als.spectral`) are of all items together.

Expect second moments to gain with epsilon, from .2 to above .3.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from dpaudit import data
from dpaudit.data.ratings import Ratings, split, split_users
from dpaudit.personalization.als import least_squares, recommender
from dpaudit.personalization.als.recommender import Ranking
from dpaudit.personalization.als.steps import Model, Prior
from experiments.common import Rows, options
from experiments.paper004.jester import compare
from experiments.paper004.methods import METHODS, Method, delta_for, device_rows, ranked_moments
from experiments.paper004.population import population
from experiments.paper004.run import mu_of

ALTERNATING, MOMENTS = "ranking, public features", "second moments"
EPSILONS = (1.0, 5.0, 20.0, None)  # None: no noise
TRIALS, CANDIDATES = 5, 8
SHARES = least_squares.Shares(0.15, 0.7, 0.15)  # as fit_ranking has them
FACTORS = {"rank": 8, "rounds": 2, "unobserved": 0.1, "popularity_share": 0.5, "factor_variance": 1.0}
SPACE = {
    "rank": (8, 4),
    "most": (400, 200, 100),
    "popularity_share": (0.2, 0.5),
    "factor_precision": (3.0, 1.0),
    "taste_precision": (20.0,),
    "unobserved": (0.1, 0.3),
}


def moment_over_noise(model: Model, train: Ratings, ranking: Ranking, mu: float) -> float:
    """Returns the median over items of |b_j| over the root mean square length of its noise."""
    z = ((1 - ranking.popularity_share) / ranking.rounds) ** -0.5 / mu
    prior = Prior(jnp.full(ranking.rank, ranking.factor_variance), ranking.feature_ridge, ranking.rating_variance)
    step = recommender.ranking_step(ranking)
    how = {"features": model.public, "prior": prior, "shares": SHARES}
    protocol = least_squares.alternating(step, noise_multiplier=z, **how)
    total = protocol.devices(jax.random.key(0), model, recommender.seen(device_rows(train)))
    moved = step.rating_clip * step.factor_norm / SHARES.moment**0.5
    return float(np.median(np.linalg.norm(np.asarray(total.moment), axis=1)) / (z * moved * ranking.rank**0.5))


def signals(rows: Rows, ratings: Ratings, epsilons: Sequence[float]) -> None:
    """Measures how strong an item's own moment is, at every epsilon."""
    learning, _ = split_users(ratings, seed=rows.seed)
    train, _, _ = split(learning, seed=1)
    bare, _ = METHODS[ALTERNATING].fit(jax.random.key(rows.seed), train, FACTORS, np.inf, 0.0)
    for epsilon in epsilons:
        mu = mu_of(epsilon, delta_for(train.num_users))
        ratio = moment_over_noise(bare, train, Ranking(**FACTORS), mu)
        setting = {"epsilon": epsilon, "delta": delta_for(train.num_users), "choice": FACTORS}
        rows.add(
            "moment over noise", setting, ratio, scale=f"{ratings.origin}; {learning.num_users:,} users, one split"
        )
        rows.finish_part(f"epsilon {epsilon:g}: moment over noise {ratio:.3f}")


def whole(rows: Rows, epsilons: Sequence[float | None], trials: int, most: int) -> None:
    """Plays second moments on MovieLens-100K; None is no noise."""
    ratings = data.load_ratings("movielens_100k", rows.data_dir)
    losses = [math.inf if epsilon is None else epsilon for epsilon in epsilons]
    methods = {MOMENTS: Method(ranked_moments, SPACE, ranks=True)}
    compare(rows, ratings, losses, trials=trials, most=most, methods=methods, quantity="private recall@20")
    signals(rows, ratings, [epsilon for epsilon in losses if math.isfinite(epsilon)])


def small(rows: Rows, users: int, epsilon: float) -> None:
    """Plays second moments once on made-up ratings."""
    methods = {MOMENTS: Method(ranked_moments, SPACE | {"most": (30,)}, ranks=True)}
    ratings = population(rows.seed, users=users, items=60)[0]
    compare(rows, ratings, [epsilon], trials=1, most=1, methods=methods, quantity="private recall@20")


REPRODUCIBLE = {"whole": whole, "small": small}


def main() -> None:
    chosen = options(__doc__ or "").parse_args()
    rows = Rows("004", "personalization_rankings", chosen.out, chosen.seed, data_dir=chosen.data_dir)
    if chosen.quick:
        rows.run(small, 1_000, 5.0)
        return
    rows.run(whole, EPSILONS, TRIALS, CANDIDATES)


if __name__ == "__main__":
    main()
