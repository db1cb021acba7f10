"""Noise that the output shows by itself, and noisy values whose place depends on the data, are left to the audit."""

from collections import Counter

import numpy as np
import pytest

from dpaudit import Claim, record

X0, X1 = np.array([0.0, 1.0]), np.array([1.0, 1.0])
REVEALED = "the output depends on noise other than through the values that it hides"


def in_an_array(rng, x):
    noise = rng.laplace(0, 1)
    return np.array([x.sum() + noise, noise])


def as_a_float(rng, x):
    noise = rng.laplace(0, 1)
    return {"value": float(x.sum() + noise), "noise": float(noise)}


def rounded_inside(rng, x):
    noise = rng.laplace(0, 1)
    return {"value": x.sum() + noise, "info": {"noise": round(float(noise), 4)}}


def in_a_text(rng, x):
    noise = rng.laplace(0, 1)
    return f"value={x.sum() + noise:.3f}, noise={noise:.3f}"


def its_sign(rng, x):
    noise = rng.laplace(0, 1)
    return [x.sum() + noise, float(noise) > 0]


def redrawn_if_large(rng, x):
    noise = rng.laplace(0, 1)
    while abs(float(noise)) > 8:
        noise = rng.laplace(0, 1)
    return x.sum() + noise


def both_parts(rng, x):
    one, other = rng.normal(size=2)
    return [x.sum() + (one + other), one, other]


def shares_of_a_sum(rng, x):
    noise = rng.normal(size=3)
    return {"total": x.sum() + noise.sum(), "shares": noise}


def before_rounding(rng, x):
    noise = rng.laplace(0, 1)
    return [x.sum() + np.rint(noise), noise]


def noise_beside(rng, x):
    noise = rng.laplace(0, 1)
    return {
        "value": float(x.sum() + noise),
        "text": f"{x.sum() + rng.laplace(0, 1):.3f}",
        "noise": float(rng.laplace()),
    }


def only_the_sum(rng, x):
    noise = rng.normal(size=3)
    return {"total": x.sum() + noise.sum(), "other": rng.normal(size=3)}


def added_twice(rng, x):
    noise = rng.laplace(0, 1)
    return [x.sum() + noise, noise + x.sum() + 1]


def only_rounded(rng, x):
    return [x.sum() + np.rint(rng.laplace(0, 1)), rng.laplace(0, 1)]


@pytest.mark.parametrize(
    "fn", [in_an_array, as_a_float, rounded_inside, in_a_text, its_sign, redrawn_if_large, before_rounding]
)
def test_laplace_noise_beside_the_noisy_value_is_left_to_the_audit(fn):
    found = record(fn, X0, X1, claim=Claim(1.0), trials=0)
    assert (found.verdict, found.left, found.epsilon) == ("underpowered", (REVEALED,), None), str(found)


@pytest.mark.parametrize("fn", [both_parts, shares_of_a_sum])
def test_gaussian_noise_whose_parts_are_returned_is_left_to_the_audit(fn):
    found = record(fn, X0, X1, claim=Claim(8.0, 1e-5), trials=0)
    assert (found.verdict, found.left) == ("underpowered", (REVEALED,)), str(found)


@pytest.mark.parametrize(
    "fn, claim",
    [
        (noise_beside, Claim(2.0)),
        (only_the_sum, Claim(8.0, 1e-5)),
        (only_rounded, Claim(1.0)),
        (added_twice, Claim(1.0)),
    ],
)
def test_other_noise_may_be_returned(fn, claim):
    found = record(fn, X0, X1, claim=claim, trials=0)
    assert found.verdict == "consistent", str(found)


@pytest.mark.integration
def test_the_audit_finds_noise_beside_the_noisy_value():
    assert record(in_a_text, X0, X1, claim=Claim(1.0), trials=2_000).verdict == "violation"


def sum_with_a_part(rng, x):
    both = rng.normal(size=2)
    return x.sum() + (both.sum() - both[0])


def sum_with_another(rng, x):
    both = rng.normal(size=3)
    return x.sum() + (both[:2].sum() - both[2])


def one_noise_at_two_places(rng, x):
    noise = rng.normal(size=2)
    return x + (noise + noise[::-1])


def noise_that_is_taken_away_again(rng, x):
    kept, lost = rng.normal(size=2)
    return x.sum() + ((kept + lost) - lost)


def test_a_sum_of_noises_is_gaussian_only_if_they_are_independent():
    claim = Claim(8.0, 1e-5)
    apart = record(sum_with_another, X0, X1, claim=claim, trials=0)
    assert apart.epsilon_returned == pytest.approx(Claim.gaussian(3**-0.5).epsilon_at(1e-5))
    for fn in (sum_with_a_part, one_noise_at_two_places, noise_that_is_taken_away_again):
        found = record(fn, X0, X1, claim=claim, trials=0)
        assert found.verdict == "underpowered"
        alone = fn is one_noise_at_two_places  # each of its two sums is Gaussian, and they are one
        assert {noise.law for noise in found.noises} == {"gaussian" if alone else "unknown"}
    assert {noise.law for noise in apart.noises} == {"gaussian"}


def of_the_first_row(rng, rows):
    counts = Counter(rows)
    noisy = [counts[key] + rng.laplace(0, 1) for key in "ab"]
    return noisy["ab".index(rows[0])]


def of_a_fixed_row(rng, rows):
    counts = Counter(rows)
    noisy = [counts[key] + rng.laplace(0, 1) for key in "ab"]
    return noisy[1]


def in_an_order_of_the_data(rng, x):
    one, other = x[0] + rng.laplace(0, 1), 20 + rng.laplace(0, 1)
    return (one, other) if x[0] < 0.5 else (other, one)


def in_a_fixed_order(rng, x):
    return x[0] + rng.laplace(0, 1), 20 + rng.laplace(0, 1)


ROWS = "a" + "b" * 40, "b" * 41


@pytest.mark.parametrize(
    "fn, kept, inputs, claim",
    [
        (of_the_first_row, of_a_fixed_row, ROWS, Claim(2.0)),
        (in_an_order_of_the_data, in_a_fixed_order, (X0, X1), Claim(1.0)),
    ],
)
def test_data_that_choose_among_noisy_values_are_left_to_the_audit(fn, kept, inputs, claim):
    found = record(fn, *inputs, claim=claim, trials=0)
    assert (found.verdict, found.kinds) == ("underpowered", frozenset()), str(found)
    assert found.left[0].startswith("which noisy value is returned at output")
    assert record(kept, *inputs, claim=claim, trials=0).verdict == "consistent"


def counted(rng, rows):
    noisy = {key: count + rng.laplace(0, 1) for key, count in Counter(rows).items()}
    return np.array([noisy.get(key, 0.0) for key in "ab"])


def counted_in_order(rng, rows):
    return np.array([rows.count(key) + rng.laplace(0, 1) for key in "ab"])


def sorted_by_value(rng, x):
    return sorted(value + rng.laplace(0, 1) for value in x)


def sorted_array(rng, x):
    return np.sort(x + rng.laplace(0, 1, len(x)))


def sorted_by_index(rng, x):
    noisy = x + rng.laplace(0, 1, len(x))
    return noisy[np.argsort(noisy)]


def unsorted(rng, x):
    return [value + rng.laplace(0, 1) for value in x]


SWAPPED = np.array([1.0, 5.0]), np.array([5.0, 1.0])


@pytest.mark.parametrize(
    "fn, inputs",
    [
        (counted, ("abbbba", "bbbbba")),
        (sorted_by_value, SWAPPED),
        (sorted_array, SWAPPED),
        (sorted_by_index, SWAPPED),
    ],
)
def test_noises_may_change_places(fn, inputs):
    """The order in which equal noises are drawn is no fault."""
    found = record(fn, *inputs, claim=Claim(2.0), trials=0)
    assert (found.verdict, found.kinds) == ("underpowered", frozenset()), str(found)


def test_values_that_the_other_input_exchanges_prove_nothing():
    """Both inputs give 0 and 1 with noise in this order, so nothing is lost."""

    def in_order(rng, x):
        first, second = x[0] + rng.laplace(), x[1] + rng.laplace()
        return [first, second] if x[0] < 0.5 else [second, first]

    found = record(in_order, np.array([0.0, 1.0]), np.array([1.0, 0.0]), claim=Claim(0.5), trials=0)
    assert found.verdict == "underpowered"
    twin = record(in_order, np.array([0.0, 1.0]), np.array([0.0, 2.0]), claim=Claim(0.5), trials=0)
    assert twin.verdict == "violation"  # in the same places


@pytest.mark.parametrize("fn, inputs", [(counted_in_order, ("abbbba", "bbbbba")), (unsorted, SWAPPED)])
def test_noises_that_stay_in_place_are_composed(fn, inputs):
    found = record(fn, *inputs, claim=Claim(1.5), trials=0)
    assert (found.verdict, found.kinds <= {"budget", "sensitivity"}) == ("violation", True), str(found)


def noise_of_an_index(rng, x):
    return x.sum() + rng.laplace(0, 1, 4)[int(x[0])]


def in_the_order_of_the_data(rng, x):
    return (x + rng.laplace(0, 1, 2))[np.argsort(x)]


def sign_of_the_data(rng, x):
    return x.sum() + (1 if x[0] < 0.5 else -1) * rng.laplace(0, 1)


def scale_of_an_index(rng, x):
    return x.sum() + np.array([1.0, 2.0])[int(x[0])] * rng.laplace(0, 1)


@pytest.mark.parametrize(
    "fn, other",
    [(noise_of_an_index, X1), (sign_of_the_data, X1), (in_the_order_of_the_data, np.array([1.5, 1.0]))],
)
def test_another_noise_of_one_scale_is_no_other_scale(fn, other):
    found = record(fn, X0, other, claim=Claim(50.0), trials=0)
    assert (found.verdict, found.kinds) == ("underpowered", frozenset()), str(found)


def test_another_scale_is_found():
    assert "data_dependent_scale" in record(scale_of_an_index, X0, X1, claim=Claim(50.0), trials=0).kinds
