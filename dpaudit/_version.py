"""Holds the version, for the package and for its build."""

__version__ = "0.1.0"
