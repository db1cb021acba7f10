"""Real data sets in, NumPy arrays out."""

from dpaudit.data.files import SPLITS
from dpaudit.data.ratings import Ratings
from dpaudit.data.sources import NAMES, RATINGS, Available, Dataset, available, load, load_ratings, pooled

__all__ = [
    "NAMES",
    "RATINGS",
    "SPLITS",
    "Available",
    "Dataset",
    "Ratings",
    "available",
    "load",
    "load_ratings",
    "pooled",
]
