"""Claims about how runs go on depend on the runs: made-up ones make each hold, fail, or stay open."""

import pytest

from experiments.paper002 import course_claims
from experiments.paper002.course_claims import COURSES

LOOKS = 100
FALLS = [3 - 0.02 * look for look in range(LOOKS)]
RISES = FALLS[::-1]
TURNS = [*FALLS[:30], *[FALLS[29] + 0.02 * look for look in range(1, 71)]]  # lowest in the thirtieth look of a hundred
EARLY = [2.0, 1.9, *[2.0 + 0.01 * look for look in range(98)]]
TWICE = [
    *[3 - 0.1 * look for look in range(10)],
    *[2.1 + 0.01 * look for look in range(50)],
    *[2.6 - 0.02 * look for look in range(40)],
]
STEP = [0.01] * 10 + [course_claims.LARGEST_BIN] * 90
SHAPES = (FALLS, RISES, TURNS, EARLY, TWICE, STEP)


def made_up(monkeypatch, curves, trials=2, *, others=None):
    """Every setting's trials, whose loss, C and norms are these curves; with 0.05 the loss turns at ``others``."""

    def run(name, curve):
        curves = {quantity: list(curve) for quantity in ("loss", "clip_norm", "norm", "accuracy")}
        return {"name": name, "round": [100 * (look + 1) for look in range(LOOKS)]} | curves

    def found(name, sensitivity):
        assert sensitivity == (None if name == "non-private" else 2)
        own = others if others is not None and name == "clip0.05" else curves
        return [run(name, own) for _ in range(trials)]

    monkeypatch.setattr(course_claims, "trials", found)


@pytest.mark.parametrize("course", COURSES, ids=lambda course: course.says)
def test_a_claim_holds_for_some_runs_and_fails_for_others_and_a_single_trial_decides_nothing(course, monkeypatch):
    verdicts = set()
    others = TURNS if course.settings == ("clip0.1",) else None
    for shape in SHAPES:
        made_up(monkeypatch, shape, others=others)
        holds = course_claims.judged(course)([]).holds
        verdicts.add(holds)
        made_up(monkeypatch, shape, trials=1, others=others)
        assert course_claims.judged(course)([]).holds is None
    assert verdicts == {True, False}


def test_trials_that_differ_leave_a_claim_open(monkeypatch):
    keeps_falling = COURSES[0]
    runs = [{"name": "clip0.01", "round": [*range(1, LOOKS + 1)], "loss": loss} for loss in (FALLS, TURNS)]
    monkeypatch.setattr(course_claims, "trials", lambda name, sensitivity: runs)
    found = course_claims.judged(keeps_falling)([])
    assert (found.holds, found.ours[:15]) == (None, "1 of 2 trials (")


def test_a_diverged_loss_is_above_every_other():
    run = {"name": "clip0.5", "round": [1, 2, 3, 4], "loss": [1.0, None, None, 2.0]}
    assert course_claims.lowest(run) == 0.25
    assert course_claims.values(run, "loss")[1] == float("inf")
