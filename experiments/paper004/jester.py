"""Compares ways to learn on Jester, whose users are many for its hundred items, with settings that cost no privacy.

    python -m experiments.paper004.jester                      # Jester of $DPAUDIT_DATA, an hour
    python -m experiments.paper004.jester --only "second moments"   # a method's rows alone, some ten minutes
    python -m experiments.paper004.jester --quick --out DIR    # made-up ratings: under a minute

A tenth of the users, drawn at random, is taken to be public. Settings are chosen by these alone: every candidate is
fitted to their ratings, each user counted nine times, so that sums are as large, and noise as strong, as in the
training that follows. The other users' ratings enter one model a split, and nothing else that is computed.

Expect factors to pay at every epsilon, gradient steps to be ahead of alternating minimisation, and factors from
second moments ahead of both.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial

import jax
import numpy as np

from dpaudit import data
from dpaudit.data.ratings import Ratings, from_arrays, split, split_users
from experiments.common import Rows, options
from experiments.paper004.methods import DELTA, Method, alternating, candidates, gradient_steps, moments, score
from experiments.paper004.run import choose, mu_of

CENTRE = 0.0  # of ratings from -10 to 10
EPSILONS = (1.0, 5.0, None)  # None: no noise
TRIALS, CANDIDATES = 5, 10
BIAS_SPACE = {"rating_clip": (7.5, 5.0, 10.0), "bias_variance": (2.5, 1.0), "intercept_precision": (3.0, 1.0, 5.0)}
METHODS = {
    "item bias": Method(
        alternating(features=False, centre=CENTRE, rating_variance=2.5, bias_precision=math.inf), BIAS_SPACE
    ),
    "alternating": Method(
        alternating(features=False, centre=CENTRE, rating_variance=2.5, first=1.0),
        {
            "rank": (0, 2, 4, 6),
            "rounds": (4, 2, 6),
            "bias_share": (0.5, 0.2),
            "factor_variance": (1.0, 4.0),
            "factor_precision": (10.0, 5.0, 20.0),
            **BIAS_SPACE,
        },
    ),
    "gradient steps": Method(
        partial(gradient_steps, features=False, centre=CENTRE),
        {
            "rank": (0, 2, 4, 6),
            "rounds": (100, 50),
            "batch_size": (2_000, 4_000),
            "clip_norm": (0.25, 0.1, 1.0),
            "learning_rate": (8.0, 20.0, 40.0),
        },
        gaussian=False,
    ),
    "second moments": Method(
        moments(features=False, centre=CENTRE, rating_variance=2.5, rating_clip=10.0, bias_variance=2.5),
        {
            "rank": (10, 20, 6),
            "factor_precision": (20.0, 40.0, 10.0),
            "popularity_share": (0.1,),
            "bias_share": (0.1, 0.2),
            "intercept_precision": (3.0, 5.0),
        },
    ),
}


def repeated(ratings: Ratings, times: int) -> Ratings:
    """Returns the ratings of as many users as ``times`` times these, each of whom is there so often."""
    apart = np.repeat(np.arange(times, dtype=np.int32) * ratings.num_users, len(ratings.users))
    return ratings._replace(
        users=np.tile(ratings.users, times) + apart,
        items=np.tile(ratings.items, times),
        values=np.tile(ratings.values, times),
        num_users=times * ratings.num_users,
    )


def compare(
    rows: Rows,
    ratings: Ratings,
    epsilons: Sequence[float],
    *,
    trials: int,
    most: int,
    methods: Mapping[str, Method] = METHODS,
    quantity: str = "jester rmse",
) -> None:
    """Plays every method at every epsilon, over new splits of the private users' ratings."""
    private, public = split_users(ratings, seed=rows.seed)
    seen, asked, _ = split(public, seed=0)
    often = repeated(seen, private.num_users // public.num_users)
    key = jax.random.key(rows.seed)
    for place, (name, epsilon) in enumerate((name, epsilon) for name in methods for epsilon in epsilons):
        method, part_key = methods[name], jax.random.fold_in(key, place)
        choice = choose(jax.random.fold_in(part_key, 0), method, epsilon, often, seen, asked, most)
        found, told = [], math.nan
        for trial in range(trials):
            train, _, held_out = split(private, seed=1 + trial)
            model, told = method.fit(jax.random.fold_in(part_key, 1 + trial), train, choice, epsilon, mu_of(epsilon))
            found.append(score(method, model, choice, train, held_out))
            jax.clear_caches()
        setting = {"method": name, "epsilon": None if math.isinf(epsilon) else epsilon, "delta": DELTA}
        setting |= {"transcript_epsilon": None if math.isinf(told) else told, "choice": choice}
        setting |= {"candidates": len(candidates(method.space, most, seed=0)), "public_users": public.num_users}
        scale = f"{ratings.origin}; {private.num_users:,} private users, {trials} splits"
        mean = float(np.mean(found))
        rows.add(quantity, setting, mean, (min(found), max(found)), scale=scale)
        rows.finish_part(f"{name}, epsilon {epsilon:g}: rmse {mean:.4f}, {choice}")


def made_up(seed: int, users: int) -> Ratings:
    """Returns ratings with two tastes, of 30 items by users of whom each rates half."""
    rng, items = np.random.default_rng(seed), 30
    true = 4 * rng.standard_normal((users, 2)) @ rng.standard_normal((2, items)) / 2
    shown = np.clip(true + rng.normal(0, 2, true.shape), -10, 10)
    of, rated = np.nonzero(rng.random(true.shape) < 0.5)
    return from_arrays(of, rated, shown[of, rated], num_users=users, num_items=items, low=-10, high=10)


def whole(
    rows: Rows, epsilons: Sequence[float | None], trials: int, most: int, names: Sequence[str] = tuple(METHODS)
) -> None:
    """Plays methods on Jester; None is no noise."""
    losses = [math.inf if epsilon is None else epsilon for epsilon in epsilons]
    methods = {name: METHODS[name] for name in names}
    compare(rows, data.load_ratings("jester", rows.data_dir), losses, trials=trials, most=most, methods=methods)


def small(rows: Rows, users: int, epsilon: float) -> None:
    """Plays all methods once on made-up ratings."""
    compare(rows, made_up(rows.seed, users), [epsilon], trials=1, most=1)


REPRODUCIBLE = {"whole": whole, "small": small}


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--only", nargs="+", choices=METHODS, default=tuple(METHODS), help="rows of others stay")
    parser.add_argument("--epsilon", type=float, nargs="+", default=None, help="these alone; inf for no noise")
    chosen = parser.parse_args()
    epsilons = EPSILONS if chosen.epsilon is None else [None if math.isinf(one) else one for one in chosen.epsilon]
    again = {(name, epsilon) for name in chosen.only for epsilon in epsilons}
    rows = Rows(
        "004",
        "personalization_jester",
        chosen.out,
        chosen.seed,
        keep=lambda row: (row["setting"]["method"], row["setting"]["epsilon"]) not in again,
        data_dir=chosen.data_dir,
    )
    if chosen.quick:
        rows.run(small, 5_000, 5.0)
        return
    rows.run(whole, epsilons, TRIALS, CANDIDATES, list(chosen.only))


if __name__ == "__main__":
    main()
