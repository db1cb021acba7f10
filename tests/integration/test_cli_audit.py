"""``dpaudit audit FILE:NAME``: the four statuses, what is printed and written, and one line for every mistake."""

import json
import sys
import types

import pytest

from dpaudit import AuditResult, Case, Claim, InputError, Mechanism
from dpaudit.cli import audit, main
from tests.integration.test_cli import run

FILE = """
import jax, jax.numpy as jnp, numpy as np
import dpaudit
from neighbour import STRENGTH

x0, x1 = jnp.zeros(3), jnp.array([0.0, STRENGTH, 0.0])
claim = dpaudit.Claim(1.0, neighbouring="add_remove")

def noisy_sum(key, x):
    return jnp.sum(x) + jax.random.laplace(key)

def half_noise(key, x):
    return jnp.sum(x) + jax.random.laplace(key) / 2

def raises(key, x):
    raise RuntimeError("out of luck")

def no_density(release, x):
    raise RuntimeError("not written")

def leaves(key, x):
    raise SystemExit(0)

class Panic(BaseException):
    pass

def panics(rng, x):
    raise Panic("!")

number = 5
approximate = dpaudit.Case(noisy_sum, x0, x1, dpaudit.Claim(1.0, 0.05, neighbouring="add_remove"))
curve = dpaudit.Case(noisy_sum, x0, x1, dpaudit.Claim.gaussian(1.0, neighbouring="add_remove"))
host_leaves = dpaudit.Case(dpaudit.on_host(leaves), 0, 1, claim)
host_panics = dpaudit.Case(dpaudit.on_host(panics), 0, 1, claim)
unclaimed = dpaudit.Case(half_noise, x0, x1)
hopeless = dpaudit.Case(noisy_sum, x0, x1, dpaudit.Claim(30.0))
other_pair = dpaudit.Case(noisy_sum, x0, 3 * x1, claim)
own_claim = dpaudit.Case(dpaudit.Mechanism(half_noise, dpaudit.Claim(1.5)), x0, x1)
on_host = dpaudit.Case(dpaudit.on_host(lambda rng, x: x.sum() + rng.laplace()), np.zeros(3), np.eye(3)[1], claim)
blind = dpaudit.Case(lambda key, x: 0 * x, x0, x1, claim)
broken_density = dpaudit.Case(dpaudit.Mechanism(noisy_sum, claim, no_density), x0, x1)
"""


@pytest.fixture
def file(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [*sys.path])  # loading a file adds its folder
    (tmp_path / "neighbour.py").write_text("STRENGTH = 1.0\n")
    (tmp_path / "mine.py").write_text(FILE)
    return tmp_path / "mine.py"


@pytest.mark.parametrize(
    "name, status, verdict",
    [
        ("noisy_sum", 0, "consistent"),
        ("on_host", 0, "consistent"),
        ("unclaimed", 0, "measured"),
        ("half_noise", 1, "violation"),
        ("other_pair", 1, "violation"),
        ("own_claim", 1, "violation"),
        ("hopeless", 3, "underpowered"),
    ],
)
def test_the_status_is_the_verdict(monkeypatch, capsys, file, name, status, verdict):
    assert run(monkeypatch, "audit", f"{file}:{name}", "--trials", "8000") == status
    printed = capsys.readouterr()
    assert f" verdict         {verdict} " in printed.out
    assert "(with confidence 95%, of the mechanism)" in printed.out
    assert printed.err == ""


def test_the_table_names_the_relation_and_what_is_detectable(monkeypatch, capsys, file):
    assert run(monkeypatch, "audit", f"{file}:noisy_sum") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "neighbours add_remove: one record is present or absent" in printed
    assert "or more would have been called a violation with probability 0.8, by this attack" in printed


def test_an_attack_that_saw_nothing_says_so_everywhere(monkeypatch, capsys, file, tmp_path):
    reason = "all scores are equal: this attack saw nothing"
    assert run(monkeypatch, "audit", f"{file}:blind", "--out", str(tmp_path / "out")) == 3
    assert f"reason {reason}" in " ".join(capsys.readouterr().out.split())
    (row,) = json.loads((tmp_path / "out" / "results.json").read_text())
    assert (row["verdict"], row["reason"]) == ("underpowered", reason)
    assert reason in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_options_reach_the_audit_and_the_row_is_written(monkeypatch, capsys, file, tmp_path):
    out = tmp_path / "out"
    options = ("--delta", "0.01", "--confidence", "0.99", "--distinguisher", "learned", "--seed", "4", "--json")
    command = ("audit", f"{file}:half_noise", "--trials", "8000", "--out", str(out), *options)
    assert run(monkeypatch, *command) == 1
    (row,) = json.loads(capsys.readouterr().out)
    assert [row] == json.loads((out / "results.json").read_text())
    assert "<h1>The promise is broken</h1>" in (out / "report.html").read_text(encoding="utf-8")
    assert (row["delta"], row["confidence"], row["seed"], row["trials"]) == (0.01, 0.99, 4, 8000)
    assert row["method"].startswith("learned")
    assert row["neighbouring"] == "add_remove"
    assert row["target"] == f"{file}:half_noise"
    assert AuditResult.from_json(json.dumps(row)).verdict == "violation"
    assert run(monkeypatch, *command) == 2  # what lies there is kept
    assert "--force" in capsys.readouterr().err
    assert run(monkeypatch, *command, "--force") == 1


def test_it_stops_at_a_certain_violation(monkeypatch, capsys, file):
    command = ("audit", f"{file}:half_noise", "--trials", "200000", "--until-violation", "--json")
    assert run(monkeypatch, *command) == 1
    (row,) = json.loads(capsys.readouterr().out)
    assert row["trials"] < 20_000
    assert "stopped early" in row["method"]


WRONG = [
    ("mine.py", (), "target: expected FILE:NAME, as in my_mechanism.py:noisy_sum, got "),
    ("absent.py:fn", (), "target: expected the path of a Python file before the colon, got "),
    ("mine.py:absent", (), "mine.py: expected a case or mechanism named absent, got no such name"),
    ("mine.py:number", (), "mine.py: number: expected a Case, a Mechanism or a function of (key, x), got 5"),
    ("mine.py:raises", (), "mechanism: expected a release of x0, got RuntimeError: out of luck (raised by raises)"),
    (
        "mine.py:broken_density",
        (),
        "mine.py:broken_density: expected a mechanism that runs in every trial, got RuntimeError: not",
    ),
    ("mine.py:leaves", (), "mechanism: expected a release of x0, got SystemExit: 0 (raised by leaves)"),
    ("mine.py:host_leaves", (), "mechanism: expected a release in every trial, got SystemExit: 0 (raised by leaves)"),
    ("mine.py:host_panics", (), "mine.py:host_panics: expected a mechanism that runs in every trial, got Panic: !"),
    ("mine.py:noisy_sum", ("--seed", str(2**64)), f"--seed: expected a whole number of 64 bits, got {2**64}"),
    ("mine.py:noisy_sum", ("--time-limit", "5"), "--time-limit: expected none with FILE:NAME, got 5.0"),
    ("mine.py:noisy_sum", ("--checkpoint", ".", "--resume"), "--checkpoint: expected a file, got the folder ."),
    ("mine.py:curve", ("--epsilon", "1"), "--delta: expected that of the claim --epsilon, as the file's own claim"),
    ("mine.py:unclaimed", ("--until-violation",), "claim: expected the promise that until=violation() is to refute"),
    (
        "mine.py:noisy_sum",
        ("--distinguisher", "magic"),
        "--distinguisher: expected one of default, cosine, ",
    ),
    ("mine.py:noisy_sum", ("--trials", "0"), "--trials: expected a whole number >= 2, got 0"),
    ("mine.py:noisy_sum", ("--confidence", "1"), "--confidence: expected a number in (0, 1), got 1.0"),
    ("lonely.py:fn", (), "lonely.py: expected x0 and x1 beside fn, got no x0 and no x1"),
    ("typo.py:fn", (), "typo.py: expected a file that runs, got SyntaxError: "),
    (
        "rude.py:fn",
        (),
        "rude.py: expected a file that runs, got ModuleNotFoundError: No module named 'no_such_module'",
    ),
    ("exits.py:fn", (), "exits.py: expected a file that runs, got SystemExit: 0"),
    (
        "claims.py:fn",
        (),
        "claims.py: expected a file that runs, got InputError: epsilon: expected a finite number > 0",
    ),
    ("notes.txt:fn", (), "target: expected a Python file, named *.py, before the colon, got "),
]


@pytest.mark.parametrize("target, more, message", WRONG, ids=[f"{name} {' '.join(more)}" for name, more, _ in WRONG])
def test_a_mistake_is_one_line(monkeypatch, capsys, file, target, more, message):
    for name, text in {
        "lonely": "def fn(key, x):\n    return x\n",
        "typo": "def fn(key, x) return x\n",
        "rude": "import no_such_module\n",
        "exits": "import sys\nsys.exit(0)\n",
        "claims": "import dpaudit\nclaim = dpaudit.Claim(-1.0)\n",
    }.items():
        (file.parent / f"{name}.py").write_text(text)
    (file.parent / "notes.txt").write_text("nothing")
    monkeypatch.chdir(file.parent)
    assert run(monkeypatch, "audit", target, *more) == 2
    printed = capsys.readouterr()
    assert printed.err.replace("\\", "/").startswith(f"dpaudit: {message}")
    assert printed.err.count("\n") == 1
    assert printed.out == ""


APPROXIMATE, CURVE = Claim(1.0, 0.05, "add_remove"), Claim.gaussian(1.0, neighbouring="add_remove")


@pytest.mark.parametrize(
    "own, options, wanted",
    [
        (APPROXIMATE, ("--epsilon", "1.5"), Claim(1.5, 0.05, "add_remove")),
        (APPROXIMATE, ("--epsilon", "1.5", "--delta", "0"), Claim(1.5, 0.0, "add_remove")),
        (APPROXIMATE, ("--epsilon", "1.5", "--neighbouring", "replace"), Claim(1.5, 0.05, "replace")),
        (APPROXIMATE, (), APPROXIMATE),
        (CURVE, ("--epsilon", "1.5", "--delta", "0.01"), Claim(1.5, 0.01, "add_remove")),
        (None, ("--epsilon", "1.5", "--delta", "0.01"), Claim(1.5, 0.01)),
        (None, (), None),
    ],
)
def test_epsilon_leaves_the_rest_of_the_file_s_claim(own, options, wanted):
    given = main.parsed(["audit", "mine.py:noisy", *options])
    for case in (Case(print, 0, 1, own), Case(Mechanism(print, own), 0, 1)):
        assert audit.claimed(given, audit.own_claim(case)) == wanted


def test_a_weaker_promise_is_kept_where_a_stronger_one_is(monkeypatch, capsys, file):
    command = ("audit", f"{file}:approximate", "--trials", "8000", "--json")
    for more in ((), ("--epsilon", "1.5")):
        assert run(monkeypatch, *command, *more) == 0
        (row,) = json.loads(capsys.readouterr().out)
        assert (row["claim_delta"], row["delta"], row["neighbouring"]) == (0.05, 0.05, "add_remove")
        assert row["claim_epsilon"] == (1.5 if more else 1.0)


def test_a_plan_takes_the_claim_in_the_same_way(monkeypatch, capsys, file):
    def planned(*_, claim, **more):
        raise InputError(f"planned for {claim}")

    monkeypatch.setitem(sys.modules, "dpaudit.auditing.plan_mechanism", types.SimpleNamespace(plan_mechanism=planned))
    for options, wanted in [
        (("approximate", "--epsilon", "1.5"), Claim(1.5, 0.05, "add_remove")),
        (("approximate", "--delta", "0.01"), Claim(1.0, 0.01, "add_remove")),
        (("approximate",), APPROXIMATE),
        (("curve", "--epsilon", "1.5", "--delta", "0.01"), Claim(1.5, 0.01, "add_remove")),
        (("unclaimed", "--epsilon", "1.5"), Claim(1.5)),
    ]:
        assert run(monkeypatch, "plan", f"{file}:{options[0]}", *options[1:]) == 2
        assert capsys.readouterr().err == f"dpaudit: planned for {wanted}\n"
    assert run(monkeypatch, "plan", f"{file}:curve", "--epsilon", "1") == 2
    assert capsys.readouterr().err.startswith("dpaudit: --delta: expected that of the claim --epsilon, as the file's")


def test_a_plan_ends_with_a_mechanism_that_leaves(monkeypatch, capsys, file):
    for name, wanted in (
        ("leaves", "mechanism: expected a release of x0, got SystemExit: 0 (raised by leaves)"),
        ("host_leaves", "mechanism: expected a release in every trial, got SystemExit: 0 (raised by leaves)"),
    ):
        assert run(monkeypatch, "plan", f"{file}:{name}") == 2
        assert wanted in capsys.readouterr().err
