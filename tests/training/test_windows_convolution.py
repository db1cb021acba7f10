from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest

from dpaudit import _platform
from dpaudit.training.windows import Conv


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize(
    ("shape", "window", "strides", "padding"),
    [((9, 8, 3), (3, 2), 2, "SAME"), ((2, 9, 8, 3), (4, 3), (1, 2), "VALID"), ((11, 2), (3,), 3, "SAME")],
)
def test_is_flax_convolution(backend: str, shape: Any, window: Any, strides: Any, padding: str) -> None:
    ours, flax = (kind(5, window, strides=strides, padding=padding) for kind in (Conv, nn.Conv))
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    with _platform.named(backend):
        params, same = jax.jit(lambda key: [net.init(key, x) for net in (ours, flax)])(jax.random.key(1))
        outputs = jax.jit(lambda params: [net.apply(params, x) for net in (ours, flax)])(params)
        program = str(jax.make_jaxpr(ours.apply)(params, x))
    jax.tree.map(np.testing.assert_array_equal, params, same)
    np.testing.assert_allclose(*outputs, rtol=1e-5, atol=1e-5)
    # The two really differ in form.
    assert ("conv_general_dilated" in program) == (backend == "gpu")
