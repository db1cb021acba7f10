"""Every planted fault is caught, its twin is not, and the quick way to audit a twin is the library's own."""

import jax
import numpy as np
import pytest

from dpaudit.auditing.bounds import sequential
from experiments.common import Rows
from experiments.trust import claims, fault_zoo, page
from experiments.trust.zoo import FAMILIES, calibration, clipping, randomness, rounding

ZOO = [fault for faults in FAMILIES.values() for fault in faults]
KEY = jax.random.key(5)


def test_the_zoo_is_whole():
    assert len(ZOO) >= 20
    assert len({fault.name for fault in ZOO}) == len(ZOO)
    assert sum("sparse vector" in fault.name for fault in ZOO) == 6
    for fault in ZOO:
        assert fault.fault.claim == fault.twin.claim
        assert fault.fault.claim is not None
        assert fault.true_epsilon > fault.fault.claim.epsilon
        assert fault.source


@pytest.mark.parametrize("fault", [f for f in ZOO if f.trials <= 200_000], ids=lambda fault: fault.name)
def test_a_fault_is_caught_by_trials(fault):
    found = fault_zoo.audit(fault.fault, fault.attacks[-1], KEY, trials=fault.trials, until=sequential.violation())
    assert found.verdict == "violation"


@pytest.mark.slow
def test_the_classical_formula_is_caught_by_millions_of_trials():
    (fault,) = (fault for fault in ZOO if fault.trials > 200_000)
    found = fault_zoo.audit(fault.fault, fault.attacks[-1], KEY, trials=fault.trials, until=sequential.violation())
    assert found.verdict == "violation"


LOOKED = [*clipping.FAULTS[:1], *calibration.FAULTS[1:2], *randomness.FAULTS, *rounding.FAULTS[:1]]


@pytest.mark.parametrize(
    "fault, kind",
    list(
        zip(
            LOOKED,
            ["sensitivity", "sensitivity", "shared_noise", "shared_noise", *["key_reuse"] * 2, "low_precision"],
            strict=True,
        )
    ),
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_gray_box_check_tells_the_fault_from_its_twin(fault, kind):
    assert kind in fault_zoo.look(fault.fault, fault)
    assert fault_zoo.look(fault.twin, fault) == []


@pytest.mark.parametrize("fault", [clipping.FAULTS[0], calibration.FAULTS[-1]], ids=lambda fault: fault.name)
def test_many_audits_of_one_game_are_the_library_s_own(fault):
    """The first stretch is the audit of that many trials under the same key; of a fault, every stretch accuses."""
    attack, trials = fault.attacks[-1], 20_000
    lower, accused = fault_zoo.lower_bounds(fault.fault, attack, KEY, audits=3, trials=trials)
    assert lower[0] == fault_zoo.audit(fault.fault, attack, KEY, trials=trials).epsilon_lower
    assert np.all(lower > fault.fault.claim.epsilon)
    assert accused.all()


def test_a_row_for_the_fault_and_one_for_its_twin(tmp_path):
    rows = Rows("auditor", "fault_zoo", str(tmp_path), 0)
    fault = rounding.FAULTS[2]._replace(trials=50_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(fault_zoo.ZOO, fault.name, ("rounding", fault))
        rows.run(fault_zoo.examine, fault.name)
        rows.run(fault_zoo.false_alarms, [fault.name], 10, 2_000)
    planted, twin, *alarms = rows.rows
    assert planted["setting"]["verdict"] == "violation"
    assert twin["setting"]["verdict"] == "consistent"
    assert [row["ours"] for row in alarms] == [0, 0]
    assert claims.all_caught(rows.rows).ours == "1 of 1 caught"
    assert f"| {fault.name} | 5, replace | 5.54 | trials |" in page.faults(rows.rows)
