"""Holds the version of the package, its only place."""

__version__ = "0.2.0"
