"""Fits a small network to a pilot's numbers by NumPy, in a fraction of a second; NumPy and JAX both evaluate it."""

from typing import Any, NamedTuple

import numpy as np

INPUTS, HIDDEN, STEPS, SAMPLE = 16, 8, 60, 512  # input numbers, hidden units, steps, releases of each world
FARTHEST, DECAY, RATE = 4.0, 1e-3, 0.05  # of inputs in standard deviations; weight decay; learning rate


class Network(NamedTuple):
    """One hidden layer over some numbers and their log likelihood ratios.

    Attributes:
      seen: [n], which numbers.
      shift, scale: [2 n], of the inputs.
      inner: [2 n, HIDDEN], of tanh, with bias [HIDDEN].
      outer: [HIDDEN], and linear: [2 n], past the hidden layer.
    """

    seen: Any
    shift: Any
    scale: Any
    inner: Any
    bias: Any
    outer: Any
    linear: Any

    def read(self, xp: Any, numbers: Any, ratios: Any) -> Any:
        """Maps numbers and ratios [..., m] to the logit of world 1, [...], up to a constant."""
        inputs = self.inputs(xp, numbers, ratios)
        if xp is np:
            return self._read_on_host(inputs)
        return (xp.tanh(inputs @ self.inner + self.bias) * self.outer).sum(-1) + (inputs * self.linear).sum(-1)

    def _read_on_host(self, inputs: np.ndarray) -> np.ndarray:
        """Does the same without BLAS, whose last bits depend on its number of threads."""
        columns = np.ascontiguousarray(inputs.reshape(-1, inputs.shape[-1]).T)

        def along(weights: np.ndarray, start: Any) -> Any:
            return sum((weight * column for weight, column in zip(weights, columns, strict=True)), start)

        found = along(self.linear, np.zeros(columns.shape[1], np.float32))
        for weights, bias, out in zip(self.inner.T, self.bias, self.outer, strict=True):
            found = found + out * np.tanh(along(weights, bias))
        return found.reshape(inputs.shape[:-1])

    def inputs(self, xp: Any, numbers: Any, ratios: Any) -> Any:
        """Returns the inputs of the first layer, [..., 2 n]."""
        both = xp.concatenate([xp.take(of, self.seen, axis=-1) for of in (numbers, ratios)], -1)
        both = xp.clip((both - self.shift) * self.scale, -FARTHEST, FARTHEST)
        return xp.where(xp.isnan(both), 0, both)


def fitted(numbers: np.ndarray, ratios: np.ndarray, order: np.ndarray) -> Network:
    """Minimises the cross-entropy of the world on numbers and ratios [2, n, m], of which the first ``SAMPLE`` are
    used.

    Args:
      numbers, ratios: of the pilot.
      order: [m], the numbers in order of preference; the first ``INPUTS`` are used.
    """
    seen = order[:INPUTS].astype(np.int32)
    numbers, ratios = (of[:, :SAMPLE].astype(np.float64) for of in (numbers, ratios))
    both = np.concatenate([numbers[..., seen], ratios[..., seen]], -1)
    size = both.shape[-1]
    both = both.reshape(-1, size)
    with np.errstate(invalid="ignore", over="ignore"):
        known = np.where(np.isfinite(both), both, np.nan)
        empty = np.isnan(known).all(0)
        known[:, empty] = 0
        shift, spread = np.nanmean(known, 0), np.nanstd(known, 0)
    scale = np.where(spread > 0, 1 / np.where(spread > 0, spread, 1), 0)
    shapes = [(size, HIDDEN), (HIDDEN,), (HIDDEN,), (size,)]
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    blank = Network(seen, shift, scale, *[np.zeros(shape) for shape in shapes])
    with np.errstate(invalid="ignore", over="ignore"):
        inputs = blank.inputs(np, numbers, ratios).reshape(-1, size)
    sign = np.repeat([-1.0, 1.0], numbers.shape[1])
    draws = np.random.default_rng(0)
    start = np.concatenate(
        [
            draws.normal(size=size * HIDDEN) / np.sqrt(size),
            np.zeros(HIDDEN),
            draws.normal(size=HIDDEN) / 4,
            np.zeros(size),
        ]
    )

    def unpacked(flat: np.ndarray) -> list[np.ndarray]:
        return [part.reshape(shape) for part, shape in zip(np.split(flat, ends[:-1]), shapes, strict=True)]

    def slope(flat: np.ndarray) -> np.ndarray:
        """Returns the gradient of the cross-entropy with weight decay."""
        inner, bias, outer, linear = unpacked(flat)
        hidden = np.tanh(inputs @ inner + bias)
        margin = sign * (hidden @ outer + inputs @ linear)
        pull = -sign / (1 + np.exp(np.minimum(margin, 500.0))) / len(sign)
        back = (pull[:, None] * outer) * (1 - hidden * hidden)
        parts = [inputs.T @ back, back.sum(0), hidden.T @ pull, inputs.T @ pull]
        return np.concatenate([part.ravel() for part in parts]) + DECAY * flat

    found, first, second = start, np.zeros_like(start), np.zeros_like(start)
    for step in range(1, STEPS + 1):  # Adam on all releases at once
        gradient = slope(found)
        first, second = 0.9 * first + 0.1 * gradient, 0.99 * second + 0.01 * gradient**2
        size = np.sqrt(second / (1 - 0.99**step)) + 1e-8
        found = found - RATE * (1 - (step - 1) / STEPS) * first / (1 - 0.9**step) / size
    arrays = (shift, scale, *unpacked(found))
    return Network(seen, *(np.asarray(array, np.float32) for array in arrays))
