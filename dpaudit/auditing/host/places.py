"""Reads what stands at each place of a text, of bytes, of a long list or of a large integer.

Reading all places as numbers would take longer than all the rest, so a pilot chooses those that differ between the
worlds.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from dpaudit.auditing.host.reader import NUMBERS, PLACES, SERIES, Read, as_float, token

CHOSEN, LEAST = 48, 2.5  # most places; standard errors that the worlds are apart there
BLOCK = 256  # places that are compared at a time
LOWEST = 4  # binary digits whose shares are compared
CODES = np.arange(128.0) + 64  # of ASCII characters: hexadecimal digits by their value
CODES[[*b"0123456789abcdef"]] = np.arange(16)
CODES[[*b"ABCDEF"]] = np.arange(10, 16) + 32

Place = tuple[str, int]


def name(place: Place) -> str:
    """Names a place, for tables."""
    where, i = place
    return f"{where}{i}]" if where.endswith("[") else f"{where}{i}"


def number(read: Read, place: Place) -> float:
    """Returns what stands at a place as a number; NaN if the value has no such place."""
    where, i = place
    series = read.places.get(where, ())
    return _code(series[i]) if i < len(series) else np.nan


def chosen(seen: list[list[Read]], known: set[str]) -> tuple[Place, ...]:
    """Chooses the places that best distinguish both worlds' releases, apart from those whose names are known."""
    times = Counter(where for reads in seen for one in reads for where in one.places)
    found: list[tuple[float, Place]] = []
    for where in sorted(times, key=lambda where: (-times[where], where))[:SERIES]:
        rows = [[_codes(one.places.get(where, ())) for one in reads] for reads in seen]
        width = max(len(row) for own in rows for row in own)
        for start in range(0, width, BLOCK):
            differ = _apart([_padded(own, start, min(start + BLOCK, width)) for own in rows])
            found += [(-differ[i], (where, start + int(i))) for i in np.flatnonzero(differ >= LEAST)]
    return tuple(place for _, place in sorted(found) if name(place) not in known)[:CHOSEN]


def unread(seen: list[list[Read]]) -> str:
    """Names a part of the releases that is not read, or is empty."""
    for one in (one for reads in seen for one in reads):
        for where, series in one.places.items():
            if len(series) > PLACES:
                return f"{name((where, PLACES)).strip()} and what follows it"
        if one.unread:
            return one.unread[0]
    times = {where for reads in seen for one in reads for where in one.places}
    return f"places of more than {SERIES} texts or lists" if len(times) > SERIES else ""


def _code(one: Any) -> float:
    if isinstance(one, NUMBERS):
        return as_float(one)
    if isinstance(one, str):
        if len(one) == 1:
            return CODES[ord(one)] if ord(one) < len(CODES) else ord(one) + 64.0
        with suppress(ValueError):
            return float(one)
    return int(token(one)[:8], 16) / 2**32


def _codes(series: Sequence[Any]) -> np.ndarray:
    part = series[:PLACES]
    if isinstance(part, str):
        return _of_characters(part)
    if isinstance(part, (bytes, bytearray)):
        return np.frombuffer(part, np.uint8)
    with suppress(ValueError):  # of rows of different lengths
        found = np.array(part)
        if found.ndim == 1 and found.dtype.kind in "biuf":
            return found
    return np.array([_code(one) for one in part], np.float64)


def _of_characters(text: str) -> np.ndarray:
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    return np.where(codes < len(CODES), CODES[np.minimum(codes, len(CODES) - 1)], codes + 64.0)


def _padded(rows: list[np.ndarray], start: int, stop: int) -> np.ndarray:
    """Returns some columns of rows of any length, NaN where a row is shorter."""
    found = np.full((len(rows), stop - start), np.nan)
    for own, row in zip(found, rows, strict=True):
        part = row[start:stop]
        own[: len(part)] = part
    return found


def _apart(worlds: list[np.ndarray]) -> np.ndarray:
    """Returns how many standard errors the worlds differ in mean, in spread, in a binary digit, or in how often there
    is a number."""
    pooled = np.concatenate(worlds)
    there = np.isfinite(pooled)
    size = np.abs(np.where(there, pooled, 0)).max(0, initial=1e-300)
    own = np.where(there, pooled / size, 0)
    n = len(worlds[0])
    own = np.where(there, own - own.sum(0) / np.maximum(there.sum(0), 1), 0)
    known = np.where(there, pooled, 0)
    digits = [np.floor(known / 2**place) % 2 for place in range(LOWEST)]
    values = [own, np.abs(own), *digits]
    return np.max([*(_errors(one, there, n) for one in values), _errors(there, np.ones_like(there), n)], 0)


def _errors(values: np.ndarray, there: np.ndarray, n: int) -> np.ndarray:
    """Returns the difference between the means of the first n rows and of the others, in standard errors."""
    counts = np.maximum([there[:n].sum(0), there[n:].sum(0)], 1)
    values = np.where(there, values, 0)
    means = np.stack([values[:n].sum(0), values[n:].sum(0)]) / counts
    middle = values.sum(0) / counts.sum(0)
    variance = np.where(there, (values - middle) ** 2, 0).sum(0) / counts.sum(0)
    return np.abs(means[1] - means[0]) / np.sqrt(variance * (1 / counts).sum(0) + 1e-24)
