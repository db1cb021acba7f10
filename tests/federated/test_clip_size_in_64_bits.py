import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit.federated import clip_size


def test_a_released_share_has_no_digits_that_its_noise_lacks() -> None:
    """Noise of 32 bits times a number of 64 has bare digits beyond the 24th, which tell what lies below."""
    with jax.enable_x64(True):
        rule = clip_size.adaptive_quantile(0.01, quantile=0.5, noise_std=np.float64(5.0))
        assert rule.release is not None
        released = jax.jit(rule.release)(jax.random.key(0), jnp.arange(50) < 20)
    assert released.dtype == np.float32
    assert 0 < abs(released - 0.4) < 0.5  # five deviations of the noise, of a client a tenth


def test_a_noise_budget_keeps_the_types_of_its_state() -> None:
    """The rounds of a run are a loop, whose state has one type."""
    with jax.enable_x64(True):
        params = {"w": np.ones(3)}
        rule = clip_size.noise_budget(np.float64(0.5), params, rounds=4, noise_multiplier=1.4, clients_per_round=7)
        spent = jax.lax.scan(lambda state, _: (rule.update(state, None), state.clip_norm), rule.init(), length=4)[1]
    assert spent.dtype == np.float32
    assert 1.4**2 * 3 / 7 * np.sum(np.asarray(spent, np.float64) ** 2) == pytest.approx(4 * 3, rel=1e-5)
