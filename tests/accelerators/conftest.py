"""Skips what compiles for accelerators where the wheels that do it are missing."""

import pytest

from dpaudit import _validate
from dpaudit._engine import topologies

WHEELS = {"gpu": ("jax-cuda12-plugin", "jax_cuda12_plugin", "cuda12-local"), "tpu": ("libtpu", "libtpu", "tpu")}


def machine(name: str) -> topologies.Machine:
    """Returns the machine of a name; skips the test where its wheels are missing."""
    try:
        topologies.refuse_unfit(*WHEELS["gpu" if name.startswith("h100") else "tpu"])
    except _validate.InputError as error:
        pytest.skip(f"compiles for {name} by `make accelerators`: {error}")
    return topologies.machine(name)
