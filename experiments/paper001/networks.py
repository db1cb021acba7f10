"""Defines the paper's three networks in Flax Linen: one record to logits."""

import flax.linen as nn
import jax
import jax.numpy as jnp


def sign(x: jax.Array) -> jax.Array:
    """1 where x >= 0, else -1; its derivative is taken for that of x clipped to [-1, 1].
    Source: Hubara et al. 2016, Binarized Neural Networks, Eqs. (1) and (4): the straight-through estimator.
    """
    passed = jnp.clip(x, -1.0, 1.0)
    return passed + jax.lax.stop_gradient(jnp.where(x >= 0, 1.0, -1.0) - passed)


class MNISTNetwork(nn.Module):
    """Images [28, 28, 1]: two convolutions of 5 x 5, strides of 2, and a dense layer.

    The paper's second layer has windows of 1 x 5 x 5 with 32 outputs each and shares no weights along the first axis,
    the 16 channels. Read as an ordinary convolution over all 16 (which have a weight each) it makes 21,258 parameters
    in all; with ``apart``, where every channel goes by itself into 32 of its own, 141,738.
    Source: Section 5.2.4.
    """

    num_classes: int = 10
    apart: bool = False

    @nn.compact
    def __call__(self, image: jax.Array) -> jax.Array:
        x = nn.relu(nn.Conv(16, (5, 5), strides=(2, 2), padding="SAME")(image))
        if self.apart:
            each = nn.vmap(
                nn.Conv,
                in_axes=-1,
                out_axes=-1,
                variable_axes={"params": 0},
                split_rngs={"params": True},
                axis_size=16,
            )
            x = each(32, (5, 5), strides=(2, 2), padding="VALID")(x[..., None, :])
        else:
            x = nn.Conv(32, (5, 5), strides=(2, 2), padding="VALID")(x)
        return nn.Dense(self.num_classes)(nn.relu(x).ravel())


class CancerNetwork(nn.Module):
    """Ninety bits to two classes in one dense layer: 182 parameters. Source: Section 5.2.4, after TAPAS."""

    num_classes: int = 2

    @nn.compact
    def __call__(self, bits: jax.Array) -> jax.Array:
        return nn.Dense(self.num_classes)(bits)


class DiabetesNetwork(nn.Module):
    """Eight features, two layers of 20 signs, two classes: 642 parameters. Source: Section 5.2.4."""

    num_classes: int = 2

    @nn.compact
    def __call__(self, features: jax.Array) -> jax.Array:
        x = features
        for _ in range(2):
            x = sign(nn.Dense(20)(x))
        return nn.Dense(self.num_classes)(x)
