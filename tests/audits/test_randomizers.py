"""Gaussian clients and PrivUnit: exact rates against sampled ones, sound clients cleared, and planted faults found."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial
from scipy.special import ndtr

from dpaudit import _validate
from dpaudit.audits import ldp_client, oracle, oracle_gaussian, oracle_privunit, randomizers
from dpaudit.mechanisms import gaussian, privunit
from dpaudit.mechanisms.privunit import best_cap

KEY, DELTA, CLIP_NORM = jax.random.key(5), 1e-6, 0.5
POINTS = 400_000
PAIRS = oracle.Pair(  # short, long and zero gradients
    norm0=np.array([0.2, 3.0, 0.5, 0.0, 0.4, 0.0, 0.7]),
    norm1=np.array([0.3, 0.4, 0.5, 0.6, 0.0, 0.0, 0.2]),
    angle=np.array([0.5, 1.3, math.pi, math.pi, math.pi, 0.0, 0.0]),
)


def vectors(place: int, dimension: int) -> tuple[np.ndarray, np.ndarray]:
    norm0, norm1, angle = (part[place] for part in PAIRS)
    g0, g1 = np.zeros((2, dimension))
    g0[0], g1[:2] = norm0, (norm1 * math.cos(angle), norm1 * math.sin(angle))
    return g0, g1


def cosine_guesses(z: np.ndarray, g0: np.ndarray, g1: np.ndarray) -> np.ndarray:
    """Eq. (3) as printed; a zero gradient has cosine 0 with everything."""
    u0, u1 = (g / max(np.linalg.norm(g), 1e-300) for g in (g0, g1))
    return z @ u1 > z @ u0 + 1e-12


def near(share: float, exact: float | np.ndarray) -> bool:
    return abs(share - float(exact)) <= 5 * math.sqrt(0.25 / POINTS)


@pytest.mark.parametrize("place", range(len(PAIRS.angle)))
def test_gaussian_rates_are_those_of_sampled_noise_and_not_of_half_of_it(place):
    pair, epsilon, rng = oracle.Pair(*(part[place] for part in PAIRS)), 3.0, np.random.default_rng(place)
    at = {"epsilon": epsilon, "delta": DELTA, "clip_norm": CLIP_NORM}
    sigma, (g0, g1) = gaussian.noise_std(**at), vectors(place, 3)
    c0, c1 = (g * min(1, CLIP_NORM / max(np.linalg.norm(g), 1e-300)) for g in (g0, g1))
    fpr, fnr = oracle_gaussian.cosine_rates(pair, **at)
    rate0, rate1 = oracle_gaussian.likelihood_rates(pair, **at)
    for scale in (1.0, 0.5):
        z0, z1 = (c + scale * sigma * rng.normal(size=(POINTS, 3)) for c in (c0, c1))
        agree = near(cosine_guesses(z0, g0, g1).mean(), fpr) and near(1 - cosine_guesses(z1, g0, g1).mean(), fnr)
        assert agree == (scale == 1 or pair.angle == 0)  # parallel: a tie, whatever the noise
        likelier = [np.sum((z - c0) ** 2 - (z - c1) ** 2, axis=1) > 1e-12 for z in (z0, z1)]
        agree = near(likelier[0].mean(), rate0) and near(likelier[1].mean(), rate1)
        assert agree == (scale == 1 or not (g0 - g1).any())


def test_the_side_of_a_gaussian_release_changes_halfway_between_the_clipped_updates():
    client, units = CLIENTS["gaussian"], np.array([[1.0, 0.0], [math.cos(1), math.sin(1)]])
    observer = client.observe(client.randomize, EPSILONS, CLIP_NORM)
    norms = jnp.array(0.2), jnp.array(3.0)
    c0, c1 = 0.2 * units[0], CLIP_NORM * units[1]
    for step, sides in ((-1e-3, (False, True)), (1e-3, (True, False))):
        z = (c0 + c1) / 2 + step * (c1 - c0)
        assert tuple(map(bool, observer.sides(jnp.asarray(units @ z), norms, 0, 2))) == sides


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_the_loss_of_the_gaussian_optimal_test_is_the_largest_over_all_thresholds(epsilon):
    """By a search over thresholds of the projection, which knows nothing of Gaussian differential privacy."""
    at = {"epsilon": epsilon, "delta": DELTA, "clip_norm": CLIP_NORM}
    apart = oracle.Pair(np.array(2.0), np.array(2.0), np.array(math.pi))
    assert oracle_gaussian.optimal_test(apart, **at).epsilon == pytest.approx(epsilon, rel=1e-6)
    closer = oracle.Pair(np.array(0.3), np.array(2.0), np.array(2.0))
    mu = float(oracle_gaussian.distance(closer, CLIP_NORM)) / gaussian.noise_std(**at)
    chosen = np.linspace(-2, 12, 200_001)
    with np.errstate(invalid="ignore", divide="ignore"):
        shown = np.log((ndtr(mu - chosen) - DELTA) / ndtr(-chosen))
    found = oracle_gaussian.optimal_test(closer, **at).epsilon
    assert found == pytest.approx(np.nanmax(shown), rel=1e-4)
    assert found < 0.9 * epsilon


@pytest.mark.parametrize("dimension", [2, 3, 7])
@pytest.mark.parametrize("place", range(len(PAIRS.angle)))
def test_privunit_rates_are_those_of_weighted_points(place, dimension):
    """Uniform points of the sphere, weighted by the density of the cap."""
    pair, epsilon, rng = oracle.Pair(*(part[place] for part in PAIRS)), 1.0, np.random.default_rng(place)
    v = rng.normal(size=(POINTS, dimension))
    v /= np.linalg.norm(v, axis=1)[:, None]
    cap, (g0, g1) = best_cap(dimension, epsilon), vectors(place, dimension)
    units = [g / max(np.linalg.norm(g), 1e-300) for g in (g0, g1)]
    inside = [v @ unit >= cap.gamma for unit in units]
    worlds = [
        np.where(near, math.exp(cap.log_inside), math.exp(cap.log_outside)) if unit.any() else np.ones(POINTS)
        for near, unit in zip(inside, units, strict=True)
    ]
    guess, at = cosine_guesses(v, g0, g1), {"epsilon": epsilon, "dimension": dimension}
    sampled = np.mean(guess * worlds[0]), np.mean(~guess * worlds[1])
    np.testing.assert_allclose(oracle_privunit.cosine_rates(pair, **at), sampled, atol=6e-3)
    if not g0.any() and not g1.any():
        return
    shown = [-units[1] if not g0.any() else units[0], -units[0] if not g1.any() else units[1]]
    in0, in1 = (v @ unit >= cap.gamma for unit in shown)
    patterns = (in1 & ~in0, in1 & in0, ~in1 & ~in0, ~in1 & in0)
    expected = [[np.mean(one * world) for world in worlds] for one in patterns]
    found = oracle_privunit.wedges(pair, **at)
    np.testing.assert_allclose(found, expected, atol=6e-3)
    assert np.abs(oracle_privunit.wedges(pair, epsilon=2.0, dimension=dimension) - expected).max() > 0.02


@pytest.mark.parametrize("dimension", [2, 3, 100, 26_010])
def test_privunit_caps_that_do_not_meet_are_whole_and_every_pair_attains_epsilon(dimension):
    for epsilon in (0.5, 4.0, 8.0):
        cap, at = best_cap(dimension, epsilon), {"epsilon": epsilon, "dimension": dimension}
        assert oracle_privunit.one_cap_alone(np.array(math.pi), cap, dimension) == pytest.approx(cap.mass, rel=1e-6)
        for angle in (1e-3, 1.0, math.pi):
            one = oracle.Pair(np.array(1.0), np.array(1e-9), np.array(angle))
            assert oracle_privunit.optimal_test(one, **at).epsilon == pytest.approx(epsilon, rel=1e-9)
        zero = oracle.Pair(np.array(0.0), np.array(1.0), np.array(math.pi))
        larger = max(cap.log_inside, -cap.log_outside)
        assert oracle_privunit.optimal_test(zero, **at).epsilon == pytest.approx(larger, rel=1e-9)


# --- whole audits -------------------------------------------------------------------------------------------------


def pairs_of(apart, key):
    """Where ``apart``, opposite gradients; else pairs of all angles and lengths, a third of them with a zero gradient.

    In eight dimensions. Which of them is data, so that both are one program.
    """
    angle_key, norm_key = jax.random.split(key)
    angle, norms = jax.random.uniform(angle_key, maxval=math.pi), jax.random.uniform(norm_key, (2,))
    g0 = jnp.zeros(8).at[0].set(jnp.where(norms[0] < 1 / 3, 0, norms[0]))
    g1 = norms[1] * jnp.zeros(8).at[0].set(jnp.cos(angle)).at[3].set(jnp.sin(angle))
    far = jnp.full(8, CLIP_NORM)
    return jnp.where(apart, far, g0), jnp.where(apart, -far, g1)


TURNED, OPPOSITE = Partial(pairs_of, jnp.bool_(False)), Partial(pairs_of, jnp.bool_(True))
EPSILONS = (1.0, 4.0)
CLIENTS = {"gaussian": randomizers.gaussian(delta=DELTA), "privunit": randomizers.privunit()}


def audited(name, crafted, **given):
    settings = {"clip_norm": CLIP_NORM, "trials": 10_000, "repeats": 3, "epsilons": EPSILONS, "confidence": 0.999}
    return ldp_client.audit_craft(KEY, crafted, randomizer=CLIENTS[name], **(settings | given))


def noise_for_one_clip_norm(key, x, *, epsilon, clip_norm):
    """Noise for updates C apart, where they are up to 2 C apart."""
    sigma = gaussian.noise_std(epsilon=epsilon, delta=DELTA, clip_norm=clip_norm) / 2
    clipped = x * jnp.minimum(1, clip_norm / jnp.linalg.norm(x))
    return clipped + sigma * jax.random.normal(key, x.shape)


def cap_of_twice_epsilon(key, x, *, epsilon, clip_norm):
    """The right cap, with the probability of the cap of twice epsilon."""
    cap = best_cap(x.size, epsilon)._replace(miss=best_cap(x.size, 2 * epsilon).miss)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(privunit, "_cap_for", lambda x, epsilon: cap)
        return privunit.mechanism(epsilon=epsilon).apply(key, x)


FAULTS = {"gaussian": noise_for_one_clip_norm, "privunit": cap_of_twice_epsilon}


@pytest.mark.integration
@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("crafted", [TURNED, OPPOSITE], ids=["turned", "opposite"])
def test_sound_clients_are_cleared_and_agree_with_their_exact_values(name, crafted):
    weak = name == "gaussian" and crafted is TURNED  # this pair shows less than half of what is lost
    for row, computed in zip(audited(name, crafted), audited(name, crafted, engine="exact"), strict=True):
        assert row["verdict"] == ("underpowered" if weak else "consistent")
        assert row["delta"] == CLIENTS[name].delta
        for rule in ("", "_optimal"):
            exact = row["epsilon_exact" if not rule else "epsilon_optimal"]
            assert row[f"epsilon{rule}_lower"] <= exact <= float(row[f"epsilon{rule}_upper"])
        assert row["epsilon_exact"] <= row["epsilon_optimal"] * (1 + 1e-6) <= row["epsilon"] * (1 + 2e-6)
        assert abs(row["accuracy"] - row["accuracy_exact"]) <= 5 * 0.5 / math.sqrt(30_000)
        assert row["accuracy_exact"] <= row["accuracy_most"] + 1e-6
        for column in ("epsilon_exact", "epsilon_optimal", "accuracy_exact", "optimal_fpr", "optimal_tpr"):
            assert computed[column] == row[column]
        assert computed["verdict"] == "computed"


@pytest.mark.integration
@pytest.mark.parametrize("name", CLIENTS)
def test_planted_faults_are_found(name):
    for row in audited(name, OPPOSITE, randomize=FAULTS[name]):
        assert row["verdict"] == "violation"
        assert row["epsilon_optimal_lower"] > 1.2 * row["epsilon"]
        assert row["detectable"] < float(row["epsilon_optimal_upper"])


@pytest.mark.integration
@pytest.mark.parametrize("name", CLIENTS)
def test_what_is_detectable_is_found_four_times_out_of_five(name):
    (row,) = audited(name, OPPOSITE, epsilons=[2.0], repeats=1, confidence=0.95)
    pair, client = oracle.Pair(np.array(1.0), np.array(1.0), np.array(math.pi)), CLIENTS[name]
    if name == "gaussian":
        at = {"epsilon": 2.0, "delta": DELTA, "clip_norm": CLIP_NORM}
        fpr, tpr = oracle_gaussian.likelihood_rates(pair, **at, true_epsilon=row["detectable"])
        assert client.optimal(pair, dimension=8, epsilon=row["detectable"], clip_norm=CLIP_NORM)[1:3] == pytest.approx(
            (fpr, tpr), rel=1e-6
        )
    else:
        fpr, tpr = oracle_privunit.wedges(pair, epsilon=2.0, dimension=8, true_epsilon=row["detectable"])[0]
        assert math.log(tpr / fpr) == pytest.approx(row["detectable"], rel=1e-9)
    counts = np.random.default_rng(0).binomial(5000, [[fpr], [1 - tpr]], (2, 2000))
    lower, _ = client.bounds(*counts, 5000, 5000, confidence=0.95)
    assert np.mean(lower > 2.0) == pytest.approx(0.8, abs=5 * math.sqrt(0.16 / 2000))


@pytest.mark.parametrize(
    "given, message",
    [
        (("laplace", None), "^mechanism: expected one of ldp_sgd, privunit, gaussian, got laplace$"),
        (("gaussian", None), r"^delta: expected a number in \(0, 1\), got None$"),
        (("gaussian", 1.0), r"^delta: expected a number in \(0, 1\), got 1.0$"),
        (("privunit", 1e-6), "^delta: expected none for privunit, which promises epsilon alone, got 1e-06$"),
    ],
)
def test_bad_promises_are_refused(given, message):
    with pytest.raises(_validate.InputError, match=message):
        randomizers.of(*given)


@pytest.mark.parametrize("name", CLIENTS)
def test_an_engine_that_is_not_offered_is_refused(name):
    with pytest.raises(_validate.InputError, match=f"^engine: expected full or exact for {name}, got plane$"):
        audited(name, OPPOSITE, engine="plane")
