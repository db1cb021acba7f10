"""Standard output holds the results of a command alone, whatever the audited file prints and wherever it does."""

import json

import pytest

from tests.integration import together
from tests.integration.test_cli import run

FILE = """
import os, subprocess, jax, jax.numpy as jnp, numpy as np, dpaudit

print("loaded")
os.write(1, b"written\\n")
subprocess.run(["echo", "started"])
claim = dpaudit.Claim(1.0)

def traced(key, x):
    print("traced")
    jax.debug.print("played")
    return x + jax.random.laplace(key)

def played(rng, x):
    print("played")
    return x + rng.laplace()

def silent(key, x):
    return x + jax.random.laplace(key)

x0, x1 = jnp.float32(0), jnp.float32(1)
host = dpaudit.Case(dpaudit.on_host(played), 0.0, 1.0, claim)
"""
LINES = (
    "audit {}:traced --trials 2000",
    "audit {}:host --trials 200",
    "plan {}:traced --rate 100 --trials 1000",
    "examine {}:traced --seconds 1",
)


@pytest.mark.parametrize("line", LINES)
def test_rows_can_be_parsed_although_the_file_prints(monkeypatch, capsys, tmp_path, line):
    (tmp_path / "mine.py").write_text(FILE)
    assert run(monkeypatch, *line.format(tmp_path / "mine.py").split(), "--json") in (0, 3)
    printed = capsys.readouterr()
    assert json.loads(printed.out)
    assert "loaded\n" in printed.err
    assert ("traced\n" in printed.err) or ("played\n" in printed.err)


def test_what_other_processes_and_system_calls_write_is_kept_apart_too(tmp_path):
    (tmp_path / "mine.py").write_text(FILE)
    ((status, out, err),) = together.ended(
        together.command("audit mine.py:traced --trials 2000 --json", folder=tmp_path)
    )
    assert status == 0
    assert [row["target"] for row in json.loads(out)] == ["mine.py:traced"]
    assert {"loaded", "written", "started", "traced", "played"} <= set(err.splitlines())


def test_a_home_that_cannot_be_written_gives_no_lines_of_matplotlib(tmp_path):
    """Its own two came before the command's, which named the report."""
    for place, home in enumerate(("/dev/null", tmp_path / "home")):
        line = f"audit --counts 5 5 100 100 --out out{place}"
        variables = {"HOME": str(home), "XDG_CONFIG_HOME": "", "XDG_CACHE_HOME": ""}
        ((status, out, err),) = together.ended(together.command(line, folder=tmp_path, variables=variables))
        assert status == 0
        assert "measured" in out
        assert err == f"Report: out{place}/report.html\n"
    assert (tmp_path / "home" / ".cache" / "matplotlib").is_dir()


def test_a_table_is_printed_where_results_are(monkeypatch, capsys, tmp_path):
    (tmp_path / "mine.py").write_text(FILE)
    assert run(monkeypatch, "audit", f"{tmp_path / 'mine.py'}:silent", "--trials", "2000") == 0
    printed = capsys.readouterr()
    assert "consistent" in printed.out
    assert printed.err == "loaded\n"
