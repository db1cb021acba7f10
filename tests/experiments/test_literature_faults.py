"""The losses of the literature's faults and of their twins, from laws that are written out here a second time.

Each law is a dict from what is released to its probability, by enumeration; none is taken from the mechanism's code.
"""

import math
import re
from collections import defaultdict
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from dpaudit import Case, InputError, Mechanism, play
from experiments.common import Rows
from experiments.trust import fault_zoo, page
from experiments.trust.zoo import (
    FAMILIES,
    literature_choices,
    literature_decisions,
    literature_noise,
    literature_sums,
    randomness,
    rounding,
)
from experiments.trust.zoo.disguise import DISGUISES, disguised

FAULTS = {fault.name: fault for family, faults in FAMILIES.items() if "literature" in family for fault in faults}
KEY = jax.random.key(25)
E = math.e
Law = dict[Any, float]


def epsilon_of(law0: Law, law1: Law, *, delta: float = 0.0) -> float:
    """The least epsilon with sum max(p - e^epsilon q, 0) <= delta in both directions, by bisection."""
    outcomes = list({**law0, **law1})
    p, q = (np.array([law.get(outcome, 0.0) for outcome in outcomes]) for law in (law0, law1))
    assert p.sum() == pytest.approx(1, abs=1e-9)
    assert q.sum() == pytest.approx(1, abs=1e-9)

    def excess(epsilon: float) -> float:
        return max(np.maximum(a - math.exp(epsilon) * b, 0).sum() for a, b in ((p, q), (q, p)))

    if excess(600.0) > delta + 1e-15:
        return math.inf
    low, high = 0.0, 600.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if excess(middle) <= delta + 1e-15 else (middle, high)
    return high


def discrete(scale: float = 1.0, center: int = 0, reach: int = 60) -> Law:
    """Discrete Laplace noise around a whole number, what is beyond ``reach`` at the ends."""
    a = math.exp(-1 / scale)
    law = {center + k: (1 - a) / (1 + a) * a ** abs(k) for k in range(-reach + 1, reach)}
    end = a**reach / (1 + a)
    return law | {center - reach: end, center + reach: end}


def to_same_ends(law: Law, low: int, high: int) -> Law:
    clamped: Law = defaultdict(float)
    for k, p in law.items():
        clamped[min(max(k, low), high)] += p
    return clamped


def counts(scale: float = 1.0) -> tuple[Law, Law]:
    """A count of 0 and one of 1, with discrete noise."""
    return tuple(to_same_ends(discrete(scale, c), -40, 40) for c in (0, 1))  # type: ignore[return-value]


def binomial(n: int, p: float) -> np.ndarray:
    law = np.ones(1)
    for _ in range(n):
        law = np.convolve(law, [1 - p, p])
    return law


def keyed(count: int, least: int) -> Law:
    law: Law = defaultdict(float)
    for k, p in discrete(1.0, count).items():
        law[k if count > 0 and k >= least else 0] += p
    return law


def redrawn(count: int) -> Law:
    weights = np.exp(-np.abs(np.arange(9) - count))
    return dict(enumerate(weights / weights.sum()))


def one_category(x: int, truth: float) -> Law:
    return {k: truth if k == x else (1 - truth) / 4 for k in range(5)}


def unary(x: int, epsilon: float) -> Law:
    keep = math.exp(epsilon) / (1 + math.exp(epsilon))
    bits = [int(k == x) for k in range(8)]
    return {
        z: math.prod(keep if a == b else 1 - keep for a, b in zip(z, bits, strict=True))
        for z in product((0, 1), repeat=8)
    }


def candidates(scores: np.ndarray, factor: float) -> Law:
    weights = np.exp(factor * scores)
    return dict(enumerate(weights / weights.sum()))


def proposed(gap: int, scale: float | None) -> Law:
    if scale is None:
        return {"answer": float(gap > 5), "none": float(gap <= 5)}
    passes = sum(p for k, p in discrete(scale, gap).items() if k > 5)
    return {"answer": passes, "none": 1 - passes}


def halved(values: list[float], scale: float | None) -> Law:
    """Every path of the search with its probability."""
    law: Law = {}
    for path in product((0, 1), repeat=6):
        low, width, chance = 0.0, 1.0, 1.0
        for right in path:
            width /= 2
            below = sum(value < low + width for value in values)
            noise = {0: 1.0} if scale is None else discrete(scale, reach=400)
            goes_right = sum(p for k, p in noise.items() if below + k < len(values) / 2)
            chance *= goes_right if right else 1 - goes_right
            low += width * right
        law[low] = chance
    return law


def median(scale: float) -> Law:
    """0 with Laplace noise, rounded to multiples of 1/64 up to 40 away; the law of the noise's size by its cdf."""
    if scale == 0:
        return {0: 1.0}
    edges = np.concatenate([[-np.inf], (np.arange(-2560, 2560) + 0.5) / 64, [np.inf]])
    cdf = np.where(edges < 0, np.exp(np.minimum(edges, 0) / scale) / 2, 1 - np.exp(-np.maximum(edges, 0) / scale) / 2)
    return dict(enumerate(np.diff(cdf), -2560))


def smooth() -> tuple[float, float]:
    """Scales of the twin on both inputs: 2 max_k e^(-beta k) A(k), A by brute force over sets of 0 and 1."""
    beta = 1 / (2 * math.log(2 / 1e-3))

    def sensitivity(ones: int, away: int) -> int:
        reach = range(max(0, ones - away), min(5, ones + away) + 1)
        return max(abs((a > 2) - (b > 2)) for a in reach for b in (a - 1, a, a + 1) if 0 <= b <= 5)

    return tuple(2 * max(math.exp(-beta * k) * sensitivity(ones, k) for k in range(6)) for ones in (1, 2))  # type: ignore[return-value]


def gaussian_epsilon(mu: float, delta: float = 1e-5) -> float:
    epsilons = np.linspace(0, 20, 200_001)
    profile = norm.cdf(mu / 2 - epsilons / mu) - np.exp(epsilons) * norm.cdf(-mu / 2 - epsilons / mu)
    return float(epsilons[np.argmax(profile <= delta)])


UNIFORM = tuple({c + k: 0.2 for k in range(-2, 3)} for c in (0, 1))
SIX = np.array([1.0] + [0.0] * 9)
SALARIES = [0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9]
ANOTHER = [*SALARIES[:4], 0.95, *SALARIES[5:]]
KEEP = E**2 / (1 + E**2)
SIGMA = literature_noise.SIGMA
ALONE = tuple({"yes": p, "no": 1 - p} for p in (1 - KEEP, KEEP))


def with_total(scale_cells: float, noise: float | None) -> float:
    """A cell's count and the total: what one more record changes, as post-processing can be undone."""
    total = math.inf if noise is None else epsilon_of(*counts(noise))
    return epsilon_of(*counts(scale_cells)) + total


def shuffled() -> float:
    """The number of yeses among 128, the first person's answer changed, whatever the others hold."""
    worst = 0.0
    for yes in range(0, 128, 16):
        others = np.convolve(binomial(yes, KEEP), binomial(127 - yes, 1 - KEEP))
        laws = [dict(enumerate(np.convolve(others, [1 - p, p]))) for p in (1 - KEEP, KEEP)]
        worst = max(worst, epsilon_of(*laws, delta=1e-3))
    return worst


def sticky() -> tuple[float, float]:
    """How often the two answers are equal says who is in; independent noise is two counts."""
    noise = discrete()
    differ = 1 - sum(p * noise.get(k + 1, 0.0) for k, p in noise.items())
    return epsilon_of({True: 1.0}, {True: 1 - differ, False: differ}), 2 * epsilon_of(*counts())


DELTA = literature_decisions.THRESHOLDED.delta
MEDIAN_TWIN = smooth()

LOSSES = {  # (fault, twin)
    "uniform noise between bounds": lambda: (epsilon_of(*UNIFORM), epsilon_of(*counts())),
    "noise drawn again until the count is in range": lambda: (
        epsilon_of(redrawn(0), redrawn(1)),
        max(epsilon_of(*(to_same_ends(discrete(1, c + i), 0, 8) for i in (0, 1))) for c in range(8)),
    ),
    "a variance where a standard deviation belongs": lambda: (
        gaussian_epsilon(SIGMA**-0.5),
        gaussian_epsilon(1 / SIGMA) - 1e-4,  # the grid on which epsilon is sought here
    ),
    "Laplace noise for the L2 sensitivity": lambda: (
        16 * epsilon_of(*(to_same_ends(discrete(256, c, 2000), -1000, 1000) for c in (0, 64))),
        16 * epsilon_of(*(to_same_ends(discrete(1024, c, 9000), -4000, 4000) for c in (0, 64))),
    ),
    "a sum that overflows": lambda: (
        epsilon_of(*(to_same_ends(discrete(1, c, 400), -300, 300) for c in (127, -128))),
        epsilon_of(*(to_same_ends(discrete(1, c, 400), -300, 300) for c in (127, 128))),
    ),
    "running sums with the noise of one": lambda: (8 * epsilon_of(*counts()), 8 * epsilon_of(*counts(8.0))),
    "cells that add up to the true total": lambda: (with_total(1.0, None), with_total(2.0, 2.0)),
    "randomised response of many with the odds of two": lambda: (
        epsilon_of(one_category(0, E / (1 + E)), one_category(1, E / (1 + E))),
        epsilon_of(one_category(0, E / (4 + E)), one_category(1, E / (4 + E))),
    ),
    "unary encoding whose bits each spend epsilon": lambda: (
        epsilon_of(unary(0, 1), unary(1, 1)),
        epsilon_of(unary(0, 0.5), unary(1, 0.5)),
    ),
    "exponential mechanism without its factor of 2": lambda: (
        epsilon_of(candidates(SIX, 1.0), candidates(1 - SIX, 1.0)),
        epsilon_of(candidates(SIX, 0.5), candidates(1 - SIX, 0.5)),
    ),
    "amplification by shuffling without a shuffle": lambda: (epsilon_of(*ALONE, delta=1e-3), shuffled()),
    "noise that is a function of the answer": sticky,
    "noise on the cells that are not empty": lambda: (
        epsilon_of({0: 1.0}, discrete(1.0, 1)),
        epsilon_of(*counts()),
    ),
    "rare keys with a threshold too low by one": lambda: (
        epsilon_of({0: 1.0}, keyed(1, 5), delta=DELTA),
        epsilon_of({0: 1.0}, keyed(1, 6), delta=DELTA),
    ),
    "propose-test-release whose test has no noise": lambda: (
        epsilon_of(proposed(5, None), proposed(6, None), delta=DELTA),
        max(epsilon_of(proposed(gap, 1.0), proposed(gap + 1, 1.0), delta=DELTA) for gap in range(12)),
    ),
    "a median with noise of the local sensitivity": lambda: (
        epsilon_of(median(0.0), median(2.0), delta=1e-3),
        epsilon_of(*(median(scale) for scale in MEDIAN_TWIN), delta=1e-3),
    ),
    "a quantile by comparisons without noise": lambda: (
        epsilon_of(halved(SALARIES, None), halved(ANOTHER, None)),
        epsilon_of(halved(SALARIES, 6.0), halved(ANOTHER, 6.0)),
    ),
}
OTHERWISE = {  # each in a test of its own
    "noise from a seed of 15 bits",
    "the mean over the true batch size",
    "a gradient of zero over its norm",
}


def test_there_are_twenty_and_each_has_a_loss_of_its_own():
    assert len(FAULTS) == 20
    assert set(FAULTS) == set(LOSSES) | OTHERWISE
    for fault in FAULTS.values():
        assert re.search(r"\b(19|20)\d\d\b", fault.source) or "no report found" in fault.source


@pytest.mark.parametrize("name", LOSSES)
def test_the_fault_loses_what_is_said_and_the_twin_no_more_than_is_claimed(name):
    fault = FAULTS[name]
    claim = fault.fault.claim
    assert claim is not None
    lost, kept = LOSSES[name]()
    assert lost == pytest.approx(fault.true_epsilon, rel=1e-3)
    assert lost > claim.epsilon
    assert kept <= claim.epsilon * (1 + 1e-9)


def test_the_claim_for_shuffled_reports_is_what_they_keep_and_no_less():
    assert 0.98 * literature_choices.SHUFFLED.epsilon < shuffled()


def released(case: Case, x: Any, key: jax.Array = KEY) -> Any:
    mechanism = case.mechanism
    return (mechanism.apply if isinstance(mechanism, Mechanism) else mechanism)(key, x)


def test_few_seeds_give_releases_of_which_the_other_world_has_none():
    seeds = jnp.arange(2**15, dtype=jnp.uint32)
    worlds = [
        np.asarray(jax.vmap(lambda seed, x=x: literature_noise.cells(jax.random.key(seed), x))(seeds))
        for x in (literature_noise.HISTOGRAM, literature_noise.ONE_RECORD)
    ]
    absent, present = ({row.tobytes() for row in world} for world in worlds)
    assert len(present - absent) > 0.99 * 2**15  # so delta is above 0.99 at any epsilon, where 0 is claimed
    drawn = np.asarray(literature_noise.few_seeds(KEY, literature_noise.ONE_RECORD))
    assert drawn.tobytes() in present
    assert (
        np.asarray(literature_noise.cells(jax.random.split(KEY)[0], literature_noise.ONE_RECORD)).tobytes()
        not in present
    )


def test_a_batch_s_true_size_shows_in_the_length_of_its_noise():
    fault = FAULTS["the mean over the true batch size"]
    claim = fault.fault.claim
    assert claim is not None
    rng = np.random.default_rng(3)
    noise = SIGMA * rng.standard_normal((20_000, 64))
    two = np.sum((noise / 2) ** 2, axis=1)
    noise[:, 1] += 1
    three = np.sum((noise / 3) ** 2, axis=1)
    for limit in (100.0, 150.0):  # the rates that the closed form is made of, to 4 standard errors
        shares = (two > limit).mean(), (three > limit).mean()
        exact = literature_sums.longer(np.array([limit]))
        for share, rate in zip(shares, exact, strict=True):
            assert abs(share - rate[0]) < 4 * math.sqrt(rate[0] / 20_000) + 1e-4
    assert fault.true_epsilon > 5
    assert gaussian_epsilon(1 / SIGMA) - 1e-4 <= claim.epsilon  # the twin: a constant multiple of one noisy sum


def test_a_gradient_of_zero_gives_no_number_and_the_twin_moves_by_at_most_two():
    fault = FAULTS["a gradient of zero over its norm"]
    assert not np.isnan(np.asarray(released(fault.fault, fault.fault.x0))).any()
    assert np.isnan(np.asarray(released(fault.fault, fault.fault.x1))).all()
    rng = np.random.default_rng(4)
    for scale in (0.0, 1e-30, 1.0, 1e10):
        other = jnp.asarray(fault.twin.x0).at[2].set(scale * rng.standard_normal(16))
        moved = released(fault.twin, other) - released(fault.twin, fault.twin.x0)
        assert float(jnp.linalg.norm(moved)) <= 2 + 1e-4  # the same noise, of multiplier SIGMA over 2


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_twin_is_not_accused_by_the_attack_made_for_its_fault(name):
    fault = FAULTS[name]
    assert fault_zoo.audit(fault.twin, fault.attacks[-1], KEY, trials=10_000).verdict != "violation"


def test_a_disguise_can_be_undone():
    case = FAULTS["running sums with the noise of one"].fault
    plain = np.asarray(released(case, case.x1))
    shown = {how: np.asarray(released(disguised(case, how), case.x1)) for how in DISGUISES}
    assert np.array_equal(shown["negated"], -plain)
    assert np.array_equal(shown["shifted"] - 2.0**20, plain)
    assert np.array_equal(shown["scaled"] * 2.0**20, plain)
    assert not np.array_equal(shown["permuted"], plain)
    assert np.array_equal(np.sort(shown["permuted"]), np.sort(plain))


@pytest.mark.parametrize("how", DISGUISES)
@pytest.mark.parametrize(
    "case",
    [randomness.FAULTS[1].fault, rounding.FAULTS[0].fault, literature_choices.FAULTS[1].fault],
    ids=["rows", "a number", "a count"],
)
def test_a_disguise_takes_any_release(case, how):
    """Trees, bfloat16 and whole numbers; two worlds that differ still do."""
    shown = disguised(case, how)

    def release(key, world):
        return released(shown, (shown.x0, shown.x1)[world], key)

    scores = play(KEY, release, lambda z: jnp.sum(jnp.asarray(jax.tree.leaves(z)[0], jnp.float32)), 50)
    assert np.isfinite(scores).all()
    assert not np.array_equal(*scores)


def test_the_plain_call_of_a_fault_has_a_row_for_each_form(tmp_path):
    rows = Rows("auditor", "fault_zoo", str(tmp_path), 0)
    fault_zoo.plain(rows, "a sum that overflows", ["shifted"], 2_000)
    said = [tuple(row["setting"][name] for name in ("of", "disguise", "verdict")) for row in rows.rows]
    assert [form for _, form, _ in said] == [None, None, "shifted", "shifted"]
    assert all(verdict != "violation" for of, _, verdict in said if of == "twin")
    text = page.plain_calls(rows.rows)
    caught = sum(of == "fault" and verdict == "violation" for of, form, verdict in said if form == "shifted")
    assert f"| shifted | {caught} of 1 | 0 of 1 |" in text


def test_a_release_that_the_plain_call_refuses_is_a_row_too(tmp_path, monkeypatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise InputError("scores: expected numbers, got NaN")

    rows = Rows("auditor", "fault_zoo", str(tmp_path), 0)
    monkeypatch.setattr(fault_zoo, "run_audit", refuse)
    fault_zoo.plain(rows, "a gradient of zero over its norm", [])
    assert [row["setting"]["verdict"] for row in rows.rows] == ["refused: scores: expected numbers, got NaN"] * 2
    assert page.missed(rows.rows).values["names"] == "a gradient of zero over its norm"


def test_a_fault_of_the_last_bits_is_not_moved():
    assert fault_zoo.forms_of(rounding.FAULTS[1]) == ["negated", "permuted", "scaled"]
    assert fault_zoo.forms_of(rounding.FAULTS[0]) == list(DISGUISES)
