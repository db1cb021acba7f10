"""The mutants fit the code: each matches its module once, still compiles, and names tests that exist."""

import ast
import re
from collections import Counter

import pytest

from tests.mutants.faults import MUTANTS, room
from tests.mutants.mutant import ROOT, Mutant

ROOMS = [
    "_engine",
    "auditing",
    "audits",
    "cli",
    "data",
    "federated",
    "kernels",
    "mechanisms",
    "personalization",
    "report",
    "secure",
    "training",
]
ROOMS += ["top"]  # what lies in no room


def test_no_mutant_is_stale():
    stale = []
    for mutant in MUTANTS:
        try:
            changed = mutant.applied()
            ast.parse(changed)
        except (ValueError, SyntaxError) as error:
            stale.append(f"{error}: {mutant.file}: {mutant.old}")
            continue
        assert changed != (ROOT / mutant.file).read_text(), mutant
    assert not stale, "\n".join(stale)


def test_a_mutant_whose_text_is_gone_or_there_twice_is_stale(tmp_path):
    (tmp_path / "one.py").write_text("a = 1\nb = 1\n")
    assert Mutant("one.py", "a = 1", "a = 2", ()).applied(tmp_path) == "a = 2\nb = 1\n"
    for file, old in (("one.py", "= 1"), ("one.py", "c"), ("two.py", "a")):
        with pytest.raises(ValueError, match=r"expected its text once, found it [02] times"):
            Mutant(file, old, "", ()).applied(tmp_path)


def test_all_rooms_have_mutants_and_every_one_has_tests_that_exist():
    assert len(MUTANTS) >= 150
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert {*map(room, MUTANTS)} == set(ROOMS)
    assert min(Counter(map(room, MUTANTS)).values()) >= 5
    for mutant in MUTANTS:
        assert mutant.tests
        for test in mutant.tests:
            file, _, name = test.partition("::")
            assert not name or re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE), test
            assert (ROOT / file).exists(), test


def test_a_result_holds_when_words_change_and_not_when_the_program_or_its_tests_do(tmp_path):
    module, tests = tmp_path / "one.py", tmp_path / "test_one.py"
    mutant = Mutant("one.py", "a = 1", "a = 2", ("test_one.py::test_a",))

    def fingerprint(code: str, test: str) -> str:
        module.write_text(code)
        tests.write_text(test)
        return mutant.fingerprint(tmp_path)

    first = fingerprint('"""Says."""\na = 1  # one\n', "def test_a():\n    assert a == 1\n")
    assert fingerprint('"""Says it better."""\na = (1)\n', 'def test_a():\n    "Why."\n    assert a == 1\n') == first
    assert fingerprint('"""Says."""\na = 1\nb = 1\n', "def test_a():\n    assert a == 1\n") != first
    assert fingerprint('"""Says."""\na = 1\n', "def test_a():\n    assert a != 1\n") != first
