"""Inference: what the developer holds may be shown, what a user holds stays there, sums are released with noise."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.core import Tracer

from dpaudit._validate import InputError
from dpaudit.personalization.boundary import inference, processes
from dpaudit.personalization.boundary.aggregator import enforced, run
from dpaudit.personalization.boundary.budget import Budget
from dpaudit.personalization.boundary.inference import Held, OnDevice, infer, shown
from tests.personalization import telling


def score(params, film, history=0.0):
    return params @ film + jnp.sum(history)


PARAMS, FILM, HISTORY = jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0]), jnp.array([0.5, 0.25])


def test_results_belong_to_whoever_has_the_features():
    assert shown(infer(score, PARAMS, Held(FILM))) == 11.0
    for own in (infer(score, PARAMS, Held(FILM), OnDevice(HISTORY)), infer(score, PARAMS, OnDevice(FILM))):
        assert isinstance(own, OnDevice)
        with pytest.raises(
            InputError, match=r"result: expected a result of features that the developer holds, got OnDevice"
        ):
            shown(own)
    again = infer(lambda params, rating: rating > 11, PARAMS, infer(score, PARAMS, Held(FILM), OnDevice(HISTORY)))
    assert isinstance(again, OnDevice)  # what is made of it stays too
    display = []
    assert again.use(display.append) is None
    assert display == [True]
    with pytest.raises(InputError, match=r"features: expected Held\(...\) or OnDevice\(...\), got ArrayImpl"):
        infer(score, PARAMS, FILM)  # pyright: ignore[reportArgumentType]


def test_what_runs_on_a_user_s_own_features_has_no_effects_and_is_no_python():
    seen = []

    def spying(params, history):
        seen.append(history)
        return score(params, FILM, history)

    assert isinstance(infer(spying, PARAMS, OnDevice(HISTORY)), OnDevice)
    assert [isinstance(history, Tracer) for history in seen] == [True]
    for tell in (telling.callback, telling.pure, telling.in_another_s_array):
        with pytest.raises(
            InputError, match="predict: expected a function without effects, because it runs on raw data"
        ):
            infer(lambda params, history, tell=tell: tell(jnp.sum(history)), PARAMS, OnDevice(HISTORY))
    assert telling.SEEN == []
    assert shown(infer(lambda params, film: telling.callback(jnp.sum(film)), PARAMS, Held(FILM))) == 7.0
    jax.effects_barrier()
    assert telling.SEEN.pop() == 7.0  # of what the developer holds they may


def test_what_stays_on_the_device_neither_prints_nor_pickles():
    own = OnDevice(HISTORY)
    assert repr(own) == str(own) == "OnDevice(...)"
    with pytest.raises(InputError, match="OnDevice: expected to stay on its device, got a copy of it"):
        pickle.dumps(own)


PREDICTIONS = jnp.array([1.0, 2.0, 2.5, 3.0, 9.0, jnp.nan, -jnp.inf])


def released(statistic, predictions, noise_multiplier):
    process = processes.gaussian("ratings", noise_multiplier=noise_multiplier)
    protocol = inference.aggregated(lambda params, user: params * user, statistic, process)
    memory = statistic.memory(process)
    _, _, transcript = run(jax.random.key(0), protocol, jnp.float32(1.0), memory, predictions, rounds=1)
    return statistic.decode(transcript.values("ratings")[0]), transcript


@pytest.mark.integration
def test_aggregates_are_right_and_accounted():
    counts, transcript = released(inference.histogram((1, 2, 3, 4)), PREDICTIONS, 1e-4)
    np.testing.assert_allclose(counts, [1, 2, 1], atol=2e-3)
    assert transcript.mu() == pytest.approx(1e4, rel=1e-6)
    estimate, _ = released(inference.mean(1.0, 5.0), PREDICTIONS, 1e-5)
    assert float(estimate) == pytest.approx(np.mean([1, 2, 2.5, 3, 5, 1]), abs=2e-3)  # NaN does not count


@pytest.mark.parametrize("statistic", [inference.histogram((1, 2, 3, 4)), inference.mean(1.0, 5.0)])
def test_no_prediction_moves_a_statistic_beyond_its_sensitivity(statistic):
    worst = jnp.concatenate([PREDICTIONS, jnp.array([jnp.inf, 0.0, 5.0, 1e38])])
    norms = jnp.linalg.norm(jax.vmap(statistic.encode)(worst), axis=1)
    assert norms.shape == (11,)
    assert float(norms.max()) == pytest.approx(statistic.sensitivity, rel=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_a_prediction_of_any_type_moves_a_mean_by_no_more_than_its_sensitivity(dtype):
    predictions = jnp.concatenate([jnp.linspace(-9, 9, 1_001), jnp.array([jnp.inf, -jnp.inf, jnp.nan])]).astype(dtype)
    for low, high in ((0.1, 0.7), (-3.3, 4.9), (1.0, 5.0), (2.3, 2.9)):
        statistic = inference.mean(low, high)
        sent = np.asarray(jax.vmap(statistic.encode)(predictions), np.float64)
        assert np.linalg.norm(sent, axis=1).max() == pytest.approx(statistic.sensitivity, rel=1e-6)
        assert np.abs(sent).max() <= 1


def test_statistics_refuse_what_they_cannot_be():
    for edges in ((1.0,), (1.0, 1.0), (2.0, 1.0)):
        with pytest.raises(InputError, match="edges: expected two or more increasing numbers, got"):
            inference.histogram(edges)
    with pytest.raises(InputError, match="high: expected a number > 2, got 2"):
        inference.mean(2.0, 2.0)


def test_a_statistic_that_is_longer_than_it_says_is_clipped_and_a_budget_is_kept():
    process = processes.gaussian("ratings", noise_multiplier=4.0)
    honest = inference.histogram((0, 1, 2))
    lying = honest._replace(encode=lambda prediction: 100 * honest.encode(prediction))
    protocol = inference.aggregated(lambda params, user: user, lying, process)
    assert enforced(protocol)
    total = protocol.devices(jax.random.key(0), (), jnp.array([0.5, 1.5, 1.5]))
    np.testing.assert_allclose(total, [1.0, 2.0], rtol=1e-4)
    told = run(jax.random.key(0), protocol, (), None, jnp.ones(3), rounds=9, budget=Budget(2.5, 1e-5))[2]
    assert told.epsilon(1e-5) <= 2.5
    assert 1 < len(told.values("ratings")) < 9
