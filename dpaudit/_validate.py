"""Validates arguments on the host; every refusal is one line with the argument, its value and what was expected.

Each function takes one keyword, ``name=value``, and returns the value or raises :class:`InputError`::

    clip_norm = _validate.positive(clip_norm=clip_norm)

A value that JAX is tracing has no number yet; it is passed through unchecked, so that a mechanism can be mapped
over its parameters.

A number comes back in a type that its products fit into, so use what comes back: 2 * np.uint8(200) is 144. One of
NumPy or JAX comes back as a Python float, a traced one in float32 or wider, and one of Python as it is.
"""

import math
import numbers
import os
import sys
import warnings
from collections.abc import Collection
from decimal import ROUND_CEILING, Context
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer


class InputWarning(UserWarning):
    """Warns about input that is accepted but promises less than it seems to."""


class InputError(ValueError):
    """Refuses the caller's input; the message is one line and complete without the traceback."""


def expected(name: str, wanted: str, value: object) -> InputError:
    """Returns an error with the one form of message: ``<name>: expected <wanted>, got <value>``."""
    return InputError(f"{name}: expected {wanted}, got {_short(value)}")


class extra:
    """Turns the ImportError of a missing library into one line that names the extra it belongs to::

        with _validate.extra("data"):
            from sklearn.datasets import load_digits

    Args:
      name: of the extra, in pyproject.toml.

    Raises:
      InputError: the library is not installed, or something that it needs is not.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ImportError):
            library = (error.name or "library").split(".")[0]
            wanted = f"an installed library (pip install 'dpaudit[{self.name}]')"
            raise expected(library, wanted, str(error)) from None


def no_less(value: float) -> str:
    """Formats an upper bound with four digits, never below it."""
    return f"{float(Context(prec=4, rounding=ROUND_CEILING).create_decimal(repr(float(value)))):g}"


def one_line(text: str, longest: int = 200) -> str:
    """Puts text from elsewhere on one line of at most ``longest`` characters, for a message."""
    text = " ".join(text.split())
    return text if len(text) <= longest else text[: longest - 3] + "..."


def no_number(name: str, wanted: str, value: object) -> InputError:
    """Returns the :func:`expected` error where a number is wanted, with the quotes of text that looks like one."""
    return expected(name, wanted, repr(value) if isinstance(value, str) else value)


def positive(*, infinity_allowed: bool = False, **named: Any) -> Any:
    """Accepts a finite number > 0, or infinity with ``infinity_allowed``."""
    name, value = _one(named)
    if _traced(value):
        return _wide(value)
    if not _is_number(value) or not (math.isfinite(value) or infinity_allowed) or not _known(value) > 0:
        raise no_number(name, "a number > 0" if infinity_allowed else "a finite number > 0", value)
    return _wide(value)


def non_negative(**named: Any) -> Any:
    """Accepts a finite number >= 0."""
    name, value = _one(named)
    if _traced(value):
        return _wide(value)
    if not _is_number(value) or not math.isfinite(value) or _known(value) < 0:
        raise no_number(name, "a finite number >= 0", value)
    return _wide(value)


def probability(*, one_allowed: bool = False, **named: Any) -> Any:
    """Accepts a number in [0, 1), or in [0, 1] with ``one_allowed``."""
    name, value = _one(named)
    if _traced(value):
        return _wide(value)
    top = "]" if one_allowed else ")"
    if not _is_number(value) or not (0 <= _known(value) < 1 or (one_allowed and _known(value) == 1)):
        raise no_number(name, f"a number in [0, 1{top}", value)
    return _wide(value)


def open_unit(**named: Any) -> Any:
    """Accepts a number in (0, 1)."""
    name, value = _one(named)
    if _traced(value):
        return _wide(value)
    if not _is_number(value) or not 0 < _known(value) < 1:
        raise no_number(name, "a number in (0, 1)", value)
    return _wide(value)


def real(**named: Any) -> Any:
    """Accepts a finite number."""
    name, value = _one(named)
    if _traced(value):
        return _wide(value)
    if not _is_number(value) or not math.isfinite(value):
        raise no_number(name, "a finite number", value)
    return _wide(value)


def delta(people: int, unit: str, **named: Any) -> Any:
    """Accepts a number in (0, 1), with a warning where it is above 1/people.

    With delta = 1/n even publishing the data of one of n people, drawn at random, keeps the promise.

    Args:
      people: n, their number.
      unit: the word for them, in the plural.
    """
    ((name, given),) = named.items()
    value = open_unit(**named)
    if not _traced(value) and value * people > 1 + 1e-9:
        warn(
            f"{name}: expected at most 1/{people}, one over the number of {unit}, got {_short(given)}: publishing all "
            f"data of one of them, drawn at random, would keep it"
        )
    return value


def at_least(minimum: int, **named: Any) -> int:
    """Accepts a whole number >= ``minimum``."""
    name, value = _one(named)
    whole = _is_number(value) and math.isfinite(value) and float(value).is_integer()
    if not whole or _known(value) < minimum:
        raise no_number(name, f"a whole number >= {minimum}", value)
    return int(value)


def function(**named: Any) -> Any:
    """Accepts what can be called."""
    name, value = _one(named)
    if not callable(value):
        raise expected(name, "a function", value)
    return value


def optimizer(**named: Any) -> Any:
    """Accepts an optimiser of optax, or what has its two functions."""
    name, value = _one(named)
    if not all(callable(getattr(value, part, None)) for part in ("init", "update")):
        raise expected(name, "an optax.GradientTransformation", value)
    return value


def one_of(choices: Collection[str], **named: Any) -> str:
    """Accepts one of the names ``choices``."""
    name, value = _one(named)
    if value not in choices:
        raise expected(name, "one of " + ", ".join(choices), value)
    return value


def key(**named: Any) -> jax.Array:
    """Accepts a typed jax.random key; one of the old kind, of ``jax.random.PRNGKey``, is given its type: uint32 [2] is
    of Threefry, uint32 [4] of the implementation that JAX is configured to use."""
    name, value = _one(named)
    if isinstance(value, jax.Array):
        used = str(jax.config.jax_default_prng_impl)  # pyright: ignore[reportAttributeAccessIssue]
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key) and value.ndim == 0:
            return value
        if value.dtype == jnp.uint32 and value.shape == (2,):
            return jax.random.wrap_key_data(value, impl="threefry2x32")
        if value.dtype == jnp.uint32 and value.shape == (4,) and used in ("rbg", "unsafe_rbg"):
            return jax.random.wrap_key_data(value)
    raise expected(name, "a key, as made by jax.random.key", value)


def finite(**named: Any) -> Any:
    """Accepts a pytree of real numbers without NaN or infinity (checked where the values are known)."""
    name, tree = _one(named)
    unmasked(**named)
    for leaf in jax.tree.leaves(tree):
        if _traced(leaf):
            continue
        if isinstance(leaf, int) and np.asarray(leaf).dtype == object:
            raise expected(name, "numbers of at most 64 bits", leaf)
        try:
            array = np.asarray(leaf, dtype=None if hasattr(leaf, "dtype") else float)
            array = array if array.dtype.kind not in "OSU" else array.astype(float)
        except (TypeError, ValueError, OverflowError):
            raise no_number(name, "numbers", leaf) from None
        if array.dtype.kind == "c":
            wanted = "real numbers (a complex one as its real and its imaginary part)"
            raise expected(name, wanted, f"{array.dtype} {list(array.shape)}")
        if jnp.issubdtype(array.dtype, np.inexact) and not np.isfinite(array.astype(np.float64)).all():
            bad = int((~np.isfinite(array.astype(np.float64))).sum())
            raise InputError(f"{name}: expected finite numbers, got {bad} NaN or infinite of {array.size}")
    return tree


def unmasked(**named: Any) -> Any:
    """Accepts a pytree without masked values, whose masks NumPy and JAX drop: what they hide would count."""
    name, tree = _one(named)
    for leaf in jax.tree.leaves(tree):
        if np.ma.is_masked(leaf):
            hidden = f"{np.ma.count_masked(leaf)} masked of {np.size(leaf)}"
            raise expected(name, "arrays without masked values", hidden)
    return tree


def vector(**named: Any) -> Any:
    """Accepts an array of shape [d], d >= 1."""
    name, value = _one(named)
    shape = getattr(value, "shape", None)
    if shape is None or len(shape) != 1 or shape[0] < 1:
        raise expected(name, "an array of shape [d] with d >= 1", value if shape is None else f"shape {list(shape)}")
    return value


def warn(message: str) -> None:
    """Warns at the line of the caller outside this package."""
    frame, level = sys._getframe(1), 2
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("dpaudit", "contextlib"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, InputWarning, stacklevel=level)


def _one(named: dict[str, Any]) -> tuple[str, Any]:
    ((name, value),) = named.items()
    return name, value


def _known(value: Any) -> Any:
    """Returns a number that Python can compare: while JAX traces, even a known number becomes part of a program."""
    return np.asarray(value) if isinstance(value, jax.Array) else value


def _wide(value: Any) -> Any:
    """Returns a number whose products are not rounded, nor wrapped around, to a narrow type."""
    if isinstance(value, Tracer):
        kind = jnp.promote_types(value.dtype, jnp.float32)
        return value if value.dtype == kind else value.astype(kind)
    return float(np.asarray(value)) if isinstance(value, (np.generic, np.ndarray, jax.Array)) else value


def _traced(value: object) -> bool:
    return isinstance(value, Tracer)


def _is_number(value: object) -> bool:
    if isinstance(value, (bool, np.bool_)):
        return False
    if isinstance(value, int):
        return abs(value) < 1 << 1023  # the largest that float() accepts
    if isinstance(value, numbers.Real):
        return True
    return isinstance(value, (np.ndarray, jax.Array)) and value.ndim == 0 and value.dtype.kind in "iuf"


def _short(value: object) -> str:
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else repr(value)
    return one_line(text if isinstance(text, str) else repr(text), 80)
