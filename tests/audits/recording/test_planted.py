"""Planted faults are found by replaying, each in under a second, and their mended twins are not accused."""

import time

import pytest

from dpaudit import record
from tests.audits.recording.planted import PLANTED

CASES = [pytest.param(one, id=one.faulty.__name__) for one in PLANTED]


@pytest.fixture(scope="module", autouse=True)
def warm():
    """Loads what the first call of a process loads."""
    one = PLANTED[0]
    record(one.mended, one.x0, one.x1, claim=one.claim, trials=0)


def test_there_are_enough_kinds():
    assert len(PLANTED) >= 13
    assert len({one.kind for one in PLANTED}) >= 10


@pytest.mark.parametrize("one", CASES)
def test_the_fault_is_found(one):
    start = time.process_time()
    found = record(one.faulty, one.x0, one.x1, claim=one.claim, trials=0)
    assert time.process_time() - start < 1
    assert one.kind in found.kinds, str(found)
    assert found.verdict == "violation", str(found)
    assert any("planted.py:" in finding.where for finding in found.findings) or one.kind == "data_dependent_output"


@pytest.mark.parametrize("one", CASES)
def test_the_mended_twin_is_not_accused(one):
    found = record(one.mended, one.x0, one.x1, claim=one.claim, trials=0)
    assert found.findings == (), str(found)
    assert found.verdict == "consistent", str(found)
