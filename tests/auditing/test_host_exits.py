"""Functions that exit: an error that names them, with what was played before it kept."""

import itertools
import sys

import jax
import numpy as np
import pytest

import dpaudit
from dpaudit import _validate

KEY = jax.random.key(0)
ZERO, ONE = np.zeros(3), np.array([1.0, 0.0, 0.0])


def noisy(rng, x):
    return x + rng.laplace(size=3)


def interrupted(rng, x):
    raise KeyboardInterrupt


def test_an_exit_is_named_wherever_the_user_s_code_calls_it():
    """SystemExit would end the caller without a word, with status 0; an interruption stays one."""
    leaves = dpaudit.on_host(lambda rng, x: sys.exit())
    for call in (lambda: leaves(KEY, 0.0), lambda: dpaudit.audit(leaves, 0.0, 1.0, key=KEY, trials=2000)):
        with pytest.raises(_validate.InputError, match=r"got SystemExit: \(raised by <lambda>\)$"):
            call()
    for noise in (dpaudit.on_host(noisy, setup=sys.exit), dpaudit.on_host(noisy, features=lambda _: sys.exit())):
        with pytest.raises(_validate.InputError, match=r"got SystemExit: \(raised by noisy\)$"):
            dpaudit.audit(noise, ZERO, ONE, key=KEY, trials=2000)
    for call in (lambda stops: stops(KEY, 0.0), lambda stops: dpaudit.audit(stops, 0.0, 1.0, key=KEY, trials=2000)):
        with pytest.raises(KeyboardInterrupt):
            call(dpaudit.on_host(interrupted))


def test_what_was_played_before_an_exit_is_kept(tmp_path):
    calls, played, file = itertools.count(), [], tmp_path / "audit.npz"

    def exits_late(rng, x):
        if next(calls) == 3000:
            sys.exit("enough")
        return x + rng.normal()

    settings = {"trials": 4000, "batch": 32, "checkpoint": file, "progress": played.append}
    with pytest.raises(_validate.InputError, match=r"got SystemExit: enough \(raised by exits_late\)$"):
        dpaudit.audit(dpaudit.on_host(exits_late), 0.0, 1.0, key=KEY, **settings)
    assert 0 < played[-1] < 4000
    assert file.exists()


def test_an_exit_while_jax_traces_is_named():
    def leaves(key, x):
        sys.exit(3)

    for audits in (dpaudit.audit, dpaudit.inspect):
        with pytest.raises(_validate.InputError, match=r"^mechanism: expected .* got SystemExit: 3"):
            audits(leaves, ZERO, ONE, **({"key": KEY, "trials": 2000} if audits is dpaudit.audit else {}))
