"""Predicts with dropout: T samples of a network's output for every input, and their mean, spread and range.

    network = probabilities(CNN32())
    found = statistics(key, network, params, images, samples=1_000)  # found.mean, ...: [n, num_classes]

A network is any ``network(params, image, key=None) -> [k]`` of ONE image, deterministic without a key. A sample's
masks are a function of the key, the number of its image and its own number: those for T = 10 are the first ten of
those for T = 1,000, whatever the memory.

The network is cut into parts (:func:`cut`), which are found in JAX's trace, so it needs no rewriting. What does not
depend on the key (of a CNN, the first convolution) runs once for all T samples. The rest is cut in two, wide and
narrow: of a CNN the convolutions, whose values for a few samples fill the caches, and the dense layers, whose weights
would have to be read again for every few samples.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from dpaudit import _platform, _validate
from dpaudit._engine.programs import Step, Tape, played, read, record
from dpaudit.kernels import philox
from dpaudit.training.forms import quick
from dpaudit.training.models import logits

Network = Callable[..., jax.Array]

CACHED = 16.0  # MiB of values at a time that fit a CPU's caches
ROOM = 1_024.0  # MiB that keep an accelerator busy
# What a GPU writes to memory: its compiler computes other values where they are read. A TPU pads and copies much more.
WRITTEN = {"conv_general_dilated", "dot_general", "custom_vjp_call", "random_bits", "gather", "sort", "scan", "while"}
WRITTEN |= {"reduce_window_max", "reduce_window_min", "reduce_window_sum", "cond", "pure_callback"}


class Part(NamedTuple):
    """Steps that run together."""

    steps: tuple[Step, ...]
    makes: list[int]  # the slots that later parts read
    values: int  # bytes of the values that they compute or receive for one x; on a GPU, of those written
    weights: int  # bytes of their inputs that do not depend on x

    def run(self, values: Mapping[int, Any]) -> dict[int, Any]:
        """Returns the slots that it makes from values by slot."""
        known = played(self.steps, values)
        return {slot: known[slot] for slot in self.makes}


class Cut(NamedTuple):
    """The parts of a network, called many times with another last argument x: an image or a dropout key."""

    numbers: Part  # steps that depend on no argument, such as 0, 1, 2, ...: faster computed in a loop than read by it
    before: Part
    wide: Part
    narrow: Part
    x: int  # the slot
    constants: Mapping[int, Any]
    result: Any  # the slot
    depends: bool  # whether the result depends on x

    def shared(self, arguments: Iterable[Any]) -> dict[int, Any]:
        """Computes the values that all outputs share, from all arguments but x."""
        given = {**self.constants, **dict(enumerate(arguments)), **self.numbers.run({})}
        return given | self.before.run(given)

    def outputs(self, shared: dict[int, Any], xs: jax.Array, few: int) -> jax.Array:
        """Computes the outputs [n, ...] for n values of x, the wide part for ``few`` at a time."""

        def given(x: jax.Array) -> dict[int, Any]:
            return shared | self.numbers.run({}) | {self.x: x}

        def output(x: jax.Array, handed: dict[int, Any]) -> Any:
            known = given(x) | handed
            return read(known | self.narrow.run(known), self.result)

        handed = lax.map(lambda x: self.wide.run(given(x)), xs, batch_size=min(few, len(xs)))
        return jax.vmap(output)(xs, handed)


def cut(function: Callable[..., jax.Array], *arguments: Any) -> Cut:
    """Cuts ``function(*arguments)``, the last argument being x, where the least memory is read.

    In M bytes of cache a part with v bytes of values runs for M / v values of x at a time, so that its w bytes of
    weights are read M / v times less often: w v / M bytes for one x. The cut minimises the sum over both parts.
    """
    leaves = jax.tree.leaves(arguments)
    tape, x = record(quick(function), *arguments), len(leaves) - 1
    late, bound = _following(tape, {x}), _following(tape, {*range(x), *tape.constants})
    shapes = {slot: jax.typeof(value) for slot, value in [*enumerate(leaves), *tape.constants.items()]}
    for step in tape.steps:
        shapes.update(zip(step.outputs, step.shapes, strict=True))
    kinds = shapes.keys() - bound - late, bound - late, late
    numbers, before, behind = ([step for step in tape.steps if kind.issuperset(step.outputs)] for kind in kinds)

    def size(slots: Iterable[int]) -> int:
        return sum(math.prod(shapes[slot].shape) * shapes[slot].dtype.itemsize for slot in slots)

    def part(steps: list[Step], later: list[Step]) -> Part:
        made = {slot for step in steps for slot in step.outputs}
        handed = {slot for step in steps for slot in step.inputs if isinstance(slot, int)} - made
        makes = made & tape._replace(steps=tuple(later)).used()
        held = made
        if _platform.current() == "gpu":
            held = makes.union(*(step.outputs for step in steps if step.primitive.name in WRITTEN))
        return Part(tuple(steps), sorted(makes), size(held | (handed & late)), size(handed & bound - late))

    def parts(at: int) -> tuple[Part, Part]:
        return part(behind[:at], behind[at:]), part(behind[at:], [])

    cuts = [parts(at) for at in range(max(1, len(behind)))]
    wide, narrow = min(cuts, key=lambda two: sum(part.values * part.weights for part in two))
    first = part(numbers, before + behind), part(before, behind)
    depends = isinstance(tape.result, int) and tape.result in late
    return Cut(*first, wide, narrow, x, tape.constants, tape.result, depends)


def _following(tape: Tape, slots: set[int]) -> set[int]:
    """Returns the slots and all that depend on them."""
    found = set(slots)
    for step in tape.steps:
        if found.intersection(slot for slot in step.inputs if isinstance(slot, int)):
            found.update(step.outputs)
    return found


class Statistics(NamedTuple):
    """Statistics of T samples of outputs [..., k]."""

    mean: jax.Array  # [..., k], Eq. (3)
    variance: jax.Array  # [..., k], the diagonal of Eq. (4) with beta = 0: divided by T, so 0 at T = 1
    minimum: jax.Array  # [..., k]
    maximum: jax.Array  # [..., k]

    @property
    def std(self) -> jax.Array:
        """Returns the square root of the variance, [..., k]."""
        return jnp.sqrt(self.variance)


def probabilities(model: nn.Module, *, temperature: float = 1.0) -> Network:
    """Returns ``network(params, image, key=None) -> [num_classes]``: softmax(logits / temperature).

    With a key dropout is active.

    Args:
      model: one of :mod:`dpaudit.training.models`, or another that takes ``dropout`` as they do.
      temperature: > 0; above 1 flattens the probabilities, below 1 sharpens them.

    Raises:
      InputError: a temperature out of range.
    """
    _validate.positive(temperature=temperature)
    network = logits(model)
    return lambda params, image, key=None: jax.nn.softmax(network(params, image, key) / temperature)


def predict(network: Network, params: Any, images: Any, *, memory_mib: float | None = None) -> jax.Array:
    """Computes the network's deterministic output for every image, [n, k].

    Args, raises: as for :func:`sample`.
    """
    return _predicted(params, _images(images), network=network, memory_mib=_memory(memory_mib))


def sample(
    key: jax.Array, network: Network, params: Any, images: Any, *, samples: int, memory_mib: float | None = None
) -> jax.Array:
    """Draws T outputs for each of n images, each with its own masks: [T, n, k].

    Pure in its arguments, for use under ``jit`` and ``vmap`` (many networks: over ``key`` and ``params``).

    Args:
      key: sample t of image i gets ``fold_in(fold_in(philox.from_key(key), i), t)``.
      network: ``network(params, image, key=None) -> [k]``, such as :func:`probabilities`; calls with the same
        function share a compiled program.
      params: its parameters.
      images: [n, ...], n >= 1.
      samples: T >= 1.
      memory_mib: of intermediate values, in MiB for one network, without the result. By default 16 on a CPU, which
        fits its caches, and 1,024 elsewhere.

    Raises:
      InputError: a value out of range; no image; a network whose output does not depend on the key, such as one
        without dropout.

    Source: paper 003, section 2.2; Gal and Ghahramani 2016, "Dropout as a Bayesian Approximation".
    """
    return _run(key, network, params, images, samples, memory_mib, keep=True)


def statistics(
    key: jax.Array, network: Network, params: Any, images: Any, *, samples: int, memory_mib: float | None = None
) -> Statistics:
    """Computes :func:`summarise` of :func:`sample` for the same key without holding the samples: leaves [n, k].

    Samples are merged part by part, each part with its own mean, so that no digits cancel.

    Args, raises: as for :func:`sample`.

    Source: paper 003, Eqs. (3) and (4), section 3.3; the merging: Chan, Golub and LeVeque 1983, "Algorithms for
    Computing the Sample Variance".
    """
    return _run(key, network, params, images, samples, memory_mib, keep=False)


def summarise(outputs: jax.Array) -> Statistics:
    """Computes the statistics of section 3.3 over the first axis: [T, ..., k] -> leaves [..., k]."""
    return Statistics(outputs.mean(axis=0), outputs.var(axis=0), outputs.min(axis=0), outputs.max(axis=0))


def covariance(outputs: jax.Array, *, beta: float = 0.0) -> jax.Array:
    """Computes beta I + 1/T sum_t y_t y_t' - mean mean', with the mean subtracted first: [T, ..., k] -> [..., k, k].

    Args:
      outputs: T samples.
      beta: the part of the variance that the samples do not show, >= 0; paper 003 does not state its value.

    Raises:
      InputError: a negative beta.

    Source: paper 003, Eq. (4).
    """
    if beta != 0:
        _validate.positive(beta=beta)
    apart = outputs - outputs.mean(axis=0)
    return beta * jnp.eye(outputs.shape[-1]) + jnp.einsum("t...i,t...j->...ij", apart, apart) / len(outputs)


def _images(images: Any) -> jax.Array:
    images = jnp.asarray(images)
    if images.ndim < 1 or len(images) < 1:
        raise _validate.expected("images", "an array of shape [n, ...] with n >= 1", f"shape {list(images.shape)}")
    return images


def _memory(memory_mib: float | None) -> float:
    """Returns the memory in MiB, checked, or the platform's default."""
    if memory_mib is None:
        return CACHED if _platform.on_cpu() else ROOM
    return _validate.positive(memory_mib=memory_mib)


def _at_once(memory_mib: float, bytes_of_one: int, most: int) -> int:
    """Returns how many fit, in groups as even as possible."""
    fitting = max(1, int(memory_mib * 2**20 / max(1, bytes_of_one)))
    return -(-most // -(-most // fitting))


def _groups(parts: Cut, memory_mib: float, total: int) -> tuple[int, int, int]:
    """Returns how many pass the wide part together, how many the narrow one, and the size of the first group.

    The first group is what is left of all whole groups, or a whole one.
    """
    few = _at_once(memory_mib, max(parts.wide.values, parts.narrow.values), total)
    many = few * _at_once(memory_mib, few * parts.narrow.values, -(-total // few))
    return few, many, total - (total - 1) // many * many


def _joined(outputs: Callable[[Any, int], jax.Array], total: int, begin: int, many: int) -> jax.Array:
    """Concatenates ``outputs(first, count)`` to [total, ...]."""
    first = outputs(0, begin)
    rest = lax.map(lambda group: outputs(begin + group * many, many), jnp.arange((total - begin) // many))
    return jnp.concatenate([first, rest.reshape(-1, *first.shape[1:])])


@partial(jax.jit, static_argnames=("network", "memory_mib"))
def _predicted(params: Any, images: jax.Array, *, network: Network, memory_mib: float) -> jax.Array:
    parts = cut(network, params, images[0])
    shared = parts.shared(jax.tree.leaves(params))
    few, many, begin = _groups(parts, memory_mib, len(images))

    def outputs(first: Any, count: int) -> jax.Array:
        return parts.outputs(shared, lax.dynamic_slice_in_dim(images, first, count), few)

    return _joined(outputs, len(images), begin, min(many, len(images)))  # as even groups of few, many may be more


def _run(
    key: jax.Array, network: Network, params: Any, images: Any, samples: int, memory_mib: float | None, *, keep: bool
) -> Any:
    key, images, samples = _validate.key(key=key), _images(images), _validate.at_least(1, samples=samples)
    return _sampled(key, params, images, network=network, samples=samples, memory_mib=_memory(memory_mib), keep=keep)


@partial(jax.jit, static_argnames=("network", "samples", "memory_mib", "keep"))
def _sampled(
    key: jax.Array, params: Any, images: jax.Array, *, network: Network, samples: int, memory_mib: float, keep: bool
) -> Any:
    key = philox.from_key(key)
    parts = cut(network, params, images[0], key)
    if not parts.depends:
        wanted = "a network whose output depends on its key, by dropout"
        raise _validate.expected("network", wanted, f"one that draws nothing: its {samples} samples would all be one")
    few, many, begin = _groups(parts, memory_mib, samples)

    def one(number: jax.Array, image: jax.Array) -> Any:
        own, shared = jax.random.fold_in(key, number), parts.shared([*jax.tree.leaves(params), image])

        def outputs(first: Any, count: int) -> jax.Array:
            keys = jax.vmap(lambda t: jax.random.fold_in(own, t))(first + jnp.arange(count))
            return parts.outputs(shared, keys, few)

        def add(group: Any, so_far: Statistics) -> Statistics:
            done = begin + group * many
            return _merged(so_far, done, summarise(outputs(done, many)), many)

        if keep:
            return _joined(outputs, samples, begin, many)
        return lax.fori_loop(0, (samples - begin) // many, add, summarise(outputs(0, begin)))

    values = parts.before.values + few * parts.wide.values + many * parts.narrow.values
    numbered = jnp.arange(len(images)), images
    found = lax.map(lambda given: one(*given), numbered, batch_size=_at_once(memory_mib, values, len(images)))
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
