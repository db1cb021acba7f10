"""Simulates in the clear what a step releases, under SPGC and under the schemes that it is compared with.

The whole numbers are the protocol's own: shares add to the owners' sums, and two servers compute
(:mod:`dpaudit.secure.protocol.two_server_sum`) ::

    release = (sum over owners of G_j + Z) smod 2^N

from the same bits that :func:`dpaudit.secure.noise.binomial.from_bits` reads. A training with this module therefore
sees bit for bit what it would see with two servers, without a circuit. The process that draws the noise knows it, so
this is for simulations only.

A scheme is a fixed-point scale, or none, and the law of the noise that reaches the model. Which party knows which part
of that noise does not matter to the model, but is decisive for privacy; audits show that.
"""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import numpy as np

from dpaudit import _validate
from dpaudit.secure.crypto import shares
from dpaudit.secure.crypto.randomness import Source
from dpaudit.secure.noise import binomial, gaussian, lookup
from dpaudit.secure.protocol import fixed_point
from dpaudit.secure.protocol.fixed_point import Scale, dequantize, quantized_sum


class Step(NamedTuple):
    """The setting of a step, from which every scheme is made.

    Attributes:
      owners: k.
      examples: m, of all owners together.
      clip_norm: C, L2, per example.
      noise_multiplier: z, standard deviation of the noise that one release needs, in clip norms.
      ring_bits: N + 1, for schemes with shares.
    """

    owners: int
    examples: int
    clip_norm: float
    noise_multiplier: float
    ring_bits: int = 25


class Scheme(NamedTuple):
    """A way from clipped gradients to the release of a step.

    Attributes:
      scale: the fixed-point scale; None where gradients stay real numbers and nothing is shared.
      std: standard deviation of the noise in the release, in clip norms.
      noise: ``noise(dimension, source) -> [d]``: int64 units with a scale, else float64 in the gradients' unit.
    """

    scale: Scale | None
    std: float
    noise: Callable[[int, Source], np.ndarray]


def contribution(scheme: Scheme, gradients: np.ndarray) -> np.ndarray:
    """Adds up an owner's clipped gradients [n, d]: int64 units [d], each example quantised, or float64."""
    if scheme.scale is None:
        return gradients.sum(axis=0, dtype=np.float64)
    return quantized_sum(gradients, scheme.scale)


def release(scheme: Scheme, contributions: Iterable[np.ndarray], noise: np.ndarray) -> np.ndarray:
    """Computes what a step makes public: float64 [d], in the gradients' unit.

    Args:
      scheme: the scheme.
      contributions: the owners' sums, [d] each, of :func:`contribution`.
      noise: [d], drawn from the scheme.
    """
    total = sum(contributions) + noise
    if scheme.scale is None:
        return total
    return dequantize(shares.smod(total, 1 << (scheme.scale.ring_bits - 1)), scheme.scale)


def non_private(step: Step) -> Scheme:
    """Adds clipped gradients without noise, at one server that sees everything."""
    return Scheme(None, 0.0, _no_noise)


def ldp(step: Step) -> Scheme:
    """Adds the full noise to each owner's sum, and sums at one server: variance k z^2.

    Raises:
      InputError: owners below 1; a noise multiplier that is not positive.
    """
    std = math.sqrt(_validate.at_least(1, owners=step.owners)) * _validate.positive(
        noise_multiplier=step.noise_multiplier
    )
    return Scheme(None, std, partial(_normal, std * step.clip_norm))


def mpc_only(step: Step) -> Scheme:
    """Opens the sum between two servers, without noise.

    Raises:
      InputError: as for :func:`fixed_point.largest`.
    """
    found = fixed_point.largest(examples=step.examples, clip_norm=step.clip_norm, ring_bits=step.ring_bits)
    return Scheme(found, 0.0, _no_noise)


def spgc(step: Step) -> Scheme:
    """Opens the sum between two servers with binomial noise that neither knows.

    Raises:
      InputError: as for :func:`fixed_point.with_binomial`.
    """
    found, law = fixed_point.with_binomial(
        noise_multiplier=step.noise_multiplier,
        examples=step.examples,
        clip_norm=step.clip_norm,
        ring_bits=step.ring_bits,
    )
    return Scheme(found, law.std / found.levels, partial(_sample, law))


def spgc_table(step: Step) -> Scheme:
    """Opens the sum with the paper's noise, a table that is **not private** (:mod:`dpaudit.secure.noise.lookup`)."""
    found = _gaussian_scale(step, step.noise_multiplier)
    return Scheme(found, step.noise_multiplier, partial(_look_up, step.noise_multiplier * found.levels))


def reduced(step: Step) -> Scheme:
    """Adds 1/k of the noise's variance at each owner before sharing: HybridAlpha, and Truex et al.

    The sum is drawn here as one discrete Gaussian of the whole variance, which the sum of k of them is very close to
    where each is many units wide.

    Source: Kairouz, Liu and Steinke 2021, The Distributed Discrete Gaussian Mechanism, on sums of discrete Gaussians.
    """
    return _discrete(step, step.noise_multiplier)


def own_noise(step: Step) -> Scheme:
    """Adds the full noise at each server, which knows its own part: sqrt(2) times the noise, and no circuit."""
    return _discrete(step, math.sqrt(2) * step.noise_multiplier)


def _gaussian_scale(step: Step, multiplier: float) -> Scale:
    return fixed_point.for_gaussian(
        noise_multiplier=multiplier, examples=step.examples, clip_norm=step.clip_norm, ring_bits=step.ring_bits
    )


def _discrete(step: Step, multiplier: float) -> Scheme:
    found = _gaussian_scale(step, multiplier)
    units = math.ceil(multiplier * found.levels)
    return Scheme(found, units / found.levels, partial(gaussian.sample, units))


def _no_noise(dimension: int, source: Source) -> np.ndarray:
    return np.zeros(dimension, np.int64)


def _normal(std: float, dimension: int, source: Source) -> np.ndarray:
    seed = np.frombuffer(source(16), np.uint64)
    return std * np.random.Generator(np.random.Philox(key=seed)).standard_normal(dimension)


def _sample(law: binomial.Binomial, dimension: int, source: Source) -> np.ndarray:
    return binomial.sample(law, dimension, source)


def _look_up(std: float, dimension: int, source: Source) -> np.ndarray:
    seeds = np.frombuffer(source(4 * dimension), np.uint16).reshape(2, dimension)
    return lookup.from_seeds(lookup.table(std), *seeds)
