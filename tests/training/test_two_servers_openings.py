"""Tests that the report of a training through two servers counts every opening that an owner can know of."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.cli.command import Common
from dpaudit.cli.secure_train import Follower, Train
from dpaudit.secure.noise import accounting
from dpaudit.secure.noise.binomial import Binomial
from dpaudit.secure.protocol.agreement import Terms
from dpaudit.training.two_servers import Participant, Spending
from tests.secure.serving import pair
from tests.training.test_two_servers import BATCH, OWNERS, TASK, players, step, terms

DELTA = 1e-5


def epsilon(mine: Terms, openings: int) -> float:
    law = Binomial(mine.coins, mine.step_bits)
    size: dict[str, Any] = {"sensitivity": 2 * mine.levels, "dimension": mine.dimension, "delta": DELTA}
    return accounting.epsilon(law, **size, steps=openings)


def row(player: Participant, mine: Terms, steps: int) -> dict[str, Any]:
    options = Train(target="", owners=OWNERS, batch_size=BATCH, steps=steps, noise_multiplier=20.0, common=Common())
    return Follower(TASK, options, mine, Spending(mine, steps, DELTA)).row(player)


def test_a_finished_training_that_is_resumed_has_spent_what_it_spent(tmp_path: Path) -> None:
    """The servers are gone by then; the first opening of all had failed."""
    mine = terms(noise_multiplier=20.0, least_owners=2)
    for server in ("h1", "h2"):
        (tmp_path / server).mkdir()
        (tmp_path / server / "begun").write_bytes(b"1\n")
    with pair(tmp_path, mine, lambda line: None, wait=0.5) as both, players(both, mine, tmp_path / "kept") as all_of:
        for _ in range(2):
            step(all_of[:2])
        for one in all_of:
            one.save()
    with players(both, mine, tmp_path / "kept") as again:
        assert again[0].run(2, 1, lambda progress: None, Spending(mine, 2, DELTA)) == "done"
        found = row(again[0], mine, 2)
        assert (found["steps"], found["openings"], found["owners_in_last_step"]) == (2, 3, 2)
        assert found["epsilon"] == pytest.approx(epsilon(mine, 3), rel=1e-3)
        unplayed = row(again[2], mine, 2)
        assert (unplayed["steps"], unplayed["openings"], unplayed["epsilon"]) == (0, 0, 0)


@pytest.mark.integration
@pytest.mark.parametrize("before", [0, 1])
def test_a_budget_that_a_failed_opening_spent_is_reported_as_spent(tmp_path: Path, before: int) -> None:
    """No result tells of an opening that failed last; that the budget is spent does."""
    law = terms(noise_multiplier=20.0)
    mine = terms(noise_multiplier=20.0, budget=(1.01 * epsilon(law, 2), DELTA))
    assert mine.openings == 2
    with pair(tmp_path, mine, lambda line: None) as both, players(both, mine, tmp_path / "kept") as all_of:
        for _ in range(before):
            step(all_of)
        for one in all_of:
            one.save()
    for _ in range(2 - before):  # as a server leaves it that is killed while it opens
        with open(tmp_path / "h1" / "begun", "ab") as begun:
            begun.write(b"%d\n" % (before + 1))
    with (
        pair(tmp_path, mine, lambda line: None) as both,
        players(both, mine, tmp_path / "kept") as all_of,
        ThreadPoolExecutor(3) as pool,
    ):
        spending = Spending(mine, 2, DELTA)
        assert list(pool.map(lambda one: one.run(2, 1, lambda _: None, spending), all_of)) == ["budget"] * 3
        for one in all_of:
            found = row(one, mine, 2)
            assert (found["steps"], found["openings"]) == (before, 2)
            assert found["epsilon"] == pytest.approx(epsilon(law, 2), rel=1e-3)
    with players(both, mine, tmp_path / "kept") as again:
        assert [one.releases for one in again] == [2, 2, 2]


def test_a_checkpoint_without_the_openings_is_refused(tmp_path: Path) -> None:
    addresses = "127.0.0.1:1", "127.0.0.1:2"
    one = Participant("bob", TASK, terms("plain"), addresses, batch_size=BATCH, folder=tmp_path)
    one.save()
    one.close()
    with np.load(tmp_path / "model.npz") as held:
        arrays = dict(held)
    identity = json.loads(str(arrays.pop("identity")))
    del identity["version"], arrays["openings"], arrays["owners"]
    np.savez(tmp_path / "model.npz", identity=np.array(json.dumps(identity)), allow_pickle=False, **arrays)
    with pytest.raises(_validate.InputError, match=r"^checkpoint: .* got model.npz: made by another version$"):
        Participant("bob", TASK, terms("plain"), addresses, batch_size=BATCH, folder=tmp_path)
