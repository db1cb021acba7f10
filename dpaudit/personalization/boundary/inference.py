"""Runs inference so that the developer only sees results of public features, or noisy statistics of many users.

    rating = infer(score, params, Held(film))                     # the developer already has the features
    shown(rating)                                                 # so the result may be shown
    rating = infer(score, params, Held(film), OnDevice(history))  # with features of the user
    rating.use(display)                                           # it stays on the device: shown(rating) is refused

Inferences of many users from private features are released with noise, as an ordinary round with a transcript::

    statistic = histogram((0.5, 1.5, 2.5, 3.5, 4.5, 5.5))
    protocol = aggregated(predict, statistic, processes.gaussian("ratings", noise_multiplier=5.0))
    _, _, transcript = aggregator.run(key, protocol, params, statistic.memory(process), users, rounds=1)

Source: paper 004, "Privacy during prediction or inference".
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
    """A value that the developer already has in full.

    Attributes:
      value: pytree of arrays.
    """

    value: Any


class OnDevice:
    """A value that belongs to a user: it cannot be printed or pickled, and only the device's processes use it.

    Args:
      value: pytree of arrays.
    """

    __slots__ = ("_value",)

    def __init__(self, value: Any):
        self._value = value

    def use(self, consumer: Callable[[Any], object]) -> None:
        """Passes the value to a process on the device, such as its display; returns nothing."""
        consumer(self._value)

    def __repr__(self) -> str:
        return "OnDevice(...)"

    def __reduce__(self) -> NoReturn:
        raise _validate.expected("OnDevice", "to stay on its device", "a copy of it")


def infer(predict: Callable[..., Any], params: Any, *features: Held | OnDevice) -> Held | OnDevice:
    """Computes ``predict(params, *features)``; the result stays on the device if any feature does.

    Args:
      predict: a pure function of released parameters and the features' values. With features of the user it has to be
        jittable and without effects.
      params: pytree of arrays.
      *features: of one prediction.

    Returns:
      :class:`Held` where the developer holds all features, else :class:`OnDevice`.

    Raises:
      InputError: features that are neither Held nor OnDevice; a function with effects, on a user's features.
    """
    for feature in features:
        if not isinstance(feature, Held | OnDevice):
            raise _validate.expected("features", "Held(...) or OnDevice(...)", type(feature).__name__)
    given = params, *(feature.value if isinstance(feature, Held) else feature._value for feature in features)
    if all(isinstance(feature, Held) for feature in features):
        return Held(predict(*given))
    return OnDevice(silent("predict", predict, *given)(*given))


def shown(result: Held | OnDevice) -> Any:
    """Returns a result to the developer.

    Raises:
      InputError: a result that has to stay on the device.
    """
    if not isinstance(result, Held):
        raise _validate.expected(
            "result", "a result of features that the developer holds", f"{result!r}, which stays on the device"
        )
    return result.value


class Statistic(NamedTuple):
    """A statistic of many users' predictions.

    Attributes:
      encode: ``encode(prediction) -> vector``, of one scalar to float32 [size], on a device.
      sensitivity: the largest L2 norm of a vector, to which the aggregator clips messages.
      size: of the vector.
      decode: ``decode(released) -> estimate``, on the server.
    """

    encode: Callable[[jax.Array], jax.Array]
    sensitivity: float
    size: int
    decode: Callable[[Any], Any]

    def memory(self, process: Process) -> tuple[Memory]:
        """Returns the aggregator's memory before the first release."""
        return (process.init(jnp.zeros(self.size, jnp.float32)),)


def histogram(edges: Sequence[float]) -> Statistic:
    """Counts the users with a prediction in each bin [edge, next edge); others, and NaN, count in none.

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
    """Estimates the mean of predictions clipped to [low, high]; users whose prediction is NaN do not count.

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
    """Makes the protocol that runs inference on every device and tells the server the statistic with noise.

    Args:
      predict: ``predict(params, user) -> scalar``, on the user's device.
      statistic: of the predictions.
      process: that releases it.
      mesh: a mesh whose devices share the users, as for :func:`dpaudit.personalization.boundary.protocol.each`.

    Returns:
      A :class:`Protocol` whose state is the parameters, which do not change. Its sensitivity is the boundary's own
      bound.
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
