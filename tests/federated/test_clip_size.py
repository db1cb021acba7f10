"""Rules for the clip size: by hand, in what they tell whom, in law, and in what they converge to."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting.pld import PLDAccountant
from scipy import stats

from dpaudit import _validate
from dpaudit.federated import clip_size
from dpaudit.federated.clip_size import LARGEST, SMALLEST, Rule

QUIET = 1e-6  # a noise_std that changes no decision
MIDDLES = (0.00390625, 0.01171875, 0.0234375, 0.046875, 0.09375)
RULES = {
    "fixed": clip_size.fixed(0.05),
    "switch": clip_size.switch(0.05, 0.01, 4),
    "polynomial": clip_size.polynomial(0.05, 8, 0.5),
    "quantile": clip_size.adaptive_quantile(0.01, quantile=0.5),
    "median": clip_size.adaptive_median(0.01, every=3),
    "budget": clip_size.noise_budget(0.05, {"w": np.ones(9)}, rounds=8, noise_multiplier=2.0, clients_per_round=100),
}
ADAPTIVE = [name for name, rule in RULES.items() if rule.release is not None]


def released(rule: Rule, key: jax.Array, state: Any, norms: jax.Array) -> Any:
    """What the aggregator tells the server of norms [m]."""
    if rule.report is None or rule.release is None:
        return None
    return rule.release(key, jax.vmap(rule.report, (None, 0))(state, norms))


def clip_norms(rule: Rule, key: jax.Array, norms: Callable[[jax.Array], jax.Array], rounds: int) -> jax.Array:
    """[rounds], what clients used, with norms(key) drawn anew in every round: one program."""

    def step(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        norm_key, noise_key = jax.random.split(key)
        return rule.update(state, released(rule, noise_key, state, norms(norm_key))), state.clip_norm

    return jax.lax.scan(step, rule.init(), jax.random.split(key, rounds))[1]


def constant(*norms: float) -> Callable[[jax.Array], jax.Array]:
    return lambda key: jnp.array(norms)


# schedules


SCHEDULES: list[tuple[Rule, list[float]]] = [
    (clip_size.fixed(0.3), [0.3] * 7),
    (clip_size.switch(0.05, 0.01, 3), [0.05, 0.05, 0.05, 0.01, 0.01, 0.01, 0.01]),
    # Eq. (5) with T = 4, by hand: (1 - t/T) = 1, 3/4, 1/2, 1/4, 0 give C_1 to C_5
    (clip_size.polynomial(0.05, 4, 1), [0.05, 0.05, 0.0375, 0.025, 0.0125, 0, 0]),
    (clip_size.polynomial(0.05, 4, 2), [0.05, 0.05, 0.028125, 0.0125, 0.003125, 0, 0]),
    (clip_size.polynomial(0.05, 4, 0.5), [0.05, 0.05, 0.0433012702, 0.0353553391, 0.025, 0, 0]),
    (clip_size.schedule(optax.linear_schedule(0.4, 0.2, 4)), [0.4, 0.35, 0.3, 0.25, 0.2, 0.2, 0.2]),
]


def test_schedules_by_hand() -> None:
    played = jax.jit(lambda key: [clip_norms(rule, key, constant(), 7) for rule, _ in SCHEDULES])(jax.random.key(0))
    for found, (rule, wanted) in zip(played, SCHEDULES, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
        assert (rule.report, rule.release, rule.event) == (None, None, None)


def test_schedules_of_the_paper() -> None:
    """0.05to0.01(2000), and poly(0.05)1.0 near its end, where 1 - t/T is a small difference."""
    rules = clip_size.switch(0.05, 0.01, 2_000), clip_size.polynomial(0.05, 10_000, 1)
    played = jax.jit(lambda key: [clip_norms(rule, key, constant(), 10_000) for rule in rules])(jax.random.key(0))
    switched, falling = (np.asarray(found) for found in played)
    assert np.flatnonzero(switched == np.float32(0.01))[0] == 2_000
    np.testing.assert_allclose(falling[[5_001, 9_998, 9_999]], [0.025, 1.5e-5, 1e-5], rtol=1e-6)


# what crosses each boundary


@pytest.mark.parametrize("name", ADAPTIVE)
def test_server_learns_of_norms_through_small_reports_only(name: str) -> None:
    """Reports are a bit or a bin; other norms with the same reports leave the same state, bit for bit."""
    rule, report = RULES[name], RULES[name].report
    assert report is not None

    @jax.jit
    def told(norms: jax.Array) -> tuple[jax.Array, Any]:
        state = rule.init()._replace(round=jnp.int32(2))
        reports = jax.vmap(report, (None, 0))(state, norms)
        return reports, rule.update(state, released(rule, jax.random.key(1), state, jnp.repeat(norms, 100)))

    reports, state = told(jnp.array([0.003, 0.0101, 0.05, 1.0]))
    dtype, values = {"quantile": (jnp.bool_, [1, 0, 0, 0]), "median": (jnp.int32, [0, 1, 3, 4])}[name]
    assert reports.dtype == dtype
    assert reports.tolist() == values
    assert told(jnp.array([0.0001, 0.0156, 0.06, 7.0]))[1] == state
    assert told(jnp.full(4, 0.0001))[1] != state


@pytest.mark.parametrize("name", ADAPTIVE)
def test_norms_that_are_not_finite_report_as_the_largest(name: str) -> None:
    rule = RULES[name]
    assert rule.report is not None
    largest = rule.report(rule.init(), 3e38)
    assert largest == {"quantile": False, "median": 4}[name]
    for norm in (math.inf, math.nan):
        assert rule.report(rule.init(), norm) == largest


def test_edges_belong_to_what_is_below() -> None:
    quantile, report = RULES["quantile"], RULES["median"].report
    assert quantile.report is not None
    assert report is not None
    assert quantile.report(quantile.init(), jnp.float32(0.01))  # a norm of C is not clipped
    norms = (0, 2**-7, 0.0079, 2**-6, 2**-5, 2**-4, 0.0626, 2**-3, 0.126)
    assert [int(report(None, jnp.float32(norm))) for norm in norms] == [0, 0, 1, 1, 2, 3, 4, 4, 4]


@pytest.mark.parametrize("name", RULES)
def test_one_program_does_what_the_parts_do_one_by_one(name: str) -> None:
    rule, trials, rounds = RULES[name], 3, 9

    @jax.jit
    def norms(key: jax.Array) -> jax.Array:
        return 0.02 * jnp.exp(jax.random.normal(key, (20,)))

    tell, update = jax.jit(partial(released, rule)), jax.jit(rule.update)
    keys = jax.random.split(jax.random.key(2), trials)
    together = jax.jit(jax.vmap(lambda key: clip_norms(rule, key, norms, rounds)))(keys)
    for trial in range(trials):
        state = rule.init()
        for t, key in enumerate(jax.random.split(keys[trial], rounds)):
            assert (state.clip_norm.dtype, state.clip_norm.shape, int(state.round)) == (jnp.float32, (), t)
            np.testing.assert_allclose(together[trial, t], state.clip_norm, rtol=1e-5)
            norm_key, noise_key = jax.random.split(key)
            state = update(state, tell(noise_key, state, norms(norm_key)))


# privacy


def furthest(rule: Rule, norms: list[float], copies: int = 1) -> tuple[float, float, float]:
    """How far one report can move a statistic: added in L1 and in L2, and replaced in L2; by brute force.

    One key draws one noise, which drops out of differences. A statistic is m times what is released, less what no
    reports would give: m/2 for the centred bits, 0 for a histogram. ``copies``: how often a client's report counts.
    """
    report, release = rule.report, rule.release
    assert report is not None
    assert release is not None

    def statistic(reports: jax.Array) -> jax.Array:
        several = jnp.repeat(reports, copies)
        offset = 0.5 if reports.dtype == jnp.bool_ else 0.0
        return jnp.atleast_1d(len(several) * (release(jax.random.key(3), several) - offset))

    @jax.jit
    def statistics(norms: jax.Array) -> tuple[jax.Array, jax.Array]:
        reports = jax.vmap(report, (None, 0))(rule.init(), norms)
        return statistic(reports[:4]), jax.vmap(lambda own: statistic(jnp.append(reports[:4], own)))(reports)

    without, added = (np.asarray(found, np.float64) for found in statistics(jnp.array(norms)))
    moved, replaced = added - without, added[:, None] - added
    return (
        float(np.abs(moved).sum(axis=-1).max()),
        float(np.linalg.norm(moved, axis=-1).max()),
        float(np.linalg.norm(replaced, axis=-1).max()),
    )


LATTICE = [0.0, 2**-8, 2**-7, 0.01, 2**-6, 0.02, 2**-5, 2**-4, 0.07, 2**-3, 0.2, 1e30, math.inf, math.nan]


@pytest.mark.parametrize("name", ADAPTIVE)
def test_how_far_one_report_moves_a_statistic(name: str) -> None:
    rule = RULES[name]
    found = furthest(rule, LATTICE)
    wanted = {"quantile": (0.5, 0.5, 1.0), "median": (1.0, 1.0, math.sqrt(2))}[name]
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    assert furthest(rule, LATTICE, copies=2)[1] > 1.9 * found[1]  # a client who counts twice is found out


@pytest.mark.parametrize("name, move", [("quantile", 0.5), ("median", 1.0)])
def test_noise_is_what_the_event_says(name: str, move: float) -> None:
    """Of given norms, m released is the exact statistic plus N(0, (noise_multiplier move)^2) on each number."""
    rule, draws = RULES[name], 20_000
    norms = jnp.repeat(jnp.array([0.001, 0.009, 0.02, 0.05, 0.3]), jnp.array([16, 12, 10, 8, 4]))
    counts = {"quantile": [28], "median": [16, 12, 10, 8, 4]}[name]
    assert isinstance(rule.event, dp_accounting.GaussianDpEvent)
    many = jax.jit(jax.vmap(lambda key: released(rule, key, rule.init(), norms)))
    found = many(jax.random.split(jax.random.key(4), draws))
    noise = 50 * np.asarray(found, np.float64).reshape(draws, len(counts)) - np.array(counts)
    std = rule.event.noise_multiplier * move

    def errors(column: np.ndarray, std: float, mean: float = 0.0) -> float:
        """How many standard errors the mean or the variance is off, the larger."""
        ratio = float(np.mean((column - mean) ** 2)) / std**2
        return max(abs(float(column.mean()) - mean) / std * math.sqrt(draws), abs(ratio - 1) * math.sqrt(draws / 2))

    for column in noise.T:
        assert errors(column, std) < 4
        assert errors(column, 1.06 * std) > 6
        assert errors(column, std, mean=0.08 * std) > 6
        assert stats.kstest(column, stats.norm(0, std).cdf).pvalue > 1e-3
    related = np.cov(noise.T).reshape(len(counts), len(counts)) / std**2
    assert np.abs(related - np.diag(np.diag(related))).max() < 4 / math.sqrt(draws)


def test_median_spends_its_epsilon() -> None:
    """delta of a shift by 1 under N(0, sigma^2) at epsilon 0.8, in closed form and by dp-accounting."""
    event = clip_size.adaptive_median(0.01).event
    assert isinstance(event, dp_accounting.GaussianDpEvent)
    shift = 1 / event.noise_multiplier

    def delta(epsilon: float) -> float:
        below, above = (stats.norm.cdf(side * shift / 2 - epsilon / shift) for side in (1, -1))
        return float(below - math.exp(epsilon) * above)

    assert delta(0.8) == pytest.approx(1e-8, rel=1e-6)
    assert PLDAccountant().compose(event).get_epsilon(1e-8) == pytest.approx(0.8, abs=1e-6)


def test_quantile_keeps_the_papers_promise_with_centred_bits_only() -> None:
    """(0.006, 1e-7) over 10^4 rounds of Poisson rate 1e-4."""

    def epsilon(event: dp_accounting.DpEvent) -> float:
        rounds = dp_accounting.SelfComposedDpEvent(dp_accounting.PoissonSampledDpEvent(1e-4, event), 10_000)
        return PLDAccountant(value_discretization_interval=1e-6).compose(rounds).get_epsilon(1e-7)

    event = RULES["quantile"].event
    assert event is not None
    assert epsilon(event) == pytest.approx(0.0034, abs=5e-5)
    assert epsilon(dp_accounting.GaussianDpEvent(5.0)) == pytest.approx(0.0072, abs=5e-5)


# the adaptive rules do what they say


def test_quantile_step_by_hand() -> None:
    """Eq. (4): the paper's norms 1 to 5, of which C = 2.5 clips three; exp(-0.2 (0.4 - 0.5)) = exp(0.02)."""
    rule = clip_size.adaptive_quantile(2.5, quantile=0.5, noise_std=QUIET)
    found = np.asarray(clip_norms(rule, jax.random.key(5), constant(1, 2, 3, 4, 5), 200))
    np.testing.assert_allclose(found[:2], [2.5, 2.5 * 1.0202013400], rtol=1e-6)
    assert np.abs(found[-50:] - 3).max() < 0.15  # and comes to rest at their median


CLIENTS, ROUNDS, BURN_IN, SPREAD = 200, 4_000, 500, 0.8


@jax.jit
def lognormal_run(quantile: Any, noise_std: Any, sign: Any) -> jax.Array:
    """[rounds] of log C on norms of median 3 and log-deviation SPREAD; sign -1 turns the answer of Eq. (4) around."""
    rule = clip_size.adaptive_quantile(1.0, quantile=quantile, noise_std=noise_std)
    rule = rule._replace(update=lambda state, b, update=rule.update: update(state, quantile + sign * (b - quantile)))

    def norms(key: jax.Array) -> jax.Array:
        return 3.0 * jnp.exp(SPREAD * jax.random.normal(key, (CLIENTS,)))

    return jnp.log(clip_norms(rule, jax.random.key(6), norms, ROUNDS))


@pytest.mark.parametrize("noise_std", [QUIET, 25.0])
@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9])
def test_quantile_converges_to_the_quantile(quantile: float, noise_std: float) -> None:
    """A quantile 0.03 off, or the wrong sign, is found out.

    At rest the mean of log C over n rounds is log q with standard error sd(b)/(f sqrt(n)), f the density of log norms
    at log q: the noise of b drives a stable linear recursion.
    """
    place = float(stats.norm.ppf(quantile))
    sd = math.sqrt(quantile * (1 - quantile) / CLIENTS + (noise_std / CLIENTS) ** 2)
    error = sd * SPREAD / float(stats.norm.pdf(place)) / math.sqrt(ROUNDS - BURN_IN)

    def errors(aim: float, sign: float = 1.0) -> float:
        """How many standard errors the mean of log C is off the quantile's."""
        mean = float(lognormal_run(aim, noise_std, sign)[BURN_IN:].mean())
        return abs(mean - (math.log(3.0) + SPREAD * place)) / error

    assert errors(quantile) < 4
    assert errors(quantile + (0.03 if quantile < 0.5 else -0.03)) > 8
    assert errors(quantile, sign=-1.0) > 100


RUNAWAY = clip_size.adaptive_quantile(0.01, quantile=0.5, noise_std=QUIET)


@jax.jit
def runaway(norm: Any) -> jax.Array:
    """[3000], where all clients have the same norm."""
    return clip_norms(RUNAWAY, jax.random.key(7), lambda key: jnp.full(3, norm), 3_000)


@pytest.mark.parametrize("norm, end, reached", [(1e9, LARGEST, 185), (math.nan, LARGEST, 185), (0.0, SMALLEST, 93)])
def test_quantile_that_runs_away_is_held_and_can_be_dated(norm: float, end: float, reached: int) -> None:
    """From 0.01 by a factor exp(0.1) a round: 184.68 rounds to 2^20, 92.58 to 2^-20; float32 would end near 934."""
    found = np.asarray(runaway(norm))
    assert np.flatnonzero(found == end)[0] == reached
    assert (found[reached:] == end).all()
    wild = RUNAWAY.update(RUNAWAY.init(), jnp.float32(-1e30))
    assert wild.clip_norm == LARGEST


def test_median_of_the_papers_run() -> None:
    """Most norms above 2^-4: C is 0.09375 from the first release on, whether it was 0.01 or 0.05."""
    norms = constant(*[0.5] * 300, *[0.07] * 250, *[0.005] * 450)

    @jax.jit
    def played(c0: Any) -> jax.Array:
        return clip_norms(clip_size.adaptive_median(c0), jax.random.key(8), norms, 2_001)

    for c0 in (0.01, 0.05):
        found = np.asarray(played(c0))
        assert (found[:1_000] == np.float32(c0)).all()
        assert (found[1_000:] == 0.09375).all()


@pytest.mark.parametrize(
    "shares, bin",
    [
        ([0.51, 0.0, 0.0, 0.0, 0.49], 0),
        ([0.5, 0.0, 0.5, 0.0, 0.0], 2),  # a half is not more than a half
        ([0.3, 0.3, 0.2, 0.1, 0.1], 1),
        ([0.4, 0.2, -0.2, 0.1, 0.5], 1),  # noise: the first bin counts
        ([0.1, 0.1, 0.1, 0.3, 0.4], 3),
        ([-0.1, 0.2, 0.1, 0.1, 0.1], 4),  # noise: nowhere more than a half
    ],
)
def test_median_bin_by_hand(shares: list[float], bin: int) -> None:
    rule = clip_size.adaptive_median(0.2, every=1)
    assert rule.update(rule.init(), jnp.array(shares)).clip_norm == np.float32(MIDDLES[bin])


def test_median_listens_only_when_a_release_is_due() -> None:
    rule = clip_size.adaptive_median(0.2, every=3)
    state, found = rule.init(), []
    for t in range(6):
        state = rule.update(state, jnp.eye(5)[t % 5])
        found.append(float(state.clip_norm))
    np.testing.assert_allclose(found, [0.2, 0.2, MIDDLES[2], MIDDLES[2], MIDDLES[2], MIDDLES[0]], rtol=1e-6)


def test_median_of_other_bins() -> None:
    rule = clip_size.adaptive_median(1.0, every=1, edges=(1, 3, 10))
    found = clip_norms(rule, jax.random.key(9), constant(*[0.1] * 400, *[99.0] * 600), 2)
    np.testing.assert_allclose(found, [1.0, 6.5], rtol=1e-6)


def test_settings_run_side_by_side() -> None:
    """Clip norms, powers and quantiles may be mapped over."""

    def end(c0: jax.Array, power: jax.Array) -> jax.Array:
        poly = clip_norms(clip_size.polynomial(c0, 4, power), jax.random.key(10), constant(), 4)
        rule = clip_size.adaptive_quantile(c0, quantile=power / 4, noise_std=QUIET)
        return jnp.stack([poly[3], clip_norms(rule, jax.random.key(10), constant(1.0), 2)[1]])

    found = jax.jit(jax.vmap(end))(jnp.array([0.1, 0.2]), jnp.array([1.0, 2.0]))
    np.testing.assert_allclose(found, [[0.05, 0.1 * math.exp(0.05)], [0.05, 0.2 * math.exp(0.1)]], rtol=1e-5)


# bad input


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: clip_size.fixed(0), "c: expected a finite number > 0, got 0"),
        (lambda: clip_size.fixed(math.nan), "c: expected a finite number > 0, got nan"),
        (lambda: clip_size.switch(-1, 0.01, 5), "before: expected a finite number > 0, got -1"),
        (lambda: clip_size.switch(0.05, 0, 5), "after: expected a finite number > 0, got 0"),
        (lambda: clip_size.switch(0.05, 0.01, 0), "round: expected a whole number >= 1, got 0"),
        (lambda: clip_size.polynomial(0, 10, 1), "c0: expected a finite number > 0, got 0"),
        (lambda: clip_size.polynomial(0.05, 0, 1), "rounds: expected a whole number >= 1, got 0"),
        (lambda: clip_size.polynomial(0.05, 10, -1), "power: expected a finite number > 0, got -1"),
        (lambda: clip_size.adaptive_quantile(0, quantile=0.5), "c0: expected a finite number > 0, got 0"),
        (lambda: clip_size.adaptive_quantile(1, quantile=1.1), r"quantile: expected a number in \[0, 1\], got 1.1"),
        (lambda: clip_size.adaptive_quantile(1, quantile=-0.1), r"quantile: expected a number in \[0, 1\], got -0.1"),
        (lambda: clip_size.adaptive_quantile(1, quantile=0.5, learning_rate=0), "learning_rate: expected a finite"),
        (lambda: clip_size.adaptive_quantile(1, quantile=0.5, noise_std=0), "noise_std: expected a finite number > 0"),
        (lambda: clip_size.adaptive_median(math.inf), "c0: expected a finite number > 0, got inf"),
        (lambda: clip_size.adaptive_median(1, epsilon=0), "epsilon: expected a finite number > 0, got 0"),
        (lambda: clip_size.adaptive_median(1, delta=0), r"delta: expected a number in \(0, 1\), got 0"),
        (lambda: clip_size.adaptive_median(1, every=0), "every: expected a whole number >= 1, got 0"),
        (lambda: clip_size.adaptive_median(1, edges=(1, 1)), r"edges: expected two or more increasing .*\(1, 1\)"),
        (lambda: clip_size.adaptive_median(1, edges=(-1, 1)), "edges: expected two or more increasing numbers >= 0"),
        (lambda: clip_size.adaptive_median(1, edges=(1,)), "edges: expected two or more increasing numbers >= 0"),
        (lambda: clip_size.adaptive_median(1, edges=(0, math.inf)), "edges: expected finite numbers, got 1 NaN or"),
    ],
)
def test_refuses_bad_input(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(_validate.InputError, match=f"^{message}"):
        build()
