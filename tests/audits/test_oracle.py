"""The closed forms against integrals over the sphere of Algorithm 1, and the optimal test against every other test."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.auditing.bounds.estimate import epsilon_from_rates
from dpaudit.audits import oracle
from tests import by_hand

CLIP_NORM = 0.8
POINTS = {2: by_hand.sphere_points(2, 20_003), 3: by_hand.sphere_points(3, 40_003)}
TOLERANCE = 1e-3  # of the quadrature: a jump at a great circle costs it about one point's share of the circle
ANGLES = (0.0, 1e-4, 0.3, 1.0, math.pi / 2, 2.2, math.pi - 1e-3, math.pi)
NORMS = ((5.0, 2.0), (0.8, 0.8), (0.3, 0.8), (0.1, 3.0), (0.5, 0.2))
EPSILONS = (0.5, 4.0)


def pair(dimension: int, angle: float, norm0: float, norm1: float) -> tuple[np.ndarray, np.ndarray]:
    """Two vectors at an angle, in a position that no axis or lattice favours."""
    turn = np.linalg.qr(np.random.default_rng(dimension).normal(size=(dimension, dimension)))[0]
    return norm0 * turn[0], norm1 * (math.cos(angle) * turn[0] + math.sin(angle) * turn[1])


GRID = [
    (*pair(dimension, angle, *norms), epsilon)
    for dimension, angle, norms, epsilon in itertools.product((2, 3), ANGLES, NORMS, EPSILONS)
]
ZEROS = [
    (scale0 * u, scale1 * u, epsilon)
    for u, (scale0, scale1), epsilon in itertools.product(
        (pair(2, 1.0, 1.0, 1.0)[0], pair(3, 1.0, 1.0, 1.0)[0]),
        ((0.0, 2.0), (2.0, 0.0), (0.0, 0.4), (0.0, 0.0)),
        EPSILONS,
    )
]


def integral(g0: np.ndarray, g1: np.ndarray, epsilon: float) -> tuple[float, float]:
    """(FPR, FNR) of Eq. (3) by quadrature."""
    points = POINTS[len(g0)]
    guess = by_hand.guesses_second(points, g0, g1)
    world0, world1 = (by_hand.density(points, g, epsilon=epsilon, clip_norm=CLIP_NORM) for g in (g0, g1))
    return float(np.mean(guess * world0)), float(np.mean(~guess * world1))


@pytest.fixture(scope="module")
def integrals() -> list[tuple[tuple, tuple[float, float]]]:
    return [(case, integral(*case)) for case in GRID + ZEROS]


def worst(rates, integrals) -> float:
    errors = [np.subtract(rates(*case), found) for case, found in integrals]
    return float(np.abs(errors).max())


def exact(g0, g1, epsilon):
    return oracle.ldp_sgd_cosine(g0, g1, epsilon=epsilon, clip_norm=CLIP_NORM)


def test_cosine_rates_are_the_integral_over_the_sphere(integrals):
    assert len(integrals) == 176
    assert worst(exact, integrals) <= TOLERANCE


def wrong_half_turn(g0, g1, epsilon):
    """theta / (2 pi) where theta / pi belongs."""
    plane = oracle.pair(g0, g1)
    return [
        float(r)
        for r in oracle.cosine_rates(plane._replace(angle=plane.angle / 2), epsilon=epsilon, clip_norm=CLIP_NORM)
    ]


def wrong_no_projection(g0, g1, epsilon):
    """Q = q for every norm: Algorithm 1 without its line 2."""
    return exact(g0 * 1e6, g1 * 1e6, epsilon)


def wrong_no_tie(g0, g1, epsilon):
    """Parallel gradients guessed by a fair coin: ties not given to g0."""
    parallel = oracle.pair(g0, g1).angle == 0
    return (0.5, 0.5) if parallel else exact(g0, g1, epsilon)


def wrong_world(g0, g1, epsilon):
    return exact(g0, g1, epsilon)[::-1]


def wrong_epsilon(g0, g1, epsilon):
    return exact(g0, g1, 1.05 * epsilon)


@pytest.mark.parametrize(
    "twin",
    [wrong_half_turn, wrong_no_projection, wrong_no_tie, wrong_world, wrong_epsilon],
    ids=lambda twin: twin.__name__,
)
def test_a_wrong_formula_is_far_from_the_integral(twin, integrals):
    assert worst(twin, integrals) > 4 * TOLERANCE


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_tradeoff_is_the_best_of_all_sixteen_regions_of_sign_patterns(epsilon):
    """Brute force with measured pattern probabilities: the curve is the lower hull of all 16 (FPR, FNR)."""
    for dimension, angle, norms in itertools.product((2, 3), (0.3, math.pi / 2, 2.2), NORMS):
        g0, g1 = pair(dimension, angle, *norms)
        points = POINTS[dimension]
        pattern = 2 * (points @ g0 > 0) + (points @ g1 > 0)
        world0, world1 = (
            np.bincount(pattern, by_hand.density(points, g, epsilon=epsilon, clip_norm=CLIP_NORM)) / len(points)
            for g in (g0, g1)
        )
        fpr, fnr = oracle.ldp_sgd_tradeoff(g0, g1, epsilon=epsilon, clip_norm=CLIP_NORM)
        found = []
        for subset in itertools.product((False, True), repeat=4):
            region = np.array(subset)
            found.append((world0[region].sum(), world1[~region].sum()))
            assert found[-1][1] >= np.interp(found[-1][0], fpr, fnr) - 4 * TOLERANCE  # none below the curve
        for vertex in zip(fpr, fnr, strict=True):  # and every vertex is one of them
            assert min(np.abs(np.subtract(vertex, other)).max() for other in found) <= 4 * TOLERANCE


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_tradeoff_is_optimal_among_all_tests_on_the_sphere(epsilon):
    """Neyman and Pearson without sign patterns: points of the sphere sorted by their likelihood ratio."""
    for case in [*[pair(3, angle, *norms) for angle in ANGLES[2:] for norms in NORMS[1:4]], *[z[:2] for z in ZEROS]]:
        g0, g1 = case
        points = POINTS[len(g0)]
        world0, world1 = (by_hand.density(points, g, epsilon=epsilon, clip_norm=CLIP_NORM) for g in (g0, g1))
        order = np.argsort(-world1 / world0, kind="stable")
        best_fpr = np.concatenate([[0], np.cumsum(world0[order])]) / len(points)
        best_fnr = 1 - np.concatenate([[0], np.cumsum(world1[order])]) / len(points)
        fpr, fnr = oracle.ldp_sgd_tradeoff(g0, g1, epsilon=epsilon, clip_norm=CLIP_NORM)
        at = np.linspace(0, 1, 101)
        np.testing.assert_allclose(np.interp(at, fpr, fnr), np.interp(at, best_fpr, best_fnr), atol=8 * TOLERANCE)


def test_tradeoff_is_convex_from_one_end_to_the_other_and_within_the_claim():
    for g0, g1, epsilon in GRID + ZEROS:
        fpr, fnr = oracle.ldp_sgd_tradeoff(g0, g1, epsilon=epsilon, clip_norm=CLIP_NORM)
        assert (fpr[0], fnr[0], fpr[-1], fnr[-1]) == (0, 1, 1, 0)
        assert (np.diff(fpr) > 0).all()
        slopes = np.diff(fnr) / np.diff(fpr)
        assert (np.diff(slopes) >= -1e-9).all()
        assert (-slopes <= math.exp(epsilon) * (1 + 1e-9)).all()  # a slope is a likelihood ratio
        assert (-slopes >= math.exp(-epsilon) * (1 - 1e-9)).all()
        cosine = oracle.ldp_sgd_cosine(g0, g1, epsilon=epsilon, clip_norm=CLIP_NORM)
        assert cosine[1] >= np.interp(cosine[0], fpr, fnr) - 1e-12  # no rule is better than the optimal one


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 16.0])
def test_every_pair_of_long_gradients_that_are_not_parallel_attains_epsilon(epsilon):
    """FACTS of LDP-SGD: under the optimal test the angle does not matter, while the cosine rule needs pi."""
    for angle in (1e-3, 0.5, math.pi / 2, 3.0, math.pi):
        g0, g1 = pair(3, angle, CLIP_NORM, 9.0)
        fpr, fnr = oracle.ldp_sgd_tradeoff(g0, g1, epsilon=epsilon, clip_norm=CLIP_NORM)
        assert float(epsilon_from_rates(fpr[1:-1], fnr[1:-1]).max()) == pytest.approx(epsilon, rel=1e-6)
        assert oracle.optimal_test(oracle.pair(g0, g1), epsilon=epsilon, clip_norm=CLIP_NORM).epsilon == pytest.approx(
            epsilon, rel=1e-6
        )
        by_cosine = float(epsilon_from_rates(*oracle.ldp_sgd_cosine(g0, g1, epsilon=epsilon, clip_norm=CLIP_NORM)))
        if angle == math.pi:
            assert by_cosine == pytest.approx(epsilon, rel=1e-6)
        else:
            assert by_cosine < 0.999 * epsilon


def test_optimal_test_names_the_region_that_shows_most():
    """Two unequal norms: the region against the longer gradient has the larger ratio, and its rates are its own."""
    epsilon, clip_norm = 2.0, 1.0
    for norms, pattern in (((0.2, 3.0), 3), ((3.0, 0.2), 0)):
        g0, g1 = pair(2, 1.0, *norms)
        test = oracle.optimal_test(oracle.pair(g0, g1), epsilon=epsilon, clip_norm=clip_norm)
        points = POINTS[2]
        region = (points @ g1 > 0) & (points @ g0 < 0) if test.pattern == 0 else (points @ g0 > 0) & (points @ g1 < 0)
        rates = [np.mean(region * by_hand.density(points, g, epsilon=epsilon, clip_norm=clip_norm)) for g in (g0, g1)]
        assert (test.rate0, test.rate1) == pytest.approx(rates, abs=TOLERANCE)
        fpr, fnr = oracle.ldp_sgd_tradeoff(g0, g1, epsilon=epsilon, clip_norm=clip_norm)
        assert test.epsilon == pytest.approx(float(epsilon_from_rates(fpr[1:-1], fnr[1:-1]).max()), rel=1e-9)
        q = [0.5 + math.tanh(1) / 2 * min(n, 1.0) for n in norms]
        assert test.epsilon == pytest.approx(max(math.log(q[1] / (1 - q[0])), math.log(q[0] / (1 - q[1]))), rel=1e-9)
        assert test.pattern == pattern


def test_optimal_test_over_many_pairs_uses_the_mean_rates():
    planes = oracle.Pair(np.array([2.0, 0.1]), np.array([0.4, 3.0]), np.array([0.5, 2.5]))
    found = oracle.optimal_test(planes, epsilon=3.0, clip_norm=1.0)
    each = oracle.wedges(planes, epsilon=3.0, clip_norm=1.0)
    assert each.shape == (2, 4, 2)
    np.testing.assert_allclose(each.sum(axis=1), 1, rtol=1e-12)
    rates = each[:, found.pattern].mean(axis=0)
    assert (found.rate0, found.rate1) == pytest.approx(tuple(rates), rel=1e-12)
    assert found.epsilon == pytest.approx(abs(math.log(rates[1] / rates[0])), rel=1e-12)
    other = each[:, 3 - found.pattern].mean(axis=0)
    assert found.epsilon >= abs(math.log(other[1] / other[0]))


def test_parallel_and_zero_pairs_show_nothing():
    u = np.array([1.0, 2.0])
    for g0, g1 in ((u, u), (u, 3 * u), (0 * u, 0 * u)):
        assert oracle.ldp_sgd_cosine(g0, g1, epsilon=1.0, clip_norm=9.0) == (0.0, 1.0)  # all ties, all to g0
        assert oracle.optimal_test(oracle.pair(g0, g1), epsilon=1.0, clip_norm=0.1).epsilon == 0
    fpr, fnr = oracle.ldp_sgd_tradeoff(u, u, epsilon=1.0, clip_norm=9.0)
    np.testing.assert_allclose(fpr + fnr, 1, atol=1e-12)


@pytest.mark.parametrize("angle", [0.0, 1e-3, 1.0, math.pi / 2, math.pi - 1e-2, math.pi])
def test_the_plane_on_the_device_agrees_with_the_host(angle):
    jitted = jax.jit(oracle.geometry)
    for norms in ((1e-12, 3.0), (1e30, 1e-30), (2.0, 2.0)):
        g0, g1 = pair(50, angle, *norms)
        host = oracle.pair(g0, g1)
        norm0, norm1, found = (np.asarray(part, np.float64) for part in jitted(jnp.asarray(g0), jnp.asarray(g1)))
        assert (host.norm0, host.norm1) == pytest.approx(norms, rel=1e-12)
        assert (norm0, norm1) == pytest.approx(norms, rel=1e-5)
        assert host.angle == pytest.approx(angle, abs=1e-9)
        assert oracle.settle_angle(norm0, norm1, found) == pytest.approx(angle, abs=1e-6)


def test_many_pairs_at_once_are_the_single_ones():
    g0, g1 = np.random.default_rng(0).normal(size=(2, 7, 4))
    together = oracle.cosine_rates(oracle.pair(g0, g1), epsilon=1.0, clip_norm=1.5)
    each = [oracle.ldp_sgd_cosine(a, b, epsilon=1.0, clip_norm=1.5) for a, b in zip(g0, g1, strict=True)]
    np.testing.assert_allclose(np.stack(together, axis=1), each, rtol=1e-12)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda one: oracle.ldp_sgd_cosine(one, -one, epsilon=0, clip_norm=1.0), "^epsilon: expected .* > 0, got 0$"),
        (
            lambda one: oracle.ldp_sgd_cosine(one, -one, epsilon=1.0, clip_norm=-1),
            "^clip_norm: expected .* > 0, got -1$",
        ),
        (
            lambda one: oracle.ldp_sgd_tradeoff(one, -one, epsilon=math.nan, clip_norm=1),
            "^epsilon: expected .* got nan$",
        ),
        (
            lambda one: oracle.ldp_sgd_cosine(one, one[:2], epsilon=1, clip_norm=1),
            r"^g1: expected .*\[3\], got shape \[2\]",
        ),
        (
            lambda one: oracle.ldp_sgd_cosine(one * np.nan, one, epsilon=1, clip_norm=1),
            "^g0: expected finite .* 3 NaN",
        ),
        (lambda one: oracle.ldp_sgd_cosine(one, one / 0.0, epsilon=1, clip_norm=1), "^g1: expected finite numbers"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_bad_input_is_refused(call, message):
    with pytest.raises(_validate.InputError, match=message):
        call(np.ones(3))
