"""Trainings whose canaries could show nothing are refused instead of audited."""

from functools import partial

import jax
import jax.numpy as jnp
import optax
import pytest

import dpaudit
from dpaudit.audits.training_canary import Recipe, one_run, per_step, white_box
from dpaudit.training import per_example
from dpaudit.training.dp_sgd import dp_sgd

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
    white_box(SEEN._replace(data=SEEN.data.at[1].set(0.0)))


def in_layers(params, example):
    return jnp.sum((jnp.tanh(example @ params["first"]["w"]) @ params["second"]["w"]) ** 2)


def test_canaries_that_clipping_by_layer_shortens_are_refused():
    """Of three layers, one of them the canary's: 1/sqrt(3) of the clip norm, behind which half of the noise hides."""
    recipe = SEEN._replace(loss_fn=in_layers, params={"first": {"w": jnp.eye(D)}, "second": {"w": jnp.eye(D)}})
    with pytest.raises(dpaudit.InputError, match=r"expected a training that clips all layers together, .* 0\.577"):
        white_box(recipe._replace(make=partial(dp_sgd, clipping=per_example.per_layer)))
    white_box(recipe)
