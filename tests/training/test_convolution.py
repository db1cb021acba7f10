from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest

from dpaudit.training.convolution import Conv


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize(
    ("shape", "window", "strides", "padding"),
    [((9, 8, 3), (3, 2), 2, "SAME"), ((2, 9, 8, 3), (4, 3), (1, 2), "VALID"), ((11, 2), (3,), 3, "SAME")],
)
def test_is_flax_convolution(
    monkeypatch: pytest.MonkeyPatch, backend: str, shape: Any, window: Any, strides: Any, padding: str
) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    ours, flax = (kind(5, window, strides=strides, padding=padding) for kind in (Conv, nn.Conv))
    x = jax.random.normal(jax.random.key(0), shape)
    params = ours.init(jax.random.key(1), x)
    jax.tree.map(np.testing.assert_array_equal, params, flax.init(jax.random.key(1), x))
    outputs = [np.asarray(net.apply(params, x)) for net in (ours, flax)]
    np.testing.assert_allclose(*outputs, rtol=1e-5, atol=1e-5)
    # The two really differ in form.
    program = str(jax.make_jaxpr(ours.apply)(params, x))
    assert ("conv_general_dilated" in program) == (backend == "gpu")
