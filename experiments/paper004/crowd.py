"""Ranks films with the same people counted several times, to tell what private factors lack: people, or the method.

    python -m experiments.paper004.crowd                      # MovieLens-100K of $DPAUDIT_DATA, ten minutes
    python -m experiments.paper004.crowd --quick --out DIR    # made-up ratings: under a minute

Noise is of the same size for any number of users, and the sums that it is added to grow in proportion. So counting
everybody k times stands for k times as many users with the same tastes. Every row has recall@20 of the real users, and
the length of an item's released moment b_j (:mod:`dpaudit.personalization.als.steps`) over that of the noise in it,
the median over items, by a model that was learned without noise.

Expect factors to add nothing with the 849 users that there are, where noise is several times as long as a moment, and
to gain once users are counted some thirty times.
"""

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
from experiments.paper004.jester import repeated
from experiments.paper004.methods import METHODS, delta_for, device_rows, score, sound
from experiments.paper004.population import population
from experiments.paper004.run import mu_of

METHOD, SHARES = "ranking, public features", least_squares.Shares(0.15, 0.7, 0.15)  # as fit_ranking has them
FACTORS = {"rank": 8, "rounds": 2, "unobserved": 0.1, "popularity_share": 0.5, "factor_variance": 1.0}
TIMES, EPSILON = (1, 3, 10, 30), 5.0


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


def compare(rows: Rows, ratings: Ratings, epsilon: float, times: Sequence[int]) -> None:
    """Ranks with and without factors, for every number of times that users count."""
    learning, _ = split_users(ratings, seed=rows.seed)
    train, _, held_out = split(learning, seed=1)
    method, key = METHODS[METHOD], jax.random.key(rows.seed)
    bare, _ = method.fit(key, train, FACTORS, np.inf, 0.0)
    for place, count in enumerate(times):
        often = repeated(train, count)
        mu, found = mu_of(epsilon, delta_for(often.num_users)), {}
        for rank in (0, FACTORS["rank"]):
            choice = sound(FACTORS | {"rank": rank})
            model, _ = method.fit(jax.random.fold_in(key, place), often, choice, epsilon, mu)
            found[rank] = score(method, model, choice, train, held_out)
            jax.clear_caches()
        setting = {"epsilon": epsilon, "delta": delta_for(often.num_users), "times": count, "choice": FACTORS}
        setting |= {"without_factors": found[0], "users": often.num_users}
        setting |= {"signal": count * moment_over_noise(bare, train, Ranking(**FACTORS), mu)}
        scale = f"{ratings.origin}; {learning.num_users:,} users, one split"
        rows.add("crowd recall@20", setting, found[FACTORS["rank"]], scale=scale)
        rows.finish_part(f"{count} times: {found}, moment over noise {setting['signal']:.3f}")


def whole(rows: Rows, epsilon: float, times: Sequence[int]) -> None:
    """Ranks MovieLens-100K."""
    compare(rows, data.load_ratings("movielens_100k", rows.data_dir), epsilon, times)


def small(rows: Rows, users: int, epsilon: float) -> None:
    """Ranks made-up items once."""
    compare(rows, population(rows.seed, users=users, items=60)[0], epsilon, [1])


REPRODUCIBLE = {"whole": whole, "small": small}


def main() -> None:
    chosen = options(__doc__ or "").parse_args()
    rows = Rows("004", "personalization_crowd", chosen.out, chosen.seed, data_dir=chosen.data_dir)
    if chosen.quick:
        rows.run(small, 500, EPSILON)
        return
    rows.run(whole, EPSILON, TIMES)


if __name__ == "__main__":
    main()
