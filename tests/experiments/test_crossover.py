"""The comparison over users, epsilon and rank: others choose, and the page says what its rows say."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit.data.ratings import split_users
from dpaudit.personalization.als.steps import Model
from experiments import pages
from experiments.common import Rows
from experiments.paper004 import claims, crossover, jester, page
from experiments.paper004.crossover import Compared, compare, few, jokers
from experiments.paper004.methods import Told


def test_other_users_choose_between_settings_and_every_rank_is_fitted_once(tmp_path, monkeypatch):
    learners = crossover.made_up(0, 300)
    asked = []

    def fit(key, train, choice, epsilon, mu):
        asked.append((train is learners.public, choice["rank"], choice["sound"], epsilon))
        bias = jnp.full((crossover.ITEMS, 1), 0.0 if choice["sound"] else 3.0)
        return Told(Model(bias + 1, bias, jnp.zeros(len(bias)), jnp.array([3.5, 1.0]), jnp.full(2, 5.0)), 1.0)

    both = {name: Compared(fit, ({"sound": False}, {"sound": True})) for name in ("alternating", "gradient steps")}
    monkeypatch.setitem(crossover.METHODS, "made-up users", both)
    rows = Rows("004", "personalization_crossover", str(tmp_path), 0)
    compare(rows, "made-up users", learners, [1.0, None], [0, 2, 4])
    own = [(True, 4, False), (True, 4, True), (False, 0, True), (False, 2, True), (False, 4, True)]
    steps = [each for each in own if each[1]]
    assert asked == [(*each, epsilon) for epsilon in (1.0, math.inf) for each in own + steps]
    assert len(rows.rows) == 2 * (3 + 2)
    asked.clear()
    compare(rows, "made-up users", learners, [1.0, 5.0, None], [4], at=5.0)
    chosen = [(True, 4, False, 5.0), (True, 4, True, 5.0), (False, 4, True, 1.0)]
    assert asked == [*chosen, *chosen, *2 * [(False, 4, True, 5.0)], *2 * [(False, 4, True, math.inf)]]


def test_jokers_and_those_who_choose_are_different_users():
    ratings = jester.made_up(0, 600)
    found, again = jokers(0, ratings, 400), jokers(0, ratings, 400)
    private, public = split_users(ratings, seed=0)
    assert found.train.num_users == 400
    assert found.seen.num_users == public.num_users
    assert found.public.num_users == round(400 / public.num_users) * public.num_users
    assert all(np.array_equal(one.values, other.values) for one, other in zip(found, again, strict=True))
    drawn = few(1, private, 50)
    assert drawn.num_users == 50
    assert np.unique(drawn.users).tolist() == list(range(50))  # everybody rated
    assert drawn.users.max() < 50 < len(drawn.values)


def rows_with(users=50, epsilons=((1.0, 0.1), (None, 0.0)), **errors):
    """One group of users at epsilon 1 and without noise; errors by method and rank, to which noise adds."""
    found = []
    for epsilon, more in epsilons:
        for name, error in {"bias_0": 1.0, **errors}.items():
            method = "gradient steps" if name.startswith("steps") else "alternating"
            setting = {"data": "made-up users", "users": users, "method": method, "epsilon": epsilon, "delta": 1e-5}
            setting |= {"rank": int(name[-1])}
            lost = more if isinstance(more, float) else more[method]
            found.append({"quantity": "crossover rmse", "setting": setting, "ours": error + lost * (name != "bias_0")})
    return found


def test_the_page_says_what_its_rows_say():
    rows = rows_with(alternating_2=0.95, alternating_4=0.92, steps_2=0.97, steps_4=0.85)
    assert "| 50 | 1 | 1.000 | 1.050 | 1.020 | 1.070 | **0.950** |" in page.crossover(rows)
    assert "| 50 | ∞ | 1.000 | 0.950 | 0.920 | 0.970 | **0.850** |" in page.crossover(rows)
    wanted = "50 made-up users: alternating without noise, gradient steps at ε = 1 and without noise"
    assert page.factors_pay(rows).values["told"] == wanted
    assert page.lowest(rows).splitlines()[-1] == "| made-up users | 50 | steps | steps |"
    assert "alternating nowhere" in page.factors_pay(rows_with(alternating_2=2.0, steps_2=0.5)).values["told"]


LOST = {"alternating": 0.5, "gradient steps": 0.2}  # by noise at epsilon 1
LESS = {"alternating": 0.05, "gradient steps": 0.005}  # at epsilon 5


def test_noise_that_costs_one_method_more_decides_which_is_ahead():
    rows = rows_with(epsilons=((5.0, LESS), (None, 0.0), (1.0, LOST)), alternating_2=0.5, steps_2=0.7)
    compared = page.methods_compared(rows)
    assert compared.holds
    assert (compared.values["groups"], compared.values["cells"], compared.values["more"]) == (1, 2, 2)
    alike = ((1.0, LOST), (5.0, 0.1), (None, 0.0))
    compared_alike = page.methods_compared(rows_with(epsilons=alike, alternating_2=0.5, steps_2=0.7))
    assert compared_alike.holds
    assert compared_alike.values["more"] == 1
    assert compared.values["by"] == pytest.approx(0.2)
    assert page.ahead_from(rows).values["told"] == "from ε = 5 on with 50 made-up users"
    enough = page.many_are_enough(rows)
    assert enough.holds
    assert (enough.values["steps"], enough.values["alternating"]) == ("0.005", "0.050")
    assert "| 50 | 0.500 | 0.300 | 0.500 | 0.050 | 0.200 | 0.005 |" in page.noise_costs(rows)
    other = rows_with(60, ((1.0, 0.7),), alternating_2=0.5, steps_2=0.7)
    lines = page.lowest(rows + other).splitlines()
    assert lines[0] == "| users | number | ε = 1 | ε = 5 | ε = ∞ |"
    assert lines[2:] == [
        "| made-up users | 50 | steps | alternating | alternating |",
        "| made-up users | 60 | item biases | – | – |",
    ]


@pytest.mark.parametrize(
    ("noise", "errors"),
    [
        (LOST, {"alternating_2": 0.7, "steps_2": 0.5}),  # behind without noise
        ({"alternating": 0.1, "gradient steps": 0.2}, {"alternating_2": 0.5, "steps_2": 0.7}),  # noise costs it less
    ],
)
def test_methods_that_compare_otherwise_are_not_told(noise, errors):
    assert not page.methods_compared(rows_with(epsilons=((1.0, noise), (None, 0.0)), **errors)).holds


def test_a_lead_that_a_larger_epsilon_loses_is_not_told():
    later = {"alternating": 0.3, "gradient steps": 0.0}
    rows = rows_with(epsilons=((1.0, LESS), (5.0, later)), alternating_2=0.5, steps_2=0.7)
    assert not page.ahead_from(rows).holds


def test_a_lead_beside_factors_of_the_other_method_that_do_not_pay_is_told_apart():
    """At epsilon 1 both errors are below that of biases, or only that of alternating minimisation, or none."""
    for cost, alone in ((0.1, "nowhere"), (0.4, "at ε = 1 with 50 made-up users"), (0.6, "nowhere")):
        noise = {"alternating": cost, "gradient steps": cost}
        rows = rows_with(epsilons=((1.0, noise), (None, 0.0)), alternating_2=0.5, steps_2=0.7)
        assert page.ahead_from(rows).values["alone"] == alone
    steps = rows_with(epsilons=((1.0, 0.4), (None, 0.0)), alternating_2=0.7, steps_2=0.5)
    assert page.ahead_from(steps).values["alone"] == "nowhere"


def test_the_claim_says_on_what_condition_alternating_minimisation_is_ahead():
    told = claims.against_steps(pages.rows_of("paper004")).ours
    lead = told.partition("where both methods' factors beat item biases, ahead ")[2]
    assert lead.startswith("only without noise with 1,000 made-up users; from ε = 20 on with 10,000 made-up users")
    assert "; only its own beat them at ε = 1 with 10,000 made-up users" in lead


def test_steps_that_noise_still_costs_something_are_not_said_to_be_too_few():
    rows = rows_with(epsilons=((1.0, LOST), (None, 0.0)), alternating_2=0.2, steps_2=0.7)
    assert not page.many_are_enough(rows).holds


@pytest.mark.parametrize(("rank", "ours", "holds"), [(2, 1.3, True), (4, 1.3, False), (2, 1.1, False)])
def test_a_lead_that_takes_a_rank_which_nobody_chose_is_called_so(rank, ours, holds):
    rows = rows_with(epsilons=((5.0, 0.0), (1.0, 0.0)), alternating_2=0.8, alternating_4=0.6, steps_2=0.7)
    for row in rows:
        row["setting"]["data"] = "Jester"
    for method, error in (("alternating", ours), ("gradient steps", 1.2)):
        setting = {"method": method, "epsilon": 1.0, "choice": {"rank": rank}}
        rows.append({"quantity": "jester rmse", "setting": setting, "ours": error})
    told = page.rank_chosen(rows)
    assert told.holds == holds
    assert (told.values["best"], told.values["chosen"], told.values["users"]) == (4, rank, 50)


def test_noise_has_to_cost_less_where_users_are_more():
    few, many = (
        rows_with(users, ((1.0, noise), (None, 0.0)), alternating_2=0.5, steps_2=0.7)
        for users, noise in ((50, LOST), (500, LESS))
    )
    told = page.bring_and_cost(few + many)
    assert told.holds
    assert (told.values["brought"], told.values["cost"]) == ("0.500, 0.500", "0.500, 0.050")
    swapped = [row | {"setting": row["setting"] | {"users": 550 - row["setting"]["users"]}} for row in few + many]
    assert not page.bring_and_cost(swapped).holds


def test_ranges_that_overlap_decide_nothing():
    rows = rows_with(alternating_2=0.95, steps_2=0.85)
    assert not page.repeated(rows).holds  # one run each
    widths = {"alternating": 0.06, "gradient steps": 0.03}
    for row in rows:
        wide = widths[row["setting"]["method"]] * (2 if row["setting"]["epsilon"] else 0.5)
        row |= {"ours_low": row["ours"] - wide, "ours_high": row["ours"] + wide}
    told = page.repeated(rows).values
    assert (told["apart"], told["cells"]) == (1, 2)
    wanted = "neither with 50 made-up users at ε = 1; gradient steps with 50 made-up users without noise"
    assert told["told"] == wanted
    assert "**0.850** [0.835, 0.865]" in page.crossover(rows)


def test_features_alone_is_untrue_where_the_lead_is_larger_than_what_features_bring():
    def rmse(method, ours, rank=0):
        return {
            "quantity": "rmse",
            "setting": {"method": method, "epsilon": 1.0, "choice": {"rank": rank}},
            "ours": ours,
        }

    public, plain, steps = "alternating, public features", "alternating", "gradient steps, public features"
    assert page.features_alone([rmse(public, 0.9), rmse(plain, 1.0), rmse(steps, 0.95)]).holds
    assert not page.features_alone([rmse(public, 0.9), rmse(plain, 1.0), rmse(steps, 1.05)]).holds
    assert not page.features_alone([rmse(public, 0.9, 2), rmse(plain, 1.0), rmse(steps, 0.95)]).holds


@pytest.mark.parametrize("name", crossover.METHODS)
def test_both_methods_have_two_settings(name):
    assert {*crossover.METHODS[name]} == {"alternating", "gradient steps"}
    for compared in crossover.METHODS[name].values():
        one, other = compared.settings
        assert one != other
        assert one.keys() == other.keys()
