"""The noise budget: by hand, spent to the end at the paper's scale, and in proportion to what it is made of."""

import math
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.federated import clip_size
from dpaudit.federated.clip_size import SMALLEST

PARAMS = {"w": np.array([[3.0]]), "b": np.array([0.0, 4.0])}  # |theta_0| = 5, d = 3


@partial(jax.jit, static_argnames=("rounds", "clients_per_round"))
def played(
    c0: Any, rounds: int = 4, *, noise_multiplier: Any = 4.0, clients_per_round: int = 12, share: Any = 2.0
) -> jax.Array:
    """[rounds + 1], what clients use, and one round more; as given here, noise has length n = 2 at C = 1."""
    given = {"noise_multiplier": noise_multiplier, "clients_per_round": clients_per_round, "share": share}
    rule = clip_size.noise_budget(c0, PARAMS, rounds=rounds, **given)

    def step(state: Any, _: None) -> tuple[Any, jax.Array]:
        return rule.update(state, None), state.clip_norm

    return jax.lax.scan(step, rule.init(), length=rounds + 1)[1]


def test_by_hand() -> None:
    """(2 |theta_0|)^2 = 100 = n^2 (1 + 9/16 + 1/4 + 1/16) C_0^2."""
    wanted = np.sqrt(25 / 1.875) * np.array([1, 0.75, 0.5, 0.25])
    np.testing.assert_allclose(played(9.0), [*wanted, SMALLEST], rtol=1e-6)
    # A first round at C = 1 leaves 96 = n^2 (9 + 4 + 1) c^2 for C = 3 c, 2 c, c.
    np.testing.assert_allclose(played(1.0), [1.0, *(np.sqrt(24 / 14) * np.array([3, 2, 1])), SMALLEST], rtol=1e-6)


@pytest.mark.parametrize("c0", [0.01, 0.05, 1.0])
def test_all_of_it_is_spent_and_no_more(c0: float) -> None:
    """At the paper's scale; C_0 is close to share |theta_0| sqrt(3/T)/n."""
    rounds = 10_000
    found = np.asarray(played(c0, rounds), np.float64)
    assert 4 * np.sum(found[:rounds] ** 2) == pytest.approx(100, rel=1e-4)
    assert (np.diff(found[1:]) < 0).all()
    assert found[0] == pytest.approx(min(c0, 10 * math.sqrt(3 / rounds) / 2), rel=1e-4)


@pytest.mark.parametrize(
    "changed, times", [({"noise_multiplier": 8.0}, 0.5), ({"clients_per_round": 48}, 2), ({"share": 1.0}, 0.5)]
)
def test_each_setting_enters_as_it_should(changed: dict[str, Any], times: float) -> None:
    np.testing.assert_allclose(played(9.0, **changed)[:-1], times * played(9.0)[:-1], rtol=1e-5)


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"c0": 0}, "c0: expected a finite number > 0, got 0"),
        ({"rounds": 0}, "rounds: expected a whole number >= 1, got 0"),
        ({"noise_multiplier": -1}, "noise_multiplier: expected a finite number > 0, got -1"),
        ({"clients_per_round": 0}, "clients_per_round: expected a whole number >= 1, got 0"),
        ({"share": 0}, "share: expected a finite number > 0, got 0"),
        ({"params": {"w": np.zeros(3)}}, "params: expected a model of finite length above zero, got .* length 0.0"),
        ({"params": {"w": np.full(3, np.nan)}}, "params: expected a model of finite length above zero, got .* nan"),
    ],
)
def test_bad_input_is_refused(changed: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"c0": 1.0, "params": PARAMS, "rounds": 5, "noise_multiplier": 1.0, "clients_per_round": 9}
    with pytest.raises(_validate.InputError, match=f"^{message}"):
        clip_size.noise_budget(**given | changed)
