"""Tests that inputs on a mesh with explicit axes, as ``jax.make_mesh`` makes them, are audited as others are."""

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import dpaudit
from dpaudit.mechanisms import gaussian
from tests.processes import said, start

X = np.linspace(-1.0, 1.0, 8, dtype=np.float32)
MECHANISM = gaussian.mechanism(epsilon=2.0, delta=1e-5, clip_norm=1.0)


def found(x0: Any, x1: Any) -> tuple[float, ...]:
    result = dpaudit.audit(MECHANISM, x0, x1, key=jax.random.key(0), trials=2_000)
    return result.fpr, result.fnr, result.epsilon_lower, result.epsilon_upper


def agree() -> bool:
    """Tells whether an audit finds the same where its inputs are divided among all devices."""
    mesh = jax.make_mesh((len(jax.devices()),), ("rows",), axis_types=(AxisType.Explicit,))
    divided = [jax.device_put(x, NamedSharding(mesh, PartitionSpec("rows"))) for x in (X, -X)]
    wanted = found(X, -X)
    with jax.set_mesh(mesh):
        inside = found(*divided)
    return wanted == found(*divided) == inside


@pytest.mark.integration
def test_inputs_on_an_explicit_mesh_of_two_devices() -> None:
    assert said(start("tests.auditing.test_audit_explicit_axes", "agree", devices=2))
