"""Learns from MovieLens-100K with settings that cost no privacy, by alternating minimisation and in one release.

    python -m experiments.paper004.movielens                     # MovieLens-100K of $DPAUDIT_DATA, twenty minutes
    python -m experiments.paper004.movielens --only "public users alone"   # a method's rows alone
    python -m experiments.paper004.movielens --quick --out DIR   # made-up ratings: under a minute

As on Jester (:mod:`experiments.paper004.jester`), a tenth of the users is taken to be public and chooses. What a user
sends is clipped as a whole (``clip_together``): the largest of a user's weighted rests counts for little, so the norm,
and with it the noise, can be smaller than where each rest is clipped. The private users and their splits are those of
``experiments.personalization``.

*One release* is of popularity and of what users' tastes leave of their ratings, together
(:mod:`dpaudit.personalization.als.biases`). Nothing but its settings is learned from public users. With *their
tastes*, the prior of tastes is learned as well, from the 80% of their ratings that do not choose
(:mod:`experiments.paper004.prior`); with *their ratings*, biases begin at what these say of the items. *Public users
alone* is this beginning, before anything is released.

Expect an RMSE of .974, .938 and .927 by one release at epsilon 1, 5 and 20, .965, .932 and .920 with the tastes of
public users, and .944, .927 and .920 with their ratings.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from dpaudit import data
from dpaudit.data.ratings import Ratings, split, split_users
from dpaudit.personalization.als.steps import Model
from experiments.common import Rows, options
from experiments.paper004 import prior
from experiments.paper004.jester import compare, made_up
from experiments.paper004.methods import CENTRE, Choice, Method, alternating, catalogue, rests, score

EPSILONS = (1.0, 5.0, 20.0)
TRIALS, CANDIDATES = 5, 6
ALTERNATING, RELEASE = "alternating, public features", "one release, public features"
TASTES, BEGUN, ALONE = "one release, public users' tastes", "one release, public users' ratings", "public users alone"
SPACE = {
    "rating_clip": (1.0, 0.75),
    "power": (0.0, 0.15),
    "bias_variance": (0.1, 0.2),
    "taste_precision": (30.0, 15.0),
    "popularity_share": (0.1, 0.03),
}
RELEASED = {
    "rating_clip": (0.75, 0.9),
    "popularity_share": (0.3, 0.2),
    "bias_variance": (0.1, 0.05),
    "rating_variance": (0.1, 0.2),
    "popularity_precision": (300.0, 100.0),
}


def isotropic(train: Ratings, choice: Choice) -> Model:
    """Returns the model in which an average user has no tastes, and everybody's are equally strong."""
    public = catalogue(train, features=True).public
    items, count = public.shape
    precision = jnp.full(count, choice["taste_precision"]).at[0].set(5.0)
    return Model(public, jnp.zeros((items, 0)), jnp.zeros(items), jnp.zeros(count).at[0].set(CENTRE), precision)


def methods(ratings: Ratings, seed: int) -> Mapping[str, Method]:
    """Returns the methods, some of which know the ratings of the public users that do not choose."""
    _, public = split_users(ratings, seed=seed)
    seen, _, _ = split(public, seed=0)
    known = np.asarray(catalogue(ratings, features=True).public)
    tastes = prior.learned(seen, known)
    begun = {biased: prior.model(tastes, known, biased=biased) for biased in (False, True)}
    return {
        ALTERNATING: Method(alternating(features=True, clip_together=True), SPACE),
        RELEASE: Method(rests(isotropic), {**RELEASED, "taste_precision": (25.0, 40.0)}),
        TASTES: Method(rests(lambda train, choice: begun[False]), RELEASED),
        BEGUN: Method(rests(lambda train, choice: begun[True]), RELEASED),
    }


def alone(rows: Rows, ratings: Ratings, trials: int) -> None:
    """Scores what public users' ratings say of the items, and their tastes, by the private users' ratings."""
    private, public = split_users(ratings, seed=rows.seed)
    seen, _, _ = split(public, seed=0)
    known = np.asarray(catalogue(ratings, features=True).public)
    model = prior.model(prior.learned(seen, known), known, biased=True)
    method = methods(ratings, rows.seed)[BEGUN]
    splits = [split(private, seed=1 + trial) for trial in range(trials)]
    found = [score(method, model, {}, train, held_out) for train, _, held_out in splits]
    setting: dict[str, Any] = {"method": ALONE, "public_users": public.num_users}
    scale = f"{ratings.origin}; {private.num_users:,} private users, {trials} splits"
    rows.add("movielens without release", setting, float(np.mean(found)), (min(found), max(found)), scale=scale)
    rows.finish_part(f"{ALONE}: {np.mean(found):.4f}")


def whole(
    rows: Rows, epsilons: Sequence[float], trials: int, most: int, names: Sequence[str] = (ALTERNATING,)
) -> None:
    """Plays methods on MovieLens-100K."""
    ratings = data.load_ratings("movielens_100k", rows.data_dir)
    if ALONE in names:
        alone(rows, ratings, trials)
    played = {name: method for name, method in methods(ratings, rows.seed).items() if name in names}
    compare(rows, ratings, epsilons, trials=trials, most=most, methods=played, quantity="movielens rmse")


def small(rows: Rows, users: int, epsilon: float) -> None:
    """Plays methods once on made-up ratings, of which nothing is known of the items."""
    ratings = made_up(rows.seed, users)
    played = {name: method for name, method in methods(ratings, rows.seed).items() if name != ALTERNATING}
    played[ALTERNATING] = Method(alternating(features=False, centre=0.0, clip_together=True), SPACE)
    compare(rows, ratings, [epsilon], methods=played, quantity="movielens rmse", trials=1, most=1)


REPRODUCIBLE = {"whole": whole, "small": small}


def main() -> None:
    names = (ALTERNATING, RELEASE, TASTES, BEGUN, ALONE)
    parser = options(__doc__ or "")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="rows of others stay")
    chosen = parser.parse_args()
    rows = Rows(
        "004",
        "personalization_movielens",
        chosen.out,
        chosen.seed,
        keep=lambda row: row["setting"]["method"] not in chosen.only,
        data_dir=chosen.data_dir,
    )
    if chosen.quick:
        rows.run(small, 5_000, 5.0)
        return
    rows.run(whole, EPSILONS, TRIALS, CANDIDATES, list(chosen.only))


if __name__ == "__main__":
    main()
