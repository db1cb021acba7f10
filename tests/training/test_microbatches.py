"""Parts of a batch are each added once, in runs of any length."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit.training.microbatches import in_microbatches


@pytest.mark.parametrize("weights", [None, jnp.ones(14), jnp.ones(14).at[10:].set(0)])
@pytest.mark.parametrize("run", [1, 3, 7])
def test_every_part_is_added_once(weights: Any, run: int) -> None:
    def part(first: Any, batch: jax.Array, weights: Any) -> tuple[jax.Array, Any]:
        return jnp.sum(batch if weights is None else batch + 100 * (1 - weights)), first + 1

    total, info = in_microbatches(part, jnp.arange(14.0), weights, 2, run=run)
    parts = 5 if weights is not None and weights[-1] == 0 else 7
    assert total == np.arange(2.0 * parts).sum()
    assert info.tolist() == [*range(1, 2 * parts, 2), *[0] * (7 - parts)]
