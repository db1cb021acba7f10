"""Reads any output of a function as a flat dictionary of leaves."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from dpaudit.audits.recording import noisy
from dpaudit.audits.recording.torch_source import noisy_array_of
from dpaudit.audits.recording.trace import Tag

DEEPEST = 8


def leaves(output: Any, path: str = "output", deep: int = 0) -> Iterator[tuple[str, Any]]:
    """Yields the place and the value of every leaf; the keys of a set or dictionary are part of the place."""
    output = noisy_array_of(output)
    is_array = isinstance(output, np.ndarray) and output.dtype.kind != "O"
    if is_array or isinstance(output, np.generic | str | bytes | int | float | complex | None):
        yield path, output
    elif isinstance(output, dict):
        for key, one in output.items():
            yield from leaves(one, f"{path}[{key!r}]", deep + 1)
    elif isinstance(output, set | frozenset):
        for one in output:
            yield f"{path}{{{one!r}}}", True
    elif isinstance(output, list | tuple | np.ndarray):
        for place, one in enumerate(output):
            yield from leaves(one, f"{path}[{place}]", deep + 1)
    elif hasattr(output, "to_dict") and hasattr(output, "columns"):  # a DataFrame
        for name in output.columns:
            yield f"{path}[{name!r}]", np.asarray(output[name])
    elif deep < DEEPEST and (dataclasses.is_dataclass(output) or hasattr(output, "__dict__")):
        for name, one in vars(output).items():
            yield from leaves(one, f"{path}.{name}", deep + 1)
    else:
        yield path, repr(type(output))


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

    def numbers(self) -> np.ndarray:
        """Returns all its floats, sorted."""
        kept = [
            np.ravel(one) for one in self.values.values() if isinstance(one, np.ndarray) and one.dtype.kind in "fiu"
        ]
        return np.sort(np.concatenate([np.asarray(one, float) for one in kept])) if kept else np.zeros(0)


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
        equal = first == second
        if first.dtype.kind in "fc" and second.dtype.kind in "fc":
            equal = equal | (np.isnan(first) & np.isnan(second))
        return np.asarray(equal)
    return np.asarray(type(first) is type(second) and np.shape(first) == np.shape(second) and bool(first == second))


def texts(raw: Any) -> set[str]:
    """Returns the texts by which a draw may appear as a seed."""
    return {repr(raw), repr(int.from_bytes(raw, "big"))} if isinstance(raw, bytes) else {repr(raw)}
