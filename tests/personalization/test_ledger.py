"""The ledger: every user's spending over runs, never too little, whatever happens to its process or its file."""

import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial

import jax
import numpy as np
import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from dpaudit._validate import InputError
from dpaudit.personalization.als.least_squares import counted
from dpaudit.personalization.boundary import aggregator, processes
from dpaudit.personalization.boundary import ledger as ledgers
from dpaudit.personalization.boundary.aggregator import run
from dpaudit.personalization.boundary.budget import Budget, noise_for, spent
from dpaudit.personalization.boundary.ledger import Ledger, Stream
from dpaudit.personalization.boundary.processes import memoryless
from dpaudit.training import matrix_noise
from dpaudit.training.sampling import participation
from tests.personalization.people import ITEMS, batch, honest, model
from tests.personalization.protocols import START, people, steps

DELTA = 1e-6
A, B = (processes.gaussian(name, noise_multiplier=z) for name, z in (("a", 4.0), ("b", 6.0)))


def cost(*multipliers):
    """The epsilon of independent releases with these multipliers, by hand."""
    return spent(ComposedDpEvent([GaussianDpEvent(z) for z in multipliers]), DELTA)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def charged(ledger, run, rounds, *streams, **how):
    return ledger.charge(run, [Stream(*stream) for stream in streams], rounds, **how)


def _listed(admitted):
    return admitted.rounds, np.asarray(admitted.who).tolist()


def test_users_are_charged_for_the_runs_that_they_took_part_in(path):
    ledger = Ledger(path)
    charged(ledger, "1", 3, (A, 0), who=["anna", "bert"])
    charged(ledger, "2", 2, (A, 0), (B, 0), who=["bert", 7])
    charged(ledger, "3", 1, (B, 0))  # everybody, those of whom nothing is known too
    expected = {
        "anna": cost(4, 4, 4, 6),
        "bert": cost(4, 4, 4, 4, 4, 6, 6, 6),
        7: cost(4, 4, 6, 6, 6),
        "7": cost(4, 4, 6, 6, 6),
        8: cost(6),
    }
    for found in (ledger, Ledger(path)):  # the same from the file
        for user, epsilon in expected.items():
            assert found.spent(DELTA, user) == pytest.approx(epsilon, rel=1e-12)
        assert found.spent(DELTA) == found.spent(DELTA, "bert")


def test_a_user_is_the_same_as_a_number_and_as_text(path):
    """Names are text where they were read from a file; their earlier charges are not forgotten."""
    budget = Budget(cost(4, 4), DELTA)
    charged(Ledger(path), "1", 2, (A, 0), budget=budget, who=np.array([7, 8]))
    assert charged(Ledger(path), "2", 1, (A, 0), budget=budget, who=["7", "8"]).rounds == 0
    assert Ledger(path).spent(DELTA, "7") == Ledger(path).spent(DELTA, 7) == pytest.approx(cost(4, 4))


def test_whole_numbers_in_a_file_are_users_of_version_0_2_0(path, monkeypatch):
    with monkeypatch.context() as old:
        old.setattr(ledgers, "_names", list)
        charged(Ledger(path), "1", 2, (A, 0), who=[7])
    assert b'"users":[7]' in path.read_bytes()
    assert Ledger(path).spent(DELTA, "7") == pytest.approx(cost(4, 4))


def test_a_stream_that_goes_on_is_charged_as_one(path):
    """Correlated noise: twelve releases together cost less than two sequences of six."""
    strategy = matrix_noise.toeplitz(participation(12, separation=12))
    ftrl, ledger = processes.correlated("ftrl", strategy, 1.5), Ledger(path)
    charged(ledger, "1", 6, (ftrl, 0), who=["anna"])
    charged(ledger, "2", 6, (ftrl, 6), who=["anna", "bert"])
    assert ledger.spent(DELTA, "anna") == pytest.approx(cost(1.5))
    assert Ledger(path).spent(DELTA, "bert") == pytest.approx(cost(1.5))  # too much, for half of it
    charged(ledger, "plain", 6, (A, 0), who=["cleo"])
    charged(ledger, "plain again", 6, (A, 6), who=["cleo", "dora"])
    assert ledger.spent(DELTA, "dora") == ledger.spent(DELTA, "cleo") == pytest.approx(cost(*[4.0] * 12))  # too much
    charged(ledger, "3", 12, (ftrl, 0), who=["anna"])
    assert ledger.spent(DELTA, "anna") == pytest.approx(cost(1.5, 1.5))
    for began, process in ((6, ftrl), (3, A)):
        with pytest.raises(InputError, match=f"memory: expected the memory of the run that '{process.name}' was last"):
            charged(ledger, "4", 1, (process, began), who=["anna"])


def test_a_stream_goes_on_with_the_process_that_it_was_charged_for(path):
    """Else its releases would be charged again, with the noise of a process that did not make them."""
    ledger, quiet = Ledger(path), processes.gaussian("a", noise_multiplier=1e6)
    poisson = processes.poisson_gaussian("a", rate=0.5, noise_multiplier=4.0)
    ftrl = processes.correlated("a", matrix_noise.independent(participation(3)), 4.0)
    charged(ledger, "1", 2, (A, 0), who=["anna"])
    size = path.stat().st_size
    for other in (quiet, poisson, ftrl):
        with pytest.raises(InputError, match="memory: expected one whose 2 releases 'a' accounts as they were"):
            charged(ledger, "2", 1, (other, 2), who=["anna"])
    assert path.stat().st_size == size
    charged(Ledger(path), "2", 1, (processes.gaussian("a", noise_multiplier=4), 2), who=["anna"])  # after a restart
    assert ledger.spent(DELTA, "anna") == pytest.approx(cost(4, 4, 4))


def test_events_are_compared_up_to_rounding():
    """That of a strategy's sensitivity may differ between the machines that a stream is continued on."""

    def event(z, *, count=3, rate=0.5):
        return ComposedDpEvent([SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(z)), count)])

    stream = Stream(A._replace(event=lambda n: event(1.5, count=n)), 3)
    assert stream.accounts(event(1.5 * (1 + 1e-15)))
    assert stream._replace(process=A._replace(event=lambda n: event(2.0))).accounts(event(2))
    twice, alone = ComposedDpEvent(event(1.5).events * 2), event(1.5).events[0]
    others = [event(1.5 * (1 + 1e-8)), event(1.5, count=4), event(1.5, rate=0.6), twice, alone]
    assert not any(stream.accounts(other) for other in others)


def test_files_in_which_another_process_went_on_count_what_the_first_one_cost(path, monkeypatch):
    """As version 0.2.0 wrote them: all releases at the noise of the last process, which can be nearly nothing."""
    quiet = processes.gaussian("a", noise_multiplier=1e6)
    with monkeypatch.context() as old:
        old.setattr(ledgers, "_alike", lambda *_: True, raising=False)
        for number, (process, began) in enumerate([(A, 0), (quiet, 2), (quiet, 3)]):
            charged(Ledger(path), str(number), 2 - bool(began), (process, began), who=["anna"])
    ledger, budget = Ledger(path), Budget(0.99 * cost(4, 4), DELTA)
    assert ledger.spent(DELTA, "anna") == pytest.approx(cost(4, 4, *[1e6] * 4), rel=1e-9)  # no less than two and two
    assert _listed(charged(ledger, "4", 1, (quiet, 4), budget=budget, who=["anna", "bert"])) == (1, [False, True])


def test_who_cannot_pay_is_left_out_and_the_rest_stops_in_time(path):
    ledger, budget = Ledger(path), Budget(cost(*[4.0] * 5), DELTA)  # five releases of a
    assert charged(ledger, "1", 3, (A, 0), budget=budget, who=["anna", "bert"]).rounds == 3
    rounds, who = _listed(charged(ledger, "2", 4, (A, 0), budget=budget, who=["anna", "cleo", "dora"]))
    assert (rounds, who) == (4, [False, True, True])
    rounds, who = _listed(charged(ledger, "3", 4, (A, 0), budget=budget, who=["anna", "bert", "cleo"], least=2))
    assert (rounds, who) == (2, [True, True, False])
    assert charged(ledger, "4", 9, (A, 0), budget=budget, who=["anna", "bert"]).rounds == 0
    assert ledger.spent(DELTA) <= budget.epsilon * (1 + 1e-9)
    assert charged(ledger, "5", 9, (A, 0), budget=budget).rounds == 0  # everybody: there are some who cannot
    assert charged(ledger, "5", 1, (B, 0), budget=Budget(9.0, DELTA)).rounds == 1
    size = path.stat().st_size
    assert charged(ledger, "6", 1, (A, 0), budget=budget, who=["dora", "erik"], least=3).rounds == 0
    assert path.stat().st_size == size  # nothing was charged


def test_noise_is_not_drawn_twice_over_runs(path):
    """A run that begins anew with its key, after a restart too: one transcript alone would not show it."""
    protocol, budget = steps(9.0), Budget(9.0, DELTA)
    play = partial(run, protocol=protocol, state=START, users=people(4), rounds=1, budget=budget)
    _, memory, _ = play(jax.random.key(0), memory=None, ledger=Ledger(path))
    with pytest.raises(InputError, match="key: expected a key that is new for these names and numbers"):
        play(jax.random.key(0), memory=None, ledger=Ledger(path))
    play(jax.random.key(0), memory=memory, ledger=Ledger(path))
    play(jax.random.key(1), memory=None, ledger=Ledger(path))
    assert Ledger(path).spent(DELTA) == pytest.approx(cost(9, 9, 9))


@pytest.mark.integration
def test_participation_that_noise_was_made_for_is_kept(path):
    """Noise for two participations of twelve rounds: users who had theirs are left out, and releases show it."""
    z = noise_for(1.0, DELTA, rounds=12, participation=2)
    protocol, ledger, budget = steps(z, stretch=1e4), Ledger(path), Budget(1.0, DELTA)
    users, names = people(6), np.array(["anna", "bert", "cleo", "dora", "erik", "fina"])
    taken = np.zeros(6, int)
    for t in range(6):
        there = np.arange(6) != t
        able = there & (taken < 2)
        play = partial(run, jax.random.key(t), protocol, START, None, users[there], 1, budget=budget, ledger=ledger)
        if not able.any():
            with pytest.raises(InputError, match="budget: expected one that pays for a round"):
                play(who=names[there].tolist())
            continue
        told = play(who=names[there].tolist())[2]
        lengths = users[able] / np.linalg.norm(users[able], axis=1, keepdims=True)
        off = np.linalg.norm(np.asarray(told.values("steps")[0] - lengths.sum(0)))
        assert off < 5 * z * np.sqrt(5)
        taken += able
    assert taken.tolist() == [2] * 6
    assert all(ledger.spent(DELTA, str(name)) <= 1.0 + 1e-9 for name in names)


def test_a_run_is_charged_before_it_begins(path, monkeypatch):
    monkeypatch.setattr(aggregator, "_run", lambda *given: pytest.fail("released") if not spends() else 1 / 0)

    def spends():
        return Ledger(path).spent(DELTA)

    with pytest.raises(ZeroDivisionError):
        run(jax.random.key(0), steps(4.0), START, None, people(3), 2, ledger=Ledger(path))
    assert spends() == pytest.approx(cost(4, 4))


def test_several_processes_of_one_run_would_charge_it_each(path, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(InputError, match="ledger: expected a run of one process, which charges it once, got 2"):
        run(jax.random.key(0), steps(4.0), START, None, people(3), 2, ledger=Ledger(path))
    assert Ledger(path).spent(DELTA) == 0


def test_shipped_protocols_are_charged_where_somebody_answers_for_them(path):
    bucket, ledger, z = batch(honest(4, seed=0), 4), Ledger(path), 6.0
    start, budget = model(seed=0), Budget(cost(z, z) * (1 + 1e-9), DELTA)
    play = partial(run, protocol=counted(items=ITEMS, noise_multiplier=z), state=start, users=(bucket,), budget=budget)
    told = play(jax.random.key(0), memory=memoryless(), rounds=1, ledger=ledger, trusted=True)[2]
    assert ledger.spent(DELTA) == pytest.approx(told.epsilon(DELTA)) == pytest.approx(cost(z))
    play(jax.random.key(1), memory=memoryless(), rounds=5, ledger=ledger, trusted=True)
    assert ledger.spent(DELTA) == pytest.approx(cost(z, z))
    with pytest.raises(InputError, match=r"pays for a round, of epsilon .* beside what users have spent, got Budget"):
        play(jax.random.key(2), memory=memoryless(), rounds=1, ledger=ledger, trusted=True)
    with pytest.raises(InputError, match=r"devices: expected what protocol.each makes, where users are counted or"):
        play(jax.random.key(2), memory=memoryless(), rounds=1, who=list("abcd"), ledger=ledger, trusted=True)


@pytest.mark.integration
def test_a_file_cut_anywhere_has_charged_all_that_was_acknowledged(path, tmp_path):
    """What a kill can leave of the last line; the lines before were on the disk when their runs began."""
    ledger, ends = Ledger(path), [path.stat().st_size]
    for number in range(3):
        charged(ledger, str(number), 1, (A, 0), who=["anna", number])
        ends.append(path.stat().st_size)
    content = path.read_bytes()
    for cut in range(len(content) + 1):
        left = tmp_path / "left.jsonl"
        left.write_bytes(content[:cut])
        lines = sum(cut >= end for end in ends) - 1
        found = Ledger(left)
        assert found.spent(DELTA, "anna") == pytest.approx(cost(*[4.0] * max(lines, 0)))
        if cut in (0, 5, ends[0] + 3, ends[2] - 1, ends[3]):
            charged(found, "new", 1, (A, 0), who=["anna"])
            assert Ledger(left).spent(DELTA, "anna") == pytest.approx(cost(*[4.0] * (max(lines, 0) + 1)))


def test_a_ledger_that_cannot_be_written_is_one_line_and_charges_nothing_less(path, tmp_path, monkeypatch):
    for wrong in (tmp_path / "no" / "ledger.jsonl", tmp_path):
        with pytest.raises(InputError, match=r"^ledger: expected a file that can be read and written, got "):
            Ledger(wrong)
    ledger = Ledger(path)
    charged(ledger, "1", 1, (A, 0), who=["anna"])
    write = os.write

    def full(descriptor, line):
        return write(descriptor, line[:20])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(InputError, match=r"^ledger: expected .*, got 20 of \d+ bytes were written: "):
        charged(ledger, "2", 1, (A, 0), who=["anna"])
    monkeypatch.setattr(os, "write", write)
    for found in (ledger, Ledger(path)):
        assert found.spent(DELTA, "anna") == pytest.approx(cost(4.0))


def test_a_ledger_that_was_changed_is_refused(path, tmp_path):
    ledger = Ledger(path)
    charged(ledger, "1", 1, (A, 0), who=["anna"])
    charged(ledger, "2", 1, (A, 0), who=["anna"])
    content, other = path.read_bytes(), tmp_path / "other.jsonl"
    lines = content.splitlines(keepends=True)
    for place in range(0, len(content), 7):
        other.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            assert Ledger(other).spent(DELTA, "anna") == pytest.approx(cost(4, 4))
        except InputError as error:
            assert str(error).startswith("ledger: expected a file ")  # noqa: PT017
            assert len(str(error).splitlines()) == 1  # noqa: PT017
        else:
            pytest.fail("a change went unnoticed")
    for wrong in (lines[0] + lines[2], lines[0] + lines[2] + lines[1], lines[1], b"name,age\nanna,7", b"anna"):
        other.write_bytes(wrong)
        with pytest.raises(InputError, match="ledger: expected a file "):
            Ledger(other)
        assert other.read_bytes() == wrong
    os.truncate(path, 80)
    with pytest.raises(InputError, match=r"ledger: expected a file of \d+ bytes or more, as it was, got 80 bytes"):
        ledger.spent(DELTA)


def test_two_processes_share_a_ledger(path):
    """Each sees what the other has charged before it decides."""
    one, other, budget = Ledger(path), Ledger(path), Budget(cost(*[4.0] * 3), DELTA)
    assert charged(one, "1", 2, (A, 0), budget=budget, who=["anna"]).rounds == 2
    assert charged(other, "2", 2, (A, 0), budget=budget, who=["anna"]).rounds == 1
    assert charged(one, "3", 1, (A, 0), budget=budget, who=["anna"]).rounds == 0
    assert one.spent(DELTA) == other.spent(DELTA) == pytest.approx(budget.epsilon)


PROGRAM = """
import sys
from dpaudit.personalization.boundary.ledger import Ledger, Stream
from dpaudit.personalization.boundary.processes import gaussian
ledger, a = Ledger(sys.argv[1]), gaussian("a", noise_multiplier=100.0)
for number in range(100_000):
    ledger.charge(f"{number}", [Stream(a, 0)], 1, who=["anna"])
    print("released", flush=True)  # as a run would now
"""


@pytest.mark.integration
def test_a_kill_leaves_nothing_uncharged(path):
    """A process that is killed while it charges: each release it made is in the ledger, and one more at most."""
    playing = subprocess.Popen([sys.executable, "-c", PROGRAM, str(path)], stdout=subprocess.PIPE)
    assert playing.stdout is not None
    made = [playing.stdout.readline() for _ in range(30)]
    playing.send_signal(signal.SIGKILL)
    made += playing.stdout.readlines()
    assert playing.wait() == -signal.SIGKILL
    kept = shutil.copy(path, path.with_name("kept.jsonl"))
    charges = len(Ledger(kept)._runs)
    assert charges - made.count(b"released\n") in (0, 1)
    assert Ledger(path).spent(DELTA, "anna") == pytest.approx(cost(*[100.0] * charges))


@pytest.mark.parametrize(
    "who, message",
    [
        (["anna", "anna"], "who: expected every user once, got 'anna' 2 times"),
        ([7, "7"], "who: expected every user once, got '7' 2 times"),
        ([1.5], "who: expected users' names, whole numbers or text, got 1.5"),
    ],
)
def test_names_that_are_none_are_refused(path, who, message):
    with pytest.raises(InputError, match=message):
        charged(Ledger(path), "1", 1, (A, 0), who=who)
    assert Ledger(path).spent(DELTA) == 0


@pytest.mark.integration
@pytest.mark.parametrize("every", [40, pytest.param(7, marks=pytest.mark.integration)])
def test_a_kill_before_any_instruction_charges_too_much_and_never_too_little(tmp_path, every):
    """A real process, SIGKILL: what was released is charged, at most one run more is, and the file can be used."""
    program = [sys.executable, "-W", "ignore", "-m", "tests.personalization.killed"]
    command = [*program, str(tmp_path / "kept"), str(every)]
    (tmp_path / "kept").mkdir()
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = [json.loads(line) for line in told.splitlines()]
    assert len(found) > 500 // every
    for number, released, charged, after in found:
        assert released <= charged <= released + 1, f"instruction {number}"
        assert after == charged + 1, f"instruction {number}"
    assert {(released, charged) for _, released, charged, _ in found} == {(0, 0), (0, 1), (1, 1), (1, 2), (2, 2)}
