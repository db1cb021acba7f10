"""How many trials: each number against the definition that it inverts, and stopping times against an exact walk."""

import json
import math
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpaudit import Claim, _validate
from dpaudit._engine.game import trials_per_second
from dpaudit.auditing.bounds import betting, plan, sequential
from dpaudit.auditing.conclude import from_counts
from dpaudit.cli import main
from dpaudit.report.table import duration, plan_table

STRICT = {"delta": 0.0, "confidence": 0.999}


@pytest.mark.parametrize("claimed, delta", [(1.0, 0.0), (4.0, 0.0), (2.0, 0.01)])
def test_least_is_where_a_violation_first_becomes_possible(claimed, delta):
    found = plan.plan(claimed, delta=delta)
    n = found.least // 2
    for trials, verdict in ((n, "violation"), (n - 1, "underpowered")):
        perfect = from_counts(0, 0, trials, trials, claim=Claim(claimed, delta), method="perfect")
        assert perfect.verdict == verdict


@pytest.mark.parametrize("claimed, true, delta", [(1.0, 2.0, 0.0), (0.5, 1.5, 0.01), (3.0, 4.0, 0.0)])
def test_fixed_number_has_the_power_and_a_tenth_less_has_not(claimed, true, delta):
    settings = {"delta": delta, "confidence": 0.95}
    n = plan.needed(true, claimed, **settings)
    assert plan.power(true, claimed, n, n, **settings) >= 0.8
    for fewer in np.linspace(0.1, 0.9, 9) * n:
        assert plan.power(true, claimed, int(fewer), int(fewer), **settings) < 0.8


def test_known_answer_of_the_figure():
    """Claim 1, true epsilon 2, confidence 99.9%."""
    found = plan.plan(1.0, confidence=0.999)
    assert (found.true_epsilon, found.fixed, found.trials) == (2.0, 206, 206)
    assert found.sequential_median <= found.fixed / 2
    assert found.sequential_median < found.sequential_most < found.fixed
    assert found.detectable == pytest.approx(2.0, abs=0.02)
    assert found.seconds(10) is None
    assert found._replace(rate=5.0).seconds(10) == 2.0


def stopped_by(claimed: float, true: float, pairs: int) -> np.ndarray:
    """The exact probability of having stopped after each pair: a binomial walk with an absorbing boundary."""
    rate = 1 / (1 + math.exp(true))
    step = scipy.stats.binom.pmf([0, 1, 2], 2, rate)
    most = betting.most_errors(np.arange(1, pairs + 1), claimed, **STRICT, expected_gap=claimed)
    walk, stopped = np.ones(1), []
    for boundary in most:
        walk = np.convolve(walk, step)
        absorbed = np.arange(len(walk)) <= boundary
        stopped.append(walk[absorbed].sum())
        walk[absorbed] = 0
    return np.cumsum(stopped)


@pytest.mark.parametrize("true", [2.0, 3.0])
def test_simulated_stopping_times_follow_the_exact_walk(true):
    exact = stopped_by(1.0, true, 120)
    stops = plan.stopping(true, 1.0, **STRICT, longest=120)
    for pairs in (20, 30, 50, 75, 95):
        p = exact[pairs - 1]
        assert abs((stops <= pairs).mean() - p) <= 4 * math.sqrt(p * (1 - p) / len(stops)) + 1e-9
    assert 0.1 < exact[49] < 0.999


def test_whole_audits_stop_as_soon_as_planned_or_sooner():
    """Every bet and every trial, through the public state: not later than the plan, which follows some of the bets."""
    found = plan.plan(1.0, confidence=0.999)
    rate, draws = 1 / (1 + math.exp(2.0)), np.random.default_rng(7)
    trials = []
    for _ in range(300):
        watch = sequential.start(Claim(1.0), confidence=0.999, until=sequential.violation())
        watch = sequential.update(watch, draws.random(1000) < rate, draws.random(1000) >= rate)
        assert watch.stopped
        trials.append(2 * watch.pairs)
    assert np.median(trials) == pytest.approx(found.sequential_median, rel=0.12)
    assert np.mean(np.array(trials) <= found.sequential_most) > 0.72
    assert np.mean(np.array(trials) <= found.sequential_median) < 0.6


@pytest.mark.parametrize("pairs", [40, 400, 40_000])
def test_what_a_stopping_audit_can_detect(pairs):
    found = plan.detectable_by_betting(1.0, pairs, **STRICT)
    seen = (plan.stopping(found, 1.0, **STRICT, longest=pairs) < math.inf).mean()
    assert 0.78 < seen < 0.9
    assert (plan.stopping(1 + 0.8 * (found - 1), 1.0, **STRICT, longest=pairs) < math.inf).mean() < 0.8
    assert plan.detectable_by_betting(1.0, 4, **STRICT) == math.inf


def test_an_honest_mechanism_can_expect_its_lower_bound():
    settings: dict[str, Any] = {"delta": 0.01, "confidence": 0.9}
    n, rate = 60, 0.99 / (1 + math.exp(1.5))
    counts = np.arange(n + 1)
    lower, _ = plan.epsilon_bounds(counts[:, None], counts[None, :], n, n, **settings)
    weight = scipy.stats.binom.pmf(counts, n, rate)
    assert plan.expected_lower(1.5, n, n, **settings) == pytest.approx(weight @ lower @ weight, abs=0.01)
    bounds = [plan.expected_lower(1.5, n, n, **settings) for n in (50, 500, 5000, 50_000)]
    assert bounds == sorted(bounds)
    assert 1.45 < bounds[-1] < 1.5


def test_rate_of_a_game():
    rate = trials_per_second(jax.random.key(0), lambda key, world: jax.random.normal(key), jnp.sin, seconds=0.05)
    assert 1000 < rate < 1e10


@pytest.mark.parametrize(
    "seconds, words",
    [
        (None, ""),
        (0.2, "<1 s"),
        (42, "42 s"),
        (210, "3.5 min"),
        (7200, "2.0 h"),
        (864_000, "10 days"),
        (math.inf, "never"),
    ],
)
def test_durations_in_words(seconds, words):
    assert duration(seconds) == words


def test_table_and_command_line(monkeypatch, capsys):
    found = plan.plan(1.0, confidence=0.999, rate=10.0)
    columns = plan_table(found, "given").columns
    assert list(columns[1].cells) == ["50", "206", f"{found.sequential_median:.0f}", f"{found.sequential_most:.0f}"]
    assert list(columns[2].cells)[:2] == ["5 s", "21 s"]
    arguments = ["plan", "--epsilon", "1", "--confidence", "0.999", "--rate", "10"]
    monkeypatch.setattr(sys, "argv", ["dpaudit", *arguments, "--json"])
    main.main()
    row = json.loads(capsys.readouterr().out)
    assert {name: row[name] for name in found._fields} == found._asdict()
    assert row["fixed_seconds"] == 20.6
    monkeypatch.setattr(sys, "argv", ["dpaudit", *arguments])
    main.main()
    shown = capsys.readouterr().out
    assert "206" in shown
    assert "10 trials a second" in shown


@pytest.mark.parametrize(
    "change, message",
    [
        ({"epsilon": 0}, "^epsilon: expected a finite number > 0, got 0$"),
        ({"epsilon": 25.0}, r"^epsilon: expected a claim that 2\^31 trials can refute, got 25.0$"),
        ({"delta": 1.0}, r"^delta: expected a number in \[0, 1\), got 1.0$"),
        ({"confidence": 0}, r"^confidence: expected a number in \(0, 1\), got 0$"),
        ({"true_epsilon": 1.0}, "^true_epsilon: expected more than the claimed 1, got 1.0$"),
        ({"true_epsilon": -1.0}, "^true_epsilon: expected a finite number > 0, got -1.0$"),
        ({"trials": 1}, "^trials: expected a whole number >= 2, got 1$"),
        ({"rate": 0}, "^rate: expected a finite number > 0, got 0$"),
    ],
)
def test_bad_input_is_refused(change, message):
    with pytest.raises(_validate.InputError, match=message):
        plan.plan(**({"epsilon": 1.0} | change))
