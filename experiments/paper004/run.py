"""Measures how well a model serves its users when all that leaves their devices is private.

    python -m experiments.personalization                      # MovieLens-100K of $DPAUDIT_DATA, two and a half hours
    python -m experiments.personalization --data movielens_1m  # or 10m, 20m
    python -m experiments.personalization --part rankings      # or ratings; population, a million made-up users; or
                                                               # federated, user-level training on MNIST
    python -m experiments.personalization --only "NoisyAdam, public features" --epsilon 1 5 20   # these rows alone
    python -m experiments.personalization --quick --out DIR    # a few thousand made-up users: under a minute

A tenth of the users chooses: every method's settings are those of its best candidate for their held-out ratings, by a
model of the other users. These others are what is learned from and scored, over new splits of their ratings into 80%
seen, 10% for choosing and 10% held out. What choosing costs is in every row: the epsilon of all candidates together.

Expect public features and what stays on a device to bring most at small epsilon, factors to pay only where there are
many users, and all rows above item bias.
"""

import math
import time
from collections.abc import Sequence
from typing import Any

import dp_accounting
import jax
import numpy as np

from dpaudit import data
from dpaudit.data.ratings import Ratings, split, split_users
from experiments.common import Rows, options
from experiments.paper004.federated import LEARNING_RATES, Scale, Settings, accuracies
from experiments.paper004.methods import DELTA, METHODS, Method, candidates, delta_for, score
from experiments.paper004.population import population

EPSILONS = (1.0, 5.0, 10.0, 20.0, math.inf)
TRIALS, CANDIDATES = 5, 8
PARTS = (RATINGS, RANKINGS, POPULATION, FEDERATED) = ("ratings", "rankings", "population", "federated")


def mu_of(epsilon: float, delta: float = DELTA) -> float:
    """Of the Gaussian that is worth epsilon at delta; 0 for no noise."""
    return 0.0 if math.isinf(epsilon) else 1 / dp_accounting.get_sigma_gaussian(epsilon, delta)


def counted(mu: float, times: int) -> float | None:
    """Returns the epsilon of as many models as were made; None without noise."""
    return dp_accounting.get_epsilon_gaussian(1 / (mu * math.sqrt(times)), DELTA) if mu else None


def choose(
    key: jax.Array, method: Method, epsilon: float, train: Ratings, seen: Ratings, held_out: Ratings, most: int
) -> dict[str, Any]:
    """Returns the best of a method's candidates, fitted to ``train`` and scored by the users of the other two."""
    tried = candidates(method.space, most, seed=0)
    if len(tried) == 1:
        return tried[0]
    found = []
    for i, choice in enumerate(tried):
        model = method.fit(jax.random.fold_in(key, i), train, choice, epsilon, mu_of(epsilon)).model
        found.append(score(method, model, choice, seen, held_out) * (-1 if method.ranks else 1))
        jax.clear_caches()  # every choice is another program, and a process can hold only so many
    return tried[int(np.nanargmin(found))]


def compare(
    rows: Rows, ratings: Ratings, *, names: list[str], epsilons: tuple[float, ...], trials: int, most: int
) -> None:
    """Every method at every epsilon."""
    learning, choosing = split_users(ratings, seed=rows.seed)
    key = jax.random.key(rows.seed)
    splits = [split(learning, seed=1 + trial) for trial in range(trials)]
    first, _, _ = split(learning, seed=0)
    seen, asked, _ = split(choosing, seed=0)
    for place, (name, epsilon) in enumerate((name, epsilon) for name in names for epsilon in epsilons):
        method, part_key = METHODS[name], jax.random.fold_in(key, place)
        method = method.without or method if math.isinf(epsilon) else method
        choice = choose(jax.random.fold_in(part_key, 0), method, epsilon, first, seen, asked, most)
        found, told = [], math.nan
        for trial, (train, _, held_out) in enumerate(splits):
            model, told = method.fit(jax.random.fold_in(part_key, 1 + trial), train, choice, epsilon, mu_of(epsilon))
            found.append(score(method, model, choice, train, held_out))
            jax.clear_caches()
        tried = len(candidates(method.space, most, seed=0))
        setting = {"method": name, "epsilon": None if math.isinf(epsilon) else epsilon, "delta": DELTA}
        setting |= {"transcript_epsilon": None if math.isinf(told) else told, "choice": choice, "candidates": tried}
        several = counted(mu_of(epsilon), tried + 1 if tried > 1 else 1) if method.gaussian else None
        setting |= {"epsilon_with_choosing": several}
        scale = f"{ratings.origin}; {learning.num_users:,} users learned from, {trials} splits"
        quantity = "recall@20" if method.ranks else "rmse"
        mean = float(np.mean(found))
        rows.add(quantity, setting, mean, (min(found), max(found)), scale=scale)
        rows.finish_part(f"{name}, epsilon {epsilon:g}: {quantity} {mean:.4f}, {choice}")


def large(rows: Rows, users: int, epsilons: Sequence[float | None]) -> None:
    """Factors pay where users are many: the same population, with and without them; None is no noise."""
    train, held_out = population(rows.seed, users=users)
    key, delta = jax.random.key(rows.seed), delta_for(users)
    factors = {"rank": 4, "rounds": 10, "bias_share": 0.1, "factor_norm": 2.0, "factor_variance": 1.0, "first": 0.6}
    choices = {"item bias": {}, "alternating": factors | {"factor_precision": 2.0}}
    losses = [math.inf if epsilon is None else epsilon for epsilon in epsilons]
    for place, (name, epsilon) in enumerate((name, epsilon) for name in choices for epsilon in losses):
        method, choice = METHODS[name], choices[name] | {"power": 0.0, "popularity_share": 0.0, "rating_clip": 3.0}
        began = time.perf_counter()
        model, told = method.fit(jax.random.fold_in(key, place), train, choice, epsilon, mu_of(epsilon, delta))
        taken = time.perf_counter() - began
        setting = {"method": name, "epsilon": None if math.isinf(epsilon) else epsilon, "delta": delta, "users": users}
        setting |= {"transcript_epsilon": None if math.isinf(told) else told, "choice": choice, "fit_seconds": taken}
        found = score(method, model, choice, train, held_out)
        rows.add("population rmse", setting, found, scale=f"{users:,} users, {len(train.values):,} ratings")
        rows.finish_part(f"{users:,} users, {name}, epsilon {epsilon:g}: {found:.4f}, fitted in {taken:.0f} s")


def federated(rows: Rows, data_dir: str | None) -> None:
    """User-level DP-SGD and DP-FTRL with every kind of noise, each with the best of the same learning rates."""
    scale = Scale(users_per_round=200, epochs=3)
    found = [
        row
        for rate in LEARNING_RATES
        for row in accuracies(
            "mnist", (2.0, 8.0), scale, Settings(learning_rate=rate), seed=rows.seed, data_dir=data_dir
        )
    ]
    for variant, epsilon in dict.fromkeys((row["variant"], row["epsilon"]) for row in found):
        own = [row for row in found if (row["variant"], row["epsilon"]) == (variant, epsilon)]
        best = max(own, key=lambda row: row["accuracy"])
        told = f"{best['users']:,} users of 5 examples, {best['users_per_round']} a round, {best['rounds']} rounds"
        setting = {name: value for name, value in best.items() if name not in ("accuracy", "users", "rounds")}
        worst = min(row["accuracy"] for row in own)
        rows.add("federated accuracy", setting, best["accuracy"], (worst, best["accuracy"]), scale=told)
    rows.finish_part(FEDERATED)


REPRODUCIBLE = {"large": large}


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--data", default="movielens_100k", choices=data.RATINGS)
    parser.add_argument("--part", choices=PARTS, default=None, help="one part alone; rows of the other stay")
    parser.add_argument("--users", type=int, default=1_000_000, help="of the population")
    parser.add_argument("--only", nargs="+", choices=METHODS, default=None, help="methods whose rows are made alone")
    parser.add_argument("--epsilon", nargs="+", type=float, default=EPSILONS, help="of these rows; inf for no noise")
    chosen = parser.parse_args()
    asked = {
        (name, None if math.isinf(epsilon) else epsilon) for name in chosen.only or () for epsilon in chosen.epsilon
    }

    def stays(row: dict[str, Any]) -> bool:
        return (row["setting"].get("method"), row["setting"].get("epsilon")) not in asked

    keep = stays if asked else chosen.part is not None
    rows = Rows("004", "personalization", chosen.out, chosen.seed, keep=keep)
    if chosen.quick:
        rows.run(large, 5_000, [5.0, None])
        return
    if asked:
        ratings = data.load_ratings(chosen.data, chosen.data_dir)
        return compare(
            rows, ratings, names=chosen.only, epsilons=tuple(chosen.epsilon), trials=TRIALS, most=CANDIDATES
        )
    for part in (RATINGS, RANKINGS):
        if chosen.part in (None, part):
            names = [name for name, method in METHODS.items() if method.ranks == (part == RANKINGS)]
            ratings = data.load_ratings(chosen.data, chosen.data_dir)
            compare(rows, ratings, names=names, epsilons=EPSILONS, trials=TRIALS, most=CANDIDATES)
    if chosen.part in (None, FEDERATED):
        federated(rows, chosen.data_dir)
    if chosen.part in (None, POPULATION):
        rows.run(large, chosen.users, [1.0, 5.0, None])
