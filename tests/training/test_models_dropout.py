from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.training import models
from dpaudit.training.models import Dropout, kept


@pytest.mark.parametrize("rate", [0.5, 0.25, 0.3, 0.9])
def test_elements_are_dropped_at_the_rate_and_independently(rate: float) -> None:
    draws, size = 4_000, 70  # more than two words, the last of them not full
    draw = jax.jit(jax.vmap(lambda key: kept(key, (7, 10), rate)))
    masks = np.asarray(draw(jax.random.split(jax.random.key(0), draws))).reshape(draws, size)
    assert abs(masks.mean() - (1 - rate)) < 4 * np.sqrt(rate * (1 - rate) / masks.size)
    assert abs(masks.mean() - (1 - rate - 0.02)) > 4 * np.sqrt(rate * (1 - rate) / masks.size)  # so it can tell
    correlations = np.corrcoef(masks.T)[~np.eye(size, dtype=bool)]
    assert np.abs(correlations).max() < 5.5 / np.sqrt(draws)


def test_drawing_a_bit_an_element_at_one_half() -> None:
    drawn = str(jax.make_jaxpr(lambda key: kept(key, (28, 28, 64), 0.5))(jax.random.key(0)))
    assert "shape=(1, 1568)" in drawn  # words; a number an element would be 50,176


def test_same_mean_as_flax_and_the_same_input_where_inactive() -> None:
    x, rngs = jnp.full((100, 100), 3.0), {"dropout": jax.random.key(1)}
    ours = np.asarray(jax.jit(lambda x, rngs: Dropout(0.2).apply({}, x, True, rngs=rngs))(x, rngs))
    flax = np.asarray(jax.jit(lambda x, rngs: nn.Dropout(0.2, deterministic=False).apply({}, x, rngs=rngs))(x, rngs))
    assert set(np.unique(ours)) == set(np.unique(flax)) == {0.0, np.float32(3.75)}
    assert abs(ours.mean() - 3) < 4 * 3.75 * np.sqrt(0.2 * 0.8 / x.size)
    for rate, active in ((0.2, False), (0.0, True)):
        np.testing.assert_array_equal(Dropout(rate).apply({}, x, active), x)


def test_what_is_dropped_together_is_that_of_flax() -> None:
    x, rngs = jnp.full((3, 2, 5_000), 3.0), {"dropout": jax.random.key(1)}
    ours = np.asarray(jax.jit(lambda x, rngs: Dropout(0.2, (0, -2)).apply({}, x, True, rngs=rngs))(x, rngs))
    flax = nn.Dropout(0.2, broadcast_dims=(0, 1), deterministic=False)
    theirs = np.asarray(jax.jit(lambda x, rngs: flax.apply({}, x, rngs=rngs))(x, rngs))
    for drawn in (ours, theirs):
        np.testing.assert_array_equal(drawn, np.broadcast_to(drawn[:1, :1], drawn.shape))
        assert abs(drawn.mean() - 3) < 4 * 3.75 * np.sqrt(0.2 * 0.8 / x.shape[-1])


@pytest.mark.parametrize("network, pixels", [(models.CNN8, 8), (models.CNN28, 28), (models.CNN32, 32)])
def test_channels_of_convolutions_are_dropped_whole_where_asked_for(network: Any, pixels: int) -> None:
    def shares(channel_dropout: bool) -> list[np.ndarray]:
        """Which share of each channel, or of all that a dense layer gives, each dropout drops in ten draws; all before
        it is 1."""
        model = network(dropout_rate=0.5, channel_dropout=channel_dropout)
        params = {"params": models.initial_parameters(jax.random.key(0), model, (pixels, pixels, 1))}
        ones = jax.tree_util.tree_map_with_path(lambda path, leaf: jnp.full_like(leaf, "bias" in str(path)), params)

        def inside(key: jax.Array, ones: Any) -> Any:
            told = {"capture_intermediates": True, "mutable": ["intermediates"], "rngs": {"dropout": key}}
            found = model.apply(ones, jnp.ones((pixels, pixels, 1)), dropout=True, **told)[1]["intermediates"]
            return {name: found[name]["__call__"][0] for name in found if name.startswith("Dropout")}

        # the ones are an argument: as constants the compiler of jaxlib 0.10.2 for CPUs reads them from elsewhere
        drawn = jax.jit(jax.vmap(inside, (0, None)))(jax.random.split(jax.random.key(1), 10), ones)
        return [np.asarray((x == 0).mean(axis=(1, 2) if x.ndim == 4 else 1)).ravel() for _, x in sorted(drawn.items())]

    whole, single = shares(True), shares(False)
    for of_channels, of_elements in zip(whole[:2], single[:2], strict=True):
        assert set(of_channels) == {0.0, 1.0}
        assert len(set(of_elements)) > 2
    dense = whole[2:] + single[2:]
    assert len(dense) == (0 if pixels == 8 else 2)
    assert all(0 < share < 1 for of_draws in dense for share in of_draws)


@pytest.mark.parametrize("rate", [1.0, 1.5, -0.5, float("nan")])
def test_a_rate_that_is_no_probability_is_refused(rate: float) -> None:
    with pytest.raises(_validate.InputError, match=r"rate: expected a number in \[0, 1\), got"):
        Dropout(rate)


def test_dimensions_that_are_not_there_are_refused() -> None:
    with pytest.raises(_validate.InputError, match=r"broadcast_dims: expected dimensions of \[3, 4\], got \(0, 2\)"):
        Dropout(0.5, (0, 2)).apply({}, jnp.ones((3, 4)), True, rngs={"dropout": jax.random.key(0)})
