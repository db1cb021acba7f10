"""Reads scores and releases that were obtained elsewhere as arrays of numbers."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpaudit import _validate
from dpaudit.auditing.host.encoder import learn
from dpaudit.auditing.host.prepare import renamed
from dpaudit.auditing.host.reader import Unreadable

EXACT = 2**53  # up to which float64 holds every whole number
UNLIKELY = math.log(1e-9)  # probability below which ordered values are considered sorted


def row(**named: Any) -> np.ndarray:
    """Returns scores [n] in float64.

    Raises:
      InputError: not numbers of this shape, none at all, or NaN.
    """
    ((name, given),) = named.items()
    found = _numbers(name, given)
    if found.ndim != 1:
        raise _validate.expected(name, "scores of shape [n]", f"shape {list(found.shape)}")
    if not len(found):
        raise _validate.expected(name, "at least one score", "none")
    if found.dtype.kind in "iu" and max(abs(int(found.min())), abs(int(found.max()))) > EXACT:
        raise _validate.expected(name, "whole numbers up to 2^53, or their ranks", "larger ones")
    found = found.astype(np.float64)
    missing = np.flatnonzero(np.isnan(found))
    if len(missing):
        raise _validate.expected(name, "numbers", f"{len(missing):,} NaN, the first at index {missing[0]}")
    return found


def is_numbers(samples: Any) -> bool:
    """Tells whether releases are arrays of numbers, a dictionary of them, or lists that become some."""
    try:
        return all(_kind_of_number(np.asarray(part).dtype) for part in _parts(samples)[0])
    except ValueError:  # of different lengths
        return False


def of_one_type(given: dict[str, Any]) -> bool:
    """Tells whether the releases in lists are of one type, so that an array of them says the same."""
    types = {type(one) for samples in given.values() if isinstance(samples, list) for one in samples}
    return len(types) <= 1 and np.ma.MaskedArray not in types


def counted(given: dict[str, Any], *, of_numbers: bool) -> tuple[list[int], list[list[Any]]]:
    """Returns the number of releases of both worlds, and the releases as lists if they are not arrays of numbers.

    Raises:
      InputError: no releases, or arrays of different lengths.
    """
    counts, listed = [], []
    for name, samples in given.items():
        if not of_numbers and (isinstance(samples, (str, bytes, dict)) or not hasattr(samples, "__len__")):
            raise _validate.expected(name, "a list or an array of releases", samples)
        parts = [np.asarray(_unmasked(name, part)) for part in _parts(samples)[0]] if of_numbers else [samples]
        lengths = {0 if of_numbers and part.ndim == 0 else len(part) for part in parts}
        if len(lengths) != 1 or 0 in lengths:
            raise _validate.expected(name, "releases [n, ...], as many in every array", f"{sorted(lengths)} releases")
        counts.append(lengths.pop())
        listed.append([] if of_numbers else list(samples))
    return counts, listed


def arrays(given: dict[str, Any]) -> list[list[np.ndarray]]:
    """Returns the arrays of both worlds' releases, [n, *shape] each, of one type in both.

    Raises:
      InputError: releases of different shapes, or without any number.
    """
    one, other = given
    worlds, forms = [], []
    for samples in given.values():
        parts, form = _parts(samples)
        worlds.append([np.asarray(part) for part in parts])
        forms.append((form, [array.shape[1:] for array in worlds[-1]]))
    if forms[0] != forms[1]:
        shapes = [str(jax.tree.unflatten(form, [str(list(shape)) for shape in shapes])) for form, shapes in forms]
        raise _validate.expected(other, f"releases like those of {one}, of shape {shapes[0]}", f"shape {shapes[1]}")
    if not sum(array[0].size for array in worlds[0]):
        raise _validate.expected(one, "releases of at least one number", "none")
    alike = []
    for first, second in zip(*worlds, strict=True):
        kind = np.result_type(first, second)
        if kind.kind == "f" and {first.dtype.kind, second.dtype.kind} == {"i", "u"}:  # float64 does not hold them
            raise _validate.expected(other, f"whole numbers of the type of {one}, {first.dtype}", str(second.dtype))
        alike.append([leaf.astype(kind) for leaf in (first, second)])
    return [list(own) for own in zip(*alike, strict=True)]


def encoded(worlds: list[list[Any]], pilot: int) -> tuple[list[list[np.ndarray]], Callable[[list[str]], list[str]]]:
    """Turns releases of any kind into arrays, by an encoder learned on the first ones.

    Args:
      worlds: both worlds' releases.
      pilot: of each, to learn from.

    Returns:
      (the arrays [n, *shape] of both worlds, a function that names the numbers).

    Raises:
      InputError: releases without readable content.
    """
    try:
        encoder = learn((worlds[0][:pilot], worlds[1][:pilot]), None)
        found = [encoder.encode(releases, None) for releases in worlds]
    except (Unreadable, ValueError) as error:
        raise _validate.expected("samples0", "releases that can be read", _validate.one_line(str(error))) from None
    if not sum(array[0].size for array in found[0]):
        raise _validate.expected("samples0", "releases that hold something", "nothing in the first ones")
    if encoder.unread:
        _validate.warn(f"samples0: {encoder.unread} is not read, so a leak there is not seen")
    return found, partial(renamed, known=encoder.names)


def _parts(samples: Any) -> tuple[list[Any], Any]:
    """Returns the arrays or lists that samples are made of, and their form."""
    return jax.tree.flatten(samples, is_leaf=lambda part: not isinstance(part, dict))


def _unmasked(name: str, given: Any) -> Any:
    return _validate.unmasked(**{name: given}) if isinstance(given, np.ndarray) else given


def _kind_of_number(kind: np.dtype) -> bool:
    return kind.kind in "biuf" or bool(jnp.issubdtype(kind, jnp.floating))


def _numbers(name: str, given: Any) -> np.ndarray:
    """Returns an array of numbers, of the type that it has.

    Raises:
      InputError: something else, such as text, or rows of different lengths.
    """
    given = _unmasked(name, given)
    try:
        found = np.asarray(given)
    except ValueError:  # of different lengths
        raise _validate.expected(name, "numbers or arrays of one shape", "different shapes") from None
    if _kind_of_number(found.dtype):
        return found
    if found.size == 0:
        return found.astype(np.float64)
    first = found.reshape(-1)[0] if found.ndim else given
    raise _validate.expected(name, "numbers or arrays of one shape", f"{type(first).__name__} {first!r}")


def refuse_sorted(name: str, values: np.ndarray) -> None:
    """Refuses sorted values, because the first of them would not be a sample of the others.

    Raises:
      InputError: values that independent trials give in this order with a probability below 1e-9.
    """
    if not ((values[1:] >= values[:-1]).all() or (values[1:] <= values[:-1]).all()):
        return
    repeats = np.unique(values, return_counts=True)[1].tolist()
    if sum(math.lgamma(count + 1) for count in repeats) - math.lgamma(len(values) + 1) < UNLIKELY:
        raise _validate.expected(name, "values in the order in which they were drawn", "sorted ones")
