"""Mechanisms on the host in worker processes: one result for any number of them, and one line for each failure."""

import os
import signal
import subprocess
import sys
import time
from typing import Any

import jax
import numpy as np
import pytest

import dpaudit
from dpaudit import Claim, InputError
from dpaudit.auditing.bounds import sequential
from tests.integration import host_functions as functions
from tests.interrupting import Killed, killed_at
from tests.processes import ROOT, environment

KEY = jax.random.key(27)


def python(*arguments):
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=environment(1), cwd=ROOT, text=True, capture_output=True, timeout=300)


def audited(
    function, x0: Any = 0.0, x1: Any = 1.0, *, trials=4000, setup=None, workers=2, seconds_per_call=60.0, **more
):
    wrapped = dpaudit.on_host(function, workers=workers, setup=setup, seconds_per_call=seconds_per_call)
    return dpaudit.audit(wrapped, x0, x1, key=KEY, trials=trials, claim=Claim(1.0), **more)


@pytest.mark.parametrize(
    "function, pair",
    [(functions.noisy, (0.0, 1.0)), (functions.noisy_at_once, (0.0, 1.0)), (functions.some, ("abcd", "abcde"))],
)
def test_the_result_does_not_depend_on_the_workers(function, pair):
    found = [audited(function, *pair, workers=workers, trials=20_000) for workers in (0, 1, 2)]
    assert found[0] == found[1] == found[2]
    assert found[0].reproducible


def test_an_interrupted_audit_goes_on_with_other_workers(tmp_path):
    file, pair = tmp_path / "audit.npz", ("abcd", "abcde")
    whole = audited(functions.some, *pair, workers=0)
    with pytest.raises(Killed):
        audited(functions.some, *pair, batch=256, checkpoint=file, progress=killed_at(1500))
    assert audited(functions.some, *pair, workers=1, checkpoint=file) == whole


def test_an_audit_that_may_stop_is_the_same_too():
    settings = {"until": sequential.violation(), "trials": 20_000}
    found = [audited(functions.by_state, setup=functions.set_up, workers=workers, **settings) for workers in (1, 2)]
    assert found[0] == found[1]
    assert found[0].verdict == "violation"
    assert found[0].trials < 20_000


@pytest.mark.parametrize(
    "function, setup", [(functions.of_one_seed, None), (functions.of_seeded_set_up, functions.seeded_set_up)]
)
def test_workers_that_would_draw_the_same_noise_are_refused(function, setup):
    same_noise = r"^workers: expected 1 or None .* got 2, which would all draw the same noise$"
    with pytest.raises(InputError, match=same_noise):
        audited(function, setup=setup)
    assert not audited(function, setup=setup, workers=1).reproducible


def test_setup_runs_in_each_worker_with_one_thread():
    assert audited(functions.by_state, setup=functions.set_up).verdict == "violation"


def test_what_workers_print_is_no_result(capfd):
    assert audited(functions.prints, trials=400).trials == 400
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.count("a line") >= 400


def test_randomness_of_the_system_is_told():
    found = audited(functions.of_the_system)
    assert not found.reproducible
    assert found.verdict == "consistent"


def test_wide_releases_arrive_whole():
    pair = np.zeros(2000), np.ones(2000) / 20
    one, other = (audited(functions.wide, *pair, trials=1000, workers=workers) for workers in (1, 0))
    assert one == other


@pytest.mark.parametrize(
    "function, more, message",
    [
        (functions.dies, {}, r"^mechanism: .* every trial, got a worker that died with status 7 \(raised by dies\)$"),
        (
            functions.hangs,
            {"seconds_per_call": 2.0},
            r"^mechanism: .* got none in 2 s, the limit of seconds_per_call ",
        ),
        (functions.raises, {}, r"^mechanism: .* every trial, got ValueError: no luck \(raised by raises\)$"),
        (functions.leaves, {}, r"^mechanism: .* every trial, got SystemExit: \(raised by leaves\)$"),
        (functions.noisy, {"setup": sys.exit}, r"^workers: .* got SystemExit:$"),
        (
            functions.drops_a_row,
            {"x0": [0], "x1": [0, 1]},
            r"got drops_a_row, which changes it$",
        ),
        (lambda rng, x: x, {}, r"^workers: expected None for a function, inputs or a setup that cannot be pickled "),
        (functions.noisy, {"setup": functions.no_setup}, r"^workers: .* got RuntimeError: no such table$"),
    ],
)
def test_failures_are_one_line(function, more, message):
    began = time.perf_counter()
    with pytest.raises(InputError, match=message) as raised:
        audited(function, **more)
    assert "\n" not in str(raised.value)
    assert time.perf_counter() - began < 60


def test_a_worker_that_dies_is_replaced_and_nothing_is_lost(tmp_path):
    pair = [(str(tmp_path / "died"), number) for number in (0.0, 1.0)]
    found = audited(functions.dies_once, *pair)
    assert (tmp_path / "died").exists()
    assert found == audited(functions.dies_once, *pair, workers=0)  # the file is there: it dies no more


def test_what_was_played_before_a_failure_is_kept(tmp_path):
    file, played = tmp_path / "audit.npz", []
    with pytest.raises(InputError, match="none in 2 s"):
        audited(functions.hangs, seconds_per_call=2.0, batch=32, checkpoint=file, progress=played.append)
    again = []
    with pytest.raises(InputError, match="none in 2 s"):
        audited(functions.hangs, seconds_per_call=2.0, batch=32, checkpoint=file, progress=again.append)
    assert again[:1] == played[-1:]


def test_a_script_without_a_guard_is_told_so(tmp_path):
    """Each worker imports the script, which would start workers again."""
    script = tmp_path / "script.py"
    script.write_text(
        "import jax, dpaudit\n"
        "def noisy(rng, x):\n    return x + rng.laplace()\n"
        "dpaudit.audit(dpaudit.on_host(noisy, workers=1), 0.0, 1.0, key=jax.random.key(0), trials=400)\n"
    )
    ended = python(script)
    assert ended.returncode == 1
    assert "must keep its calls under if __name__ == '__main__'" in ended.stderr.splitlines()[-1]


def test_an_interruption_ends_a_setup_that_hangs_and_its_processes(tmp_path):
    """No limit of time holds for a setup. The terminal interrupts the workers, too."""
    script = tmp_path / "script.py"
    script.write_text(
        "import jax, dpaudit\nfrom tests.integration.host_functions import endless_set_up, noisy\n"
        "if __name__ == '__main__':\n    noisy = dpaudit.on_host(noisy, workers=2, setup=endless_set_up)\n"
        "    dpaudit.audit(noisy, 0.0, 1.0, key=jax.random.key(0), trials=400)\n"
    )
    command, pipe = [sys.executable, str(script)], subprocess.PIPE
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # of tests in the background it is ignored
    try:
        audit = subprocess.Popen(command, env=environment(1), cwd=ROOT, stderr=pipe, start_new_session=True)
    finally:
        signal.signal(signal.SIGINT, before)
    with audit:
        assert audit.stderr is not None
        workers = [int(audit.stderr.readline().split()[1]) for _ in range(2)]
        os.killpg(audit.pid, signal.SIGINT)
        *_, last = audit.communicate(timeout=60)[1].splitlines()
    assert (audit.returncode, last) == (-signal.SIGINT, b"KeyboardInterrupt")
    for worker in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)


def test_workers_load_no_jax():
    ended = python("-c", "import sys, dpaudit.auditing.host.worker; print('jax' in sys.modules)")
    assert ended.stdout.strip() == "False"
