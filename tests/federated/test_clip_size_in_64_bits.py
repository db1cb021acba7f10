import jax
import jax.numpy as jnp
import numpy as np

from dpaudit.federated import clip_size


def test_a_released_share_has_no_digits_that_its_noise_lacks() -> None:
    """Noise of 32 bits times a number of 64 has bare digits beyond the 24th, which tell what lies below."""
    with jax.enable_x64(True):
        rule = clip_size.adaptive_quantile(0.01, quantile=0.5, noise_std=np.float64(5.0))
        assert rule.release is not None
        released = jax.jit(rule.release)(jax.random.key(0), jnp.arange(50) < 20)
    assert released.dtype == np.float32
    assert 0 < abs(released - 0.4) < 0.5  # five deviations of the noise, of a client a tenth
