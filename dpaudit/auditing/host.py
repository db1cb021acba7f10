"""Wraps mechanisms that are not JAX: Python functions of a NumPy generator, played trial by trial on the host."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax
import numpy as np

from dpaudit import _validate


def on_host(function: Callable[[np.random.Generator, Any], Any]) -> Callable[[jax.Array, Any], Any]:
    """Makes a mechanism ``apply(key, x)`` of a function that JAX cannot trace.

        dpaudit.audit(dpaudit.on_host(fn), x0, x1, key=key, trials=10_000, claim=dpaudit.Claim(1.0))

    The function is called once for every trial, by a loop in Python: slow (tens of thousands of trials a second at
    best, where a jitted mechanism plays millions). Its generator is seeded by the trial's key alone,
    ``numpy.random.default_rng(jax.random.key_data(key))``, so an audit stays bit-identical for any batch size or
    restart as long as the function draws from nothing else. A checkpoint does not depend on the
    function's code or input: one of another function with releases of the same shape is not refused.

    Args:
      function: ``function(rng, x) -> release``, with a ``numpy.random.Generator`` and the input as it was given to the
        audit, its JAX arrays as NumPy's; the release is an array, a number or a pytree of them, of the same shape in
        every trial. float64 is rounded to float32 unless JAX runs with 64 bits, so leaks below that precision are not
        seen.

    Returns:
      A function that :func:`dpaudit.audit` and :class:`dpaudit.Mechanism` take. To learn the release's shape, it calls
      ``function`` once with a generator of its own whenever it is traced.

    Raises:
      InputError: not a function; a release that is not made of numbers.
    """
    if not callable(function):
        raise _validate.expected("function", "a function of (rng, x)", function)

    @wraps(function)
    def apply(key: jax.Array, x: Any) -> Any:
        x = jax.tree.map(_off_device, x)
        leaves, structure = jax.tree.flatten(_arrays(function(np.random.default_rng(0), x)))
        shapes = [jax.ShapeDtypeStruct(leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype)) for leaf in leaves]

        def call(words: Any) -> list[np.ndarray]:
            """Maps words [..., k], one key a row, to the leaves of as many releases, [..., *shape] each."""
            words = np.asarray(words)
            rows = words.reshape(-1, words.shape[-1])
            releases = [jax.tree.leaves(_arrays(function(np.random.default_rng(row), x))) for row in rows]
            return [
                np.stack(column).astype(shape.dtype).reshape((*words.shape[:-1], *shape.shape))
                for column, shape in zip(zip(*releases, strict=True), shapes, strict=True)
            ]

        words = jax.random.key_data(key)
        return jax.tree.unflatten(structure, jax.pure_callback(call, shapes, words, vmap_method="expand_dims"))

    return apply


def _off_device(leaf: Any) -> Any:
    """Converts a JAX array of an input to NumPy, since a computation on it would be traced and have no value yet."""
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf


def _arrays(release: Any) -> Any:
    """Returns the release with NumPy arrays of numbers as leaves."""

    def array(leaf: Any) -> np.ndarray:
        leaf = np.asarray(leaf)
        if leaf.dtype.kind not in "biuf":
            raise _validate.expected("release", "numbers", f"type {leaf.dtype}")
        return leaf

    return jax.tree.map(array, release)
