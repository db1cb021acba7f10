"""Trainings whose canaries could show nothing are refused instead of audited."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpaudit
from dpaudit.audits.fresh_noise import refuse_repeated
from dpaudit.audits.training_canary import Recipe, one_run, per_step, white_box
from dpaudit.training import per_example
from dpaudit.training.dp_sgd import Noise, add_noise, dp_sgd, noisy_sums

KEY = jax.random.key(21)
N, D = 24, 3


def without_derivative(params, example):
    """At a record of zeros no derivative exists: training drops its gradient."""
    return jnp.linalg.norm(example * params)


SEEN = Recipe(
    without_derivative,
    jnp.ones(D),
    jnp.ones((N, D)),
    steps=6,
    clip_norm=0.5,
    noise_multiplier=3.0,
    batch_size=5,
    optimizer=optax.sgd(0.1),
)


@pytest.mark.parametrize("audit", [white_box, partial(one_run, KEY, canaries=5), partial(per_step, KEY)])
def test_canaries_that_training_drops_are_refused(audit):
    """They are copies of the first record, whose gradient is not a number, and would move no step."""
    with pytest.raises(dpaudit.InputError, match="data: expected a first example with a finite gradient at params"):
        audit(SEEN._replace(data=SEEN.data.at[0].set(0.0)))


def test_another_record_may_be_dropped():
    mechanism = white_box(SEEN._replace(data=SEEN.data.at[1].set(0.0)))
    assert np.isfinite(mechanism.apply(KEY, 1.0)).all()


def in_layers(params, example):
    return jnp.sum((jnp.tanh(example @ params["first"]["w"]) @ params["second"]["w"]) ** 2)


def test_canaries_that_clipping_by_layer_shortens_are_refused():
    """Of three layers, one of them the canary's: 1/sqrt(3) of the clip norm, behind which half of the noise hides."""
    recipe = SEEN._replace(loss_fn=in_layers, params={"first": {"w": jnp.eye(D)}, "second": {"w": jnp.eye(D)}})
    with pytest.raises(
        dpaudit.InputError, match=r"expected a training that clips every gradient by itself, .* 0\.577 C"
    ):
        white_box(recipe._replace(make=partial(dp_sgd, clipping=per_example.per_layer)))
    white_box(recipe)


def clipping_sums(loss_fn, *, clip_norm, noise_multiplier, **settings):
    """A training that clips the sum of a batch instead of each gradient: one record may turn it around."""

    def add(key, total, memory):
        norm = optax.global_norm(total)
        total = jax.tree.map(lambda leaf: leaf * jnp.minimum(1, clip_norm / jnp.maximum(norm, 1e-9)), total)
        return add_noise(key, total, clip_norm * noise_multiplier), memory

    noise = Noise(lambda params: (), add)
    unclipped = {"clipping": lambda norms, clip_norm: jnp.ones_like(norms)}
    return noisy_sums(loss_fn, noise, clip_norm=clip_norm, **unclipped, **settings)


def test_clipping_the_sum_in_place_of_each_gradient_is_refused():
    """A canary alone in a step is clipped as promised, and any number of them share one clip norm."""
    with pytest.raises(dpaudit.InputError, match=r"make: expected a training that clips every gradient by .* 0\.5 C"):
        white_box(SEEN._replace(make=clipping_sums))


def with_one_draw(loss_fn, *, clip_norm, noise_multiplier, **settings):
    """A training whose every step adds the same noise: two of them tell the sums' difference exactly."""

    def add(key, total, memory):
        return add_noise(jax.random.key(7), total, clip_norm * noise_multiplier), memory

    return noisy_sums(loss_fn, Noise(lambda params: (), add), clip_norm=clip_norm, **settings)


def by_all_records(key, recipe):
    return white_box(recipe._replace(batch_size=N + 1))  # every step takes the canary


@pytest.mark.parametrize("audit", [partial(one_run, canaries=200), partial(per_step, canaries=200), by_all_records])
def test_noise_that_steps_share_is_refused(audit):
    recipe = SEEN._replace(make=with_one_draw)
    message = r"make: expected a training that draws the noise of every step afresh, got .* a correlation of 1\.00"
    with pytest.raises(dpaudit.InputError, match=message):
        audit(KEY, recipe)


def test_fresh_noise_is_not_taken_for_shared_noise():
    """Nor is any with few canaries, whose noise is alike by chance; a step that repeats another is found among many,
    though a canary is rarely absent in both."""
    rng = np.random.default_rng(3)
    for steps, m in ((2, 1), (300, 2), (300, 3), (2_000, 20), (100, 1_000)):
        absent = rng.random((steps, m)) < 0.5
        refuse_repeated(rng.normal(size=(steps, m)) + 5 * ~absent, absent)
    x, absent = rng.normal(size=(1_500, 200)), rng.random((1_500, 200)) < 0.5
    x[1_400] = x[40]
    with pytest.raises(dpaudit.InputError, match=r"noise of steps 1400 and 40 with a correlation of 1\.00"):
        refuse_repeated(x, absent)
    x[1_400] = -x[40] + 0.3 * rng.normal(size=200)
    with pytest.raises(dpaudit.InputError, match=r"noise of steps 1400 and 40 with a correlation of -0\.9"):
        refuse_repeated(x, absent)
    refuse_repeated(np.zeros((10, 50)), np.ones((10, 50), bool))
