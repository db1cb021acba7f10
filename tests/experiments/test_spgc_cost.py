"""What a training costs: the paper's networks and steps, counted; a few real steps; what the page says of them."""

import pytest

from dpaudit.secure.protocol import agreement
from experiments.common import Rows
from experiments.paper001 import cost as spgc_cost
from experiments.paper001 import more_claims, page, page_real, published
from experiments.paper001.cost import EPSILONS, OWNERS, TRAININGS


def test_the_networks_are_the_paper_s():
    assert [training.parameters for training in TRAININGS] == [182, 642, 21_258, 141_738]
    assert [(training.data, training.reading) for training in TRAININGS[2:]] == [
        ("MNIST", "channels together"),
        ("MNIST", "channels apart"),
    ]
    assert all(len(training.paper_hours) == len(EPSILONS) for training in TRAININGS)


def test_steps_follow_from_the_paper_s_bytes():
    """A ring of 17 bits: 16 ANDs, 17 labels, as many transfers of 16 bytes, 17 bits of decoding, four bytes back."""
    assert spgc_cost.plain_bytes() == 16 * 32 + 17 * 16 + 17 * 16 + 17 / 8 + 4 == 1_062.125
    assert spgc_cost.general_bytes() == spgc_cost.plain_bytes() + 17 * 32 == 1_606.125
    assert [spgc_cost.steps(training) for training in TRAININGS] == [204_338, 6_453, 12_809, 1_921]


CANCER = TRAININGS[0]._replace(paper_plain_gb=1e-3)  # five steps


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Cancer with steps of half a second, and of real ones at one epsilon; bytes at one."""
    made = Rows("001", "spgc_cost", str(tmp_path_factory.mktemp("cost")), 0)
    made.add("steps", {"data": "Cancer", "reading": "", "d": 182}, spgc_cost.steps(CANCER), scale="")["epochs"] = 0
    for mode, depth in spgc_cost.MODES:
        noise = 1.0 if mode == "noisy" else None
        terms = agreement.terms(
            owners=OWNERS,
            dimension=182,
            examples=30,
            noise_multiplier=noise,
            mode=mode,
            depth=depth,
            protocol="circuit",
        )
        how = {"data": "Cancer", "reading": "", "d": 182, "link": "loopback", "mode": mode, "depth": depth}
        made.spread("step_seconds", how, [0.25, 0.5, 0.75], scale="")
        spgc_cost.costs(made, how, CANCER, terms, 0.5)
    spgc_cost.by_epsilon(made, (CANCER,), EPSILONS[:1], 1)
    spgc_cost.tables(made, (8.0,), ("MNIST",))
    return made.rows


def found(rows, quantity, **setting):
    return [row for row in rows if row["quantity"] == quantity and setting.items() <= row["setting"].items()]


def test_hours_are_seconds_times_steps(rows):
    (steps,) = found(rows, "steps")
    assert steps["ours"] == round(1e6 / (1_062.125 * 182)) == 5
    (noisy,) = found(rows, "hours", mode="noisy", depth=1)
    assert noisy["ours"] == pytest.approx(5 * 0.5 / 3600)
    assert (noisy["paper_value"], noisy["times_as_fast"]) == (10.63, pytest.approx(10.63 / noisy["ours"]))
    (plain,) = found(rows, "hours", mode="plain")
    assert (plain["paper_value"], plain["times_as_fast"]) == (None, None)


def test_real_steps_are_timed_at_each_epsilon(rows):
    """Servers learn of the noise by its multiplier, here 378 clip norms; the sum that they open is checked."""
    (step,), (hours,) = found(rows, "epsilon_seconds"), found(rows, "epsilon_hours")
    assert step["setting"] == hours["setting"] == {"data": "Cancer", "reading": "", "epsilon": 0.01}
    assert 0 < step["ours_low"] <= step["ours"] <= step["ours_high"] < 60
    assert (hours["ours"], hours["paper_value"]) == (pytest.approx(5 * step["ours"] / 3600), 11.03)


def test_bytes_of_noise_grow_with_the_table_alone(rows):
    (table,) = found(rows, "table_bytes", circuit="table")
    (binomial,) = found(rows, "table_bytes", circuit="binomial")
    assert (table["ours"], binomial["ours"]) == (14_816, 5_088)
    assert table["ours"] == 32 * table["ands"]


def test_the_page_tells_of_all_of_them(rows):
    assert "| Cancer: SPGC, IKNP | 182 | 5 (0) | 0.500 [0.250, 0.750] |" in page.trainings(rows)
    assert "| Cancer, d = 182: SPGC, IKNP | 0.500 [0.250, 0.750] | – | – |" in page.links(rows)
    assert "| MNIST, binomial | 5,088 |" in page.table_bytes(rows)
    assert "| MNIST, the paper's GB | 5,018.8 |" in page.table_bytes(rows)
    found = page.steps_of_paper(rows)
    assert (found.values["plain"], found.values["general"]) == (1_062.125, 1_606.125)


def test_what_is_printed_twice_is_the_same():
    for data, printed in published.GIGABYTES_BY_EPSILON.items():
        assert (printed[0], printed[-1]) == published.NOISY_GIGABYTES[data]
        assert printed[more_claims.TYPICAL] == published.GIGABYTES[data][0]
        assert tuple(hours.training for hours in published.BY_EPSILON[data]) == published.HOURS[data]


def test_bytes_that_grow_at_every_step_are_not_said_to_fall_in_between(monkeypatch):
    assert page_real.paper_bytes([]).holds
    told = page_real.paper_bytes([]).values["told"]
    assert told == "on Cancer 707.8 at ε = 0.1 after 711.7 at 0.5; on Diabetes 78.4 at ε = 0.1 after 78.9 at 0.5"
    for twin in ((5.0, 4.0, 3.0, 2.0, 1.0), (1.0, 4.0, 3.0, 2.0, 1.0)):  # at every step; not from end to end
        monkeypatch.setattr(page_real, "GIGABYTES_BY_EPSILON", {"MNIST": twin})
        assert not page_real.paper_bytes([]).holds


def of_hours(**by_data):
    """Hours of SPGC on each data set, by epsilon."""
    return [
        {"quantity": "training_hours", "setting": {"data": data, "scheme": "SPGC", "epsilon": epsilon}}
        | {"ours": ours, "scale": "timed"}
        for data, hours in by_data.items()
        for epsilon, ours in hours.items()
    ]


@pytest.mark.parametrize("more, holds", [(1.2, True), (1.05, None), (0.95, None), (0.8, False)])
def test_hours_grow_where_they_do_by_more_than_the_machine_s(more, holds):
    rows = of_hours(Cancer={8.0: 1.0, 0.5: more, 0.01: 0.5})
    assert more_claims.grows(rows, "Cancer", 0.5).holds is holds
    assert more_claims.grows(rows, "Cancer").holds is False  # at the smallest


@pytest.mark.parametrize("times, holds", [(1.07, False), (50.0, True), (30.0, True), (20.0, False), (150.0, False)])
def test_hours_are_in_proportion_to_the_noise_where_fifty_times_as_much_takes_about_fifty_times_as_long(times, holds):
    rows = of_hours(
        **{data: {0.5: 2.0, 0.01: 2.0 * times} for data in ("MNIST", "Cancer")}, Diabetes={0.5: 1, 0.01: 50}
    )
    assert more_claims.proportional(rows).holds is holds


def test_hours_that_the_text_adds_are_beside_those_of_its_table():
    assert more_claims.longer_in_table("Cancer").endswith("10.76 against 10.63: 0.13 hours, +1.2%")
    assert more_claims.longer_in_table("Diabetes").endswith("1.23 against 1.21: 0.02 hours, +1.7%")
    assert more_claims.proportion_in_table() == (
        "in its table MNIST +1.5%, Cancer +2.5%, Diabetes +2.4% for 50 times the noise"
    )
