"""Tests that install, start processes or execute notebooks: run by `make integration`."""
