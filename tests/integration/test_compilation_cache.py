"""What a command has compiled is not compiled again: at its next start, for other numbers, for other seeds."""

import json
import os
from pathlib import Path
from typing import Any

import jax
import pytest

from dpaudit.cli import command
from tests.integration.test_cli import run
from tests.integration.together import ended, start

LDP = "ldp --craft dummy --trials 400 --repeats 2 --json"
COUNTED = """
import collections, sys
import jax
from dpaudit.cli.main import main

seen = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **_: seen.update([event.rpartition("/")[2]]))
sys.argv = ["dpaudit", *sys.argv[1:]]
main()
print("\\n", seen["cache_hits"], seen["cache_misses"])
"""


def compiled(folder: Path, line: str) -> tuple[int, int]:
    """(programs found in the cache, programs compiled) of a command with a cache folder of its own."""
    variables = {"XDG_CACHE_HOME": str(folder)}
    unset = "import os\nfor name in list(os.environ):\n    name.startswith('JAX_') and os.environ.pop(name)\n"
    ((status, out, said),) = ended(start(unset + COUNTED, *line.split(), folder=folder, variables=variables))
    assert status == 0, said
    hits, misses = out.splitlines()[-1].split()
    return int(hits), int(misses)


def test_the_second_start_compiles_nothing(tmp_path):
    _, misses = compiled(tmp_path, f"{LDP} --epsilon 1")
    assert misses > 10
    kept = sorted(os.listdir(tmp_path / "dpaudit"))
    assert len(kept) >= misses
    hits, again = compiled(tmp_path, f"{LDP} --epsilon 3 --seed 5")
    assert (hits, again) == (misses, 0)
    assert sorted(name for name in os.listdir(tmp_path / "dpaudit") if name in kept) == kept


def test_other_numbers_are_no_other_program(monkeypatch, capsys):
    """One compilation for a configuration: other losses and other seeds are data."""
    assert run(monkeypatch, *LDP.split(), "--epsilon", "1", "2") == 0
    count = 0

    def counted(event: str, *_, **__) -> None:
        nonlocal count
        count += event == "/jax/core/compile/backend_compile_duration"

    jax.monitoring.register_event_duration_secs_listener(counted)
    capsys.readouterr()
    assert run(monkeypatch, *LDP.split(), "--epsilon", "0.5", "4", "--seed", "3") == 0
    assert [row["epsilon"] for row in json.loads(capsys.readouterr().out)] == [0.5, 4.0]
    assert count == 0
    jax.jit(lambda x: x * 3.25 + 1.75)(1.0)
    assert count == 1  # the listener does hear of one


def cache_dir() -> str | None:
    config: Any = jax.config
    return config.jax_compilation_cache_dir


@pytest.mark.parametrize("named", [None, "elsewhere"])
def test_where_programs_are_kept(monkeypatch, tmp_path, named):
    before = cache_dir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    if named is not None:
        monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", named)
    try:
        command.keep_compiled()
        assert cache_dir() == (str(tmp_path / "dpaudit") if named is None else before)
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_a_folder_that_cannot_be_written_is_no_error(monkeypatch, tmp_path):
    before = cache_dir()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    command.keep_compiled()
    assert cache_dir() == before


def test_importing_the_library_keeps_nothing(tmp_path):
    code = "import dpaudit, jax, os\nassert jax.config.jax_compilation_cache_dir is None\nassert not os.listdir('.')"
    unset = "import os\nos.environ.pop('JAX_COMPILATION_CACHE_DIR')\n"
    ((status, _, said),) = ended(start(unset + code, folder=tmp_path, variables={"XDG_CACHE_HOME": str(tmp_path)}))
    assert status == 0, said


def test_a_user_without_a_home_keeps_no_programs(monkeypatch):
    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    before = cache_dir()
    for name in ("XDG_CACHE_HOME", "JAX_COMPILATION_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(command.Path, "home", nowhere)
    command.keep_compiled()
    assert cache_dir() == before
