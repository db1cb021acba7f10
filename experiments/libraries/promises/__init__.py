"""Holds what libraries promise, a module for each environment; it can be imported in that environment alone."""
