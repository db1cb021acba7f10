"""Paper 003's rows, the rules by which its answers are judged, and what the page says of them."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from dpaudit.training.models import CNN8
from experiments.common import Rows
from experiments.paper003 import claims, page, questions
from experiments.paper003.bench import COUNTS, SCALES, TEMPERATURES
from experiments.paper003.claims import COMPARISONS, EQUAL, LESS, MORE, Tally
from experiments.paper003.runs import Found, Judged

MODELS, REPEATS, SAMPLES, LABEL = 30, 2, 10, 3
LEAKS, LEAKS_NOT = 1, 3  # data sets: of the first the samples' spread tells who was a member, of the other nothing


def said(rng, number):
    """What networks say of a target: predictions that tell nothing, and samples that all agree for members."""
    member = rng.random(MODELS * REPEATS) < 0.5
    plain = rng.normal(0, 0.2, (len(member), 10)).astype(np.float32)
    spread = np.where(member & (number == LEAKS), 0.05, 1.0)[:, None, None]
    noise = rng.normal(0, 1, (len(member), SAMPLES, 10)) * spread
    return Found(member, plain, (plain[:, None] + noise).astype(np.float32), np.zeros((1, 1)))


def looked(rng, labels):
    """Of two networks, right more often than not."""
    n = len(labels)

    def probabilities(kinds):
        values = rng.normal(0, 1, (2, kinds, n, 10))
        values[..., np.arange(n), labels] += 2
        return np.exp(values) / np.exp(values).sum(axis=-1, keepdims=True)

    mean = probabilities(len(TEMPERATURES))
    return Judged(probabilities(1)[:, 0], probabilities(len(COUNTS)), mean, mean * (1 - mean))


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Of two data sets, by the experiment's own code on networks that were drawn rather than trained."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 50)
    bench = SimpleNamespace(
        scale=SCALES["digits"]._replace(models=MODELS, repeats=REPEATS, samples=SAMPLES),
        noise=0.7,
        name="digits",
        model=CNN8(10),
        rows=SimpleNamespace(shadow=np.arange(600)),
        labels=labels,
        evaluated=np.arange(50),
        epsilon=lambda: {"PLD": 22.5, "Renyi": 25.625},
    )
    kept = Rows("003", "mc_dropout_risk", str(tmp_path_factory.mktemp("rows")), 0)
    for name in ("quick", "digits"):
        book = questions.Book(bench, name, kept, jax.random.key(1))  # pyright: ignore[reportArgumentType]
        questions.trained(book, looked(rng, labels))
        if name == "quick":
            continue
        for number in (LEAKS, LEAKS_NOT):
            found = said(rng, number)
            for answer in (questions.question_1, questions.question_2, questions.question_3):
                answer(book, number, LABEL, found)
        book.write("white_box", {"by": "one training"}, 11.5, guesses=562_000)
        book.write("white_box", {"by": "as many trainings"}, 2.25, of_all=5.5, networks=60, ceiling=2.75)
        many = {"each": [0.0, 0.5], "right": 0.75, "targets": 600, "runs": 2, "ceiling": 3.5, "samples": 100}
        book.write("one_run", {"seen": "mean"}, 0.25, **many)
    return kept.rows


@pytest.fixture(scope="module")
def digits(rows):
    return [row for row in rows if row["setting"]["scale"] == "digits"]


@pytest.mark.parametrize(
    "low, high, more, less, equal",
    [
        (0.01, 0.2, True, False, False),
        (-0.2, -0.01, False, True, False),
        (-0.2, 0.01, None, None, None),
        (-0.1, 0.1, None, None, True),
        (0.01, 0.09, True, False, True),
        (-np.inf, np.inf, None, None, None),
    ],
)
def test_what_an_interval_says(low, high, more, less, equal):
    found = [claims.verdict(low, high, second, 0.1) for second in (MORE, LESS, EQUAL)]
    assert found == [more, less, equal]


@pytest.mark.parametrize(
    "verdicts, text",
    [
        ([True, True], "holds (2 / 0 / 0)"),
        ([True, None], "holds in part (1 / 0 / 1)"),
        ([False, False], "the opposite holds (0 / 2 / 0)"),
        ([False, None], "the opposite holds in part (0 / 1 / 1)"),
        ([True, False], "both occur (1 / 1 / 0)"),
        ([None], "open (0 / 0 / 1)"),
    ],
)
def test_what_comparisons_say_together(verdicts, text):
    assert str(claims.tally(verdicts)) == text


def test_estimates_are_apart_by_standard_errors():
    """Two outputs of four repeats with deviation 1: their difference is known to 2 sqrt(1/4 + 1/4) = 1.41."""
    for apart, wanted in ((1.42, (1, 0, 0)), (1.40, (0, 0, 1)), (-1.42, (0, 1, 0))):
        assert claims.by_estimate(COMPARISONS[0], two_outputs(1 + apart), above_null=False) == Tally(*wanted)
    # half of the difference is the nulls' own, whose 20 estimates make it known to 1.41 sqrt(1 + 4/20) = 1.55
    for apart, wanted in ((1.56, (1, 0, 0)), (1.53, (0, 0, 1))):
        found = claims.by_estimate(COMPARISONS[0], two_outputs(1 + apart + 2, null=2), above_null=True)
        assert found == Tally(*wanted)
    single = two_outputs(9.0, repeats=1, deviation=None)
    assert claims.by_estimate(COMPARISONS[0], single, above_null=False) == Tally(0, 0, 1)


def two_outputs(second, *, null=0.0, repeats=4, deviation: float | None = 1.0):
    """Rows of one comparison of research question 1."""
    one = {"part": 1, "target": 1, "seen": "deterministic"}
    other = one | {"seen": "mean std"}
    same = {"deviation": deviation}
    return [
        {"quantity": "trained", "setting": {}, "repeats": repeats},
        {"quantity": "epsilon", "setting": one, "ours": 1.0, "null": 0.0} | same,
        {"quantity": "epsilon", "setting": other, "ours": second, "null": null} | same,
        {"quantity": "advantage", "setting": other | {"to": "deterministic", "attack": "thresholds"}},
    ]


def test_the_honest_comparison_finds_the_leak_and_nothing_else(digits):
    """In the data set whose samples leak, not in the other; a claim that is turned round has it against itself."""
    more, one, *_ = COMPARISONS
    for number, wanted in ((LEAKS, Tally(3, 0, 0)), (LEAKS_NOT, Tally(0, 0, 3))):
        own = [row for row in digits if row["setting"].get("target") == number]
        for attack in ("thresholds", "ratio"):
            assert claims.by_advantage(more, own, attack) == wanted
            turned = claims.by_advantage(more._replace(second=LESS), own, attack)
            assert turned == Tally(wanted.opposite, wanted.holds, wanted.open)
        fewer = claims.by_advantage(one, own, "thresholds")  # wider intervals: among more comparisons
        assert (fewer.holds > 0, fewer.opposite) == (number == LEAKS, 0)


def test_the_page_says_what_the_rows_say(rows, digits):
    whole = [
        {"quantity": "full_accounted", "setting": {"accounting": name}, "ours": epsilon}
        for name, epsilon in (("Renyi", 25.63), ("PLD", 23.13))
    ]
    took = {"quantity": "hours", "setting": {"scale": "digits"}, "ours": 0.724}
    text = page.what_was_run([*rows, *whole, took])
    assert "quick" not in text
    assert "| records of D' | 50,000 | 600 |" in text
    assert "| promised ε at δ = 1e-05, Renyi | 25.63; recomputed 25.63 | 25.62 |" in text
    assert "| promised ε at δ = 1e-05, PLD | 23.13 | 22.50 |" in text
    assert "| hours | – | 0.72 |" in text
    text = page.answers(rows)
    assert "| RQ1: samples leak more than one prediction | digits |" in text
    assert text.count("**holds in part (3 / 0 / 3)**") >= 2
    text = page.beyond(rows)
    assert "| digits: white box, as many trainings | 60 trainings | 2.25 | 2.75 | 5.50 |" in text
    assert "| digits: one run, mean | 2 networks, 600 targets each | 0.25 [0.00, 0.50] | 3.50 |" in text


def test_a_claim_is_judged_where_as_many_networks_were_trained_as_in_the_paper(rows, monkeypatch):
    assert claims.large(rows) == {}
    monkeypatch.setattr(claims, "ENOUGH", MODELS * REPEATS)
    assert claims.by_comparisons(COMPARISONS[0], rows).holds is None  # for in one data set, open in the other
    leaking = [row for row in rows if row["setting"].get("target") != LEAKS_NOT]
    assert claims.by_comparisons(COMPARISONS[0], leaking).holds is True
    assert claims.by_comparisons(COMPARISONS[0]._replace(second=LESS), leaking).holds is False
