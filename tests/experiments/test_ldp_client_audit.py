"""Paper 000's experiment: what is made again of one data set, and the paper's numbers beside it."""

import pytest

from experiments.paper000.published import EPSILONS, QUOTED, TABLE_1
from experiments.paper000.run import AUDITED, of_others, published


@pytest.mark.parametrize("quantity", AUDITED)
def test_audits_of_a_data_set_are_made_again_and_all_else_stays(quantity):
    keep = of_others(["mnist", "cifar10"])
    for dataset, kept in (
        ("mnist", False),
        ("cifar10 (JPEG)", False),
        ("cifar10_exact_subset", True),
        ("digits", True),
    ):
        assert keep({"quantity": quantity, "setting": {"dataset": dataset}}) is kept
    assert keep({"quantity": "sweep_accuracy_percent", "setting": {"dataset": "mnist"}})
    assert keep({"quantity": "worst_pair_norm", "setting": {}})


def test_the_paper_s_numbers_stand_beside_its_own_settings_alone():
    assert published("benign", 4.0) == (TABLE_1["benign"][EPSILONS.index(4.0)], QUOTED["benign"])
    assert published("dummy", 0.5) == (TABLE_1["dummy"][0], None)
    assert published("likeliest_flip", 4.0) == published("benign", 3.0) == (None, None)
