"""Converts any value to Python's or NumPy's types. Imports no JAX, so that a worker process starts quickly."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Converts a value to Python's or NumPy's types: tensors to arrays, tables to dictionaries of columns, NumPy
    scalars to numbers, times to whole numbers, members of an Enum to their names, objects to dictionaries of their
    attributes, arrays with a mask to what they show and the mask, because NumPy drops masks without a word."""
    if isinstance(value, np.ma.MaskedArray):
        return {"shown": np.ma.filled(value, 0), "mask": np.ma.getmaskarray(value)}
    if isinstance(value, (str, bytes, int, float, list, tuple, dict, set, frozenset, np.ndarray)) or value is None:
        return value.item() if isinstance(value, np.generic) else value
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return None if np.isnat(value) else int(value.astype(np.int64))
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (date, time, timedelta)):
        return _of_time(value)
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, (Decimal, Fraction, complex, bytearray, Mapping, Sequence)):
        return value
    if hasattr(value, "columns") and hasattr(value, "__getitem__"):
        return {name: list(value[name]) for name in value.columns}
    if hasattr(value, "index") and hasattr(value, "to_dict"):  # a column
        return value.to_dict()
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    if hasattr(value, "__array__"):
        return np.asarray(value)
    if hasattr(value, "__dict__") and not callable(value) and not hasattr(value, "__next__") and vars(value):
        return dict(vars(value))
    return value


def _of_time(value: date | time | timedelta) -> int | dict[str, Any]:
    """Returns a date in days, anything else in microseconds, as the clocks of its time zone show them, beside the
    zone."""
    if isinstance(value, (datetime, time)) and value.tzinfo is not None:
        return {"shown": _of_time(value.replace(tzinfo=None)), "zone": str(value.tzinfo)}
    if isinstance(value, datetime):
        value = value - datetime(1970, 1, 1)
    elif isinstance(value, date):
        return value.toordinal()
    elif isinstance(value, time):
        value = timedelta(0, value.second, value.microsecond, minutes=value.minute, hours=value.hour)
    return value // timedelta(microseconds=1)
