"""Reads real data sets by name and returns NumPy arrays."""

from typing import TYPE_CHECKING

from dpaudit._lazy import attach

if TYPE_CHECKING:
    from dpaudit.data import ratings as ratings
    from dpaudit.data.files import SPLITS as SPLITS
    from dpaudit.data.ratings import Ratings as Ratings
    from dpaudit.data.sources import NAMES as NAMES
    from dpaudit.data.sources import RATINGS as RATINGS
    from dpaudit.data.sources import Available as Available
    from dpaudit.data.sources import Dataset as Dataset
    from dpaudit.data.sources import available as available
    from dpaudit.data.sources import load as load
    from dpaudit.data.sources import load_ratings as load_ratings
    from dpaudit.data.sources import pooled as pooled

_SOURCES = ("NAMES", "RATINGS", "Available", "Dataset", "available", "load", "load_ratings", "pooled")

__getattr__, __dir__, __all__ = attach(__name__)
