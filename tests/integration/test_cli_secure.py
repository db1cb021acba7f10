"""Tests ``dpaudit secure server`` with real processes, with and without certificates, one of them killed midway."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from dpaudit.cli import main
from dpaudit.secure.noise import lookup
from dpaudit.secure.protocol.agreement import Terms
from dpaudit.secure.service.owner import Owner
from tests.secure import servers
from tests.secure.certificates import Authority

TERMS = ("--owners", *servers.OWNERS, "--dimension", str(servers.DIMENSION), "--examples", "30", "--mode", "plain")


class Process:
    """Runs ``dpaudit secure server`` with these options, and reads the port that it prints."""

    def __init__(self, folder: Path, role: str, port: int, *options: str) -> None:
        command = [sys.executable, "-m", "dpaudit.cli.main", "secure", "server", "--role", role]
        command += ["--listen", f"127.0.0.1:{port}", "--state", str(folder / role), *TERMS, *options]
        self._started = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def port(self) -> int:
        assert self._started.stdout is not None
        line = self._started.stdout.readline()
        assert line, self._started.communicate()[1]
        return int(line.rpartition(":")[2])

    def end(self, by: signal.Signals | None) -> tuple[int, str]:
        """Returns its status and its output; without a signal, when it ends by itself."""
        if by is not None:
            self._started.send_signal(by)
        _, told = self._started.communicate(timeout=60)
        return self._started.returncode, told


@contextmanager
def owners(trust: Authority | None, ports: tuple[int, int], terms: Terms) -> Iterator[list[Owner]]:
    addresses = f"127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}"
    made = [Owner(name, terms, addresses, own=trust.tls(name) if trust else None) for name in servers.OWNERS]
    yield made
    for one in made:
        one.close()


def step(number: int, all_of: list[Owner]) -> np.ndarray:
    for one, values in zip(all_of, servers.integers(number).values(), strict=True):
        one.submit(number, values)
    (first, *others) = [one.result(number).values for one in all_of]
    assert all(np.array_equal(first, other) for other in others)
    return first


def test_processes_open_what_one_process_opens(tmp_path):
    """Kills one of them, too: steps 1 and 2, and 3 after a new process continues from the old one's state."""
    mine = servers.terms("plain")
    expected = servers.play(tmp_path / "here", (mine, mine), until=3)[0].steps
    trust = Authority(tmp_path / "trust")

    def flags(role: str, trusted: bool) -> list[str]:
        return ["--keys", str(trust.folder / role)] if trusted else []

    seconds = {trusted: Process(tmp_path / f"{trusted}", "h2", 0, *flags("h2", trusted)) for trusted in (True, False)}
    ports = {trusted: process.port() for trusted, process in seconds.items()}
    firsts = {
        trusted: Process(
            tmp_path / f"{trusted}", "h1", 0, "--peer", f"127.0.0.1:{ports[trusted]}", *flags("h1", trusted)
        )
        for trusted in ports
    }
    for trusted, first in firsts.items():
        with owners(trust if trusted else None, (first.port(), ports[trusted]), mine) as all_of:
            for number in (1, 2):
                np.testing.assert_array_equal(step(number, all_of), expected[number].values)
            if not trusted:
                assert seconds[trusted].end(signal.SIGKILL)[0] == -signal.SIGKILL
                seconds[trusted] = Process(tmp_path / f"{trusted}", "h2", ports[trusted])
                assert seconds[trusted].port() == ports[trusted]
                np.testing.assert_array_equal(step(3, all_of), expected[3].values)
    for process, by in zip([*firsts.values(), *seconds.values()], [signal.SIGTERM, signal.SIGINT] * 2, strict=True):
        status, told = process.end(by)
        assert status == 0
        assert "step 2: complete, of 3 owners" in told or "2 steps are complete" in told
        assert "Traceback" not in told


TABLE = ("--mode", "noisy", "--noise-multiplier", "2", "--ring-bits", "21")


@pytest.mark.slow
def test_the_paper_s_table_between_processes_is_labelled_and_must_be_meant_by_both(tmp_path):
    mine = servers.terms(noise="table", noise_multiplier=2.0, ring_bits=21)
    second = Process(tmp_path, "h2", 0, *TABLE, "--noise", "table")
    peer = "--peer", f"127.0.0.1:{second.port()}"
    other = Process(tmp_path / "other", "h1", 0, *peer, *TABLE, "--noise", "binomial")
    status, told = other.end(None)
    assert status == 2
    assert told.splitlines()[-1] == "dpaudit: terms: noise: expected binomial as here, got table"
    status, told = second.end(signal.SIGTERM)  # which would have stayed for another caller
    assert status == 0
    wanted = "dpaudit h2: h1 at ipv4:127.0.0.1 is refused: terms: noise: expected table as here, got binomial"
    assert told.splitlines() == [wanted]
    second = Process(tmp_path, "h2", 0, *TABLE, "--noise", "table")
    port = second.port()
    first = Process(tmp_path, "h1", 0, "--peer", f"127.0.0.1:{port}", *TABLE, "--noise", "table")
    with owners(None, (first.port(), port), mine) as all_of:
        noise = np.concatenate([step(number, all_of) - servers.total(number) for number in (1, 2)])
    values = lookup.table(mine.table_std)
    assert np.isin(noise, values).all()  # of the normal law's values in reach, less than half are in the table
    assert not np.isin(noise + 1, values).all()
    for process in (first, second):
        status, told = process.end(signal.SIGTERM)
        assert status == 0
        assert "0 steps are complete; noise from a table, a reproduction that is not private" in told


@pytest.mark.slow
def test_a_state_that_was_put_back_is_refused_until_rejoin(tmp_path):
    """Copies H1's state after step 1 and restores it after step 2, with blocks prepared in advance."""
    ahead = "--mode", "noisy", "--noise-multiplier", "1", "--ahead", "1", "--protocol", "circuit"
    mine = servers.terms(ahead=1)
    second = Process(tmp_path, "h2", 0, *ahead)
    port = second.port()
    peer = "--peer", f"127.0.0.1:{port}"
    for number in (1, 2):
        first = Process(tmp_path, "h1", 0, *peer, *ahead)
        with owners(None, (first.port(), port), mine) as all_of:
            step(number, all_of)
        assert first.end(signal.SIGTERM)[0] == 0
        if number == 1:
            shutil.copytree(tmp_path / "h1", tmp_path / "copy")
    shutil.rmtree(tmp_path / "h1")
    shutil.move(tmp_path / "copy", tmp_path / "h1")
    status, told = Process(tmp_path, "h1", 0, *peer, *ahead).end(None)
    assert status == 2
    assert told.startswith(
        "dpaudit: h1's blocks: expected block 1 spent, as h2 has seen (its state is an older copy; "
    )
    assert told.count("\n") == 1
    first = Process(tmp_path, "h1", 0, *peer, *ahead, "--rejoin")
    with owners(None, (first.port(), port), mine) as all_of:
        assert (np.abs(step(3, all_of) - servers.total(3)) <= servers.reach(mine)).all()
    assert first.end(signal.SIGTERM)[0] == 0
    status, told = second.end(signal.SIGTERM)
    assert status == 0
    assert sum(": h1 at ipv4:127.0.0.1 is refused: h1's blocks: expected " in line for line in told.splitlines()) == 1


def test_keys_are_made_for_those_who_have_none(monkeypatch, capsys, tmp_path):
    folder = tmp_path / "keys"
    for names, made in ((["anna"], ["h1", "h2", "anna"]), (["anna", "bert"], ["bert"])):
        monkeypatch.setattr(sys, "argv", ["dpaudit", "secure", "keys", "--out", str(folder), "--owners", *names])
        main.main()
        assert capsys.readouterr().out.splitlines() == [f"{folder}/{name}" for name in made]
    monkeypatch.setattr(sys, "argv", ["dpaudit", "secure", "keys", "--out", str(folder), "--owners", "h1"])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("dpaudit: owner: expected at most 63 of a-z, 0-9 and hyphens within")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--role", "h1"), "peer: expected the address of h2, which h1 calls, got none"),
        (("--role", "h2", "--listen", "0.0.0.0:0"), "--listen: expected certificates, a loopback address"),
        (
            ("--role", "h2", "--metrics", "0.0.0.0:0"),
            "--metrics: expected a loopback address such as 127.0.0.1:9100, got",
        ),
        (("--role", "h2", "--keys", "nowhere"), "--keys: expected files of h2, got nowhere/h2.pem (No such file or"),
        (("--role", "h2", "--mode", "noisy"), "--noise-multiplier: expected a finite number > 0, got None"),
        (("--role", "h2", "--noise", "table"), '--noise: expected none in mode "plain", got table'),
        (("--role", "h2", "--owners", "A"), "owner: expected at most 63 of a-z, 0-9 and hyphens within"),
        (("--role", "h2", "--owners", "h1"), "owner: expected at most 63 of a-z, 0-9 and hyphens within"),
        (("--role", "h2", "--least-owners", "4"), "--least-owners: expected at most 3, the number of owners, got 4"),
        (("--role", "h2", "--deadline", "0"), "--deadline: expected a finite number > 0, got 0.0"),
    ],
)
def test_unusable_options_are_one_line(monkeypatch, capsys, tmp_path, options, message):
    given = ["dpaudit", "secure", "server", "--listen", "127.0.0.1:0", "--state", str(tmp_path / "state"), *TERMS]
    monkeypatch.setattr(sys, "argv", [*given, *options])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    output = capsys.readouterr()
    assert output.err.startswith(f"dpaudit: {message}")
    assert (output.err.count("\n"), output.out) == (1, "")
