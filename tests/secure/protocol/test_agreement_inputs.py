"""Tests that a budget or a name that is none is refused, instead of standing for no budget."""

from typing import Any

import pytest

from dpaudit import InputError
from tests.secure.servers import terms


@pytest.mark.parametrize("budget", [(), (8.0,), (8.0, 1e-5, 1), 8.0])
def test_a_budget_is_two_numbers(budget: Any) -> None:
    with pytest.raises(InputError, match=r"^budget: expected two numbers, epsilon and delta, got "):
        terms(budget=budget)


@pytest.mark.parametrize(("budget", "name"), [(("8", 1e-5), "epsilon"), ((8.0, "1e-5"), "delta")])
def test_a_budget_of_texts_is_refused(budget: Any, name: str) -> None:
    with pytest.raises(InputError, match=rf"^{name}: expected a "):
        terms(budget=budget)


def test_an_owner_that_is_no_text_is_refused() -> None:
    owners: Any = ("alice", 2)
    with pytest.raises(InputError, match=r"^owner: expected at most 63 of a-z, 0-9 and hyphens .*, got 2$"):
        terms(owners=owners)
