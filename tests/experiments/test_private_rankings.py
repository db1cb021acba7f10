"""What the page says of private rankings and of other programs, where its rows say so and where they do not."""

import jax
import pytest

from dpaudit.data.ratings import split
from experiments.paper004 import methods, page
from experiments.paper004.jester import METHODS, made_up
from experiments.paper004.methods import Method, score
from experiments.paper004.population import population
from experiments.paper004.run import mu_of


def row(quantity, ours, wide=0.005, **setting):
    at = {"delta": 1e-5, "public_users": 94, "candidates": 8, "choice": {"rank": 4}} | setting
    return {
        "quantity": quantity,
        "setting": at,
        "ours": ours,
        "ours_low": ours - wide,
        "ours_high": ours + wide,
        "scale": "few",
    }


def of_rankings(recalls, **more):
    return [row("private recall@20", ours, epsilon=epsilon, **more) for epsilon, ours in recalls.items()]


def test_a_ranking_gains_only_where_every_step_does():
    flat = [row("recall@20", 0.19, method="ranking, public features", epsilon=at) for at in (1.0, 5.0, 20.0, None)]
    told = page.ranking_gains(flat + of_rankings({20.0: 0.33, None: 0.32, 1.0: 0.2, 5.0: 0.28}))
    assert told.holds
    assert told.values["values"] == "0.200, 0.280, 0.330"
    assert told.values["without"] == 0.32
    assert not page.ranking_gains(flat + of_rankings({1.0: 0.2, 5.0: 0.28, 20.0: 0.281, None: 0.3})).holds
    assert not page.ranking_gains(flat + of_rankings({1.0: 0.18, 5.0: 0.28, 20.0: 0.33, None: 0.3})).holds


def test_moments_drown_where_alternating_is_flat_and_they_are_shorter_than_their_noise():
    method = "ranking, public features"
    flat = [
        row("recall@20", ours, method=method, epsilon=at) for at, ours in ((1.0, 0.216), (5.0, 0.219), (None, 0.3))
    ]
    short = [row("moment over noise", ours, epsilon=at) for at, ours in ((1.0, 0.03), (5.0, 0.1))]
    told = page.drowned(flat + short)
    assert told.holds
    assert told.values["more"] == pytest.approx(10)
    assert not page.drowned([*flat, *short, row("moment over noise", 1.5, epsilon=20.0)]).holds
    assert not page.drowned([*flat, row("recall@20", 0.25, method=method, epsilon=20.0), *short]).holds
    table = page.rankings(of_rankings({5.0: 0.28}) + flat + short)
    assert "| 5 | 0.280 [0.275, 0.285] | 0.219 [0.214, 0.224] | 0.100 | rank 4 |" in table


def test_gradient_steps_are_a_baseline_only_without_clipping_and_below_all_others():
    steps, ours = "gradient steps, public features", "alternating, public features"
    rows = [row("rmse", 0.92, method=steps, epsilon=20.0), row("rmse", 0.91, method=ours, epsilon=None)]
    bare = row("rmse", 0.9, method=steps, epsilon=None)
    assert page.gradient_baseline([*rows, bare]).holds
    clipped = row("rmse", 0.9, method=steps, epsilon=None, choice={"clip_norm": 1.0})
    assert not page.gradient_baseline([*rows, clipped]).holds
    assert not page.gradient_baseline([*rows, row("rmse", 0.915, method=steps, epsilon=None)]).holds


def test_a_peer_that_is_better_anywhere_makes_the_sentence_untrue():
    ours = row("peer rmse", 0.98, side="ours", epsilon=1.0, true_epsilon=1.0)
    theirs = [row("peer rmse", 1.14, side=side, epsilon=1.0, accounted=1.0, true_epsilon=true)
              for side, true in (("DPALS", 2.8), ("DPALS, mended", 0.9))]  # fmt: skip
    told = page.peer_dpals([ours, *theirs])
    assert told.holds
    assert told.values["times"] == pytest.approx(2.8)
    assert not page.peer_dpals([ours, theirs[0], row("peer rmse", 0.9, side="DPALS, mended", epsilon=1.0)]).holds
    assert "| DPALS | 1 | 1.00 | 2.80 | 1.140 [1.135, 1.145] |" in page.peers([ours, *theirs])


def test_factors_of_moments_lower_the_error_of_ratings_and_their_cost_is_what_was_asked():
    train, _, held_out = split(made_up(0, 3_000), seed=1)
    choice = {
        "rank": 2,
        "factor_precision": 5.0,
        "popularity_share": 0.1,
        "bias_share": 0.1,
        "intercept_precision": 3.0,
    }
    model, told = METHODS["second moments"].fit(jax.random.key(0), train, choice, 5.0, mu_of(5.0))
    bare, _ = METHODS["item bias"].fit(jax.random.key(0), train, {}, 5.0, mu_of(5.0))
    assert told == pytest.approx(5.0, rel=1e-3)
    found = [score(METHODS["second moments"], one, choice, train, held_out) for one in (model, bare)]
    assert found[0] < 0.95 * found[1]


def test_what_a_ranking_by_moments_costs_is_what_was_asked():
    train, held_out = population(0, users=400, items=40)
    choice = {"rank": 2, "most": 30, "popularity_share": 0.2, "factor_precision": 3.0, "unobserved": 0.1}
    model, told = methods.ranked_moments(jax.random.key(0), train, choice, 5.0, mu_of(5.0))
    assert told == pytest.approx(5.0, rel=1e-3)
    method = Method(methods.ranked_moments, {}, ranks=True)
    assert 0 < score(method, model, choice, train, held_out) < 1
