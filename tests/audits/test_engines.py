"""`plane` and `full` against `exact`: all that an observer sees of a release, pair by pair, and twins that must fail.

Each comparison allows k standard errors (and one count, for rates near zero), with k from Bonferroni: were everything
right, all comparisons of one test together would fail with probability 10^-6.
"""

import math
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.tree_util import Partial

from dpaudit import _validate
from dpaudit._engine import game
from dpaudit.audits import engines, oracle
from dpaudit.kernels import randomized_trial
from dpaudit.mechanisms import ldp_sgd

CLIP_NORM = 1.0
EPSILONS = (1.0, 4.0)
PAIRS = [  # (angle, norm of g0, norm of g1)
    (0.0, 2.0, 5.0), (1e-3, 2.0, 2.0), (0.7, 0.4, 2.0), (math.pi / 2, 1.0, 1.0), (math.pi / 2, 0.3, 0.6),
    (2.5, 4.0, 0.2), (math.pi - 1e-3, 1.0, 3.0), (math.pi, 1.0, 1.0), (math.pi, 0.5, 0.5), (1.0, 0.0, 2.0),
    (1.0, 0.7, 0.0), (1.0, 0.0, 0.0),
]  # fmt: skip
PATTERNS = (engines.SIDE1, engines.SIDE1 | engines.SIDE0, 0, engines.SIDE0)  # in the order of oracle.wedges


def gradients(dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """[len(PAIRS), dimension] each, float32, in a position that no axis favours."""
    turn = np.linalg.qr(np.random.default_rng(dimension).normal(size=(dimension, dimension)))[0]
    angle, norm0, norm1 = np.array(PAIRS).T[..., None]
    g0, g1 = norm0 * turn[0], norm1 * (np.cos(angle) * turn[0] + np.sin(angle) * turn[1])
    g1[np.array(PAIRS)[:, 0] == math.pi] = -g0[np.array(PAIRS)[:, 0] == math.pi]
    return g0.astype(np.float32), g1.astype(np.float32)


def any_of(g0: jax.Array, g1: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A fresh pair every trial: one of the table, drawn from the key."""
    drawn = jax.random.randint(key, (), 0, len(PAIRS))
    return g0[drawn], g1[drawn]


def places(planes: oracle.Pair, table: oracle.Pair) -> np.ndarray:
    """Which row of the table each plane is."""
    distance = np.abs(np.stack(planes, axis=1)[:, None] - np.stack(table, axis=1)).max(axis=-1)
    assert (distance.min(axis=1) < 1e-5).all()
    return distance.argmin(axis=1)


def largest_excess(
    codes: np.ndarray, planes: oracle.Pair, place: np.ndarray, *, scale=1.0, clip_norm=CLIP_NORM
) -> float:
    """How far the worst of all rates lies from the exact one, over what is allowed: above 1 is a rejection.

    Args:
      codes: [2, len(EPSILONS), repeats, trials].
      planes: [pairs]; place: [trials], which of them each trial used.
      scale, clip_norm: for twins: the closed form at scale * epsilon, at another clip_norm.
    """
    comparisons = 2 * len(EPSILONS) * planes.angle.size * 5
    k = scipy.stats.norm.isf(1e-6 / (2 * comparisons))
    worst = 0.0
    for e, epsilon in enumerate(EPSILONS):
        at = {"epsilon": scale * epsilon, "clip_norm": clip_norm}
        fpr, fnr = oracle.cosine_rates(planes, **at)
        wedges = oracle.wedges(planes, **at)
        for pair in range(planes.angle.size):
            seen = codes[:, e][..., place == pair].reshape(2, -1)
            n = seen.shape[1]
            assert n > 0
            for world in (0, 1):
                rates = [(fpr[pair], 1 - fnr[pair])[world], *wedges[pair, :, world]]
                counts = [np.sum(seen[world] & engines.GUESS > 0), *(np.sum(seen[world] & 6 == p) for p in PATTERNS)]
                if planes.norm0[pair] == 0 == planes.norm1[pair]:  # nothing but ties: neither side is positive
                    rates[2:4], counts[2:4] = [sum(rates[2:4])], [counts[2] + counts[3]]
                for p, count in zip(rates, counts, strict=True):
                    allowed = k * math.sqrt(n * p * max(1 - p, 0)) + 1
                    worst = max(worst, abs(float(count) - n * p) / allowed)
    return worst


def fresh(dimension: int, trials: int, **how) -> np.ndarray:
    """Codes of `full` on pairs of the table."""
    crafted, games = Partial(any_of, *map(jnp.asarray, gradients(dimension))), {"epsilons": EPSILONS, "repeats": 2}
    keys = jax.random.key(1), jax.random.key(4)
    return engines.full(keys[0], crafted, trials, clip_norm=CLIP_NORM, pair_key=keys[1], **games, **how)


SIZES = {2: 10_000, 300: 4_000}  # dimensions, and trials for each


@pytest.fixture(scope="module")
def played() -> dict[int, np.ndarray]:
    return {dimension: fresh(dimension, trials) for dimension, trials in SIZES.items()}


@pytest.mark.integration
@pytest.mark.parametrize("dimension", SIZES)
def test_full_agrees_with_exact_on_fresh_pairs(dimension, played):
    codes, trials, table = played[dimension], SIZES[dimension], gradients(dimension)
    assert codes.shape == (2, 2, 2, trials)
    assert codes.dtype == np.uint8
    planes = oracle.pair(*table)
    place = places(engines.pairs(jax.random.key(4), Partial(any_of, *map(jnp.asarray, table)), trials), planes)
    assert largest_excess(codes, planes, place) <= 1
    assert largest_excess(codes, planes, place, clip_norm=1e-9) > 1.5  # as if no norm were too short
    assert largest_excess(codes, planes, (place + 1) % len(PAIRS)) > 1.5  # as if another pair were used


def no_projection(key, x, *, epsilon, clip_norm):
    """Algorithm 1 without its line 2."""
    return ldp_sgd.randomize(key, x * 1e6, epsilon=epsilon, clip_norm=clip_norm)


def epsilon_off(key, x, *, epsilon, clip_norm):
    return ldp_sgd.randomize(key, x, epsilon=1.1 * epsilon, clip_norm=clip_norm)


def crooked(key, x, *, epsilon, clip_norm):
    """The right half-sphere with the right probability, but not evenly within it."""
    release = ldp_sgd.randomize(key, x, epsilon=epsilon, clip_norm=clip_norm)
    return release.at[0].multiply(1.5)


@pytest.mark.parametrize(
    "randomize, right", [(ldp_sgd.randomize, True), (epsilon_off, False), (no_projection, False), (crooked, False)]
)
def test_full_agrees_with_exact_on_a_fixed_pair_and_finds_faulty_mechanisms(randomize, right):
    g0, g1 = gradients(3)
    g0, g1 = g0[5] / 8, g1[5] * 10  # 0.5 and 2.0 at an angle of 2.5
    codes = engines.full(
        jax.random.key(2), Partial(lambda g0, g1, key: (g0, g1), jnp.asarray(g0), jnp.asarray(g1)), 10_000,
        epsilons=EPSILONS, clip_norm=CLIP_NORM, repeats=3,
        pair_key=jax.random.key(0), fresh=False, randomize=randomize,
    )  # fmt: skip
    assert codes.shape == (2, 2, 3, 10_000)
    excess = largest_excess(codes, oracle.pair(g0[None], g1[None]), np.zeros(10_000, int))
    assert excess <= 1 if right else excess > 1.2
    assert len({codes[b, e, r].tobytes() for b in (0, 1) for e in (0, 1) for r in range(3)}) == 12  # all games differ


def fixed(g0: jax.Array, g1: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    return g0, g1


FIXED: dict[str, Any] = {"epsilons": EPSILONS, "clip_norm": CLIP_NORM, "repeats": 2, "pair_key": jax.random.key(0)}


def interpreted(g0: jax.Array, g1: jax.Array) -> Partial:
    """What the kernel's engine sweeps over, with a kernel that a CPU can run."""
    products = partial(randomized_trial.products_tpu, interpret=True)
    return engines.kernel_game(jax.random.key(2), Partial(fixed, g0, g1), products=products, **FIXED)


@pytest.fixture(scope="module")
def kernel() -> Iterator[Any]:
    """Plays two units of 100 trials of :func:`interpreted`: the pair is data, so that all pairs are one program."""
    structure = jax.tree.structure(interpreted(*jnp.ones((2, 41))))

    @jax.jit
    def played(leaves: list[Any]) -> jax.Array:
        return jax.vmap(jax.tree.unflatten(structure, leaves))(jnp.arange(2, dtype=jnp.uint32))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(engines, "TOGETHER", 100)
        yield lambda g0, g1: played(jax.tree.leaves(interpreted(g0, g1)))


@pytest.mark.integration
@pytest.mark.parametrize("index", range(len(PAIRS)))
def test_kernel_plays_the_trials_of_full(index: int, kernel: Any) -> None:
    g0, g1 = (jnp.asarray(g[index]) for g in gradients(41))
    codes = np.asarray(kernel(g0, g1)).reshape(-1, 2, 2, 2).transpose(3, 1, 2, 0)
    apart = np.sum(codes != engines.full(jax.random.key(2), Partial(fixed, g0, g1), 200, fresh=False, **FIXED))
    assert apart <= (2 if PAIRS[index][0] in (1e-3, math.pi - 1e-3) else 0)  # of 1,600; rounding decides
    assert len(np.unique(codes)) > 1 or not np.any(g0 + g1)


@pytest.mark.integration
def test_a_sweep_of_the_kernel_is_one_call_for_all_trials(kernel: Any) -> None:
    g0, g1 = (jnp.asarray(g[5]) for g in gradients(41))
    one = interpreted(g0, g1)
    assert str(jax.make_jaxpr(jax.vmap(one))(jnp.arange(2, dtype=jnp.uint32))).count("grid=(2, 1)") == 1
    np.testing.assert_array_equal(game.sweep(one, 2), kernel(g0, g1))


@pytest.mark.parametrize(
    ("platform", "capability", "told"),
    [("cpu", None, "cpu"), ("gpu", "8.0", "A100, of 8.0"), ("gpu", "9.0", None), ("tpu", None, None)],
)
def test_devices_that_cannot_run_the_kernel_are_refused(platform: str, capability: str, told: str) -> None:
    device = SimpleNamespace(platform=platform, compute_capability=capability, device_kind="A100")
    mesh: Any = SimpleNamespace(devices=np.array([device]))
    if told is None:
        assert engines.refuse_device(mesh) is None
    else:
        message = (
            f"^engine: expected full on this device; kernel needs a TPU or .* 9.0 or later, got kernel on {told}$"
        )
        with pytest.raises(_validate.InputError, match=message):
            engines.refuse_device(mesh)


def test_plane_agrees_with_exact_on_fresh_pairs_and_rejects_wrong_parameters():
    trials, repeats = 60_000, 5
    every = oracle.pair(*gradients(3))
    place = np.random.default_rng(0).integers(0, len(PAIRS), trials)
    planes = oracle.Pair(*(part[place] for part in every))
    codes = engines.plane(jax.random.key(3), planes, trials, epsilons=EPSILONS, clip_norm=CLIP_NORM, repeats=repeats)
    assert codes.shape == (2, 2, repeats, trials)
    assert largest_excess(codes, every, place) <= 1
    assert largest_excess(codes, every, place, scale=1.1) > 1.2
    assert largest_excess(codes, every, place, clip_norm=1e-9) > 10
    assert largest_excess(codes[::-1], every, place) > 10  # worlds swapped
    assert len({codes[b, e, r].tobytes() for b in (0, 1) for e in (0, 1) for r in range(repeats)}) == 4 * repeats


@pytest.mark.parametrize("index", [3, 6, 9])
def test_plane_agrees_with_exact_on_a_fixed_pair(index):
    g0, g1 = gradients(3)
    planes = oracle.pair(g0[index], g1[index])
    codes = engines.plane(jax.random.key(4), planes, 50_000, epsilons=EPSILONS, clip_norm=CLIP_NORM)
    assert largest_excess(codes, oracle.pair(g0[[index]], g1[[index]]), np.zeros(50_000, int)) <= 1


def test_at_angle_pi_the_guess_is_the_side_in_every_trial():
    planes = oracle.Pair(np.array(1.0), np.array(1.0), np.array(math.pi))
    codes = engines.plane(jax.random.key(5), planes, 100_000, epsilons=[1.0], clip_norm=1.0)
    assert set(np.unique(codes)) == {engines.GUESS | engines.SIDE1, engines.SIDE0}


def test_pairs_are_the_planes_of_the_crafted_gradients_for_any_batch():
    table, key = gradients(40), jax.random.key(6)
    crafted = Partial(any_of, *map(jnp.asarray, table))
    planes = engines.pairs(key, crafted, 1000)
    counts = np.bincount(places(planes, oracle.pair(*table)), minlength=len(PAIRS))
    p = 1 / len(PAIRS)
    assert (np.abs(counts - 1000 * p) <= 5 * math.sqrt(1000 * p * (1 - p))).all()  # pairs are fresh and evenly drawn
    again = engines.pairs(key, crafted, 700, batch=1)
    np.testing.assert_array_equal(np.stack(again), np.stack(planes)[:, :700])


@pytest.mark.integration
def test_codes_do_not_depend_on_the_batch(played):
    np.testing.assert_array_equal(fresh(300, 1500, batch=1), played[300][..., :1500])  # and more trials extend fewer
    planes = oracle.pair(*(g[3] for g in gradients(100)))
    run = partial(engines.plane, jax.random.key(9), planes, 500, epsilons=EPSILONS, clip_norm=CLIP_NORM)
    np.testing.assert_array_equal(run(repeats=70, batch=1), run(repeats=80)[:, :, :70])


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"epsilons": [1.0, -1.0], "clip_norm": 1.0}, "^epsilon: expected a finite number > 0, got -1.0$"),
        ({"epsilons": [1.0], "clip_norm": math.inf}, "^clip_norm: expected a finite number > 0, got inf$"),
    ],
)
def test_plane_refuses_bad_parameters(settings, message):
    with pytest.raises(_validate.InputError, match=message):
        engines.plane(jax.random.key(0), oracle.pair(np.ones(2), -np.ones(2)), 10, **settings)
