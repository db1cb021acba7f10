"""Real data sets in, NumPy arrays out."""

from dpaudit.data.files import SPLITS
from dpaudit.data.pool import pooled
from dpaudit.data.sources import NAMES, Available, Dataset, available, load

__all__ = ["NAMES", "SPLITS", "Available", "Dataset", "available", "load", "pooled"]
