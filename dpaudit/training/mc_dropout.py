"""Dropout at prediction time: T samples of a network's output for every input, and their mean, spread and range.

network = probabilities(CNN32())
found = statistics(key, network, params, images, samples=1_000)  # found.mean, found.variance, ...: [n, num_classes]

A network is any ``network(params, image, key=None) -> [k]`` of ONE image, deterministic without a key. What does not
depend on the key (of a CNN, the first convolution) is computed once for all T samples: the cut is found in JAX's
trace, so a network needs no rewriting. A sample's masks are a function of the key and the numbers of its image and of
itself: those for T = 10 are the first ten of those for T = 1,000, whatever the memory.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from dpaudit import check
from dpaudit.training.models import logits
from dpaudit.training.tape import Step, read, record

Network = Callable[..., jax.Array]

MEMORY = 64.0  # MiB: what a CPU's caches bear


class Statistics(NamedTuple):
    """Of T samples of outputs [..., k]."""

    mean: jax.Array  # [..., k], Eq. (3)
    variance: jax.Array  # [..., k], the diagonal of Eq. (4) with beta = 0: divided by T, so 0 at T = 1
    minimum: jax.Array  # [..., k]
    maximum: jax.Array  # [..., k]

    @property
    def std(self) -> jax.Array:
        """[..., k]: the square root of the variance."""
        return jnp.sqrt(self.variance)


def probabilities(model: nn.Module, *, temperature: float = 1.0) -> Network:
    """``network(params, image, key=None) -> [num_classes]``: softmax(logits / temperature), by dropout with a key.

    Args:
      model: one of :mod:`dpaudit.training.models`, or another that takes ``dropout`` as they do.
      temperature: > 0; above 1 flattens what is published, below 1 sharpens it.

    Raises:
      InputError: a temperature out of range.
    """
    check.positive(temperature=temperature)
    network = logits(model)
    return lambda params, image, key=None: jax.nn.softmax(network(params, image, key) / temperature)


def predict(network: Network, params: Any, images: Any, *, memory_mib: float = MEMORY) -> jax.Array:
    """[n, k]: the network's deterministic output for every image.

    Args, raises: as for :func:`sample`.
    """
    images = _images(images)
    size = record(network, params, images[0]).size()
    return _predict(network, params, images, _at_once(memory_mib, size, len(images)))


def sample(
    key: jax.Array, network: Network, params: Any, images: Any, *, samples: int, memory_mib: float = MEMORY
) -> jax.Array:
    """[T, n, k]: T outputs for each of n images, with masks of their own.

    Pure in its arguments, for use under ``jit`` and ``vmap`` (many networks: over ``key`` and ``params``).

    Args:
      key: sample t of image i gets ``fold_in(fold_in(key, i), t)``.
      network: ``network(params, image, key=None) -> [k]``, such as :func:`probabilities`; the same function again is
        not compiled again.
      params: its parameters.
      images: [n, ...], n >= 1.
      samples: T >= 1.
      memory_mib: of values computed on the way, in MiB for one network, not counting what is returned.

    Raises:
      InputError: a value out of range; no image.

    Source: paper 003, section 2.2; Gal and Ghahramani 2016, "Dropout as a Bayesian Approximation".
    """
    return _run(key, network, params, images, samples, memory_mib, keep=True)


def statistics(
    key: jax.Array, network: Network, params: Any, images: Any, *, samples: int, memory_mib: float = MEMORY
) -> Statistics:
    """:func:`summarise` of what :func:`sample` returns for the same key, never holding it: leaves [n, k].

    Samples are merged part by part, each with its own mean, so that no digits cancel.

    Args, raises: as for :func:`sample`.

    Source: paper 003, Eqs. (3) and (4), section 3.3; the merging: Chan, Golub and LeVeque 1983, "Algorithms for
    Computing the Sample Variance".
    """
    return _run(key, network, params, images, samples, memory_mib, keep=False)


def summarise(outputs: jax.Array) -> Statistics:
    """The statistics of section 3.3 over the first axis: [T, ..., k] -> leaves [..., k]."""
    return Statistics(outputs.mean(axis=0), outputs.var(axis=0), outputs.min(axis=0), outputs.max(axis=0))


def covariance(outputs: jax.Array, *, beta: float = 0.0) -> jax.Array:
    """beta I + 1/T sum_t y_t y_t' - mean mean', with the mean taken off first: [T, ..., k] -> [..., k, k].

    Args:
      outputs: T samples.
      beta: the part of the variance that the samples do not show, >= 0; paper 003 does not say which it takes.

    Raises:
      InputError: a negative beta.

    Source: paper 003, Eq. (4).
    """
    if beta != 0:
        check.positive(beta=beta)
    apart = outputs - outputs.mean(axis=0)
    return beta * jnp.eye(outputs.shape[-1]) + jnp.einsum("t...i,t...j->...ij", apart, apart) / len(outputs)


class _Cut(NamedTuple):
    """A network's trace for one image, cut into what does not depend on the key and what does."""

    before: list[Step]
    behind: list[Step]
    crossing: list[int]  # the slots that ``before`` makes and the rest reads
    constants: dict[int, Any]
    result: Any
    bytes_before: int  # of all values computed for an image
    bytes_behind: int  # and for a sample of it

    def shared(self, params: Any, image: jax.Array) -> list[jax.Array]:
        """What all samples of an image begin with."""
        values = _after(self.before, {**self.constants, **dict(enumerate([*jax.tree.leaves(params), image]))})
        return [values[slot] for slot in self.crossing]

    def output(self, params: Any, image: jax.Array, key: jax.Array, shared: list[jax.Array]) -> jax.Array:
        """One sample, [k]."""
        arguments = dict(enumerate([*jax.tree.leaves(params), image, key]))
        made = dict(zip(self.crossing, shared, strict=True))
        return read(_after(self.behind, {**self.constants, **arguments, **made}), self.result)


def _cut(network: Network, params: Any, image: jax.Array, key: jax.Array) -> _Cut:
    tape = record(network, params, image, key)
    late, before, behind = {len(jax.tree.leaves(params)) + 1}, [], []
    for step in tape.steps:
        if late.intersection(_slots(step)):
            late.update(step.outputs)
        (behind if late.issuperset(step.outputs) else before).append(step)
    read_later = tape._replace(steps=tuple(behind)).used()
    crossing = sorted(read_later.intersection(slot for step in before for slot in step.outputs))
    sizes = (tape._replace(steps=tuple(steps)).size() for steps in (before, behind))
    return _Cut(before, behind, crossing, tape.constants, tape.result, *sizes)


def _slots(step: Step) -> list[int]:
    return [slot for slot in step.inputs if isinstance(slot, int)]


def _after(steps: list[Step], values: dict[int, Any]) -> dict[int, Any]:
    for step in steps:
        values.update(zip(step.outputs, step.run([read(values, slot) for slot in step.inputs]), strict=True))
    return values


def _images(images: Any) -> jax.Array:
    images = jnp.asarray(images)
    if images.ndim < 1 or len(images) < 1:
        raise check.expected("images", "an array of shape [n, ...] with n >= 1", f"shape {list(images.shape)}")
    return images


def _at_once(memory_mib: float, bytes_of_one: int, most: int) -> int:
    """How many fit, in parts as even as can be."""
    fitting = max(1, int(check.positive(memory_mib=memory_mib) * 2**20 / max(1, bytes_of_one)))
    return -(-most // -(-most // fitting))


@partial(jax.jit, static_argnums=(0, 3))
def _predict(network: Network, params: Any, images: jax.Array, at_once: int) -> jax.Array:
    return lax.map(lambda image: network(params, image), images, batch_size=at_once)


def _run(
    key: jax.Array, network: Network, params: Any, images: Any, samples: int, memory_mib: float, *, keep: bool
) -> Any:
    key, images = check.key(key=key), _images(images)
    samples = check.at_least(1, samples=samples)
    check.positive(memory_mib=memory_mib)
    return _sampled(key, params, images, network=network, samples=samples, memory_mib=memory_mib, keep=keep)


@partial(jax.jit, static_argnames=("network", "samples", "memory_mib", "keep"))
def _sampled(
    key: jax.Array, params: Any, images: jax.Array, *, network: Network, samples: int, memory_mib: float, keep: bool
) -> Any:
    cut = _cut(network, params, images[0], key)
    at_once = _at_once(memory_mib, cut.bytes_behind, samples)

    def one(number: jax.Array, image: jax.Array) -> Any:
        own, shared = jax.random.fold_in(key, number), cut.shared(params, image)

        def output(t: jax.Array) -> jax.Array:
            return cut.output(params, image, jax.random.fold_in(own, t), shared)

        def part(first: Any, count: int) -> Statistics:
            return summarise(jax.vmap(output)(first + jnp.arange(count)))

        if keep:
            return lax.map(output, jnp.arange(samples), batch_size=at_once)
        begin = samples - (samples - 1) // at_once * at_once  # the rest of all whole parts, or one of them

        def add(number: Any, so_far: Statistics) -> Statistics:
            done = begin + number * at_once
            return _merged(so_far, done, part(done, at_once), at_once)

        return lax.fori_loop(0, (samples - begin) // at_once, add, part(0, begin))

    images_at_once = _at_once(memory_mib, cut.bytes_before + at_once * cut.bytes_behind, len(images))
    numbered = jnp.arange(len(images)), images
    found = lax.map(lambda given: one(*given), numbered, batch_size=images_at_once)
    return jnp.moveaxis(found, 0, 1) if keep else found


def _merged(a: Statistics, count_a: Any, b: Statistics, count_b: int) -> Statistics:
    share = count_b / (count_a + count_b)  # of b
    apart = b.mean - a.mean
    return Statistics(
        a.mean + share * apart,
        a.variance + share * (b.variance - a.variance) + share * (1 - share) * jnp.square(apart),
        jnp.minimum(a.minimum, b.minimum),
        jnp.maximum(a.maximum, b.maximum),
    )
