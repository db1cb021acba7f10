"""Learns from MovieLens-100K by alternating minimisation with settings that cost no privacy.

    python -m experiments.paper004.movielens                     # MovieLens-100K of $DPAUDIT_DATA, some minutes
    python -m experiments.paper004.movielens --quick --out DIR   # made-up ratings: under a minute

As on Jester (:mod:`experiments.paper004.jester`), a tenth of the users is taken to be public and chooses. What a user
sends is clipped as a whole (``clip_together``): the largest of a user's weighted rests counts for little, so the norm,
and with it the noise, can be smaller than where each rest is clipped. The private users and their splits are those of
``experiments.personalization``.

Expect an RMSE of .980 at epsilon 1, .945 at 5 and .929 at 20.
"""

from collections.abc import Sequence

from dpaudit import data
from experiments.common import Rows, options
from experiments.paper004.jester import compare, made_up
from experiments.paper004.methods import Method, alternating

EPSILONS = (1.0, 5.0, 20.0)
TRIALS, CANDIDATES = 5, 6
SPACE = {
    "rating_clip": (1.0, 0.75),
    "power": (0.0, 0.15),
    "bias_variance": (0.1, 0.2),
    "taste_precision": (30.0, 15.0),
    "popularity_share": (0.1, 0.03),
}
METHODS = {"alternating, public features": Method(alternating(features=True, clip_together=True), SPACE)}


def whole(rows: Rows, epsilons: Sequence[float], trials: int, most: int) -> None:
    """Plays the method on MovieLens-100K."""
    ratings = data.load_ratings("movielens_100k", rows.data_dir)
    compare(rows, ratings, epsilons, trials=trials, most=most, methods=METHODS, quantity="movielens rmse")


def small(rows: Rows, users: int, epsilon: float) -> None:
    """Plays the method once on made-up ratings, of which nothing is known of the items."""
    plain = {"alternating": Method(alternating(features=False, centre=0.0, clip_together=True), SPACE)}
    how = {"methods": plain, "quantity": "movielens rmse", "trials": 1, "most": 1}
    compare(rows, made_up(rows.seed, users), [epsilon], **how)


REPRODUCIBLE = {"whole": whole, "small": small}


def main() -> None:
    chosen = options(__doc__ or "").parse_args()
    rows = Rows("004", "personalization_movielens", chosen.out, chosen.seed, data_dir=chosen.data_dir)
    if chosen.quick:
        rows.run(small, 5_000, 5.0)
        return
    rows.run(whole, EPSILONS, TRIALS, CANDIDATES)


if __name__ == "__main__":
    main()
