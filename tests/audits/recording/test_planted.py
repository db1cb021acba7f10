"""Planted faults are found by replaying, and their mended twins are not accused."""

import pytest

from dpaudit import record
from tests.audits.recording.planted import PLANTED

CASES = [pytest.param(one, id=one.faulty.__name__) for one in PLANTED]


def test_there_are_enough_kinds():
    assert len(PLANTED) >= 13
    assert len({one.kind for one in PLANTED}) >= 10


@pytest.mark.parametrize("one", CASES)
def test_the_fault_is_found(one):
    found = record(one.faulty, one.x0, one.x1, claim=one.claim, trials=0)
    assert one.kind in found.kinds, str(found)
    assert found.verdict == "violation", str(found)
    assert any("planted.py:" in finding.where for finding in found.findings) or one.kind == "data_dependent_output"


@pytest.mark.parametrize("one", CASES)
def test_the_mended_twin_is_not_accused(one):
    found = record(one.mended, one.x0, one.x1, claim=one.claim, trials=0)
    assert found.findings == (), str(found)
    assert found.verdict == "consistent", str(found)
