"""Prediction's rule: what the developer may see of an inference. Paper 004, "Privacy during prediction or inference".

    rating = infer(score, params, Held(film))                     # the developer holds the features already
    shown(rating)                                                 # so the result may be shown
    rating = infer(score, params, Held(film), OnDevice(history))  # features of the user's own
    rating.use(display)                                           # so it stays on the device: shown(rating) is refused

Over many users, inferences from private features are released with noise, as a round of
:mod:`dpaudit.personalization.boundary.aggregator` like any other, with its transcript::

    statistic = histogram((0.5, 1.5, 2.5, 3.5, 4.5, 5.5))
    protocol = aggregated(predict, statistic, processes.gaussian("ratings", noise_multiplier=5.0))
    _, _, transcript = boundary.run(key, protocol, params, statistic.memory(process), users, rounds=1)
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dpaudit import _validate
from dpaudit.mechanisms.clipping import wide
from dpaudit.personalization.boundary.bounds import Bounded, Noised, clipped
from dpaudit.personalization.boundary.processes import Memory, Process
from dpaudit.personalization.boundary.protocol import Protocol, each, everything, silent


class Held(NamedTuple):
    """Something that the developer has in full already.

    Attributes:
      value: pytree of arrays.
    """

    value: Any


class OnDevice:
    """Something of a user's own: it neither prints nor pickles, and only the device's processes use it.

    Args:
      value: pytree of arrays.
    """

    __slots__ = ("_value",)

    def __init__(self, value: Any):
        self._value = value

    def use(self, consumer: Callable[[Any], object]) -> None:
        """Gives the value to a process of the device, as the one that displays it; nothing comes back."""
        consumer(self._value)

    def __repr__(self) -> str:
        return "OnDevice(...)"

    def __reduce__(self) -> NoReturn:
        raise _validate.expected("OnDevice", "to stay on its device", "a copy of it")


def infer(predict: Callable[..., Any], params: Any, *features: Held | OnDevice) -> Held | OnDevice:
    """``predict(params, *features)``, which belongs to whoever has all the features.

    Args:
      predict: a pure function of parameters that were released, and of the features' values. With features of the
        user's own it runs as a program, jittable and without effects.
      params: pytree of arrays.
      *features: of one prediction.

    Returns:
      :class:`Held` where the developer holds all features, else :class:`OnDevice`.

    Raises:
      InputError: features of which nobody says whose they are; a function with effects, where there are the user's.
    """
    for feature in features:
        if not isinstance(feature, Held | OnDevice):
            raise _validate.expected("features", "Held(...) or OnDevice(...)", type(feature).__name__)
    given = params, *(feature.value if isinstance(feature, Held) else feature._value for feature in features)
    if all(isinstance(feature, Held) for feature in features):
        return Held(predict(*given))
    return OnDevice(silent("predict", predict, *given)(*given))


def shown(result: Held | OnDevice) -> Any:
    """A result, for the developer.

    Raises:
      InputError: one that has to stay on the device.
    """
    if not isinstance(result, Held):
        raise _validate.expected(
            "result", "one of features that the developer holds", f"{result!r}, which stays there"
        )
    return result.value


class Statistic(NamedTuple):
    """What is told of many predictions.

    Attributes:
      encode: ``encode(prediction) -> vector``, float32 [size], on a device; of one scalar.
      sensitivity: the largest L2 norm of a vector; the aggregator clips to it what devices send.
      size: of the vector.
      decode: ``decode(released) -> estimate``, on the server.
    """

    encode: Callable[[jax.Array], jax.Array]
    sensitivity: float
    size: int
    decode: Callable[[Any], Any]

    def memory(self, process: Process) -> tuple[Memory]:
        """Of the aggregator before the first release."""
        return (process.init(jnp.zeros(self.size, jnp.float32)),)


def histogram(edges: Sequence[float]) -> Statistic:
    """How many users' predictions are in each bin [edge, next edge); those outside, and NaN, are in none.

    Args:
      edges: increasing numbers, one more than there are bins.

    Raises:
      InputError: edges that do not increase.
    """
    bounds = np.atleast_1d(np.asarray(_validate.finite(edges=edges), np.float32))
    if bounds.ndim != 1 or len(bounds) < 2 or (np.diff(bounds) <= 0).any():
        raise _validate.expected("edges", "two or more increasing numbers", edges)

    def encode(prediction: jax.Array) -> jax.Array:
        return jnp.asarray((bounds[:-1] <= prediction) & (prediction < bounds[1:]), jnp.float32)

    return Statistic(encode, 1.0, len(bounds) - 1, lambda released: released)


def mean(low: float, high: float) -> Statistic:
    """The mean of predictions clipped to [low, high]; users whose prediction is NaN do not count.

    With m the middle and h half the width, a user's vector is ((clip(y) - m)/h, 1), of norm at most sqrt(2), and the
    estimate m + h S/N, S and N the noisy sums, N taken for at least 1.

    Args:
      low, high: low < high.

    Raises:
      InputError: an empty interval.
    """
    if not _validate.finite(low=low) < _validate.finite(high=high):
        raise _validate.expected("high", f"a number > {low:g}", high)
    middle, half = (low + high) / 2, (high - low) / 2

    def encode(prediction: jax.Array) -> jax.Array:
        vector = jnp.stack([jnp.clip((wide(prediction) - middle) / half, -1, 1), 1.0])  # nothing rounds after
        return jnp.where(jnp.isnan(prediction), 0.0, vector).astype(jnp.float32)

    def decode(released: Any) -> Any:
        return middle + half * released[..., 0] / jnp.maximum(released[..., 1], 1.0)

    return Statistic(encode, 2**0.5, 2, decode)


def aggregated(
    predict: Callable[[Any, Any], jax.Array], statistic: Statistic, process: Process, *, mesh: Mesh | None = None
) -> Protocol:
    """Inference on every device, of which the server learns the statistic with noise.

    Args:
      predict: ``predict(params, user) -> scalar``, on the user's device.
      statistic: of the predictions.
      process: that releases it.
      mesh: shares users out, as for :func:`dpaudit.personalization.boundary.protocol.each`.

    Returns:
      A :class:`Protocol` whose state is the parameters, which stay as they are. Its sensitivity is the boundary's own.
    """
    add = Bounded((clipped(statistic.sensitivity),))

    def compute(key: jax.Array, params: Any, user: Any) -> jax.Array:
        return statistic.encode(predict(params, user))

    return Protocol(
        broadcast=lambda params: params,
        devices=each(everything, compute, add, mesh=mesh),
        release=Noised((process,), add),
        update=lambda params, releases: params,
    )
