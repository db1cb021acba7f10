from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest

from dpaudit.training.windows import Conv


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
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    params, same = jax.jit(lambda key: [net.init(key, x) for net in (ours, flax)])(jax.random.key(1))
    jax.tree.map(np.testing.assert_array_equal, params, same)
    outputs = jax.jit(lambda params: [net.apply(params, x) for net in (ours, flax)])(params)
    np.testing.assert_allclose(*outputs, rtol=1e-5, atol=1e-5)
    # The two really differ in form.
    program = str(jax.make_jaxpr(ours.apply)(params, x))
    assert ("conv_general_dilated" in program) == (backend == "gpu")
