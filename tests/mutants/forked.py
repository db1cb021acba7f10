"""Runs tests in a fork of a process that holds the libraries already: half of a short test's time is imports."""

import contextlib
import importlib
import os
import signal
import sys
import time
import types
import warnings
from collections.abc import Sequence
from pathlib import Path

OWN = ("dpaudit", "experiments", "tests")  # what every run loads anew, from its folder
LIBRARIES = (
    *("pytest", "hypothesis", "jax.numpy", "optax", "flax.linen", "scipy.stats", "sklearn", "matplotlib.pyplot"),
    *("dp_accounting.pld", "dp_accounting.rdp", "jax_privacy.matrix_factorization.toeplitz", "orbax.checkpoint"),
)


def load() -> None:
    """Imports what tests use; JAX opens no device before a test does, so that forks are safe."""
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
    os.environ.setdefault("MPLBACKEND", "Agg")
    for name in LIBRARIES:
        importlib.import_module(name)


def run(tests: Sequence[str], folder: Path, seconds: float) -> int | None:
    """pytest's exit status, negative where a signal ended it, or None where it was ended after ``seconds``.

    Args:
      tests: files or tests, from ``folder``.
      folder: the root of the tree whose modules are tested.
      seconds: how long it may take.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of JAX, about forks
        child = os.fork()
    if child == 0:
        try:
            os._exit(_pytest(tests, folder))
        finally:
            os._exit(70)
    try:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.05)
        return None
    finally:  # nothing that the tests started stays
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)


def _pytest(tests: Sequence[str], folder: Path) -> int:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    here = os.getcwd()
    os.chdir(folder)
    os.environ["PYTHONPATH"] = str(folder)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    sys.path[:] = [str(folder), *(path for path in sys.path if os.path.abspath(path) != here)]
    for name in [name for name in sys.modules if name.partition(".")[0] in OWN]:
        del sys.modules[name]
    sys.modules["__main__"] = types.ModuleType("__main__")
    importlib.invalidate_caches()
    return int(
        sys.modules["pytest"].main(["-q", "-x", "-m", "not slow", "-p", "no:cacheprovider", "--tb=line", *tests])
    )
