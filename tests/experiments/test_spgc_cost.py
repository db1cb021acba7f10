"""What a training costs: the paper's networks and steps, counted; a few real steps; what the page says of them."""

import pytest

from dpaudit.secure.noise import gaussian
from dpaudit.secure.protocol import agreement
from experiments.common import Rows
from experiments.paper001 import cost as spgc_cost
from experiments.paper001 import page, published
from experiments.paper001.cost import EPSILONS, OWNERS, TRAININGS


def test_the_networks_are_the_paper_s():
    assert [training.parameters for training in TRAININGS] == [182, 642, 21_258, 141_738]
    assert [(training.data, training.reading) for training in TRAININGS[2:]] == [
        ("MNIST", "channels together"),
        ("MNIST", "channels apart"),
    ]
    assert all(len(published.HOURS[training.data]) == len(EPSILONS) for training in TRAININGS)


def test_steps_follow_from_the_paper_s_bytes():
    """A ring of 17 bits: 16 ANDs, 17 labels, as many transfers of 16 bytes, 17 bits of decoding, four bytes back."""
    assert spgc_cost.plain_bytes() == 16 * 32 + 17 * 16 + 17 * 16 + 17 / 8 + 4 == 1_062.125
    assert spgc_cost.general_bytes() == spgc_cost.plain_bytes() + 17 * 32 == 1_606.125
    assert [spgc_cost.steps(training) for training in TRAININGS] == [204_338, 6_453, 12_809, 1_921]


CANCER = TRAININGS[0]._replace(paper_plain_gb=1e-3)  # five steps


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Cancer with steps of half a second; bytes at one epsilon."""
    made = Rows("001", "spgc_cost", str(tmp_path_factory.mktemp("cost")), 0)
    made.add("steps", {"data": "Cancer", "reading": "", "d": 182}, spgc_cost.steps(CANCER), scale="")["epochs"] = 0
    for mode, depth in spgc_cost.MODES:
        noise = 1.0 if mode == "noisy" else None
        terms = agreement.terms(
            owners=OWNERS, dimension=182, examples=30, noise_multiplier=noise, mode=mode, depth=depth
        )
        how = {"data": "Cancer", "reading": "", "d": 182, "link": "loopback", "mode": mode, "depth": depth}
        made.spread("step_seconds", how, [0.25, 0.5, 0.75], scale="")
        spgc_cost.costs(made, how, CANCER, terms, 0.5)
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


def test_real_steps_are_timed():
    """Servers learn of the noise by its multiplier, here 378 clip norms; the sum that they open is checked."""
    multiplier = gaussian.classical(epsilon=EPSILONS[0], delta=spgc_cost.DELTA)
    terms = agreement.terms(owners=OWNERS, dimension=182, examples=30, noise_multiplier=multiplier)
    (took,) = spgc_cost.whole_steps(terms, multiplier, None, 1)
    assert 0 < took < 60


def test_bytes_of_noise_grow_with_the_table_alone(rows):
    (table,) = found(rows, "table_bytes", circuit="table")
    (binomial,) = found(rows, "table_bytes", circuit="binomial")
    assert (table["ours"], binomial["ours"]) == (14_816, 5_088)
    assert table["ours"] == 32 * table["ands"]


def test_the_page_tells_of_all_of_them(rows):
    assert "| Cancer: SPGC, IKNP | 182 | 5 (0) | 0.500 [0.250, 0.750] |" in page.trainings(rows)
    assert "| Cancer, d = 182: SPGC, IKNP | 0.500 [0.250, 0.750] | – | – |" in page.links(rows)
    assert "| MNIST, binomial | 5,088 |" in page.table_bytes(rows)
    found = page.steps_of_paper(rows)
    assert (found.values["plain"], found.values["general"]) == (1_062.125, 1_606.125)
