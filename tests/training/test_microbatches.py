"""Parts of a batch are each added once, in runs of any length; and how many examples a CPU takes at a time."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit import _platform
from dpaudit._engine import sharding
from dpaudit.training.microbatches import in_microbatches, microbatch_size


@pytest.mark.parametrize("weights", [None, jnp.ones(14), jnp.ones(14).at[10:].set(0)])
@pytest.mark.parametrize("run", [1, 3, 7])
def test_every_part_is_added_once(weights: Any, run: int) -> None:
    def part(first: Any, batch: jax.Array, weights: Any) -> tuple[jax.Array, Any]:
        return jnp.sum(batch if weights is None else batch + 100 * (1 - weights)), first + 1

    total, info = in_microbatches(part, jnp.arange(14.0), weights, 2, run=run)
    parts = 5 if weights is not None and weights[-1] == 0 else 7
    assert total == np.arange(2.0 * parts).sum()
    assert info.tolist() == [*range(1, 2 * parts, 2), *[0] * (7 - parts)]


@pytest.mark.parametrize(
    ("bytes_of_one", "shared", "expected"),
    [
        (1, 0, 1_000),
        (1 << 20, 0, 8),  # 8 MiB a core
        (1 << 20, 4 << 20, 20),  # five times the parameters, which are more
        (1 << 20, 1 << 10, 8),
        (1 << 40, 0, 1),
    ],
)
def test_a_cpu_takes_what_is_near_its_caches_or_five_times_the_parameters(
    bytes_of_one: int, shared: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharding, "cores", jax.local_device_count)  # a core for each device
    sizes = [microbatch_size(bytes_of_one, 1_000, shared=shared, most=most, multiple=1) for most in (None, 5)]
    assert sizes == [expected, min(expected, 5)]
    with _platform.named("gpu"):
        assert microbatch_size(bytes_of_one, 1_000, shared=shared, most=None, multiple=1) == 1_000
