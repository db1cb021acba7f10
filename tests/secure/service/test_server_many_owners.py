"""Tests one step of thousands of owners, of whom some take no part or reach one server only."""

import resource
import time
from pathlib import Path

import numpy as np
import pytest

from dpaudit.secure.noise.binomial import Binomial
from dpaudit.secure.protocol import agreement
from dpaudit.secure.protocol.agreement import Terms
from dpaudit.secure.service import certificates, spgc_pb2
from dpaudit.secure.service.server import Server
from tests.secure.servers import reach, terms
from tests.secure.serving import Pair, owners, pair, share_of


def submitted(both: Pair, mine: Terms, absent: tuple[set[int], set[int]]) -> None:
    """Each owner's share of step 1, through one connection to each server, but for those absent there.

    The share that both make is an owner's place among the names, modulo 50, in every coordinate.
    """
    for side, server in enumerate(both):
        with certificates.call(f"127.0.0.1:{server.port}", certificates.SERVERS[side], None) as connection:
            submit = connection.unary_unary(
                "/dpaudit.secure.Owners/Submit", spgc_pb2.Share.SerializeToString, spgc_pb2.Receipt.FromString
            )
            calls = []
            for place, name in enumerate(mine.owners):
                values = np.full(mine.dimension, place % 50 + 7 if side == 0 else 7, "<i4").tobytes()
                share = share_of(mine, name)
                share.values = values
                if place not in absent[side]:
                    calls.append(submit.future(share, timeout=60))
                if len(calls) == 32:
                    for call in calls:
                        call.result()
                    calls = []
            for call in calls:
                call.result()


@pytest.mark.integration
def test_a_step_of_1400_owners_of_whom_some_are_missing(tmp_path):
    """Stating all names took a message of 68,621 bytes once, at which every round failed."""
    names = tuple(f"{'owner' * 8}-{number:04}" for number in range(1_400))
    mine, told, absent = terms("plain", owners=names, least_owners=1_397), [], {3, 500, 1_399}
    with pair(tmp_path, mine, told.append, wait=1.0) as both, owners(both, mine, names[0]) as (one,):
        submitted(both, mine, (absent, absent))
        opened = one.result(1)
    present = [place for place in range(1_400) if place not in absent]
    np.testing.assert_array_equal(opened.values, np.full(mine.dimension, sum(place % 50 for place in present)))
    assert opened.owners == tuple(names[place] for place in present)
    missing = [f"{names[place]} (not here either)" for place in sorted(absent)]
    assert told.count(f"step 1: shares are not at both servers of: {', '.join(missing)}") == 2


@pytest.mark.parametrize(
    ("limits", "then", "told"),
    [
        ((1_024, 524_288), (1_656, 524_288), False),
        ((1_024, -1), (1_656, -1), False),
        ((-1, -1), (-1, -1), False),
        ((4_096, 4_096), (4_096, 4_096), False),
        ((1_024, 1_200), (1_200, 1_200), True),
    ],
)
def test_each_owner_may_hold_a_connection(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limits: tuple[int, int],
    then: tuple[int, int],
    told: bool,
) -> None:
    """The process raises its limit of open files, which is often 1,024 by default."""
    now, lines = [limits], []
    monkeypatch.setattr(resource, "getrlimit", lambda what: now[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda what, pair: now.append(pair))
    mine = terms("plain", owners=[f"o{number}" for number in range(1_400)])
    server = Server("h2", mine, listen="127.0.0.1:0", state=tmp_path, log=lines.append)
    server.stop()
    server.run()
    assert now[-1] == then
    assert (lines[:1] == ["the system allows this process 1200 open files, too few for 1400 owners at once"]) == told


@pytest.mark.slow
def test_ten_thousand_owners_in_one_noisy_step(tmp_path: Path) -> None:
    """300 drop out before they submit and 200 between the two servers: the rest is summed at the end of the round."""
    most, wait = agreement.MOST_OWNERS, 5.0
    names = tuple(f"owner-{number:05}" for number in range(most))
    draw = np.random.default_rng(0).permutation(most)
    never, half = {*draw[:300].tolist()}, {*draw[300:500].tolist()}
    mine = terms(owners=names, dimension=182, examples=most, least_owners=most - 500)
    told: list[str] = []
    present = [place for place in range(most) if place not in never | half]
    with pair(tmp_path, mine, told.append, wait=wait) as both, owners(both, mine, names[present[0]]) as (one,):
        submitted(both, mine, (never, never | half))
        began = time.monotonic()
        opened = one.result(1, seconds=120)
        took = time.monotonic() - began
    assert opened.owners == tuple(names[place] for place in present)
    noise = opened.values - sum(place % 50 for place in present)
    assert (np.abs(noise) <= reach(mine)).all()
    law = mine.opening().noise
    assert isinstance(law, Binomial)
    assert abs(noise.std() / law.std - 1) < 5 / np.sqrt(2 * 182)
    assert took < 2 * wait + 10  # the round that was going on, and one more
    assert sum("and 490 others" in line for line in told) >= 1  # at H2, that lacks all 500; ten are named
    assert sum(line.startswith("step 1: complete, of 9500 owners") for line in told) == 2
