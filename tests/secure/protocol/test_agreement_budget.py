"""Tests that a budget holds: every opening counts, and nothing is opened after the last one that it allows."""

import math
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.secure.channel import ChannelError
from dpaudit.secure.noise import accounting
from dpaudit.secure.protocol.agreement import Budget, BudgetSpent
from dpaudit.secure.service.records import Opened
from tests.secure.servers import DIMENSION, OWNERS, Killed, integers, play, reach, terms
from tests.secure.serving import owners, pair, send, share_of, until

SMALL = {"noise_multiplier": 2.0, "ring_bits": 14, "budget": (12.0, 1e-5)}
WORDS = "budget: expected epsilon 12 at delta 1e-05, which 4 openings spend, got another one after 4"

SPENT = "the budget is spent: 4 of 4 openings begun so far, epsilon "


def fit(step: int) -> dict[str, np.ndarray]:
    """Draws owners' integers that stay in a ring of 14 bits."""
    return {owner: values // 1000 for owner, values in integers(step).items()}


def test_the_terms_say_how_many_openings_the_budget_allows() -> None:
    mine = terms(**SMALL)
    law = mine.opening().noise
    assert isinstance(law, accounting.Binomial)
    spent = [
        accounting.epsilon(law, sensitivity=2 * mine.levels, dimension=DIMENSION, delta=1e-5, steps=steps)
        for steps in (4, 5)
    ]
    assert (mine.epsilon, mine.delta, mine.openings) == (12.0, 1e-5, 4)
    assert spent[0] <= 12.0 < spent[1]
    budget = Budget(mine)
    assert budget.epsilon(4) == pytest.approx(spent[0])
    assert [budget.spent(openings) for openings in range(6)] == [False] * 4 + [True] * 2
    assert budget.describe(3).startswith("3 of 4 openings begun so far, epsilon ")
    budget.require(3)
    with pytest.raises(_validate.InputError) as refused:
        budget.require(4)
    assert str(refused.value) == WORDS


def test_without_a_budget_nothing_is_limited() -> None:
    budget = Budget(terms())
    budget.require(10**9)
    assert math.isinf(budget.epsilon(1))
    assert budget.describe(7) == "7 openings begun so far"


@pytest.mark.parametrize(
    ("mode", "change", "message"),
    [
        (
            "noisy",
            {"budget": (1.0, 1e-5)},
            r"budget: expected epsilon [0-9.]+ or more, which one opening spends, got 1.0",
        ),
        ("noisy", {"budget": (0.0, 1e-5)}, r"epsilon: expected a finite number > 0, got 0.0"),
        ("noisy", {"budget": (1.0, 1.0)}, r"delta: expected a number in \(0, 1\), got 1.0"),
        (
            "noisy",
            {"noise": "table", "ring_bits": 12, "budget": (1.0, 1e-5)},
            "budget: expected none with noise from a t",
        ),
        ("plain", {"budget": (1.0, 1e-5)}, 'budget: expected none in mode "plain", got '),
    ],
)
def test_a_budget_that_cannot_be_is_refused(mode: str, change: dict[str, object], message: str) -> None:
    with pytest.raises(_validate.InputError, match=f"^{message}"):
        terms(mode, **({"ring_bits": 14} if mode == "noisy" else {}) | change)


@pytest.mark.integration
def test_servers_and_owners_refuse_what_is_beyond_the_budget(tmp_path: Path) -> None:
    mine, told = terms(**SMALL), []
    for life in (1, 2):  # the second begins with the budget spent
        with pair(tmp_path, mine, told.append) as both, owners(both, mine, *OWNERS) as all_of:
            for step in range(1, 5) if life == 1 else ():
                for one in all_of:
                    one.submit(step, fit(step)[one._name])
                epsilons = []
                for one in all_of:
                    opened = one.result(step)
                    assert opened.releases == step
                    assert (np.abs(opened.values - sum(fit(step).values())) <= reach(mine)).all()
                    epsilons.append(one.epsilon)
                assert epsilons == [Budget(mine).epsilon(step)] * 3
            if life == 2:  # neither knows whether step 5 was completed before it has met the other
                until(lambda: sum(line.startswith(SPENT) for line in told) == 4)
            if life == 1:
                with pytest.raises(BudgetSpent) as refused:
                    all_of[0].submit(5, fit(5)["alice"])
                assert str(refused.value) == WORDS  # the owner's own
            with pytest.raises(grpc.RpcError, match=WORDS):
                send(both[0].port, share_of(mine, step=5))
            assert all_of[1].result(4).releases == 4
            with pytest.raises(BudgetSpent) as refused:
                all_of[1].submit(5, fit(5)["bob"])
            assert str(refused.value) == WORDS
            spent = pytest.raises(BudgetSpent, match=f"^h1: {WORDS}$")
            with owners(both, mine, "carol") as (forgetful,), spent:  # which learns it from the servers
                forgetful.submit(5, fit(5)["carol"])
            until(lambda life=life: sum(line.startswith(SPENT) for line in told) == 2 * life)
    assert sum("complete, of 3 owners; 4 of 4 openings begun so far, epsilon " in line for line in told) == 2
    assert not any("step 5: complete" in line for line in told)


def test_owners_need_not_wait_for_a_last_opening_that_failed(tmp_path: Path) -> None:
    mine = terms(**SMALL)._replace(openings=1)
    with pair(tmp_path, mine, lambda line: None) as both, owners(both, mine, *OWNERS) as all_of:
        records = both[0]._records

        def begin(step: int, begin: Callable[[int], None] = records.begin) -> None:
            begin(step)
            raise ChannelError("the network fails")

        records.begin = begin
        for one in all_of:
            one.submit(1, fit(1)[one._name])
        with pytest.raises(BudgetSpent, match=r"^h[12]: budget: expected epsilon 12 .* got another one after 1$"):
            all_of[0].result(1, seconds=20)
        until(lambda: [server._records.releases for server in both] == [1, 1])
        assert [server._records.completed for server in both] == [0, 0]


def test_the_result_of_the_last_opening_is_told_though_one_server_lacks_it_at_first(tmp_path: Path) -> None:
    mine = terms(**SMALL)._replace(openings=1)
    with pair(tmp_path, mine, lambda line: None) as both, owners(both, mine, *OWNERS) as all_of:
        records, sent = both[0]._records, []

        def complete(step: int, opened: Opened, complete: Callable[..., None] = records.complete) -> None:
            records.complete = complete
            all_of[2].submit(1, fit(1)["carol"])  # which is late, and harmless
            sent.append(records.releases)
            raise ChannelError("the network fails")

        records.complete = complete
        for one in all_of:
            one.submit(1, fit(1)[one._name])
        opened = all_of[0].result(1, seconds=20)
        assert (sent, opened.releases) == ([1], 1)
        assert (np.abs(opened.values - sum(fit(1).values())) <= reach(mine)).all()
        with owners(both, mine, "bob") as (bob,), pytest.raises(BudgetSpent):
            bob.submit(2, fit(2)["bob"])


@pytest.mark.integration
def test_an_opening_that_breaks_off_counts(tmp_path: Path) -> None:
    """H2 dies before it sends the result, which it already knows. After four such faults nothing is opened."""
    mine = terms(noise_multiplier=2.0, budget=(12.0, 1e-5))
    assert mine.openings == 4
    known = 0
    for last in (8, 7, 7, 7):  # of H2's messages; the first session has one more, by which the two become a pair
        ended = play(tmp_path, (mine, mine), until=1, changed=(1, lambda wire, last=last: Killed(wire, last)))
        assert all(isinstance(one.fault, ChannelError) for one in ended)
        assert not ended[0].steps
        known += sum(message.kind == "labels" for message in ended[0].said)
    assert known == 4
    for one in play(tmp_path, (mine, mine), until=1):
        assert str(one.fault) == WORDS
        assert not {"labels", "decoding", "opened"} & {message.kind for message in one.said}
