"""Reads any output of a function as a flat dictionary of leaves."""

import datetime
import random
from collections.abc import AsyncIterator, Awaitable, Collection, Iterator, Mapping, Set
from functools import cached_property, partial
from numbers import Number
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from dpaudit import _validate
from dpaudit.auditing.host.plain import plain as host_plain
from dpaudit.audits.recording import noisy
from dpaudit.audits.recording.torch_source import noisy_array_of
from dpaudit.audits.recording.trace import Tag

DEEPEST = 8
CLOSED = (np.generic, str, bytes, Number, type(None), datetime.date, datetime.time, datetime.timedelta)
FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType, partial)
UNREAD = (Awaitable, AsyncIterator, *FUNCTIONS)  # as attributes they may be there, to compute or draw by
OPAQUE = (np.random.Generator, np.random.RandomState, random.Random, type, ModuleType)  # an object may keep its source


def leaves(output: Any, path: str = "output", deep: int = 0) -> Iterator[tuple[str, Any]]:
    """Yields the place and the value of every leaf; the keys of a set or dictionary are part of the place.

    Raises:
      InputError: an iterator, whose values can be read only once, or a function or coroutine, which has none yet.
    """
    output = output if hasattr(output, "to_dict") else _as_plain(output)
    is_array = isinstance(output, np.ndarray) and output.dtype.kind != "O"
    if is_array or isinstance(output, CLOSED):
        yield path, output
    elif isinstance(output, Mapping):
        for key, one in output.items():
            yield from leaves(one, f"{path}[{key!r}]", deep + 1)
    elif isinstance(output, Set):
        for one in output:
            yield f"{path}{{{one!r}}}", True
    elif isinstance(output, list | tuple | np.ndarray):
        for place, one in enumerate(output):
            yield from leaves(one, f"{path}[{place}]", deep + 1)
    elif hasattr(output, "to_dict") and (
        hasattr(output, "columns") or hasattr(output, "index")
    ):  # of pandas or polars
        for name in getattr(output, "columns", ()):
            yield from leaves(np.asarray(output[name]), f"{path}[{name!r}]", deep + 1)
        if not hasattr(output, "columns"):
            yield from leaves(np.asarray(output), path, deep + 1)
        if hasattr(output, "index"):
            yield from leaves(np.asarray(output.index), f"{path}.index", deep + 1)
    elif isinstance(output, Iterator):
        raise _validate.expected("fn", "an output that can be read more than once", f"a {type(output).__name__}")
    elif isinstance(output, UNREAD):
        raise _validate.expected("fn", "an output that can be read", f"a {type(output).__name__}")
    elif isinstance(output, BaseException):
        yield from leaves(output.args, f"{path}.args", deep + 1)
    elif deep < DEEPEST and not isinstance(output, OPAQUE):
        found = _attributes(output)
        for name, one in found.items():
            yield from leaves(one, f"{path}.{name}", deep + 1)
        if isinstance(output, Collection) and not found:
            yield from leaves(list(output), path, deep)
        elif not found and not hasattr(output, "__dict__"):
            yield path, repr(type(output))
    else:
        yield path, repr(type(output))


def _as_plain(output: Any) -> Any:
    """Returns arrays of other libraries as NumPy's, and bytes of other types as bytes."""
    output = host_plain(output) if isinstance(output, np.ma.MaskedArray) else noisy_array_of(output)
    if isinstance(output, bytearray | memoryview):
        return bytes(output)
    if isinstance(output, np.ndarray) and output.dtype.kind == "O" and output.ndim == 0:
        return output.item()
    is_array = hasattr(output, "__array__") and hasattr(output, "dtype") and not isinstance(output, np.ndarray)
    return np.asarray(output) if is_array and not isinstance(output, np.generic | float) else output


def _attributes(value: Any) -> dict[str, Any]:
    """Returns an object's attributes, in its dictionary or in slots, apart from iterators and functions."""
    slots = [name for kind in type(value).__mro__ for name in np.atleast_1d(vars(kind).get("__slots__", ())).tolist()]
    found = {name: getattr(value, name) for name in slots if hasattr(value, name)} | getattr(value, "__dict__", {})
    return {name: one for name, one in found.items() if not isinstance(one, (Iterator, *UNREAD))}


class Output:
    """The output of one run.

    Attributes:
      tags: how its noisy leaves are composed, by place.
      values: the other leaves, as arrays of numbers or unchanged, by place.
    """

    def __init__(self, output: Any) -> None:
        found = list(leaves(output))
        tags = ((path, noisy.tag_of(leaf)) for path, leaf in found)
        self.tags: dict[str, Tag] = {path: tag for path, tag in tags if tag is not None}
        self.values = {path: _copied(noisy.plain(leaf)) for path, leaf in found}
        self.structure = {path: np.shape(value) for path, value in self.values.items()}
        self.tagged: dict[int, dict[str, Tag]] = {}  # by the number of the node
        for path, tag in self.tags.items():
            self.tagged.setdefault(tag.node, {})[path] = tag

    @cached_property
    def layout(self) -> dict[str, int]:
        """Returns the places of its numbers and how many each has."""
        return {
            path: one.size
            for path, one in self.values.items()
            if isinstance(one, np.ndarray) and one.dtype.kind in "fiu"
        }

    @cached_property
    def _sorted(self) -> tuple[np.ndarray, np.ndarray]:
        kept = [np.ravel(self.values[path]).astype(float) for path in self.layout]
        numbers = np.concatenate(kept) if kept else np.zeros(0)
        order = np.argsort(numbers, kind="stable")
        return numbers[order], order

    def places(self, values: Any) -> np.ndarray:
        """Returns where numbers are among those of the output, the first place of each, or -1."""
        numbers, order = self._sorted
        wanted = np.ravel(np.asarray(values, float))
        if not numbers.size:
            return np.full(wanted.shape, -1)
        at = np.minimum(np.searchsorted(numbers, wanted), numbers.size - 1)
        return np.where(numbers[at] == wanted, order[at], -1)


def _copied(value: Any) -> Any:
    if isinstance(value, bool | int | float | complex | np.ndarray | np.generic):
        try:
            return np.array(value)
        except OverflowError:
            return value
    return value


def same(first: Any, second: Any) -> Any:
    """Compares two leaves bit by bit, NaN equal to NaN; returns an array of booleans, or one."""
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray) and first.shape == second.shape:
        return np.asarray(noisy.same(first, second))
    return np.asarray(type(first) is type(second) and np.shape(first) == np.shape(second) and bool(first == second))


def texts(raw: Any) -> set[str]:
    """Returns the texts by which a draw may appear as a seed."""
    return {repr(raw), repr(int.from_bytes(raw, "big"))} if isinstance(raw, bytes) else {repr(raw)}
