"""The aggregator adds up the devices' messages item by item."""

from typing import Any

import jax
import numpy as np

from dpaudit.personalization.als.steps import Statistics, added


def test_messages_add_up_by_item() -> None:
    """Users who rated the same items, and an item twice."""
    rng = np.random.default_rng(0)
    items = rng.integers(0, 7, (9, 4)).astype(np.int32)

    def of(*shape: int) -> Any:
        return rng.normal(size=shape).astype(np.float32)

    total, messages = Statistics(of(7, 3), of(7, 2), of(3)), Statistics(of(9, 4, 3), of(9, 4, 2), of(9, 3))
    wanted = [np.array(leaf, np.float64) for leaf in total]
    for rows, gram, moment, users in zip(items, *messages, strict=True):
        for row, own, other in zip(rows, gram, moment, strict=True):
            wanted[0][row] += own
            wanted[1][row] += other
        wanted[2] += users
    for own, true in zip(jax.jit(added)(total, items, messages), wanted, strict=True):
        np.testing.assert_allclose(own, true, rtol=1e-5, atol=1e-5)
