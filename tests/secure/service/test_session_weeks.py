"""Simulates weeks of a service with random deaths, restored copies and lost or changed blocks; every sum is right."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from dpaudit import InputError
from dpaudit.secure.channel import ChannelError, Wire
from dpaudit.secure.protocol.prepared import WAY
from tests.secure import servers
from tests.secure.servers import Ended, Killed, play, terms, total

SECRET = ("labels", "tables", "seed", "cot.corrections", "products", "share")
TELLING = ("labels", "share")


def spoil(folder: Path, role: str, how: str, rng: np.random.Generator) -> None:
    """Changes or removes one of a server's blocks."""
    blocks = sorted((folder / role / "ahead").rglob("*.block"))
    if not blocks:
        return
    path = blocks[rng.integers(len(blocks))]
    if how == "lost":
        path.unlink()
        return
    content = bytearray(path.read_bytes())
    if how == "torn":
        content = content[: rng.integers(len(content))]
    else:
        content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
    path.write_bytes(content)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("seed", "sessions", "protocol"),
    [
        (0, 40, "circuit"),
        (1, 40, "transfers"),
        *(pytest.param(seed, 120, "circuit", marks=pytest.mark.slow) for seed in range(1, 4)),
        *(pytest.param(seed, 120, "transfers", marks=pytest.mark.slow) for seed in (0, 2, 3)),
    ],
)
def test_whatever_happens_each_sum_is_right_and_each_opening_counts(
    tmp_path: Path, seed: int, sessions: int, protocol: str
) -> None:
    mine = terms(
        ahead=1 + seed % 2, protocol=protocol
    )  # with a single one, nothing that is left tells which numbers were used
    rng, state, seen = np.random.default_rng(seed), tmp_path / "state", set[bytes]()
    copies: dict[str, Path] = {}
    first_told: dict[int, np.ndarray] = {}
    completed = begun = refusals = 0
    happened: set[str] = set()

    def session(until: int, **how: object) -> tuple[Ended, Ended]:
        """Plays a session, and checks all that it said and opened."""
        nonlocal begun, completed
        ended = play(state, (mine, mine), until=until, **how)  # pyright: ignore[reportArgumentType]
        said = [message.payload for one in ended for message in one.said if message.kind in SECRET]
        assert len({*said}) == len(said)
        assert seen.isdisjoint(said)
        seen.update(said)
        begun += sum(message.kind in TELLING for message in ended[0].said)
        for one in ended:
            assert one.fault is None or isinstance(one.fault, ChannelError | InputError), one.fault
            assert "\n" not in str(one.fault)
            for step, opened in one.steps.items():
                assert (np.abs(opened.values - total(step)) <= servers.reach(mine)).all()
                np.testing.assert_array_equal(first_told.setdefault(step, opened.values), opened.values)
        completed = max(len(one.steps) for one in ended)
        return ended

    for number in range(sessions):
        event = str(
            rng.choice(["nothing", "death", "put back", "lost", "torn", "changed"], p=[0.2, 0.3, 0.2, 0.1, 0.1, 0.1])
        )
        side, last = int(rng.integers(2)), int(rng.integers(20))
        role = servers.SERVERS[side]
        happened.add(event)

        def dies(wire: Wire, last: int = last) -> Wire:
            return Killed(wire, last)

        if event == "put back" and role in copies:
            shutil.rmtree(state / role)
            shutil.copytree(copies[role], state / role)
        elif event in ("lost", "torn", "changed") and state.exists():
            spoil(state, role, event, rng)
        ended = session(completed + 1, **({"changed": (side, dies)} if event == "death" else {}))
        if any(WAY in str(one.fault) for one in ended):
            refusals += 1
            assert all(isinstance(one.fault, InputError) for one in ended)
            session(completed + 1, rejoin=role)
        if rng.random() < 0.6:
            copies[role] = tmp_path / f"copy {number}"
            shutil.copytree(state / role, copies[role])
    ended = session(completed + 1)
    if any(one.fault for one in ended):  # a block that was changed before
        ended = session(completed + 1)
    assert [one.fault for one in ended] == [None, None]
    assert max(one.releases for one in ended) >= begun
    assert completed > sessions // 2
    assert refusals > 0
    assert happened == {"nothing", "death", "put back", "lost", "torn", "changed"}
