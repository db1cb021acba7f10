"""Reads the types in a release, which reveal the input as well as its numbers do: 1 is not 1.0, nor True."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpaudit.auditing.host.plain import plain
from dpaudit.auditing.host.reader import DEEPEST, LEADING, Item

TYPE = "has the type"
CLOSED = (bool, int, float, complex, str, bytes, type(None), np.generic)  # types that hold no others


def kinds(value: Any) -> Counter[Item]:
    """Counts the types in a value by where they are."""
    found: Counter[Item] = Counter()
    _kinds(found, value, "", DEEPEST)
    return found


def words(item: Item) -> str:
    """Describes an item of :func:`kinds`."""
    return " ".join(item).strip()


def _kinds(found: Counter[Item], value: Any, path: str, depth: int) -> None:
    if value is not None:  # which is told from anything else without its type
        found[path, TYPE, _name(value)] += 1
    if isinstance(value, CLOSED) or depth == 0:
        return
    value = plain(value)
    if isinstance(value, np.ndarray):
        value = value.reshape(-1).tolist() if value.dtype.kind == "O" else ()
    if isinstance(value, Mapping):
        for name, one in value.items():
            _kinds(found, one, f"{path}[{plain(name)!r}]", depth - 1)
    elif isinstance(value, (set, frozenset)):
        _members(found, value, path)
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)):
        own, types = list(value), set(map(type, value))
        if len(types) == 1 and issubclass(next(iter(types)), CLOSED):
            _members(found, own[:1], path)
            return
        for i, one in enumerate(own[:LEADING]):
            _kinds(found, one, f"{path}[{i}]", depth - 1)
        _members(found, own, path)


def _members(found: Counter[Item], values: Any, path: str) -> None:
    for name, times in Counter(_name(one) for one in values if one is not None).items():
        found[f"{path}[*]", TYPE, name] += times


def _name(value: Any) -> str:
    if isinstance(value, np.generic) and np.asarray(value.item()).dtype == value.dtype:
        value = value.item()  # written as Python's own
    name = type(value).__name__
    if isinstance(value, np.generic) or not hasattr(value, "__array__") or hasattr(value, "columns"):
        return name
    return f"{name} of {getattr(value, 'dtype', None)}"
