"""Learns from few and from many users at several ranks, by alternating minimisation and by user-level DP-SGD.

    python -m experiments.paper004.crossover                      # Jester of $DPAUDIT_DATA, three quarters of an hour
    python -m experiments.paper004.crossover --data "made-up users" --users 10000 --epsilon inf --runs 3   # alone
    python -m experiments.paper004.crossover --data Jester --users 22485 --epsilon 5   # five minutes of one core
    python -m experiments.paper004.crossover --quick --out DIR    # made-up ratings: under a minute

Made-up users have tastes of rank four for 200 items (:mod:`experiments.paper004.population`), and nobody can predict
better than 0.5; Jester's users are drawn at random. Both methods learn the same model, a bias for each item and as
many factors as the rank says, and solve for a user's half on the device. Choosing costs nothing: each method's
settings are the better of two for as many other users, fitted at rank four. These are made up with another seed, or
are Jester's public tenth, repeated where they are fewer. The rank is not chosen; every one is shown. With several
runs, users are made up or drawn anew for each, the first run's others choose for all, rows have ranges.

Expect factors to pay only above a number of users that falls with epsilon, and alternating minimisation to be ahead of
gradient steps only above a larger one.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np

from dpaudit import data
from dpaudit.data.ratings import Ratings, split, split_users
from dpaudit.personalization.als.steps import Model
from experiments.common import Rows, options
from experiments.paper004 import jester
from experiments.paper004.methods import Fit, Method, alternating, delta_for, gradient_steps, score, sound
from experiments.paper004.population import population
from experiments.paper004.run import mu_of

EPSILONS, RANKS = (1.0, 5.0, 20.0, None), (0, 2, 4, 8)  # None: no noise
USERS, JOKERS = (1_000, 10_000, 100_000), (1_000, 22_485)
ITEMS, CHOSEN_AT, ROUNDS, COHORTS = 200, 4, 100, 4  # items made up; rank; gradient steps; cohorts in all users

Settings = tuple[Mapping[str, Any], Mapping[str, Any]]


class Compared(NamedTuple):
    """A way to learn, and two settings of it to choose from."""

    fit: Fit
    settings: Settings


def _steps(*pairs: tuple[float, float]) -> Settings:
    """Returns gradient steps with these clip norms and learning rates."""
    one, other = ({"rounds": ROUNDS, "clip_norm": clip, "learning_rate": rate} for clip, rate in pairs)
    return one, other


_MADE_UP = {
    "power": 0.0,
    "popularity_share": 0.0,
    "bias_share": 0.2,
    "rounds": 6,
    "first": 0.6,
    "factor_variance": 1.0,
}
_JESTER = {"rating_clip": 10.0, "bias_variance": 1.0, "intercept_precision": 3.0, "bias_share": 0.2, "rounds": 6}
METHODS: dict[str, dict[str, Compared]] = {
    "made-up users": {
        "alternating": Compared(
            alternating(features=False),
            (
                _MADE_UP | {"factor_precision": 5.0, "factor_norm": 1.0, "rating_clip": 1.0},
                _MADE_UP | {"factor_precision": 2.0, "factor_norm": 2.0, "rating_clip": 2.0},
            ),
        ),
        "gradient steps": Compared(partial(gradient_steps, features=False), _steps((0.1, 20.0), (1.0, 40.0))),
    },
    "Jester": {
        "alternating": Compared(
            alternating(features=False, centre=jester.CENTRE, rating_variance=2.5, first=1.0),
            (
                _JESTER | {"factor_precision": 20.0, "factor_variance": 1.0},
                _JESTER | {"factor_precision": 20.0, "factor_variance": 0.1},
            ),
        ),
        "gradient steps": Compared(
            partial(gradient_steps, features=False, centre=jester.CENTRE), _steps((1.0, 8.0), (0.1, 20.0))
        ),
    },
}


SCORED = Method(alternating(features=False), {})  # by the error of ratings


class Learners(NamedTuple):
    """Users: those who are learned from, and as many others, who choose.

    Attributes:
      train, held_out: of those who are learned from.
      public: of the others, each repeated where they are fewer.
      seen, asked: of the others once, what their devices know and what they are asked for.
    """

    train: Ratings
    held_out: Ratings
    public: Ratings
    seen: Ratings
    asked: Ratings


def made_up(seed: int, users: int) -> Learners:
    """Returns users with tastes of rank four, and others with other tastes."""
    seen, asked = population(seed + 1_000, users=users, items=ITEMS)
    return Learners(*population(seed, users=users, items=ITEMS), seen, seen, asked)


def jokers(seed: int, ratings: Ratings, users: int) -> Learners:
    """Returns as many of Jester's private users, and public ones who choose."""
    private, public = split_users(ratings, seed=seed)
    train, _, held_out = split(few(seed, private, users), seed=1)
    seen, asked, _ = split(few(seed, public, users), seed=0)
    return Learners(train, held_out, jester.repeated(seen, max(1, round(users / seen.num_users))), seen, asked)


def few(seed: int, ratings: Ratings, users: int) -> Ratings:
    """Returns the ratings of users drawn at random; of all where there are not more."""
    drawn = np.random.default_rng(seed).permutation(ratings.num_users)[:users]
    number = np.full(ratings.num_users, -1, np.int32)
    number[drawn] = np.arange(len(drawn))
    kept = number[ratings.users] >= 0
    columns = {"users": number[ratings.users[kept]], "items": ratings.items[kept], "values": ratings.values[kept]}
    return ratings._replace(num_users=len(drawn), **columns)


def compare(
    rows: Rows,
    name: str,
    learners: Learners,
    epsilons: Sequence[float | None],
    ranks: Sequence[int],
    *,
    at: float | None = None,
    again: Sequence[Learners] = (),
) -> None:
    """Fits both methods at every epsilon and rank; a rank of 0, item biases alone, by alternating minimisation.

    Settings are chosen at every epsilon, or once ``at`` an epsilon for all with noise; without noise they are then the
    second ones. They are chosen for the first learners, and used for these and for those who learn ``again``.
    """
    users, key = learners.train.num_users, jax.random.fold_in(jax.random.key(rows.seed), learners.train.num_users)
    scale = f"{name}: {users:,} users, {len(learners.train.values):,} ratings"

    @cache
    def better(method: str, place: int, epsilon: float | None) -> Mapping[str, Any]:
        compared = METHODS[name][method]
        return _better(jax.random.fold_in(key, place), _fitting(compared, epsilon, users), compared.settings, learners)

    for epsilon in epsilons:
        for place, (method, compared) in enumerate(METHODS[name].items()):
            fitted = _fitting(compared, epsilon, users)
            if at is not None and epsilon is None:
                best = compared.settings[1]
            else:
                best = better(method, place, epsilon if at is None else at)
            for rank in ranks:
                if method != "alternating" and not rank:
                    continue
                own, found = jax.random.fold_in(jax.random.fold_in(key, 2 + place), rank), []
                choice, told = dict(best), math.nan
                for run, each in enumerate((learners, *again)):
                    run_key = jax.random.fold_in(own, run) if run else own
                    model, choice, told = fitted(run_key, each.train, best, rank)
                    found.append(score(SCORED, model, choice, each.train, each.held_out))
                rmse, bounds = float(np.mean(found)), (min(found), max(found)) if again else (None, None)
                setting = {"data": name, "users": users, "method": method, "epsilon": epsilon, "rank": rank}
                setting |= {"delta": delta_for(users), "transcript_epsilon": None if math.isinf(told) else told}
                setting |= {"choice": choice, "runs": len(found)}
                rows.add("crossover rmse", setting, rmse, bounds, scale=scale)
                print(f"{scale}, {method}, epsilon {epsilon}, rank {rank}: {rmse:.4f}", flush=True)
            jax.clear_caches()
        rows.finish_part(f"{scale}, epsilon {epsilon}")


Fitted = Callable[[jax.Array, Ratings, Mapping[str, Any], int], tuple[Model, dict[str, Any], float]]


def _fitting(compared: Compared, epsilon: float | None, users: int) -> Fitted:
    """Returns ``fitted(key, train, settings, rank) -> (model, choice, epsilon of the transcript)``."""
    budget, batch = math.inf if epsilon is None else epsilon, {"batch_size": users // COHORTS}

    def fitted(key: jax.Array, train: Ratings, settings: Mapping[str, Any], rank: int) -> Any:
        choice = sound({**settings, **(batch if "learning_rate" in settings else {}), "rank": rank})
        model, told = compared.fit(key, train, choice, budget, mu_of(budget, delta_for(users)))
        return model, choice, told

    return fitted


def _better(key: jax.Array, fitted: Fitted, settings: Settings, learners: Learners) -> Mapping[str, Any]:
    """Returns the settings by which the other users' own ratings are predicted better, at one rank."""
    errors = []
    for own in settings:
        model, choice, _ = fitted(key, learners.public, own, CHOSEN_AT)
        errors.append(score(SCORED, model, choice, learners.seen, learners.asked))
    return settings[int(np.nanargmin(errors))]


def people(rows: Rows, users: int, epsilons: Sequence[float | None], ranks: Sequence[int], runs: int = 1) -> None:
    """Compares on made-up users; an epsilon of None is no noise."""
    first, *again = (made_up(rows.seed + run, users) for run in range(runs))
    compare(rows, "made-up users", first, epsilons, ranks, at=5.0, again=again)


def jokes(rows: Rows, users: int, epsilons: Sequence[float | None], ranks: Sequence[int], runs: int = 1) -> None:
    """Compares on so many of Jester's users."""
    ratings = data.load_ratings("jester", rows.data_dir)
    first, *again = (jokers(rows.seed + run, ratings, users) for run in range(runs))
    compare(rows, "Jester", first, epsilons, ranks, again=again)


REPRODUCIBLE = {"people": people, "jokes": jokes}


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--data", choices=tuple(METHODS), default=None, help="these alone; rows of the others stay")
    parser.add_argument("--users", type=int, default=None, help="so many alone; rows of the others stay")
    parser.add_argument("--epsilon", type=float, nargs="+", default=None, help="these alone; inf for no noise")
    parser.add_argument("--runs", type=int, default=1, help="fits of each cell, of other users")
    chosen = parser.parse_args()
    groups = [("made-up users", people, users) for users in USERS] + [("Jester", jokes, users) for users in JOKERS]
    groups = [group for group in groups if chosen.data in (None, group[0]) and chosen.users in (None, group[2])]
    epsilons = EPSILONS if chosen.epsilon is None else [None if math.isinf(one) else one for one in chosen.epsilon]
    again = {(name, users, epsilon) for name, _, users in groups for epsilon in epsilons}
    rows = Rows(
        "004",
        "personalization_crossover",
        chosen.out,
        chosen.seed,
        keep=lambda row: tuple(row["setting"][name] for name in ("data", "users", "epsilon")) not in again,
        data_dir=chosen.data_dir,
    )
    if chosen.quick:
        rows.run(people, 2_000, [5.0], [0, 2])
        return
    for _, part, users in groups:
        rows.run(part, users, epsilons, RANKS, chosen.runs)


if __name__ == "__main__":
    main()
