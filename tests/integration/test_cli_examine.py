"""``dpaudit examine FILE:NAME``: statuses, the table, the row and the page."""

import html
import json
import sys

import pytest

from tests.integration.test_cli import run

FILE = """
import jax, jax.numpy as jnp
import dpaudit

claim = dpaudit.Claim(1.0)
domain = dpaudit.domain.records(dpaudit.domain.box((), 0.0, 1.0), 3)

def noisy_sum(key, x):
    return jnp.sum(x) + jax.random.laplace(key)

def half_noise(key, x):
    return jnp.sum(x) + jax.random.laplace(key) / 2

def leaves(rng, x):
    raise SystemExit(0)

host_leaves = dpaudit.Case(dpaudit.on_host(leaves), 0, 1, claim)
pair = dpaudit.Case(noisy_sum, jnp.zeros(3), jnp.ones(3) / 3, claim)
large = pair._replace(claim=dpaudit.Claim(50.0))
"""


@pytest.fixture
def file(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [*sys.path])  # loading a file adds its folder
    (tmp_path / "mine.py").write_text(FILE)
    return tmp_path / "mine.py"


def test_a_broken_promise_is_told_on_the_screen_in_a_row_and_on_a_page(monkeypatch, capsys, tmp_path, file):
    out = tmp_path / "out"
    assert run(monkeypatch, "examine", f"{file}:half_noise", "--seconds", "4", "--out", str(out)) == 1
    assert "The promise of 1 is broken" in capsys.readouterr().out
    (row,) = json.loads((out / "results.json").read_text())
    assert (row["verdict"], row["claim_epsilon"]) == ("violation", 1.0)
    page = (out / "report.html").read_text()
    assert "<h1>The promise is broken</h1>" in page
    assert page.count("<svg") == 2
    assert all(step["name"] in page for step in row["steps"])


def test_a_pair_alone_can_be_examined(monkeypatch, capsys, file):
    assert run(monkeypatch, "examine", f"{file}:pair", "--seconds", "2", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["verdict"] == "consistent"


def test_a_promise_that_no_number_of_trials_could_have_broken(monkeypatch, capsys, tmp_path, file):
    out = tmp_path / "out"
    assert run(monkeypatch, "examine", f"{file}:large", "--seconds", "2", "--json", "--out", str(out)) == 3
    (row,) = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert [one["detectable"] for one in row["with_more"]] == ["inf", "inf"]
    page = html.unescape((out / "report.html").read_text())
    assert "would have shown no loss, however large" in page
    assert page.count(row["reason"]) == 1


def test_mistakes_are_one_line(monkeypatch, capsys, file):
    assert run(monkeypatch, "examine", f"{file}:pair", "--seconds", "-1") == 2
    assert "--seconds: expected a number above 0" in capsys.readouterr().err
    assert run(monkeypatch, "examine", f"{file}:host_leaves", "--seconds", "2") == 2
    assert "expected a release in every trial, got SystemExit: 0 (raised by leaves)" in capsys.readouterr().err
