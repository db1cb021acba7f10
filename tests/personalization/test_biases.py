"""Biases in one release: what is released, how far one user moves it, and what the server makes of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit import InputError
from dpaudit.personalization.als import biases, layout
from dpaudit.personalization.als.biases import Biases
from dpaudit.personalization.als.steps import Model, Prior, item_factors
from dpaudit.personalization.boundary.aggregator import run
from dpaudit.personalization.boundary.processes import memoryless
from tests.personalization import people
from tests.personalization.test_every_user_removed import CLOSE, MODELS, moved

KEY, NONE = jax.random.key(0), jnp.zeros((people.ITEMS, 0))


@pytest.mark.parametrize("share", [0.1, 0.7])
def test_no_user_moves_counts_and_rests_further_than_the_sensitivity(share):
    protocol = biases.moments(Biases(share, 0.5), NONE, noise_multiplier=0.0)
    for name, model in MODELS.items():
        found = np.asarray(moved(protocol, biases.widened(model)))
        assert np.isfinite(found).all(), name
        assert found.max() <= CLOSE, name
        if name != "crooked server":
            assert found.max() > 0.99, name  # the noise is no larger than need be


@pytest.mark.integration
def test_what_is_released_is_counts_and_clipped_rests():
    rows, model = people.honest(30, seed=4), people.model()
    model = model._replace(precision=jnp.full(4, jnp.inf))  # everybody's own half is the mean
    told = np.asarray(jnp.concatenate([model.public, model.factors], axis=1) @ model.mean)
    settings = Biases(popularity_share=0.3, rating_clip=0.8)
    counts, moments = np.zeros(people.ITEMS), np.zeros(people.ITEMS)
    for row in rows:
        items = [item for item, _ in row]
        rests = np.array([value - told[item] for item, value in row]) / max(len(row), 1) ** 0.5
        counts[items] += max(len(row), 1) ** -0.5
        moments[items] += rests * min(1, 0.8 / max(np.linalg.norm(rests), 1e-9))
    features = jnp.ones((people.ITEMS, 1))
    protocol = biases.moments(settings, features, noise_multiplier=0.0)
    buckets = people.batch(rows[:12], 4), people.batch(rows[12:], 7)
    found, _, transcript = run(KEY, protocol, biases.widened(model), memoryless(), buckets, 1)
    released = {name: value[0] for name, value in transcript.values("biases").items()}
    np.testing.assert_allclose(released["counts"], 0.3**0.5 * counts, rtol=1e-4)
    np.testing.assert_allclose(released["moments"], 0.7**0.5 / 0.8 * moments, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found.popularity, counts, rtol=1e-4)
    described = np.column_stack([np.ones(people.ITEMS), np.log(np.maximum(counts, 1))])
    prior = Prior(jnp.array([settings.bias_variance]), settings.feature_ridge, settings.rating_variance)
    wanted = item_factors(
        jnp.asarray(counts[:, None, None]),
        jnp.asarray(moments[:, None]),
        jnp.asarray(described),
        prior,
        moment_stddev=0.0,
    )
    np.testing.assert_allclose(found.factors[:, -1:], wanted, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(found.factors[:, :-1], model.factors)


@pytest.mark.integration
def test_released_counts_are_denoised_by_the_noise_that_they_have():
    rows, model, z = people.honest(30, seed=4), people.model(), 2.0
    protocol = biases.moments(Biases(popularity_share=0.3), jnp.ones((people.ITEMS, 1)), noise_multiplier=z)
    start = biases.widened(model)
    found, _, transcript = run(KEY, protocol, start, memoryless(), (people.batch(rows, 7),), 1)
    counts = transcript.values("biases")["counts"][0] / 0.3**0.5
    np.testing.assert_allclose(found.popularity, biases.denoised(counts, z / 0.3**0.5), rtol=1e-4)
    assert np.abs(found.popularity - np.maximum(counts, 0)).max() > 0.5


def rated(count: int, seed: int) -> tuple[np.ndarray, tuple[layout.Users, ...]]:
    """Biases of items, and users who rate four of them with an intercept of their own."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=people.ITEMS)
    rows = []
    for _ in range(count):
        own = rng.normal()
        items = np.sort(rng.choice(people.ITEMS, 4, replace=False))
        rows.append([(int(item), float(3 + own + true[item])) for item in items])
    return true, (people.batch(rows, 4),)


@pytest.mark.integration
def test_biases_are_found_and_what_is_accounted_is_the_noise():
    true, buckets = rated(600, seed=1)
    ones = jnp.ones((people.ITEMS, 1))
    bare = Model(ones, jnp.zeros((people.ITEMS, 0)), jnp.zeros(people.ITEMS), jnp.array([3.0]), jnp.array([0.1]))
    settings = Biases(rating_clip=2.0, bias_variance=1.0, bias_precision=7.0)
    model, transcript = biases.fit(KEY, buckets, bare, ones, settings, noise_multiplier=2.0)
    assert np.corrcoef(np.asarray(model.factors[:, 0]), true)[0, 1] > 0.98
    assert np.asarray(model.precision).tolist() == pytest.approx([0.1, 7.0])
    assert np.asarray(model.mean).tolist() == [3.0, 1.0]
    np.testing.assert_allclose(model.popularity, 600 * 4 / 6 / 2, rtol=0.1)
    assert transcript.mu() == pytest.approx(1 / 2)


def test_denoised_counts_are_nearer_and_those_of_too_little_noise_are_not():
    """Most counts are small, so that large released ones among them are noise."""
    rng = np.random.default_rng(5)
    true = np.where(rng.random(2_000) < 0.1, rng.uniform(20, 60, 2_000), rng.exponential(1.0, 2_000))
    noisy = true + 5 * rng.normal(size=2_000)

    def error(found):
        return float(np.sqrt(np.mean((np.asarray(found) - true) ** 2)))

    found = biases.denoised(jnp.asarray(noisy), 5.0)
    assert np.asarray(found).min() >= 0
    assert error(found) < 0.6 * error(np.maximum(noisy, 0))
    assert error(found) < 0.7 * error(biases.denoised(jnp.asarray(noisy), 1.0))  # had it not known of the noise
    assert float(jnp.mean(found)) == pytest.approx(true.mean(), abs=4 * 5 / 2_000**0.5)
    np.testing.assert_array_equal(biases.denoised(jnp.array([-1.0, 2.0]), 0.0), [0.0, 2.0])


def test_means_are_those_of_the_distribution_where_it_is_known():
    """Half the numbers are 0 and half are 8, and the mean of one given y is 8/(1 + exp((32 - 8 y)/4))."""
    rng = np.random.default_rng(6)
    true = np.where(np.arange(40_000) % 2, 8.0, 0.0)
    noisy = np.append(true + 2 * rng.normal(size=len(true)), [2.0, 4.0, 6.0])
    found = np.asarray(biases.denoised(jnp.asarray(noisy, jnp.float32), 2.0))[-3:]
    np.testing.assert_allclose(found, 8 / (1 + np.exp((32 - 8 * noisy[-3:]) / 4)), atol=0.4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"popularity_share": 1.0}, "popularity_share: expected a number in \\(0, 1\\), got 1.0"),
        ({"rating_clip": 0.0}, "rating_clip: expected a finite number > 0, got 0.0"),
        ({"bias_variance": -1.0}, "bias_variance: expected a finite number > 0, got -1.0"),
        ({"bias_precision": 0.0}, "bias_precision: expected"),
    ],
)
def test_settings_out_of_range(change, message):
    with pytest.raises(InputError, match=message):
        biases.moments(Biases()._replace(**change), NONE, noise_multiplier=1.0)
