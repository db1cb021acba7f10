"""Models of 32 bits stay so where JAX computes in 64: the rounds of a run are a loop, whose state has one type."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit.personalization.als import biases, least_squares, recommender, spectral, steps
from dpaudit.personalization.als.least_squares import Shares
from dpaudit.personalization.als.steps import Model, Prior, Step
from dpaudit.personalization.boundary.processes import memoryless
from dpaudit.personalization.boundary.protocol import Protocol
from tests.personalization import people

KEY = jax.random.key(0)
MODEL = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), people.model())
USERS = people.batch(people.honest(8, seed=1), 4)
FEATURES, PRIOR = jnp.ones((people.ITEMS, 1)), Prior(jnp.ones(2), 3.0, 0.4)
PROTOCOLS = {
    "counted": lambda: (least_squares.counted(items=people.ITEMS, noise_multiplier=1.0), MODEL),
    "alternating": lambda: (
        least_squares.alternating(
            Step(0.8, 1.5, steps.adaptive(0.3), 0.3),
            noise_multiplier=1.0,
            features=FEATURES,
            prior=PRIOR,
            shares=Shares(0.3, 0.5, 0.2),
        ),
        MODEL,
    ),
    "biases": lambda: (biases.moments(biases.Biases(), FEATURES, noise_multiplier=1.0), biases.widened(MODEL)),
    "moments": lambda: (
        spectral.second_moments(
            recommender.PLAIN, spectral.Spectrum(2, 4, 0.5), items=people.ITEMS, noise_multiplier=1.0
        ),
        spectral.widened(MODEL, 2),
    ),
}


def after(protocol: Protocol, model: Model, *users: Any) -> Any:
    """The types of the model after a round."""

    def round(model: Model, users: Any) -> Model:
        total = protocol.devices(KEY, protocol.broadcast(model), users)
        return protocol.update(model, protocol.release(KEY, total, memoryless())[0])

    return jax.eval_shape(round, model, users)


@pytest.mark.parametrize(
    ("name", "ratings"), [*((name, np.float32) for name in PROTOCOLS), ("alternating", np.float64)]
)
def test_a_round_keeps_the_types_of_a_model(name: str, ratings: Any) -> None:
    with jax.enable_x64(True):
        protocol, model = PROTOCOLS[name]()
        users = USERS._replace(values=USERS.values.astype(ratings))
        assert {leaf.dtype for leaf in model} == {jnp.dtype(jnp.float32)}
        assert [leaf.dtype for leaf in after(protocol, model, users)] == [leaf.dtype for leaf in model]


def test_denoised_counts_keep_their_type() -> None:
    with jax.enable_x64(True):
        found = jax.eval_shape(lambda noisy: biases.denoised(noisy, 2.0), jnp.zeros(9, jnp.float32))
    assert found.dtype == np.float32
