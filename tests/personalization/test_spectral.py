"""Factors from second moments: what is released, how far one user moves it, and what stands out of the noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit import InputError
from dpaudit.personalization.als import spectral
from dpaudit.personalization.als.recommender import PLAIN
from dpaudit.personalization.als.spectral import Spectrum
from dpaudit.personalization.als.steps import Model
from dpaudit.personalization.boundary.aggregator import run
from dpaudit.personalization.boundary.processes import memoryless
from tests.personalization import people
from tests.personalization.test_every_user_removed import CLOSE, MODELS, moved

KEY, LARGE = jax.random.key(0), 300


@pytest.mark.parametrize("unobserved", [0.0, 0.5])
@pytest.mark.parametrize("most", [3, people.ITEMS])
def test_no_user_moves_the_moments_further_than_the_sensitivity(most, unobserved):
    step, spectrum = PLAIN._replace(unobserved=unobserved), Spectrum(2, most)
    protocol = spectral.second_moments(step, spectrum, items=people.ITEMS, noise_multiplier=0.0)
    for name, model in MODELS.items():
        found = np.asarray(moved(protocol, spectral.widened(model, 2)))
        assert np.isfinite(found).all(), name
        assert found.max() <= CLOSE, name
        if name != "crooked server":
            assert found.max() > 0.99, name  # the noise is no larger than need be


@pytest.mark.integration
@pytest.mark.parametrize("unobserved", [0.0, 0.5])
def test_moments_are_of_what_is_left_of_ratings(unobserved):
    rows, model = people.honest(40, seed=4), people.model()
    model = model._replace(precision=jnp.full(4, jnp.inf))  # everybody's own half is the mean
    told = np.asarray(jnp.concatenate([model.public, model.factors], axis=1) @ model.mean)
    asked = np.sort(np.argsort(-np.asarray(model.popularity), kind="stable")[:4])
    wanted = np.zeros((4, 4))
    for row in rows:
        rests = np.zeros(people.ITEMS) - (told if unobserved and row else 0.0)
        for item, value in row:
            rests[item] = value - told[item]
        rests = rests[asked]
        wanted += np.outer(rests, rests) / max(rests @ rests, 1e-20)
    spectrum = Spectrum(2, 4)
    protocol = spectral.second_moments(
        PLAIN._replace(unobserved=unobserved), spectrum, items=people.ITEMS, noise_multiplier=0.0
    )
    buckets = people.batch(rows[:15], 4), people.batch(rows[15:], 7)
    found, _, transcript = run(KEY, protocol, spectral.widened(model, 2), memoryless(), buckets, 1)
    (released,) = transcript.values("moments")
    upper = np.triu_indices(4)
    np.testing.assert_allclose(released, np.where(upper[0] == upper[1], 1, 2**0.5) * wanted[upper], rtol=1e-4)
    values, vectors = np.linalg.eigh(wanted)
    ours = np.asarray(found.factors)
    assert not ours[np.setdiff1d(np.arange(people.ITEMS), asked), -2:].any()
    np.testing.assert_array_equal(ours[:, :-2], model.factors)
    np.testing.assert_allclose(np.abs(ours[asked, -2]), 2 * np.abs(vectors[:, -1]), atol=1e-4)
    np.testing.assert_allclose(
        np.abs(ours[asked, -1]), 2 * np.abs(vectors[:, -2]) * (values[-2] / values[-1]) ** 0.5, atol=1e-4
    )


def test_the_aggregator_clips_whatever_a_device_sends():
    protocol = spectral.second_moments(PLAIN, Spectrum(1), items=3, noise_multiplier=0.0)
    sent = jnp.array([[3.0, 0.0, 4.0], [0.0, 0.5, 0.0], [jnp.nan, 1.0, 0.0], [1e30, 1e30, 0.0], [jnp.inf, 0.0, 0.0]])
    total = protocol.devices.devices.add(None, sent)
    wanted = np.zeros((3, 3))
    for message in ([0.6, 0, 0.8], [0, 0.5, 0], [0.5**0.5, 0.5**0.5, 0]):
        wanted += np.outer(message, message)
    np.testing.assert_allclose(total, wanted, atol=1e-4)
    assert np.linalg.norm(protocol.devices.devices.add(None, sent[:1])) <= 1


def noisy(seed, strength, deviation):
    """One direction of a strength, in symmetric noise of a deviation off the diagonal."""
    rng = np.random.default_rng(seed)
    direction = rng.normal(size=LARGE)
    direction /= np.linalg.norm(direction)
    noise = np.triu(deviation * rng.normal(size=(LARGE, LARGE)))
    return direction, strength * np.outer(direction, direction) + noise + np.triu(noise, 1).T


def test_directions_stand_out_of_noise_or_are_left_out():
    s = LARGE**0.5  # of noise of deviation 1
    for seed in range(3):
        direction, matrix = noisy(seed, 2 * s, 1.0)
        found = np.asarray(spectral.directions(jnp.asarray(matrix), 3, s))
        assert np.abs(found[:, 1:]).max() == 0  # the edge of the noise, 2 s, may be passed by a hair by no second one
        cosine = (found[:, 0] @ direction) ** 2 / (found[:, 0] @ found[:, 0])
        assert cosine == pytest.approx(1 - 1 / 4, abs=0.06)  # 1 - s^2/t^2
        _, quiet = noisy(seed, 0.5 * s, 1.0)
        assert not np.asarray(spectral.directions(jnp.asarray(quiet), 3, 1.02 * s)).any()
        assert np.asarray(spectral.directions(jnp.asarray(quiet), 3, 0.0)).any()  # had it not known of the noise


def test_strengths_are_lowered_by_what_noise_adds():
    s = LARGE**0.5
    one, first = noisy(0, 6 * s, 1.0)
    other = np.random.default_rng(9).normal(size=LARGE)
    other -= (other @ one) * one
    other /= np.linalg.norm(other)
    found = np.asarray(spectral.directions(jnp.asarray(first + 3 * s * np.outer(other, other)), 2, s))
    squares = np.sum(found**2, axis=0)
    assert squares[0] == pytest.approx(LARGE, rel=1e-4)
    assert squares[1] / squares[0] == pytest.approx((3 - 1 / 3) / (6 - 1 / 6), rel=0.05)


@pytest.mark.integration
def test_tastes_are_found_and_what_is_accounted_is_the_noise():
    rng = np.random.default_rng(1)
    taste, own = rng.normal(size=people.ITEMS), rng.normal(size=400)
    rows = [[(item, float(own[u] * taste[item])) for item in range(people.ITEMS)] for u in range(400)]
    one = jnp.ones((people.ITEMS, 1))
    bare = Model(
        one, jnp.zeros((people.ITEMS, 1)), jnp.arange(6.0), jnp.array([0.0, 1.0]), jnp.array([jnp.inf, jnp.inf])
    )
    buckets, spectrum = (people.batch(rows, people.ITEMS),), Spectrum(1, precision=0.5)
    model, transcript = spectral.fit(KEY, buckets, bare, PLAIN, spectrum, noise_multiplier=2.0)
    found = np.asarray(model.factors[:, 1])
    assert abs(found @ taste) / np.linalg.norm(found) / np.linalg.norm(taste) > 0.98
    assert np.asarray(model.precision).tolist() == [np.inf, np.inf, 0.5]
    assert transcript.mu() == pytest.approx(1 / 2)
    quiet, _ = spectral.fit(KEY, buckets, bare, PLAIN, spectrum, noise_multiplier=1e5)
    assert not np.asarray(quiet.factors).any()  # nothing stands out of that much noise


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank": 0}, "rank: expected a whole number >= 1, got 0"),
        ({"rank": 7}, "rank: expected at most the number of items in question, 6, got 7"),
        ({"most": 0}, "most: expected a whole number >= 1, got 0"),
        ({"power": -1.0}, "power: expected a finite number >= 0, got -1.0"),
        ({"precision": 0.0}, "precision: expected a finite number > 0, got 0.0"),
    ],
)
def test_settings_out_of_range(change, message):
    with pytest.raises(InputError, match=message):
        spectral.second_moments(PLAIN, Spectrum(2)._replace(**change), items=people.ITEMS, noise_multiplier=1.0)
