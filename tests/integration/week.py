"""Plays weeks of a service in minutes, with real processes that are killed, wronged, and robbed of disk and time.

    python -m tests.integration.week --steps 2000 --folder DIR    # ten minutes, or half an hour on a busy machine

Two servers and three owners sum 182 coordinates a step, with mutual TLS, while one after the other: any party, or both
servers, are killed; a server's state is put back to an older copy; the disk of a party is full; a clock jumps; bytes
between the servers, or between owners and H2, are sent twice, sent again later, or cut off; an owner's old shares are
sent again; and days pass, so that all certificates run out. Whoever died is started again, as a service manager would.

At the end every opened sum must be that of the owners' integers and noise of the right spread, the same at both
servers and for all owners; no noise may have been used twice; every opening must be counted, and epsilon be that of
their number; no call may have taken longer than its time limit, and no party may have shown a traceback.
"""

import argparse
import datetime
import hashlib
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

from dpaudit.secure.noise import accounting
from dpaudit.secure.noise.binomial import Binomial
from dpaudit.secure.protocol import agreement
from dpaudit.secure.protocol.agreement import SERVERS, Budget
from dpaudit.secure.service import certificates, spgc_pb2
from dpaudit.secure.service.inbox import SERVICE
from dpaudit.secure.service.records import Records
from tests.integration.week_parties import DIMENSION, OWNERS, PATIENCE, integers, terms
from tests.integration.week_service import ROOT, STUCK, Service, preloaded

SLACK = 10.0  # seconds that a loaded machine may add to a call's time limit
DELTA = 1e-5

# What happens.


def somebody_is_killed(service: Service, rng: np.random.Generator) -> None:
    service.kill(str(rng.choice([*SERVERS, *OWNERS])))


def both_servers_are_killed(service: Service, rng: np.random.Generator) -> None:
    service.kill(*SERVERS)


def all_are_killed(service: Service, rng: np.random.Generator) -> None:
    service.kill(*SERVERS, *OWNERS)


def a_state_is_put_back(service: Service, rng: np.random.Generator) -> None:
    """Of one server, to a copy from some steps ago; refused until --rejoin, where blocks have been used since."""
    name = SERVERS[rng.integers(2)]
    service.kill(name)
    copy = service.folder / f"copy of {name}"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(service.folder / name, copy)
    goes_on(service, int(rng.integers(0, 6)))
    service.held.add(name)
    service.kill(name)
    shutil.rmtree(service.folder / name)
    shutil.move(copy, service.folder / name)
    heard, steps = {role: len(service.said[role]) for role in SERVERS}, service.steps()
    service.held.clear()

    def refused() -> bool:
        return any("--rejoin" in service.said[role][heard[role] :] for role in SERVERS)

    service.until(lambda: refused() or service.steps() > steps + 1, "a restored server is refused, or goes on")
    if refused():
        service.kill(name)
        service.with_option(name, "--rejoin")


def a_disk_is_full(service: Service, rng: np.random.Generator) -> None:
    """For files of a server, or of an owner, beyond a random size; after a while there is room again."""
    name = str(rng.choice([*SERVERS, *OWNERS]))
    most = int(rng.choice([0, 40, 500, 900]))
    pid, end = service.pid(name), time.monotonic() + 3
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
    service.held.add(name)
    service.until(lambda: not service.alive(name) or time.monotonic() > end, "a party without disk")
    service.kill(name)
    service.held.clear()


def a_clock_jumps(service: Service, rng: np.random.Generator) -> None:
    name = str(rng.choice([*SERVERS, *OWNERS]))
    base = service.moved()
    for seconds in (-3000, 40_000):
        service.jump(name, base + seconds)
        goes_on(service, 2)
    service.settle(name)


def bytes_go_wrong(service: Service, rng: np.random.Generator) -> None:
    service.link.wrong(str(rng.choice(["twice", "old"])))


def connections_are_cut(service: Service, rng: np.random.Generator) -> None:
    service.link.cut()


def old_shares_come_again(service: Service, rng: np.random.Generator) -> None:
    """An owner's last shares, kept on disk, are sent again at once and some steps later, each three times."""
    name = OWNERS[rng.integers(3)]
    path = service.folder / f"{name}.shares"
    kept = path.read_bytes() if path.exists() else b""
    if not kept:
        return
    for later in (0, 2):
        goes_on(service, later)
        replay(service, name, kept)


def replay(service: Service, name: str, kept: bytes) -> None:
    head, _, both = kept.partition(b"\n")
    said, half = agreement.understood(head), len(both) // 2
    own = certificates.read(service.keys / name, name=name)
    stated = agreement.stated(terms().statement())
    for side, server in enumerate(SERVERS):
        values, split = both[side * half : (side + 1) * half], bytes.fromhex(said["label"])
        share = spgc_pb2.Share(owner=name, step=said["step"], split=split, terms=stated, values=values)
        with certificates.call(f"127.0.0.1:{service.ports[side]}", server, own) as connection:
            submit = connection.unary_unary(
                f"/{SERVICE}/Submit", spgc_pb2.Share.SerializeToString, spgc_pb2.Receipt.FromString
            )
            for _ in range(3):
                submit(share, timeout=STUCK, wait_for_ready=True)


def certificates_run_out(service: Service, rng: np.random.Generator) -> None:
    """Days pass: who is connected stays so, nobody can connect; with new certificates all goes on."""
    service.days_pass(2)
    service.kill("h1")
    time.sleep(2)
    steps = service.steps()
    end = time.monotonic() + 4
    service.until(lambda: time.monotonic() > end, "time to pass")
    assert service.steps() <= steps + 1, "a server took part without a valid certificate"
    service.renew()
    service.kill(*SERVERS, *OWNERS)


EVENTS = (
    somebody_is_killed,
    a_state_is_put_back,
    a_disk_is_full,
    bytes_go_wrong,
    old_shares_come_again,
    both_servers_are_killed,
    a_clock_jumps,
    connections_are_cut,
    certificates_run_out,
    all_are_killed,
)


def goes_on(service: Service, steps: int) -> None:
    """Waits until so many more steps are completed."""
    until = min(service.steps() + steps, service.last)
    service.until(lambda: service.steps() >= until, f"step {until}")


def play(folder: Path, last: int, events: int, seed: int) -> None:
    """Plays and checks everything; prints what happened.

    Raises:
      AssertionError: something is not as it must be.
    """
    rng, began = np.random.default_rng(seed), time.monotonic()
    service, happened = Service(folder, last), Counter[str]()
    for number in range(events):
        service.until(lambda n=number: service.steps() >= (n + 1) * last // (events + 1), "the next event's step")
        event = EVENTS[number % len(EVENTS)]
        event(service, rng)
        happened[event.__name__] += 1
    service.until(lambda: service.steps() >= last and not any(map(service.alive, OWNERS)), "the last step", 10 * STUCK)
    service.held.update(SERVERS)
    for name in SERVERS:
        os.kill(service.pid(name), signal.SIGTERM)
    service.until(lambda: not any(map(service.alive, SERVERS)), "both servers to end")
    check(service, last)
    print(f"{last} steps in {time.monotonic() - began:.0f} s; {sum(service.deaths.values())} processes started again")
    print(", ".join(f"{name.replace('_', ' ')}: {count}" for name, count in happened.items()))


def check(service: Service, last: int) -> None:
    """Checks what all parties kept and said."""
    mine, reports = terms(), [line.split() for line in service.said["reports"].splitlines()]
    law = Binomial(mine.coins, mine.step_bits)
    kept = {name: Records(service.folder / name, name, mine) for name in SERVERS}
    assert [records.completed for records in kept.values()] == [last, last]
    noise = []
    digests = {}
    for step in range(1, last + 1):
        first, second = (records.opened(step) for records in kept.values())
        np.testing.assert_array_equal(first.values, second.values)
        assert first.owners == second.owners == OWNERS
        noise.append(first.values - sum(integers(name, step) for name in OWNERS))
        digests[str(step)] = hashlib.sha256(first.values.astype("<i8").tobytes()).hexdigest()
    drawn = np.array(noise)
    assert np.abs(drawn).max() <= law.reach
    assert abs(drawn.mean()) < 5 * law.std / drawn.size**0.5
    assert abs(drawn.var() / law.std**2 - 1) < 5 * (2 / drawn.size) ** 0.5
    assert len(np.unique(drawn, axis=0)) == last
    told = [line for line in reports if line[0] == "told"]
    assert {(name, step) for _, name, step, *_ in told} == {(name, step) for name in OWNERS for step in digests}
    assert all(digest == digests[step] and names == ",".join(OWNERS) for _, _, step, digest, _, names in told)
    used = {name: [line[2] for line in reports if line[:2] == ["used", name]] for name in SERVERS}
    for name in SERVERS:
        assert len(set(used[name])) == len(used[name]) >= last, f"{name} used noise twice"
    releases = max(records.releases for records in kept.values())
    lost = sum(service.deaths.values()) + service.said["h1"].count("no session with h2")
    assert max(map(len, used.values())) <= releases <= max(map(len, used.values())) + lost
    assert max(int(line[4]) for line in told) <= releases
    size = {"sensitivity": 2 * mine.levels, "dimension": DIMENSION, "delta": DELTA}
    exact = accounting.epsilon(law, **size, steps=releases)
    told_epsilon = Budget(mine._replace(epsilon=exact, delta=DELTA, openings=releases)).epsilon(releases)
    assert abs(told_epsilon / exact - 1) < 1e-3
    slowest = max(float(line[2]) for line in reports if line[0] == "took")
    assert slowest < 2 * PATIENCE + SLACK, f"a step of an owner took {slowest:g} s"
    for name, text in service.said.items():
        assert "Traceback" not in text, f"{name}: {text[text.index('Traceback') :][:3000]}"
    print(f"{releases} openings for {last} steps: epsilon {exact:.4g} at delta {DELTA:g}")
    print(f"{drawn.size} noise draws, standard deviation {drawn.std():.2f} where the law's is {law.std:.2f}")
    refusals = Counter(
        re.sub(r"[0-9]+", "#", line.replace(str(service.folder), "DIR"))[:90]
        for name in OWNERS
        for line in service.said[name].splitlines()
    )
    print("owners said: " + "; ".join(f"{count} x {line}" for line, count in refusals.most_common(6)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--events", type=int, default=None, help="how many; by default one in 25 steps")
    parser.add_argument("--folder", type=Path, required=True, help="an empty one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clock", action="store_true", help="the clock is loaded: used by the program itself")
    chosen = parser.parse_args()
    if not chosen.clock:
        chosen.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tests.integration.week", "--clock", *sys.argv[1:]]
        sys.exit(subprocess.run(command, env=preloaded(chosen.folder), cwd=ROOT, check=False).returncode)
    print(datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"))
    play(chosen.folder, chosen.steps, chosen.events or chosen.steps // 25, chosen.seed)


if __name__ == "__main__":
    main()
