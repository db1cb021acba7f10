"""How many canaries are guessed (``tests/test_cli_train.py`` has the trainings that are audited in their own run)."""

import numpy as np
from scipy.stats import norm

from dpaudit.auditing.bounds import one_run
from dpaudit.audits.audited_training import plans


def lower(scores, included, made):
    return one_run.audit(scores, included, made, delta=1e-5, confidence=0.95).epsilon_lower


def test_where_steps_seldom_take_a_canary_some_are_called_in_and_none_out():
    m, steps, rate, z = 1_000, 100, 0.02, 0.4
    rng = np.random.default_rng(8)
    included = rng.random(m) < 0.5
    x = rng.normal(0, z, (m, steps)) + included[:, None] * (rng.random((m, steps)) < rate)
    scores = np.log(1 - rate + rate * norm.pdf(x, 1, z) / norm.pdf(x, 0, z)).sum(axis=1)
    made = plans(m)
    only_in = made[-1:] * len(made)
    assert lower(scores, included, made) == lower(scores, included, only_in)
    assert lower(scores, included, made) > lower(scores, included, [plan for plan in made if plan.guesses_out]) + 0.3


def test_few_canaries_are_all_the_plans_need():
    assert plans(2)[-1] == one_run.Plan(1, 0)
    assert all(1 <= sum(plan) <= m for m in range(2, 60) for plan in plans(m))
